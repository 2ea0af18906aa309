"""Exact sparsity: the network and its gradients without the hidden units that are zero.

For ReLU and squared ReLU, with or without a gate, most of a trained network's hidden units are exactly zero. The first
maps stay dense; of the second map, and of backward, only the products with the other units are computed. Nothing is
predicted or cut off: the results are those of `positionwise.kernels.dense` up to the order of sums. One difference
remains: zero times infinity or NaN is NaN there, and here nothing, so a weight or a derivative that is no finite
number reaches only results to which a unit that is not zero connects it. A unit that is NaN counts as not zero.

Names and shapes are those of `dense`, and so is what is saved for backward. Float32 only.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from positionwise.kernels import launch
from positionwise.kernels.dense import Call, Gradients, Sums, Weights, chunks, linear_
from positionwise.kernels.dropout import Masks

ACTIVATIONS = ("relu", "relu2")
H, DZ = 1, 2
"""The fields of an entry: h, ∂/∂z, and with a gate ∂/∂v behind it."""
FEW = 64
"""Tokens below which a matrix whose rows are whole panels is read where it is: packing it would read all of it."""
_state: dict[str, Any] = {}


def can(call: Call, w: Weights, x: Tensor) -> bool:
    """Whether `forward` and `backward` can take a call: not where dropped units cannot be told from what is kept."""
    drops = call.dropout > 0 and call.seed is not None
    if call.activation not in ACTIVATIONS or x.dtype != torch.float32:
        return False
    return not (drops and (call.activation != "relu" or w.v is not None)) and launch.is_usable()


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
    """A sparse matrix, as lists of entries: see `positionwise.kernels.sparse_kernels`."""

    entries: Tensor
    """(entries, fields): an index, of int32 in the place of a float32, and the values H and on."""
    starts: Tensor


def compress(kept: Tensor, gate: Tensor | None, square: bool, fields: int = 2) -> Lists:
    """The hidden units that are not zero, from what is kept: r or r², times the gate; other fields are left open.

    Shapes: kept and gate (T, d_ff), contiguous.
    """
    kernels, (rows, width), flags = _kernels(), kept.shape, (int(square), int(gate is not None))
    starts = _empty(rows + 1, dtype=torch.int64)
    kernels.count(kept.data_ptr(), starts.data_ptr(), rows, width)
    found = Lists(_empty(int(starts[-1]), fields), starts)
    kernels.find(kept.data_ptr(), _address(gate), *_addresses(found), rows, width, *flags)
    return found


def add_(out: Tensor, lists: Lists, field: int, matrix: Panels) -> None:
    """Add sparse · dense to ``out``.

    Shapes: out (rows, width), contiguous, a row for each list; the matrix (·, width).
    """
    entries, fields, starts = _addresses(lists)
    steps = matrix.data.data_ptr(), matrix.row_step, matrix.panel_step
    _kernels().add(out.data_ptr(), *steps, entries, fields, field, starts, len(out), matrix.width)


def forward(x: Tensor, w: Weights, call: Call, save: bool) -> tuple[Tensor, Tensor, Tensor]:
    """As `dense.forward`."""
    rows, masks = min(call.chunk, len(x)), Masks(call.dropout, call.seed)
    y = _zeros(len(x), len(w.w2)) if w.b2 is None else _empty(len(x), len(w.w2)).copy_(w.b2)
    kept = x.new_empty(len(x) if save else rows, len(w.w1))
    gate = kept.new_empty(kept.shape if w.v is not None else 0)
    second = panels(w.w2.t(), len(x))
    for part in chunks(len(x), call.chunk):
        here = part if save else slice(0, part.stop - part.start)
        z, v = kept[here], gate[here] if w.v is not None else None
        _first(x[part], w, masks, z, v)
        add_(y[part], compress(z, v, call.activation == "relu2"), H, second)
    return (y, kept, gate) if save else (y, x.new_empty(0), x.new_empty(0))


def _first(x: Tensor, w: Weights, masks: Masks, z: Tensor, v: Tensor | None) -> None:
    """The first maps of a chunk, into what is kept of them."""
    masks.apply_(linear_(x, w.w1, w.b1, z).relu_())
    if v is not None and w.v is not None:
        linear_(x, w.v, w.c, v)


def backward(dy: Tensor, x: Tensor, kept: Tensor, gate: Tensor, w: Weights, call: Call, asked: list[bool]) -> Gradients:
    """As `dense.backward`."""
    saved, rows = len(kept) == len(x), min(call.chunk, len(x))
    masks, work = Masks(call.dropout, call.seed), Backward(w, call, len(x), x.shape[1], asked)
    own = [x.new_empty(0 if saved else rows, len(w.w1)) for _ in range(2 if w.v is not None else 1)]
    for part in chunks(len(x), call.chunk):
        size = part.stop - part.start
        z, *v = (each[part] for each in (kept, gate)) if saved else (each[:size] for each in own)
        gates = v[0] if w.v is not None else None
        if not saved:
            _first(x[part], w, masks, z, gates)
        work.add(part, dy[part], x[part], z, gates)
    return work.result()


class Backward:
    """The gradients that are asked for, and what of the weights they are computed with, over chunks."""

    def __init__(self, w: Weights, call: Call, tokens: int, d_model: int, asked: list[bool]) -> None:
        wanted = Gradients(*asked)  # type: ignore[arg-type]
        self.w, self.square, self.masks = w, call.activation == "relu2", Masks(call.dropout, call.seed)
        self.factor = 1.0 if not self.masks.p else 1 / (1 - self.masks.p) if self.masks.p < 1 else 0.0
        self.second = panels(w.w2.t(), tokens)
        self.maps = [(w.w1, wanted.w1, wanted.b1), *([(w.v, wanted.v, wanted.c)] if w.v is not None else [])]
        self.first = [panels(weight, tokens) for weight, *_ in self.maps] if wanted.x else []
        self.dx = _zeros(tokens, d_model) if wanted.x else None
        self.dw2 = _zeros(*w.w2.t().shape) if wanted.w2 else None
        self.db2 = Sums(w.b2, bool(wanted.b2))
        self.weights = [_zeros(*weight.shape) if want else None for weight, want, _ in self.maps]
        self.biases = [_zeros(len(weight)) if want else None for weight, _, want in self.maps]

    def add(self, part: slice, dy: Tensor, x: Tensor, kept: Tensor, gate: Tensor | None) -> None:
        """Take a chunk in."""
        self.db2.rows(dy)
        sums = [self.dw2, *self.weights, *self.biases]
        if self.dx is None and all(total is None for total in sums):
            return
        dys, rows = panels(dy), compress(kept, gate, self.square, DZ + len(self.maps))
        self._differentiate(rows, dys, kept, gate)
        for field, matrix in enumerate(self.first, DZ):
            if self.dx is not None:
                add_(self.dx[part], rows, field, matrix)
        if all(total is None for total in sums):
            return
        columns = _transpose(rows, kept.shape[1])
        if self.dw2 is not None:
            add_(self.dw2, columns, H, dys)
        xs = panels(x)
        for field, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True), DZ):
            if weight is not None:
                add_(weight, columns, field, xs)
            if bias is not None:
                entries, fields, starts = _addresses(columns)
                _kernels().add_sums(bias.data_ptr(), entries, fields, field, starts, len(bias))

    def _differentiate(self, lists: Lists, dys: Panels, kept: Tensor, gate: Tensor | None) -> None:
        """Fill in ∂/∂z and, with a gate, ∂/∂v."""
        second, flags = self.second, (int(self.square), int(gate is not None))
        _kernels().differentiate(
            dys.data.data_ptr(), second.data.data_ptr(), second.row_step, second.panel_step, len(dys.data),
            *_addresses(lists), kept.data_ptr(), _address(gate), *kept.shape, *flags, self.factor,
            torch.get_num_threads(),
        )  # fmt: skip

    def result(self) -> Gradients:
        """The gradients, each in its weight's layout."""
        dw2 = None if self.dw2 is None else self.dw2.t()
        if dw2 is not None and not self.w.w2.t().is_contiguous():
            dw2 = dw2.contiguous()
        (w1, *v), (b1, *c) = self.weights, self.biases
        return Gradients(self.dx, w1, b1, dw2, self.db2.result(), *(v or [None]), *(c or [None]))


def _transpose(lists: Lists, width: int) -> Lists:
    """The lists of rows as lists of columns."""
    parts = torch.get_num_threads()
    found = Lists(_empty(*lists.entries.shape), _empty(width + 1, dtype=torch.int64))
    entries, _, starts = _addresses(found)
    places = _empty(parts, width, dtype=torch.int64)
    rows = len(lists.starts) - 1
    _kernels().transpose(*_addresses(lists), rows, width, entries, starts, places.data_ptr(), parts)
    return found


def _addresses(lists: Lists) -> tuple[int, int, int]:
    return lists.entries.data_ptr(), lists.entries.shape[1], lists.starts.data_ptr()


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype)


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(shape)


def _kernels() -> Any:
    """The compiled kernels, set to as many threads as PyTorch takes."""
    if "kernels" not in _state:
        with launch.told_when_slow("compiling kernels that skip zeros, once for this machine"):
            _state["kernels"] = import_module("positionwise.kernels.sparse_kernels")
    kernels = _state["kernels"]
    kernels.numba.set_num_threads(min(torch.get_num_threads(), kernels.numba.config.NUMBA_NUM_THREADS))
    return kernels
