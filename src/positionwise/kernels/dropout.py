"""Dropout masks that are cheap to draw on a CPU, and that can be drawn again from a seed."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def keep_mask(shape: torch.Size, p: float, dtype: torch.dtype, generator: torch.Generator | None = None) -> Tensor:
    """Zeros with probability p, otherwise 1 / (1 − p); p is exact to 2⁻³².

    Two elements are drawn to a 64-bit number: PyTorch's own mask costs a double-precision draw for each.

    Source: Srivastava et al. 2014, with inverted scaling as in Vaswani et al. 2017, section 5.4.
    """
    count, threshold = shape.numel(), round(p * 2**32)
    if threshold == 2**32:
        return torch.zeros(shape, dtype=dtype, device="cpu")
    numbers = torch.empty((count + 1) // 2, dtype=torch.int64, device="cpu")
    draws = numbers.random_(-(2**63), None, generator=generator).view(torch.int32)
    return (draws[:count] >= threshold - 2**31).view(shape).to(dtype).mul_(1 / (1 - p))


class Masks:
    """The masks of one call, chunk by chunk: the same from the same seed, if asked for in the same order."""

    def __init__(self, p: float, seed: Tensor | None) -> None:
        self.p = p if seed is not None else 0.0
        self.generator = torch.Generator("cpu").manual_seed(int(seed)) if seed is not None else None

    def apply_(self, hidden: Tensor) -> Tensor:
        """Drop some of a chunk's hidden units in place; without dropout they stay as they are."""
        if self.p:
            hidden.mul_(keep_mask(hidden.shape, self.p, hidden.dtype, self.generator))
        return hidden


def draw_seed() -> Tensor:
    """A seed from PyTorch's own generator, so that `torch.manual_seed` decides it."""
    if torch.compiler.is_compiling():  # which knows no `random_` of a tensor
        return torch.randint(2**63 - 1, (), dtype=torch.int64, device="cpu")
    return torch.empty((), dtype=torch.int64, device="cpu").random_()


_DROPOUT = F.dropout


def is_replaced() -> bool:
    """Whether somebody has put a function of their own in the place of PyTorch's dropout: then it is to be called."""
    return F.dropout is not _DROPOUT


def drop(hidden: Tensor, p: float) -> Tensor:
    """Dropout with the masks that the lean path would draw, so that a hook in a block changes none of its numbers."""
    if not p:
        return hidden
    ours = type(hidden) is Tensor and hidden.device.type == "cpu" and not torch.compiler.is_compiling()
    if not ours or is_replaced() or torch._C._functorch.is_functorch_wrapped_tensor(hidden):
        return F.dropout(hidden, p)
    masks = Masks(p, draw_seed())
    return hidden * masks.apply_(torch.ones_like(hidden, requires_grad=False))
