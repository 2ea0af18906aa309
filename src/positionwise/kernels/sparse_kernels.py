# mypy: ignore-errors
# Numba compiles it; it is no typed Python.
"""Kernels that skip the hidden units that are zero, compiled by Numba from Python.

A sparse matrix is lists of entries. An entry is ``fields`` numbers of four bytes: an index (int32), then float32
values, which are h, ∂/∂z and, with a gate, ∂/∂v. List r is the entries from ``starts[r]`` to ``starts[r + 1]`` (int64).
Lists of rows name columns, lists of columns name rows, both in ascending order.

A dense matrix is panels of `WIDTH` columns: row r of panel c begins at ``panels + c·panel_step + r·row_step`` bytes. A
panel of some thousand rows stays in a second-level cache; columns of a wide matrix, whose rows are a power of two
apart, would not. Arrays are given by their addresses.

Each kernel only deals out tasks: in a function with `prange`, Numba drops what is written to arrays that were made
from addresses and are not read there.
"""

from __future__ import annotations

import numba
import numpy as np
from numba import njit, prange, types

from positionwise.kernels.few import FLAGS, _pointer
from positionwise.kernels.sparse_loops import WIDTH, add_dots, add_rows

ROWS = 64
"""Rows of a task of `add`."""
TILE = 16
"""Rows of a tile of `pack`: a cache line of a transposed matrix."""


def _kernel(function):
    """Compile, or read from the cache, when the module is imported: there is one signature."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    signature = types.void(*(types.float32 if name == "factor" else types.int64 for name in names))
    return njit(signature, parallel=True, fastmath=FLAGS, cache=True, nogil=True)(function)


@njit
def _floats(address, rows, width):
    return numba.carray(_pointer(address), (rows, width), np.float32)


@njit
def _indices(address, rows, width):
    return numba.carray(_pointer(address), (rows, width), np.int32)


@njit
def _places(address, count):
    return numba.carray(_pointer(address), (count,), np.int64)


@njit
def _tile(matrix, panel, first, last, filled, row_step, column_step):
    """Rows of one panel; the columns that the matrix lacks become zeros."""
    out, count = _floats(panel, last, WIDTH), max(0, (last - 1) * row_step + (filled - 1) * column_step + 1)
    given = _floats(matrix, 1, count)[0]
    if column_step == 1 and filled == WIDTH:
        for r in range(first, last):
            row = _floats(matrix + 4 * r * row_step, 1, WIDTH)[0]
            for i in range(WIDTH):
                out[r, i] = row[i]
        return
    for i in range(filled):
        for r in range(first, last):
            out[r, i] = given[r * row_step + i * column_step]
    for r in range(first, last):
        out[r, filled:] = 0


@_kernel
def pack(matrix, panels, rows, width, row_step, column_step):
    """A matrix of any strides (in numbers) into panels that lie one behind the other."""
    tiles = (rows + TILE - 1) // TILE
    for task in prange((width + WIDTH - 1) // WIDTH * tiles):
        c, first = task // tiles, task % tiles * TILE
        start, panel = matrix + 4 * c * WIDTH * column_step, panels + 4 * WIDTH * c * rows
        last, filled = min(rows, first + TILE), min(WIDTH, width - c * WIDTH)
        _tile(start, panel, first, last, filled, row_step, column_step)


@njit
def _count_row(kept, starts, t, width):
    """NaN is not zero."""
    r, found = _floats(kept, t + 1, width)[t], 0
    for i in range(width):
        found += r[i] != 0
    _places(starts, t + 2)[t + 1] = found


@njit
def _add_up(starts, count):
    """Counts into places."""
    start = _places(starts, count + 1)
    start[0] = 0
    for r in range(count):
        start[r + 1] += start[r]


@_kernel
def count(kept, starts, rows, width):
    """Where the lists of the hidden units that are not zero begin, for `find`; the last place is their number."""
    for t in prange(rows):
        _count_row(kept, starts, t, width)
    _add_up(starts, rows)


@njit
def _find_rows(kept, gate, entries, fields, starts, first, last, width, square, gated):
    """A place is written for every number, and taken again where that was zero: no branches."""
    start, place = _places(starts, last + 1), np.empty(width, np.int32)
    if start[first] == start[last]:
        return
    index, h = _indices(entries, start[last], fields), _floats(entries, start[last], fields)
    for t in range(first, last):
        r, v, found = _floats(kept, last, width)[t], _floats(gate, last, width)[t], 0
        for i in range(width):
            place[found] = i
            found += r[i] != 0
        for k in range(found):
            value = r[place[k]]
            if square:
                value *= value
            if gated:
                value *= v[place[k]]
            index[start[t] + k, 0], h[start[t] + k, 1] = place[k], value


@_kernel
def find(kept, gate, entries, fields, starts, rows, width, square, gated):
    """The lists of the hidden units that are not zero, of what is kept of them (T, d_ff): r or r², times the gate."""
    for task in prange((rows + TILE - 1) // TILE):
        first, last = task * TILE, min(rows, task * TILE + TILE)
        _find_rows(kept, gate, entries, fields, starts, first, last, width, square, gated)


@njit(fastmath=FLAGS)
def _add_panel(out, panel, row_step, entries, fields, field, starts, first, last, width, column):
    """`add` for some rows of one panel, whose columns begin at ``column``."""
    start, y, size = _places(starts, last + 1), _floats(out, last, width), 4 * fields
    tail, left = np.zeros(WIDTH, np.float32), width - column
    for r in range(first, last):
        one, other = entries + size * start[r], entries + size * start[r + 1]
        if left >= WIDTH:
            add_rows(out + 4 * (r * width + column), panel, row_step, one, other, size, 4 * field)
        else:
            tail[:left] = y[r, column:]
            add_rows(tail.ctypes.data, panel, row_step, one, other, size, 4 * field)
            y[r, column:] = tail[:left]


@_kernel
def add(out, panels, row_step, panel_step, entries, fields, field, starts, rows, width):
    """Add sparse (rows, ·) × dense (·, width) to ``out``, the sparse values being a field of the entries."""
    parts = (rows + ROWS - 1) // ROWS
    for task in prange((width + WIDTH - 1) // WIDTH * parts):
        c, first = task // parts, task % parts * ROWS
        panel, last = panels + c * panel_step, min(rows, first + ROWS)
        _add_panel(out, panel, row_step, entries, fields, field, starts, first, last, width, c * WIDTH)


@njit(fastmath=FLAGS)
def _dots(dy, panels, row_step, panel_step, count, entries, fields, starts, first, last, rows):
    """dy·W₂ᵀ[j] for the entries of some rows, panel by panel, into their field 2."""
    start, size = _places(starts, last + 1), 4 * fields
    d = _floats(entries, start[last], fields)
    for k in range(start[first], start[last]):
        d[k, 2] = 0
    for c in range(count):
        for t in range(first, last):
            vector, panel = dy + 4 * WIDTH * (c * rows + t), panels + c * panel_step
            add_dots(vector, panel, row_step, entries + size * start[t], entries + size * start[t + 1], size, 8)


@njit(fastmath=FLAGS)
def _through_hidden(entries, fields, starts, kept, gate, t, width, square, gated, factor):
    """∂/∂h, over the dropout's 1 − p, into ∂/∂z, in place, and ∂/∂v: h = f(z) [⊙ v]."""
    start = _places(starts, t + 2)
    j, d = _indices(entries, start[t + 1], fields), _floats(entries, start[t + 1], fields)
    r, v = _floats(kept, t + 1, width)[t], _floats(gate, t + 1, width)[t]
    for k in range(start[t], start[t + 1]):
        here, dh = r[j[k, 0]], d[k, 2] * factor
        if gated:
            d[k, 3] = dh * (here * here if square else here)
            dh *= v[j[k, 0]]
        d[k, 2] = dh * here * np.float32(2) if square else dh


@_kernel
def differentiate(
    dy, panels, row_step, panel_step, count, entries, fields, starts, kept, gate, rows, width, square, gated, factor,
    parts,
):  # fmt: skip
    """∂/∂z and ∂/∂v of the hidden units that `find` found, into their entries.

    ``dy`` is ``count`` panels of `pack`, and ``panels`` those of W₂ᵀ (d_ff, d_out). The rows are taken in ``parts``.
    """
    size = (rows + parts - 1) // parts
    for part in prange(parts):
        first, last = min(rows, part * size), min(rows, (part + 1) * size)
        _dots(dy, panels, row_step, panel_step, count, entries, fields, starts, first, last, rows)
        for t in range(first, last):
            _through_hidden(entries, fields, starts, kept, gate, t, width, square, gated, factor)


@njit
def _count_columns(entries, fields, starts, first, last, places, width):
    """How many entries some rows have in each column."""
    start, place = _places(starts, last + 1), _places(places, width)
    place[:] = 0
    j = _indices(entries, start[last], fields)
    for k in range(start[first], start[last]):
        place[j[k, 0]] += 1


@njit
def _set_places(places, list_starts, parts, width):
    """Counts into places: of column after column, in each part after part."""
    place, start, total = _places(places, parts * width), _places(list_starts, width + 1), 0
    for j in range(width):
        start[j] = total
        for at in range(j, parts * width, width):
            place[at], total = total, total + place[at]
    start[width] = total


@njit
def _deal(entries, fields, starts, first, last, places, width, lists, total):
    """Put the entries of some rows into the places of their columns."""
    start, place = _places(starts, last + 1), _places(places, width)
    given, out = _indices(entries, start[last], fields), _indices(lists, total, fields)
    for t in range(first, last):
        for k in range(start[t], start[t + 1]):
            at = place[given[k, 0]]
            place[given[k, 0]] = at + 1
            out[at, 0] = t
            for field in range(1, fields):
                out[at, field] = given[k, field]


@_kernel
def transpose(entries, fields, starts, rows, width, lists, list_starts, places, parts):
    """The lists of rows as ``lists`` of columns. The rows are taken in ``parts``, with ``places`` (parts, width)."""
    size = (rows + parts - 1) // parts
    for part in prange(parts):
        first, last = min(rows, part * size), min(rows, part * size + size)
        _count_columns(entries, fields, starts, first, last, places + 8 * part * width, width)
    _set_places(places, list_starts, parts, width)
    total = _places(starts, rows + 1)[rows]
    for part in prange(parts):
        first, last = min(rows, part * size), min(rows, part * size + size)
        _deal(entries, fields, starts, first, last, places + 8 * part * width, width, lists, total)


@njit(fastmath=FLAGS)
def _add_sum(out, entries, fields, field, starts, r):
    start, total = _places(starts, r + 2), np.float32(0)
    given = _floats(entries, start[r + 1], fields)
    for k in range(start[r], start[r + 1]):
        total += given[k, field]
    _floats(out, 1, r + 1)[0, r] += total


@_kernel
def add_sums(out, entries, fields, field, starts, rows):
    """Add to out[r] the sum of list r's values."""
    for r in prange(rows):
        _add_sum(out, entries, fields, field, starts, r)
