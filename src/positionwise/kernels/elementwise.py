"""The activations in place: what a path keeps of z for backward, f from it, and f' from it.

One hidden-sized tensor is kept for every activation of the table: z itself, or f(z) where f' is a function of that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten
_nn: Any = torch._C._nn  # quicker to call than the packets above


@dataclass(frozen=True)
class Elementwise:
    """f and f' over buffers that the caller owns."""

    keep_: Callable[[Tensor], object]
    """Turns z into what is kept, in place."""
    hidden: Callable[[Tensor, Tensor], Tensor]
    """(kept, scratch) → f(z): in the scratch, or what is kept itself."""
    backward_: Callable[[Tensor, Tensor], object]
    """(d, kept): turns ∂/∂f(z) into ∂/∂z, in place."""
    drops_with: bool = False
    """Whether a dropped hidden unit can be told from what is kept: it is zero, and so is its derivative."""


def _itself(kept: Tensor, scratch: Tensor) -> Tensor:
    return kept


def _nothing(kept: Tensor) -> None:
    pass


def _gelu(approximate: str) -> Elementwise:
    return Elementwise(
        _nothing,
        lambda z, scratch: _nn.gelu(z, approximate=approximate, out=scratch),
        lambda d, z: _aten.gelu_backward.grad_input(d, z, approximate=approximate, grad_input=d),
    )


def _relu2_backward(d: Tensor, positive: Tensor) -> None:
    d.mul_(positive).mul_(2)
    _aten.threshold_backward.grad_input(d, positive, 0, grad_input=d)  # zero times infinity is zero there


TABLE: dict[str, Elementwise] = {
    "relu": Elementwise(
        torch.relu_, _itself, lambda d, f: _aten.threshold_backward.grad_input(d, f, 0, grad_input=d), True
    ),
    "relu2": Elementwise(torch.relu_, lambda r, scratch: torch.mul(r, r, out=scratch), _relu2_backward),
    "gelu": _gelu("none"),
    "gelu_tanh": _gelu("tanh"),
    "silu": Elementwise(
        _nothing,
        lambda z, scratch: _nn.silu(z, out=scratch),
        lambda d, z: _aten.silu_backward.grad_input(d, z, grad_input=d),
    ),
    "sigmoid": Elementwise(torch.sigmoid_, _itself, lambda d, s: _aten.sigmoid_backward.grad_input(d, s, grad_input=d)),
    "tanh": Elementwise(torch.tanh_, _itself, lambda d, t: _aten.tanh_backward.grad_input(d, t, grad_input=d)),
    "identity": Elementwise(_nothing, _itself, lambda d, z: None),
}
"""By the names of `positionwise.activations`."""
