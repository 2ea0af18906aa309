"""The network and its gradients over chunks of tokens, with buffers that are used again from chunk to chunk.

Names: x (T, d_model); z = W₁x + b₁ and v = Vx + c (T, d_ff); h the hidden units that enter the second map; dy, dh, …
the loss's derivatives by them. T counts the positions of all sequences together.

What is saved for backward is x and one hidden-sized tensor, two with a gate; with ``save=False`` it is x alone, and
backward computes z and v again, but not the second map. Gradients of weights add up over chunks in at least float32.

Source of the formulas: Vaswani et al. 2017, arXiv 1706.03762, eq. 2; gated: Shazeer 2020, arXiv 2002.05202, eq. 6.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from positionwise import activations
from positionwise.kernels import product
from positionwise.kernels.dropout import Masks
from positionwise.kernels.elementwise import TABLE
from positionwise.kernels.workspace import scratch


class Weights(NamedTuple):
    """The block's parameters: W₁ (d_ff, d_model), W₂ (d_out, d_ff), V (d_ff, d_model), and their biases."""

    w1: Tensor
    b1: Tensor | None
    w2: Tensor
    b2: Tensor | None
    v: Tensor | None
    c: Tensor | None


class Call(NamedTuple):
    """What a call is beside its tensors."""

    activation: str
    dropout: float
    seed: Tensor | None
    """Of the dropout's masks; None where nothing is dropped."""
    chunk: int
    """Tokens of a chunk."""


def chunks(tokens: int, size: int) -> Iterator[slice]:
    """The chunks of a call, the last of them what is left."""
    return (slice(start, min(start + size, tokens)) for start in range(0, tokens, size))


def forward(
    x: Tensor, w: Weights, call: Call, save: bool, begun: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Y (T, d_out), and what is kept of z and v for backward (T, d_ff), empty where nothing is.

    Shapes: x (T, d_model). ``begun`` is what `begin` gave; it becomes what is kept of z.
    """
    rows, masks = min(call.chunk, len(x)), Masks(call.dropout, call.seed)
    y = x.new_empty(len(x), len(w.w2))
    width = len(w.w1)
    if save:
        kept = x.new_empty(len(x), width) if begun is None else begun
        gate = x.new_empty(kept.shape if w.v is not None else 0)
        (spare,) = scratch(1, rows, width, x)
    else:
        spare, kept, *gates = scratch(2 if w.v is None else 3, rows, width, x)
        gate = gates[0] if gates else kept
    for part in chunks(len(x), call.chunk):
        here = part if save else slice(0, part.stop - part.start)
        z, v = kept[here], gate[here] if w.v is not None else None
        if begun is None or part.start:
            product.linear_(x[part], w.w1, w.b1, z)
        h = _hidden(x[part], w, call, masks, z, v, spare[: len(z)])
        product.linear_(h, w.w2, w.b2, y[part])
    return (y, kept, gate) if save else (y, x.new_empty(0), x.new_empty(0))


def begin(x: Tensor, w: Weights, call: Call) -> Tensor:
    """What `forward` will keep of z (T, d_ff), in which W₁x + b₁ of the first chunk is there already."""
    begun = x.new_empty(len(x), len(w.w1))
    product.linear_(x[: call.chunk], w.w1, w.b1, begun[: call.chunk])
    return begun


def _hidden(x: Tensor, w: Weights, call: Call, masks: Masks, z: Tensor, v: Tensor | None, spare: Tensor) -> Tensor:
    """Compute a chunk's hidden units from z = W₁x + b₁; z and v become what is kept of them."""
    f = TABLE[call.activation]
    f.keep_(z)
    if v is None and f.drops_with:
        return masks.apply_(z)
    if v is not None:
        assert w.v is not None
        product.linear_(x, w.v, w.c, v)
    return again(z, v, call, masks, spare)


def again(kept: Tensor, v: Tensor | None, call: Call, masks: Masks, spare: Tensor) -> Tensor:
    """A chunk's hidden units from what is kept of them."""
    f = TABLE[call.activation]
    if v is None and f.drops_with:
        return kept
    h = f.hidden(kept, spare)
    if v is not None:
        h = torch.mul(h, v, out=spare)
    if masks.p and h is kept:
        h = spare.copy_(kept)
    return masks.apply_(h)


class Gradients(NamedTuple):
    """The loss's derivatives by x and by each parameter; None where it was not asked for."""

    x: Tensor | None
    w1: Tensor | None
    b1: Tensor | None
    w2: Tensor | None
    b2: Tensor | None
    v: Tensor | None
    c: Tensor | None


class Sums:
    """Gradients of weights and biases: what chunks add up to, in at least float32 where there are several."""

    def __init__(self, like: Tensor | None, asked: bool, several: bool = True) -> None:
        self.like = like if asked else None
        self.total: Tensor | None = None
        self.several = several

    def product(self, a: Tensor, b: Tensor) -> None:
        """Add aᵀ·b."""
        if self.like is None:
            return
        if self.total is None:
            self.total = product.matmul(a.t(), b).to(self._dtype)
        else:
            product.add_(self.total, a.t(), b)

    def rows(self, a: Tensor) -> None:
        """Add the sum of a's rows."""
        if self.like is not None:
            summed = a.sum(0, dtype=self._dtype)
            self.total = summed if self.total is None else self.total.add_(summed)

    @property
    def _dtype(self) -> torch.dtype:
        assert self.like is not None
        return torch.promote_types(self.like.dtype, torch.float32) if self.several else self.like.dtype

    def result(self) -> Tensor | None:
        """The gradient in the parameter's dtype; zeros where no token was seen."""
        if self.like is None:
            return None
        return self.like.new_zeros(self.like.shape) if self.total is None else self.total.to(self.like.dtype)


def backward(dy: Tensor, x: Tensor, kept: Tensor, gate: Tensor, w: Weights, call: Call, asked: list[bool]) -> Gradients:
    """The gradients of `forward`; what was not kept is computed again.

    Shapes: dy (T, d_out), x (T, d_model), kept and gate as `forward` gave them. ``asked`` says for each of `Gradients`
    whether it is wanted.
    """
    saved, rows = len(kept) == len(x), min(call.chunk, len(x))
    masks, redrawn = Masks(call.dropout, call.seed), Masks(call.dropout, call.seed)
    wanted = Gradients(*asked)  # type: ignore[arg-type]
    several = len(x) > call.chunk
    sums = {name: Sums(getattr(w, name), bool(getattr(wanted, name)), several) for name in Weights._fields}
    dx = torch.empty_like(x) if wanted.x else None
    maps = 1 if w.v is None else 2
    buffers = scratch(maps if saved else 2 * maps, rows, len(w.w1), x)
    own, buffers = buffers[maps:], buffers[:maps]
    for part in chunks(len(x), call.chunk):
        size = part.stop - part.start
        dh, *dv = (buffer[:size] for buffer in buffers)  # dh is h first
        if saved:
            z, v = kept[part], gate[part] if w.v is not None else None
            h = again(z, v, call, masks, dh)
        else:
            z, v = own[0][:size], own[1][:size] if w.v is not None else None
            product.linear_(x[part], w.w1, w.b1, z)
            h = _hidden(x[part], w, call, masks, z, v, dh)
        sums["w2"].product(dy[part], h)
        sums["b2"].rows(dy[part])
        product.matmul(dy[part], w.w2, dh)
        _through_hidden(dh, dv[0] if dv else None, z, v, call, redrawn)
        for name, bias, d in (("w1", "b1", dh), *([("v", "c", dv[0])] if dv else [])):
            sums[name].product(d, x[part])
            sums[bias].rows(d)
        if dx is not None:
            product.matmul(dh, w.w1, dx[part])
            if dv:
                assert w.v is not None
                product.add_(dx[part], dv[0], w.v)
    return Gradients(dx, *(sums[name].result() for name in Weights._fields))


def _through_hidden(dh: Tensor, dv: Tensor | None, z: Tensor, v: Tensor | None, call: Call, masks: Masks) -> None:
    """Turn ∂/∂h into ∂/∂z in place, and write ∂/∂v: h = mask ⊙ f(z) [⊙ v]."""
    f = TABLE[call.activation]
    if v is None and f.drops_with:
        if masks.p:
            dh.mul_(1 / (1 - masks.p) if masks.p < 1 else 0.0)  # what was dropped is zero in z
    else:
        masks.apply_(dh)
    if v is not None and dv is not None:
        torch.mul(dh, f.hidden(z, dv), out=dv)
        dh.mul_(v)
    f.backward_(dh, z)


def differentiable(
    dy: Tensor, x: Tensor, w: Weights, call: Call, asked: list[bool], create_graph: bool = True
) -> Gradients:
    """The gradients by PyTorch's own operators, as a graph, so that they can be differentiated again."""
    masks = Masks(call.dropout, call.seed)
    hidden = activations.get(call.activation)(F.linear(x, w.w1, w.b1))
    if w.v is not None:
        hidden = hidden * F.linear(x, w.v, w.c)
    if masks.p and len(x):
        ones = [masks.apply_(hidden.new_ones(hidden[part].shape)) for part in chunks(len(x), call.chunk)]
        hidden = hidden * torch.cat(ones)
    y = F.linear(hidden, w.w2, w.b2)
    given = [tensor for tensor, wanted in zip((x, *w), asked, strict=True) if wanted and tensor is not None]
    found = iter(torch.autograd.grad(y, given, dy, create_graph=create_graph, materialize_grads=True))
    return Gradients(*(next(found) if wanted else None for wanted in asked))
