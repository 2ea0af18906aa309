"""The module: the position-wise feed-forward network in every published variant."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from positionwise import activations, kernels
from positionwise.errors import DtypeError, InputError, SpecError
from positionwise.functional import depthwise, glorot_uniform_
from positionwise.spec import FFNSpec, Kernel, pair, spans, taps
from positionwise.variants import variant


class Network(nn.Module):
    """A network applied at every position by itself, described by its ``spec``: what accounts count as feed-forward."""

    spec: Any
    activation: Any
    """f, or its name."""


class FeedForward(Network):
    """y = W₂ · dropout(f(W₁x + b₁) [⊙ (Vx + c)]) + b₂, the same at every position.

    W₁ is ``layer1``, W₂ is ``layer2``, V is ``linear_v``: the activation is on ``layer1``'s side, V's is linear.

    Args:
        d_model: width of the input.
        d_ff: width that enters the second map.
        dropout: share of hidden units set to zero in training.
        activation: f, as a name of `positionwise.activations`, a function, or a module. A module that the table does
            not know becomes the submodule ``activation``, so that its parameters are learned.
        is_gated: whether the hidden units are multiplied by Vx + c.
        bias1: whether b₁ is there.
        bias2: whether b₂ is there.
        bias_gate: whether c is there.
        d_out: width of the output; d_model if None.
        kernel_size: of the first map (and V). 1 is a plain linear map; an integer k > 1 puts a depthwise kernel before
            it that convolves the axis before d_model, a pair (h, w) the two axes before it.
        second_kernel_size: the same for the second map.
        padding: ``same``, ``left`` (causal, odd sizes only) or ``valid`` (the sequence becomes shorter).
        dilation: of both kernels; of a pair (h, w), an integer kernel takes h.
        init: ``xavier_uniform`` with zero biases (as published) or ``pytorch`` (nn.Linear's own).
        backend: ``auto``; ``lean``, the operator that saves one hidden-sized tensor for backward (two with a gate), in
            torch.compile too; ``sparse``, without the products with hidden units that are zero (ReLU and squared ReLU
            in float32), whatever the density: ``auto`` does so in large calls where it pays, while this one
            also stores W₂ column by column, so that a single token reads only what it needs (the weight is then not
            contiguous, which safetensors' ``save_file`` asks for); or ``reference``. What a backend cannot compute,
            another path does: see `explain`. Where zeros are skipped, infinities in W₂ reach only what the other units
            connect them to.
        recompute: save the input alone for backward, and compute the first maps again.
        chunk_size: tokens that are computed again at once; None for a size that bounds the memory.
        device: of the parameters.
        dtype: of the parameters.

    Shapes: (..., d_model) → (..., d_out).

    Raises:
        SpecError: for arguments that no block can be built from.

    Source: Vaswani et al. 2017, arXiv 1706.03762, eq. 2; gates: Shazeer 2020, arXiv 2002.05202, eq. 5 and 6.
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        dropout: float = 0.1,
        activation: Any = "relu",
        is_gated: bool = False,
        bias1: bool = True,
        bias2: bool = True,
        bias_gate: bool = True,
        *,
        d_out: int | None = None,
        kernel_size: Kernel = 1,
        second_kernel_size: Kernel = 1,
        padding: str = "same",
        dilation: Kernel = 1,
        init: str = "xavier_uniform",
        backend: str = "auto",
        recompute: bool = False,
        chunk_size: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        spec = FFNSpec(
            d_model, d_ff, dropout, activation, is_gated, bias1, bias2, bias_gate, d_out, kernel_size,
            second_kernel_size, padding, dilation, init, backend, recompute, chunk_size, device, dtype,
        )  # fmt: skip
        self.spec: FFNSpec = spec
        self.dropout = dropout
        self.layer1 = _layer(spec, d_model, d_ff, kernel_size, bias1)
        self.layer2 = _layer(spec, d_ff, spec.output_width, second_kernel_size, bias2)
        self.linear_v: nn.Module | None = _layer(spec, d_model, d_ff, kernel_size, bias_gate) if is_gated else None
        row = activations.resolve(activation)
        self.activation = row.function if isinstance(row.function, nn.Module) else row
        self._draw_maps()

    @classmethod
    def from_spec(cls, spec: FFNSpec) -> FeedForward:
        """The block that a spec describes, freshly initialised; an activation that is a module is copied."""
        options = spec.options()
        if isinstance(spec.activation, nn.Module):
            options["activation"] = copy.deepcopy(spec.activation)
        return cls(**options)

    @classmethod
    def variant(cls, name: str, d_model: int, d_ff: int, match_parameters: bool = False, **options: Any) -> FeedForward:
        """The block of a variant by its name in the literature; see `positionwise.variants.variant`."""
        return cls.from_spec(variant(name, d_model, d_ff, match_parameters, **options))

    def reset_parameters(self) -> None:
        """Draw the weights anew, as ``init`` says; an activation with parameters draws its own."""
        if isinstance(self.activation, nn.Module) and hasattr(self.activation, "reset_parameters"):
            cast(Any, self.activation).reset_parameters()
        self._draw_maps()

    def _draw_maps(self) -> None:
        by_column = self.spec.backend == "sparse" and kernels.skips(self.activation) and type(self.layer2) is nn.Linear
        if by_column:
            _store(self.layer2, by_column=False)  # so that a seed draws what it draws for every backend
        for layer in self.children():
            if layer is self.activation:
                continue
            if self.spec.init == "xavier_uniform":
                published_init(layer)
            else:
                cast(Any, layer).reset_parameters()
        if by_column:
            _store(self.layer2, by_column=True)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the network.

        Args:
            x: (..., d_model), floating point.

        Returns:
            y: (..., d_out).

        Raises:
            InputError: when the last axis is not d_model, or an axis to convolve is missing or too short.
            DtypeError: for an integer, boolean or complex input.
        """
        check_input(self.spec, x)
        return kernels.compute(cast(kernels.Block, self), x)

    def extra_repr(self) -> str:
        """The options that differ from the defaults."""
        default = FFNSpec(self.spec.d_model, self.spec.d_ff).options()
        changed = [f"{k}={v!r}" for k, v in self.spec.options().items() if v is not default[k] and v != default[k]]
        return ", ".join([f"{self.spec.d_model}, {self.spec.d_ff}", *changed])


class SeparableLinear(nn.Module):
    """A depthwise kernel over positions, then a linear map over channels: (..., in) → (..., out)."""

    def __init__(self, spec: FFNSpec, in_features: int, out_features: int, kernel: Kernel, bias: bool) -> None:
        super().__init__()
        shape = kernel if isinstance(kernel, tuple) else (kernel,)
        self.depthwise = nn.Parameter(torch.empty(in_features, 1, *shape, device=spec.device, dtype=_dtype(spec)))
        self.pointwise = nn.Linear(in_features, out_features, bias, device=spec.device, dtype=_dtype(spec))
        self.padding = spec.padding
        self.dilation = pair(spec.dilation)

    def reset_parameters(self) -> None:
        """PyTorch's initialisation of both parts: U(±1/√fan_in)."""
        nn.init.kaiming_uniform_(self.depthwise, a=5**0.5)
        self.pointwise.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """Convolve each channel, then mix the channels."""
        mixed: Tensor = self.pointwise(depthwise(x, self.depthwise, self.padding, self.dilation))
        return mixed


def _layer(spec: FFNSpec, in_features: int, out_features: int, kernel: Kernel, bias: bool) -> nn.Module:
    if taps(kernel):
        return SeparableLinear(spec, in_features, out_features, kernel, bias)
    return nn.Linear(in_features, out_features, bias, device=spec.device, dtype=_dtype(spec))


def _dtype(spec: FFNSpec) -> torch.dtype | None:
    """The spec's dtype, which may be given by its name."""
    given = spec.dtype
    return cast("torch.dtype | None", getattr(torch, str(given).removeprefix("torch.")) if given is not None else None)


def _store(layer: nn.Module, by_column: bool) -> None:
    """Lay the weight out by columns, each of which is what one hidden unit adds to the output; its shape stays."""
    weight = cast(nn.Parameter, layer.weight)
    weight.data = weight.data.t().contiguous().t() if by_column else weight.data.contiguous()


def published_init(layer: nn.Module) -> None:
    """Glorot uniform with TensorFlow's fans (receptive field × channels), biases zero.

    A depthwise kernel has one output channel for each input channel, so its fans are taps × channels and taps.
    """
    if isinstance(layer, SeparableLinear):
        size = layer.depthwise[0].numel()
        glorot_uniform_(layer.depthwise, size * len(layer.depthwise), size)
        layer = layer.pointwise
    linear = cast(nn.Linear, layer)
    glorot_uniform_(linear.weight, linear.in_features, linear.out_features)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


def check_input(spec: FFNSpec, x: Tensor) -> None:
    """Refuse a tensor that the block cannot take, saying what was expected and what came."""
    if not isinstance(x, Tensor):
        raise DtypeError(f"expected a tensor; got {type(x).__name__}")
    if not x.is_floating_point():
        raise DtypeError(f"expected a floating-point input; got {x.dtype}")
    if x.dim() == 0 or x.shape[-1] != spec.d_model:
        raise InputError(f"expected an input of shape (..., {spec.d_model}); got {tuple(x.shape)}")
    axes = spec.convolved_axes
    if axes == 0:
        return
    if x.dim() <= axes:
        raise InputError(f"expected {axes} axes of positions before d_model for the kernel; got {tuple(x.shape)}")
    if spec.padding == "valid":
        _check_length(spec, x, axes)


def _check_length(spec: FFNSpec, x: Tensor, axes: int) -> None:
    first, second = spans(spec.kernel_size, spec.dilation), spans(spec.second_kernel_size, spec.dilation)
    for axis in range(2 - axes, 2):
        needed, length = 1 + first[axis] + second[axis], x.shape[axis - 3]
        if length < needed:
            raise InputError(f"expected at least {needed} positions for padding 'valid'; got {length}")


def _positions_written(spec: FFNSpec, x: Tensor) -> tuple[int, int]:
    """How many positions the first and the second map write to: fewer than x has, with padding ``valid``."""
    shape = [1, 1, *x.shape[:-1]]
    written = []
    for kernel in (spec.kernel_size, spec.second_kernel_size):
        if spec.padding == "valid":
            shape[-2:] = [size - span for size, span in zip(shape[-2:], spans(kernel, spec.dilation), strict=True)]
        written.append(math.prod(shape))
    return written[0], written[1]


@dataclass(frozen=True)
class Explanation:
    """How a call is computed and what it costs."""

    path: str
    reason: str
    flops: int
    """One forward pass; a multiply-add counts as two, biases and activation are not counted."""
    saved_for_backward: int | None
    """Bytes kept for backward if gradients are on; None where they are not known."""
    equation: str

    def __str__(self) -> str:
        saved = "not known" if self.saved_for_backward is None else f"{self.saved_for_backward:,} bytes"
        return (
            f"path: {self.path} ({self.reason})\nFLOPs, forward: {self.flops:,}\n"
            f"saved for backward, with gradients on: {saved}\nequation: {self.equation}"
        )


def _is_autocast(x: Tensor) -> bool:
    return torch.amp.is_autocast_available(x.device.type) and torch.is_autocast_enabled(x.device.type)


def explain(ffn: FeedForward, x: Tensor) -> Explanation:
    """Say which path ``ffn(x)`` takes and why, its FLOPs, and the bytes it saves for backward.

    Nothing is computed but what tells the hidden density, where that decides; the first call of a kind whose density
    is low measures the break-even point, which takes seconds.

    Raises:
        InputError: where ``ffn(x)`` would raise it.
        DtypeError: likewise.
    """
    check_input(ffn.spec, x)
    path = kernels.choose(cast(kernels.Block, ffn), x)
    tokens = x.numel() // x.shape[-1]
    rate = ffn.dropout if ffn.training else 0.0
    known = all(kernels.is_plain(layer) or type(layer) is SeparableLinear for layer in ffn.children())
    lean = path.name in ("lean", "dense", "recompute", "checkpoint")
    try:
        spec = replace(ffn.spec, dropout=rate, dtype=x.dtype, backend=ffn.spec.backend if lean else "reference")
        is_sparse = path.name == "sparse"
        if path.name in ("dense", "sparse"):  # what is saved is another question: with gradients on
            with torch.enable_grad():
                training = kernels.choose(cast(kernels.Block, ffn), x.detach().requires_grad_())
            is_sparse = training.name == "sparse"
        saved = kernels.saved_sparsely(cast(kernels.Block, ffn), x) if is_sparse else spec.saved_for_backward(tokens)
    except SpecError:
        known = False
    return Explanation(
        path=path.name,
        reason=path.reason,
        flops=ffn.spec.flops_by_map(*_positions_written(ffn.spec, x)),
        saved_for_backward=saved if known and not _is_autocast(x) else None,
        equation=ffn.spec.equation,
    )
