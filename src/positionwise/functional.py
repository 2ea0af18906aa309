"""The reference: the position-wise feed-forward network in the plainest PyTorch.

Every faster path is held against these functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from positionwise import activations

Map = Callable[[Tensor], Tensor]


def feed_forward(
    x: Tensor,
    weight1: Tensor,
    weight2: Tensor,
    *,
    bias1: Tensor | None = None,
    bias2: Tensor | None = None,
    weight_v: Tensor | None = None,
    bias_gate: Tensor | None = None,
    activation: str | Map = "relu",
    dropout: float = 0.0,
    training: bool = False,
) -> Tensor:
    """W₂ · dropout(f(W₁x + b₁) [⊙ (Vx + c)]) + b₂ at every position.

    Args:
        x: (..., d_model).
        weight1: W₁, (d_ff, d_model).
        weight2: W₂, (d_out, d_ff).
        bias1: b₁, (d_ff,).
        bias2: b₂, (d_out,).
        weight_v: V, (d_ff, d_model); None for a network without a gate.
        bias_gate: c, (d_ff,).
        activation: f, a name of the table or a function.
        dropout: the share of hidden units set to zero in training; the others are divided by (1 − dropout).
        training: whether dropout is at work.

    Returns:
        y, (..., d_out).

    Source: Vaswani et al. 2017, arXiv 1706.03762, eq. 2; gated: Shazeer 2020, arXiv 2002.05202, eq. 6.
    """

    def first(x: Tensor) -> Tensor:
        return F.linear(x, weight1, bias1)

    def second(h: Tensor) -> Tensor:
        return F.linear(h, weight2, bias2)

    def gate(x: Tensor) -> Tensor:
        assert weight_v is not None
        return F.linear(x, weight_v, bias_gate)

    def drop(h: Tensor) -> Tensor:
        return F.dropout(h, dropout, training)

    f = activations.get(activation) if isinstance(activation, str) else activation
    return compose(x, first, second, None if weight_v is None else gate, f, drop)


def compose(x: Tensor, first: Map, second: Map, gate: Map | None, f: Map, drop: Map) -> Tensor:
    """The network over any maps: second(drop(f(first(x)) [⊙ gate(x)]))."""
    hidden = f(first(x))
    if gate is not None:
        hidden = hidden * gate(x)
    return second(drop(hidden))


def depthwise(x: Tensor, kernel: Tensor, padding: str, dilation: tuple[int, int]) -> Tensor:
    """Each channel's own kernel, slid over the axes before the last (a cross-correlation, no bias).

    Args:
        x: (..., positions, channels) for a kernel (channels, 1, k); (..., height, width, channels) for a kernel
            (channels, 1, h, w).
        kernel: as above.
        padding: ``same`` pads with zeros on both sides, the odd one after; ``left`` pads 2·⌊k/2⌋·dilation before
            (causal); ``valid`` does not pad, so the axis becomes (k − 1)·dilation shorter.
        dilation: (h, w); for one axis, its h.

    Source: tensor2tensor v1.0.14, ``common_layers.conv_internal`` and ``separable_conv``.
    """
    if x.numel() == 0 and padding != "valid":
        return x * kernel.flatten(1).sum(1)  # no output, and zeros as the kernel's gradient
    axes = kernel.dim() - 2
    steps = dilation[:axes]
    spans = [(size - 1) * step for size, step in zip(kernel.shape[2:], steps, strict=True)]
    channels_first = x.movedim(-1, -axes - 1)
    leading, rest = channels_first.shape[: -axes - 1], channels_first.shape[-axes - 1 :]
    # PyTorch pads both sides alike: pad as much as the wider side needs and leave out what is too much, which, unlike
    # padding the input first, keeps no copy of it for backward.
    sides = {"valid": [0] * axes, "left": spans, "same": [(span + 1) // 2 for span in spans]}[padding]
    convolve = F.conv1d if axes == 1 else F.conv2d
    y = convolve(
        channels_first.reshape(math.prod(leading), *rest),
        kernel, padding=tuple(sides), dilation=steps, groups=kernel.shape[0],
    )  # fmt: skip
    if padding != "valid":
        for axis, (side, span, length) in enumerate(zip(sides, spans, rest[1:], strict=True), 2):
            y = y.narrow(axis, 0 if padding == "left" else side - span // 2, length)
    return y.reshape(*leading, *y.shape[1:]).movedim(-axes - 1, -1)


def glorot_uniform_(weight: Tensor, fan_in: int, fan_out: int) -> Tensor:
    """Fill with U(±√(6 / (fan_in + fan_out))) (Glorot and Bengio 2010, eq. 16)."""
    limit = (6 / (fan_in + fan_out)) ** 0.5
    return nn.init.uniform_(weight, -limit, limit)
