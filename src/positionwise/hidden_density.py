"""How many hidden units are at work: the share that is not zero, and tensor2tensor's logit of it.

A ReLU leaves about half of the hidden units at zero, a trained one often far more: that is work a sparse path could
spare. What is measured enters the second map, so it comes after the activation, the gate and dropout. Positions that
hold padding count like any other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from positionwise.errors import InputError, SpecError
from positionwise.feedforward import FeedForward

EPSILON = math.exp(-10)
"""Keeps the logit within ±10.00005."""


def hidden_density_logit(hidden: Tensor) -> Tensor:
    """log(f + e⁻¹⁰) − log(1 − f + e⁻¹⁰) of each channel, where f is the share of positions with a unit above zero.

    Args:
        hidden: (..., channels).

    Returns:
        (channels,), in hidden's dtype, but at least float32; nan where there is no position.

    Raises:
        InputError: for a tensor without axes.

    Source: tensor2tensor v1.0.14, ``common_layers.relu_density_logit`` over all axes but the last.
    """
    if hidden.dim() == 0:
        raise InputError(f"expected hidden units of shape (..., channels); got {tuple(hidden.shape)}")
    return _logit(_positive(hidden), math.prod(hidden.shape[:-1]), torch.promote_types(hidden.dtype, torch.float32))


def _positive(hidden: Tensor) -> Tensor:
    """How many positions of each channel are above zero."""
    return (hidden > 0).unsqueeze(0).flatten(0, -2).sum(0)


def _logit(positive: Tensor, positions: int, dtype: torch.dtype) -> Tensor:
    """The logit from counts; 1 − f is a count too, as in float32 a difference would lose what is left beside e⁻¹⁰."""
    above, others = positive.to(dtype) / positions, (positions - positive).to(dtype) / positions
    return (above + EPSILON).log() - (others + EPSILON).log()


class Density:
    """The hidden units of one network over all its calls, as counts: nothing of the calls themselves is kept."""

    def __init__(self) -> None:
        self.hidden_units = 0
        """Positions × d_ff that entered the second map."""
        self._nonzero = torch.zeros((), dtype=torch.int64, device="cpu")
        self._positive = torch.zeros((), dtype=torch.int64, device="cpu")

    def add(self, hidden: Tensor) -> None:
        """Count the hidden units of a call, (..., d_ff)."""
        self.hidden_units += hidden.numel()
        # Not in place: a count made in inference mode may not be written to outside it.
        self._nonzero = self._nonzero.to(hidden.device) + hidden.count_nonzero()
        self._positive = self._positive.to(hidden.device) + _positive(hidden)

    @property
    def density(self) -> float | None:
        """The share of hidden units that are not zero, of either sign; None where none was seen."""
        return int(self._nonzero) / self.hidden_units if self.hidden_units else None

    @property
    def logit(self) -> Tensor | None:
        """`hidden_density_logit` over all calls, (d_ff,), float64 on the CPU; None where none was seen."""
        if not self.hidden_units:
            return None
        positive = self._positive.cpu()
        return _logit(positive, self.hidden_units // len(positive), torch.float64)

    def __repr__(self) -> str:
        return f"Density(density={self.density}, hidden_units={self.hidden_units})"


class Densities(dict[str, Density]):
    """What `density` measures, by the networks' names in the model; prints as a table."""

    def __str__(self) -> str:
        rows = [("network", "hidden units", "nonzero")]
        for path, network in self.items():
            share = "-" if network.density is None else f"{100 * network.density:.1f} %"
            rows.append((path or "(the model)", f"{network.hidden_units:,}", share))
        first, second, third = (max(map(len, column)) for column in zip(*rows, strict=True))
        return "\n".join(f"{path:<{first}}  {units:>{second}}  {share:>{third}}" for path, units, share in rows)


@contextmanager
def density(model: nn.Module) -> Iterator[Densities]:
    """Measure the hidden units of every `FeedForward` in a model while the context is open.

    ``with density(model) as measured: model(x)``; then ``measured["encoder.layers.0.feed_forward"].density``.

    Hooks in front of the second maps count, so a block takes the path that calls its layers as long as they are there;
    a model that ``torch.compile`` has compiled already does not see them, so measure the one it was made of. Activation
    checkpointing computes hidden units twice, and they count twice.

    Args:
        model: holds `FeedForward` blocks, or is one itself, with the name "".

    Yields:
        By each block's name its `Density`, which grows with each call and stays when the context closes; None stands
        for the figures of a block that was not called. A second map that several names lead to is measured once, under
        the first.

    Raises:
        SpecError: for a model without a block.
    """
    second_maps = _second_maps(model)
    if not second_maps:
        raise SpecError(f"expected a model with FeedForward blocks to measure; got {type(model).__name__}, with none")
    measured = Densities()
    with ExitStack() as hooks:
        for path, layer in second_maps.items():
            measured[path] = Density()
            hooks.enter_context(layer.register_forward_pre_hook(_counting(measured[path])))
        yield measured


def _second_maps(model: nn.Module) -> dict[str, nn.Module]:
    """The second map of every block by the block's first name."""
    maps: dict[int, tuple[str, nn.Module]] = {}
    for path, module in model.named_modules():
        if isinstance(module, FeedForward):
            maps.setdefault(id(module.layer2), (path, module.layer2))
    return dict(maps.values())


def _counting(counts: Density) -> Any:
    """A hook that counts what enters a map."""

    def hook(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        counts.add(inputs[0])

    return hook
