"""The products of a model's own forward pass over token ids, counted on its shadow: shapes only, nothing is computed.

A multiply-add counts as two. Attention's two products are counted over all pairs of positions, as eager code computes
them, causal or sliding or not. Mixtures are passed by, since which experts run depends on numbers: they count as the
maps that each token meets. What positions go through without a product (a scan, a transform) has no count here, so a
model with such layers has none.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from positionwise.adapters import Site, linear_map
from positionwise.adapters.saved import is_table, shadow, unseen

MOST_STEPS = 60_000
"""Operations of a pass, one or two seconds' worth; published models have a tenth of it, recurrences far more."""
RETURNS: tuple[Callable[[Tensor], Any], ...] = (lambda x: x, lambda x: (x, None), lambda x: (x, None, None))
"""What mixtures give in published layers: their output alone, or beside the router's logits and the like."""


class NoCountError(Exception):
    """Why the products of a model cannot be counted."""


@dataclass(frozen=True)
class PerToken:
    """FLOPs of a mixture for one token."""

    forward: int
    backward: int


@dataclass
class _Seen:
    """What a pass counts."""

    forward: int = 0
    backward: int = 0
    between_activations: int = 0
    steps: int = 0
    in_table: bool = False
    met: set[int] = field(default_factory=set)
    without: list[str] = field(default_factory=list)
    """Layers in which no product mixed the positions."""


class _Counter(TorchDispatchMode):
    def __init__(self, weights: set[int], seen: _Seen) -> None:
        super().__init__()
        self.weights, self.seen = weights, seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.seen.steps += 1
        if self.seen.steps > MOST_STEPS:
            raise NoCountError(f"a pass takes more than {MOST_STEPS:,} operations: a recurrence over positions")
        out = func(*args, **kwargs)
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self._product(func.__name__, count(*args, **kwargs, out_val=out), args)
        return out

    def _product(self, name: str, flops: int, args: Any) -> None:
        operands = args[1:3] if name.startswith(("addmm", "baddbmm")) else args[:2]
        if self.seen.in_table and operands[0].shape[-1] == 1:
            return  # an outer product of frequencies and positions
        met = {operand.untyped_storage()._cdata for operand in operands} & self.weights
        self.seen.met |= met
        self.seen.between_activations += not met
        self.seen.forward += flops
        self.seen.backward += flops * sum(operand.requires_grad for operand in operands)


def count_products(
    model: nn.Module, sites: list[Site], mixtures: Mapping[str, PerToken], batch: int, sequence: int
) -> tuple[int, int]:
    """FLOPs (forward, backward) of one pass over sequences of ``sequence`` positions, targets as long as sources.

    Args:
        model: a transformers model that reads token ids.
        sites: its feed-forward networks.
        mixtures: FLOPs of those among them that are mixtures, by path.
        batch: sequences.
        sequence: positions of each.

    Raises:
        NoCountError: where something of the model has no count.
    """
    if getattr(model, "main_input_name", None) != "input_ids":
        raise NoCountError("it does not read token ids, so that batch and sequence do not say what its parts see")
    returns = _returns(model, sites, mixtures) if mixtures else RETURNS[0]
    return _pass(model, sites, mixtures, returns, batch, sequence)


def _returns(model: nn.Module, sites: list[Site], mixtures: Mapping[str, PerToken]) -> Callable[[Tensor], Any]:
    """What the layers expect of a mixture: with a batch of one, code that unpacks a plain tensor fails."""
    reason = NoCountError("")
    for returns in RETURNS:
        try:
            _pass(model, sites, mixtures, returns, 1, 8)
        except NoCountError as error:
            reason = reason if str(reason) else error
        else:
            return returns
    raise reason


def _pass(
    model: nn.Module, sites: list[Site], mixtures: Mapping[str, PerToken], returns: Callable[[Tensor], Any], batch: int,
    sequence: int,
) -> tuple[int, int]:  # fmt: skip
    copy, seen = shadow(model, training=False, dtype=torch.float32), _Seen()
    for path, cost in mixtures.items():
        _pass_by(copy.get_submodule(path), cost, returns, seen)
    for part in copy.modules():
        if is_table(part):
            part.register_forward_pre_hook(lambda *_: setattr(seen, "in_table", True))
            part.register_forward_hook(lambda *_: setattr(seen, "in_table", False))
    _eager(copy)
    maps = _maps(copy, mixtures)
    _watch_layers(copy, maps, sites, seen)
    _call(copy, seen, batch, sequence)
    unmet = [path for path, part in maps.items() if not any(_storage(p) in seen.met for p in part.parameters())]
    if unmet:
        raise NoCountError(f"a pass over token ids does not meet {_some(unmet)}")
    if seen.without:
        raise NoCountError(f"positions are mixed by something else than products in {_some(seen.without)}")
    return seen.forward, seen.backward


def _call(copy: nn.Module, seen: _Seen, batch: int, sequence: int) -> None:
    accepted = inspect.signature(copy.forward).parameters
    ids, mask = (torch.empty(batch, sequence, dtype=torch.long, device="meta") for _ in range(2))
    # Masks are given so that the code need not look at numbers to see that nothing is masked.
    given = {
        "input_ids": ids, "decoder_input_ids": ids, "attention_mask": mask, "decoder_attention_mask": mask,
        "use_cache": False,
    }  # fmt: skip
    counter = _Counter({_storage(p) for p in copy.parameters()}, seen)
    try:
        with unseen(), counter:
            copy(**{name: value for name, value in given.items() if name in accepted})
    except NoCountError:
        raise
    except Exception as error:  # whatever the library's code raises
        if os.environ.get("SHOW"): import traceback; traceback.print_exc()
        said = (str(error).strip() or type(error).__name__).splitlines()[0][:120]
        raise NoCountError(f"its code does not run on token ids without numbers ({said})") from None


def _eager(copy: nn.Module) -> None:
    """Let a shadow compute its attention as products, whichever way its model was built with."""
    configs: dict[int, Any] = {}
    for part in copy.modules():
        config = part.__dict__.get("config")
        if hasattr(config, "_attn_implementation"):
            part.config = configs.setdefault(id(config), deepcopy(config))
            part.config._attn_implementation = "eager"


def _pass_by(part: nn.Module, cost: PerToken, returns: Callable[[Tensor], Any], seen: _Seen) -> None:
    """Let a mixture count as the maps that each token meets, and give what it was given."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        x = next(a for a in (*args, *kwargs.values()) if isinstance(a, Tensor))
        tokens = x.numel() // x.shape[-1]
        seen.forward += cost.forward * tokens
        seen.backward += cost.backward * tokens
        return returns(x)

    part.forward = forward


def _maps(copy: nn.Module, mixtures: Mapping[str, PerToken]) -> dict[str, nn.Module]:
    """The model's linear maps outside of mixtures, by path."""
    return {
        path: part for path, part in copy.named_modules()
        if linear_map(part) is not None and not any(f"{path}.".startswith(f"{mixture}.") for mixture in mixtures)
    }  # fmt: skip


def _watch_layers(copy: nn.Module, maps: dict[str, nn.Module], sites: list[Site], seen: _Seen) -> None:
    """Note the layers that hold maps beside their feed-forward networks, yet no product of two activations."""
    networks = {f"{site.path}.{entry.path}" for site in sites for entry in site.maps}
    others = [path for path in maps if path not in networks]
    for name, stack in copy.named_modules():
        if not isinstance(stack, nn.ModuleList):
            continue
        for key, layer in stack.named_children():
            if any(path.startswith(f"{name}.{key}.") for path in others):
                _watch_layer(layer, f"{name}.{key}", seen)


def _watch_layer(layer: nn.Module, path: str, seen: _Seen) -> None:
    before: list[int] = []

    def after(*_: Any) -> None:
        if seen.between_activations == before.pop():
            seen.without.append(path)

    layer.register_forward_pre_hook(lambda *_: before.append(seen.between_activations))
    layer.register_forward_hook(after)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _some(paths: list[str]) -> str:
    return paths[0] + (f" and {len(paths) - 1} more parts" if len(paths) > 1 else "")
