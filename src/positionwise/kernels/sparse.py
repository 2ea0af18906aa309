"""Exact sparsity: the network and its gradients without the hidden units that are zero.

For ReLU and squared ReLU, with or without a gate, most of a trained network's hidden units are exactly zero. The first
maps stay dense; of the second map, and of backward, only the products with the other units are computed. Nothing is
predicted or cut off: the results are those of `positionwise.kernels.dense` up to the order of sums. One difference
remains: zero times infinity or NaN is NaN there, and here nothing, so a weight or a derivative that is no finite
number reaches only results to which a unit that is not zero connects it. A unit that is NaN counts as not zero.

Names and shapes are those of `dense`. Saved for backward is x and the units that are not zero: eight bytes each, twelve
for squared ReLU, sixteen with a gate. Float32 only.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from positionwise.kernels import launch, product
from positionwise.kernels.dense import Call, Gradients, Sums, Weights, chunks
from positionwise.kernels.dropout import Masks
from positionwise.kernels.workspace import scratch

ACTIVATIONS = ("relu", "relu2")
H, DZ = 1, 2
"""The fields of an entry in backward: h, ∂/∂z, and with a gate ∂/∂v behind it."""
FEW = 64
"""Tokens below which a matrix whose rows are whole panels is read where it is: packing it would read all of it."""
_state: dict[str, Any] = {}


def can(activation: str, x: Tensor) -> bool:
    """Whether `forward` and `backward` can take a call."""
    return activation in ACTIVATIONS and x.dtype == torch.float32 and launch.is_usable()


class Panels(NamedTuple):
    """A matrix as the kernels read it: `pack`'s copy, or itself."""

    data: Tensor
    width: int
    row_step: int
    panel_step: int
    """Bytes between rows, and between panels."""


def panels(matrix: Tensor, tokens: int | None = None) -> Panels:
    """A matrix (rows, width) of any strides for the kernels; ``tokens`` says how many will read it, if few might."""
    kernels, (rows, width) = _kernels(), matrix.shape
    size = kernels.WIDTH
    if tokens is not None and tokens < FEW and matrix.is_contiguous() and width % size == 0:
        return Panels(matrix, width, 4 * width, 4 * size)
    data = _empty(-(-width // size), rows, size)
    kernels.pack(matrix.data_ptr(), data.data_ptr(), rows, width, *matrix.stride())
    return Panels(data, width, 4 * size, 4 * size * rows)


class Lists(NamedTuple):
    """A sparse matrix, as lists of entries: see `positionwise.kernels.sparse_lists`."""

    entries: Tensor
    """(entries, fields): an index, of int32 in the place of a float32, and the values."""
    starts: Tensor
    """(lists + 1,), of int64."""


def compress(z: Tensor, gate: Tensor | None, square: bool, factor: float = 1.0) -> Lists:
    """The hidden units that are not zero: h, then r = ReLU(z) where h is something else, then the gate's number.

    Shapes: z and gate (T, d_ff), contiguous. ``factor`` is dropout's scale, which z already has.
    """
    kernels, (rows, width), gated = _kernels(), z.shape, gate is not None
    masks, starts = (_empty(*shape, dtype=torch.int64) for shape in ((rows, -(-width // kernels.WORD)), (rows + 1,)))
    kernels.mark(z.data_ptr(), masks.data_ptr(), starts.data_ptr(), rows, width)
    found = Lists(_empty(int(starts[-1]), fields(square, gated)), starts)
    given = z.data_ptr(), _address(gate), masks.data_ptr()
    kernels.find(*given, *_addresses(found), rows, width, int(square), int(gated), 1 / factor)
    return found


def fields(square: bool, is_gated: bool) -> int:
    """Numbers of an entry that is saved."""
    return 4 if is_gated else 3 if square else 2


def add_(out: Tensor, lists: Lists, field: int, matrix: Panels) -> None:
    """Add sparse · dense to ``out``.

    Shapes: out (lists, width), contiguous, a row for each list; the matrix (·, width).
    """
    entries, count, starts = _addresses(lists)
    steps = matrix.data.data_ptr(), matrix.row_step, matrix.panel_step
    _kernels().add(out.data_ptr(), *steps, entries, count, field, starts, len(out), matrix.width)


def forward(x: Tensor, w: Weights, call: Call, begun: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
    """Y (T, d_out), and what backward needs beside x and the weights: entries and starts, chunk by chunk.

    ``begun`` is what `dense.begin` gave.
    """
    rows, masks = min(call.chunk, len(x)), Masks(call.dropout, call.seed)
    y, packed = _started(w, len(x)), panels(w.w2.t(), len(x))
    saved: list[Tensor] = []
    z, *gate = scratch(1 if w.v is None else 2, rows, len(w.w1), x)
    for part in chunks(len(x), call.chunk):
        size = part.stop - part.start
        if begun is not None and part.start == 0:
            here = begun[part]
        else:
            here = product.linear_(x[part], w.w1, w.b1, z[:size])
        if masks.p:
            masks.apply_(here.relu_())
        v = None if w.v is None else product.linear_(x[part], w.v, w.c, gate[0][:size])
        lists = compress(here, v, call.activation == "relu2", scale(masks))
        add_(y[part], lists, H, packed)
        saved += (lists.entries.view(torch.int32), lists.starts)  # its numbers are not all floats: no hook may round
    return y, saved


class Begun(NamedTuple):
    """What the second map needs but the hidden units."""

    y: Tensor
    packed: Panels
    kernels: Any


def begin(w: Weights, tokens: int) -> Begun:
    """Get ready for `second`; for few tokens before the first map, which empties the caches."""
    return Begun(_started(w, tokens), panels(w.w2.t(), tokens), _kernels())


def second(begun: Begun, z: Tensor, v: Tensor | None, activation: str, masks: Masks) -> Tensor:
    """The second map, from z, whose numbers below zero count as zero, and which has the masks, and Vx + c."""
    y, packed, kernels = begun
    square = activation == "relu2"
    if packed.data.dim() == 2:  # few tokens, and the matrix lies as it is read
        parts = torch.get_num_threads()
        sums, flags = _zeros(parts, *y.shape), (square, v is not None, 1 / scale(masks))
        given = packed.data.data_ptr(), packed.row_step, packed.panel_step, z.data_ptr(), _address(v)
        kernels.add_few(y.data_ptr(), *given, *z.shape, packed.width, *flags, sums.data_ptr(), parts)
    else:
        add_(y, compress(z, v, square, scale(masks)), H, packed)
    return y


def saved_bytes(x: Tensor, w: Weights, activation: str, chunk: int) -> int:
    """Bytes that `forward` saves of x (T, d_model) without dropout, x among them."""
    size, units = 4 * fields(activation == "relu2", w.v is not None), 0
    for part in chunks(len(x), chunk):
        units += int((product.linear(x[part], w.w1, w.b1) > 0).sum())
    lists = sum(8 * (part.stop - part.start + 1) for part in chunks(len(x), chunk))
    return int(x.numel() * x.element_size() + units * size + lists)


def _started(w: Weights, tokens: int) -> Tensor:
    """The output before anything is added but b₂."""
    shape = tokens, len(w.w2)
    return _zeros(*shape) if w.b2 is None else _empty(*shape).copy_(w.b2)


def scale(masks: Masks) -> float:
    """What dropout multiplies the units with that it keeps; of no matter where it keeps none."""
    return 1 / (1 - masks.p) if masks.p < 1 else 1.0


def backward(dy: Tensor, x: Tensor, saved: list[Tensor], w: Weights, call: Call, asked: list[bool]) -> Gradients:
    """The gradients of `forward`, from what it saved."""
    work = Backward(w, call, len(x), x.shape[1], asked)
    for i, part in enumerate(chunks(len(x), call.chunk)):
        entries, starts = saved[2 * i : 2 * i + 2]
        work.add(part, dy[part], x[part], Lists(entries.view(torch.float32), starts))
    return work.result()


class Backward:
    """The gradients that are asked for, and what of the weights they are computed with, over chunks."""

    def __init__(self, w: Weights, call: Call, tokens: int, d_model: int, asked: list[bool]) -> None:
        wanted = Gradients(*asked)  # type: ignore[arg-type]
        self.w, self.square, self.factor = w, call.activation == "relu2", scale(Masks(call.dropout, call.seed))
        self.second = panels(w.w2.t(), tokens)
        self.maps = [(w.w1, wanted.w1, wanted.b1), *([(w.v, wanted.v, wanted.c)] if w.v is not None else [])]
        self.first = [panels(weight, tokens) for weight, *_ in self.maps] if wanted.x else []
        self.dx = _zeros(tokens, d_model) if wanted.x else None
        self.dw2 = _zeros(*w.w2.t().shape) if wanted.w2 else None
        self.db2 = Sums(w.b2, bool(wanted.b2))
        self.weights = [_zeros(*weight.shape) if want else None for weight, want, _ in self.maps]
        self.biases = [_zeros(len(weight)) if want else None for weight, _, want in self.maps]

    def add(self, part: slice, dy: Tensor, x: Tensor, saved: Lists) -> None:
        """Take a chunk in."""
        self.db2.rows(dy)
        sums = [self.dw2, *self.weights, *self.biases]
        if self.dx is None and all(total is None for total in sums):
            return
        dys = panels(dy)
        rows = self._differentiate(saved, dys)
        for field, matrix in enumerate(self.first, DZ):
            if self.dx is not None:
                add_(self.dx[part], rows, field, matrix)
        if all(total is None for total in sums):
            return
        columns = _transpose(rows, len(self.w.w1))
        if self.dw2 is not None:
            add_(self.dw2, columns, H, dys)
        xs = panels(x)
        for field, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True), DZ):
            if weight is not None:
                add_(weight, columns, field, xs)
            if bias is not None:
                entries, count, starts = _addresses(columns)
                _kernels().add_sums(bias.data_ptr(), entries, count, field, starts, len(bias))

    def _differentiate(self, saved: Lists, dys: Panels) -> Lists:
        """The entries of h, ∂/∂z and, with a gate, ∂/∂v."""
        second, rows = self.second, len(saved.starts) - 1
        found = Lists(_empty(len(saved.entries), DZ + len(self.maps)), saved.starts)
        dh = _empty(len(saved.entries))
        _kernels().differentiate(
            dys.data.data_ptr(), second.data.data_ptr(), second.row_step, second.panel_step, len(dys.data),
            *_addresses(saved), rows, dh.data_ptr(), found.entries.data_ptr(), int(self.square),
            len(self.maps) - 1, self.factor, torch.get_num_threads(),
        )  # fmt: skip
        return found

    def result(self) -> Gradients:
        """The gradients, each in its weight's layout."""
        dw2 = None if self.dw2 is None else self.dw2.t()
        if dw2 is not None and not self.w.w2.t().is_contiguous():
            dw2 = dw2.contiguous()
        (w1, *v), (b1, *c) = self.weights, self.biases
        return Gradients(self.dx, w1, b1, dw2, self.db2.result(), *(v or [None]), *(c or [None]))


def _transpose(lists: Lists, width: int) -> Lists:
    """The lists of rows as lists of columns."""
    parts, rows = torch.get_num_threads(), len(lists.starts) - 1
    found = Lists(_empty(*lists.entries.shape), _empty(width + 1, dtype=torch.int64))
    places, (entries, _, starts) = _empty(parts, width, dtype=torch.int64), _addresses(found)
    _kernels().transpose(*_addresses(lists), rows, width, entries, starts, places.data_ptr(), parts)
    return found


def _addresses(lists: Lists) -> tuple[int, int, int]:
    return lists.entries.data_ptr(), lists.entries.shape[1], lists.starts.data_ptr()


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="cpu")


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float32, device="cpu")


def _kernels() -> Any:
    """The compiled kernels, set to as many threads as PyTorch takes."""
    if "kernels" not in _state:
        with launch.told_when_slow("compiling kernels that skip zeros, once for this machine (some 20 seconds)"):
            modules = (launch.load(f"sparse_{name}") for name in ("lists", "kernels"))
            _state["kernels"] = SimpleNamespace(**{name: it for module in modules for name, it in vars(module).items()})
    kernels = _state["kernels"]
    launch.follow_threads(kernels.numba)
    return kernels
