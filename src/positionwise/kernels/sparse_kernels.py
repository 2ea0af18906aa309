# mypy: ignore-errors
# Numba compiles it; it is no typed Python.
"""Kernels that skip the hidden units that are zero, compiled by Numba from Python.

A sparse matrix is lists of entries: list r is ``index[k]`` (int32), ``values[k]`` (float32) for k from ``starts[r]`` to
``stops[r]`` (int64). Lists of rows name columns and ascend; lists of columns name rows and ascend. Hidden units found
by `find` stand in rows as wide as d_ff, so that rows can be written at the same time.

A dense matrix is panels of `WIDTH` columns: row r of panel c begins at ``panels + c·panel_step + r·row_step`` bytes. A
panel of some thousand rows stays in a second-level cache; columns of a wide matrix, whose rows are a power of two
apart, would not. Every argument is a number of 64 bits or, if it is named after an array, an address.
"""

from __future__ import annotations

import numba
import numpy as np
from numba import njit, prange

from positionwise.kernels.few import FLAGS, _pointer
from positionwise.kernels.sparse_loops import WIDTH, add_dots, add_rows

ROWS = 64
"""Rows of a task of `add`."""
TILE = 16
"""Rows of a tile of `pack`: a cache line of a transposed matrix."""


def _kernel(function):
    arguments = function.__code__.co_argcount
    return njit(f"void({','.join(['int64'] * arguments)})", parallel=True, fastmath=FLAGS, cache=True, nogil=True)(
        function
    )


@njit(inline="always")
def _floats(address, rows, width):
    return numba.carray(_pointer(address), (rows, width), np.float32)


@njit(inline="always")
def _indices(address, rows, width):
    return numba.carray(_pointer(address), (rows, width), np.int32)


@njit(inline="always")
def _places(address, count):
    return numba.carray(_pointer(address), (count,), np.int64)


@_kernel
def pack(matrix, panels, rows, width, row_step, column_step):
    """A matrix of any strides (in numbers) into panels that lie one behind the other, the last filled with zeros."""
    count, tiles = (width + WIDTH - 1) // WIDTH, (rows + TILE - 1) // TILE
    given = numba.carray(_pointer(matrix), (max(1, (rows - 1) * row_step + (width - 1) * column_step + 1),), np.float32)
    for task in prange(count * tiles):
        c, first = task // tiles, task % tiles * TILE
        out = _floats(panels + 4 * WIDTH * c * rows, rows, WIDTH)
        last, filled = min(rows, first + TILE), min(WIDTH, width - c * WIDTH)
        for i in range(filled):
            start = (c * WIDTH + i) * column_step
            for r in range(first, last):
                out[r, i] = given[start + r * row_step]
        for r in range(first, last):
            for i in range(filled, WIDTH):
                out[r, i] = 0


@_kernel
def find(kept, gate, index, values, starts, stops, rows, width, square, gated):
    """The lists of the hidden units that are not zero, of r (T, d_ff), what is kept of them: r or r², times the gate.

    NaN is not zero. An entry is written for every number and its place taken again where that was zero: no branches.
    """
    r, v = _floats(kept, rows, width), _floats(gate, rows, width)
    j, h = _indices(index, rows, width), _floats(values, rows, width)
    begin, end = _places(starts, rows), _places(stops, rows)
    for t in prange(rows):
        found = 0
        for i in range(width):
            j[t, found] = i
            found += r[t, i] != 0
        for k in range(found):
            value = r[t, j[t, k]]
            if square:
                value *= value
            if gated:
                value *= v[t, j[t, k]]
            h[t, k] = value
        begin[t], end[t] = t * width, t * width + found


@_kernel
def add(out, panels, row_step, panel_step, index, values, starts, stops, rows, width):
    """out (rows, width) += sparse (rows, ·) × dense (·, width)."""
    count, parts = (width + WIDTH - 1) // WIDTH, (rows + ROWS - 1) // ROWS
    begin, end, y = _places(starts, rows), _places(stops, rows), _floats(out, rows, width)
    for task in prange(count * parts):
        c, first = task // parts, task % parts * ROWS
        panel, left = panels + c * panel_step, min(WIDTH, width - c * WIDTH)
        tail = np.empty(WIDTH, np.float32)
        for r in range(first, min(rows, first + ROWS)):
            if left == WIDTH:
                place = out + 4 * (r * width + c * WIDTH)
                add_rows(place, panel, row_step, index, values, begin[r], end[r])
            else:
                tail[left:] = 0
                tail[:left] = y[r, c * WIDTH :]
                add_rows(tail.ctypes.data, panel, row_step, index, values, begin[r], end[r])
                y[r, c * WIDTH :] = tail[:left]


@_kernel
def differentiate(
    dz, dv, dy, panels, row_step, panel_step, index, starts, stops, kept, gate, rows, width, d_out, square, gated,
    inverse, parts,
):  # fmt: skip
    """∂/∂z and ∂/∂v of the hidden units in the lists of `find`, as values of these lists.

    ``dy`` is panels of `pack`, ``panels`` those of W₂ᵀ (d_ff, d_out); ∂/∂h = dy·W₂ᵀ[j], over 1 − p on dropout:
    ``inverse`` holds the factor. The rows are taken in ``parts``.
    """
    count, size = (d_out + WIDTH - 1) // WIDTH, (rows + parts - 1) // parts
    begin, end, j = _places(starts, rows), _places(stops, rows), _indices(index, rows, width)
    d, e = _floats(dz, rows, width), _floats(dv, rows, width)
    r, v = _floats(kept, rows, width), _floats(gate, rows, width)
    factor = _floats(inverse, 1, 1)[0, 0]
    for part in prange(parts):
        first, last = part * size, min(rows, (part + 1) * size)
        for t in range(first, last):
            d[t, : end[t] - begin[t]] = 0
        for c in range(count):
            for t in range(first, last):
                vector = dy + 4 * WIDTH * (c * rows + t)
                add_dots(dz, vector, panels + c * panel_step, row_step, index, begin[t], end[t])
        for t in range(first, last):
            for k in range(end[t] - begin[t]):
                kept_here, dh = r[t, j[t, k]], d[t, k] * factor
                if gated:
                    e[t, k] = dh * kept_here * (kept_here if square else np.float32(1))
                    dh *= v[t, j[t, k]]
                if square:
                    dh = dh * kept_here * np.float32(2)
                d[t, k] = dh


@_kernel
def transpose(
    index, starts, stops, h, dz, dv, rows, width, tokens, h_out, dz_out, dv_out, starts_out, places, parts, gated
):
    """The lists of rows as lists of columns: where each begins, and behind the last its end, into ``starts_out``.

    The rows are taken in ``parts``, each of which counts its entries of every column, and then knows their places.
    """
    size = (rows + parts - 1) // parts
    begin, end, j = _places(starts, rows), _places(stops, rows), _indices(index, rows, width)
    given, given_z, given_v = _floats(h, rows, width), _floats(dz, rows, width), _floats(dv, rows, width)
    total = end_of_lists = 0
    place = numba.carray(_pointer(places), (parts, width), np.int64)
    for part in prange(parts):
        place[part] = 0
        for t in range(part * size, min(rows, (part + 1) * size)):
            for k in range(end[t] - begin[t]):
                place[part, j[t, k]] += 1
    starting = _places(starts_out, width + 1)
    for i in range(width):
        starting[i] = total
        for part in range(parts):
            entries = place[part, i]
            place[part, i] = total
            total += entries
    starting[width] = end_of_lists = total
    row = _indices(tokens, 1, end_of_lists)[0]
    out, out_z, out_v = (
        _floats(h_out, 1, end_of_lists)[0],
        _floats(dz_out, 1, end_of_lists)[0],
        _floats(dv_out, 1, end_of_lists)[0],
    )
    for part in prange(parts):
        for t in range(part * size, min(rows, (part + 1) * size)):
            for k in range(end[t] - begin[t]):
                at = place[part, j[t, k]]
                place[part, j[t, k]] += 1
                row[at], out[at], out_z[at] = t, given[t, k], given_z[t, k]
                if gated:
                    out_v[at] = given_v[t, k]


@_kernel
def add_sums(out, values, starts, stops, rows):
    """out[r] += the sum of list r's values."""
    begin, end, y = _places(starts, rows), _places(stops, rows), _floats(out, 1, rows)[0]
    for r in prange(rows):
        total = np.float32(0)
        given = _floats(values + 4 * begin[r], 1, end[r] - begin[r])[0]
        for k in range(end[r] - begin[r]):
            total += given[k]
        y[r] += total
