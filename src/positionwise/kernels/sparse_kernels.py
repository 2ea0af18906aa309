# mypy: ignore-errors
# Numba compiles it; it is no typed Python.
"""Products with sparse matrices, compiled by Numba from Python; `sparse_lists` says what those are.

A dense matrix is panels of `WIDTH` columns: row r of panel c begins at ``panels + c·panel_step + r·row_step`` bytes.
A panel of some thousand rows stays in a second-level cache; columns of a wide matrix, whose rows are a power of two
apart, would not.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from positionwise.kernels import sparse_loops
from positionwise.kernels.sparse_lists import TILE, find_row, floats, indices, kernel, mark_row, places
from positionwise.kernels.sparse_loops import SIDE, WIDTH, WORD, add_dots, add_rows
from positionwise.kernels.vectors import FLAGS

BUILT_ON = "3c9bb6058b37"
"""As in `sparse_lists`."""
ROWS = 64
"""Lists of a task of `add`."""
TOGETHER = 8
"""Rows of a dense matrix that are read side by side: no more than a processor's prefetchers follow."""


@njit
def _tile(matrix, panel, first, last, filled, row_step, column_step):
    """Rows of one panel; the columns that the matrix lacks become zeros."""
    out, count = floats(panel, last, WIDTH), max(0, (last - 1) * row_step + (filled - 1) * column_step + 1)
    given = floats(matrix, 1, count)[0]
    if column_step == 1 and filled == WIDTH:
        for r in range(first, last):
            row = floats(matrix + 4 * r * row_step, 1, WIDTH)[0]
            for i in range(WIDTH):
                out[r, i] = row[i]
        return
    if row_step == 1 and filled == WIDTH and last - first == TILE:
        for r in range(first, last, SIDE):
            for i in range(0, WIDTH, SIDE):
                place = panel + 4 * (r * WIDTH + i)
                sparse_loops.transpose(matrix + 4 * (r + i * column_step), 4 * column_step, place, 4 * WIDTH)
        return
    for i in range(filled):
        for r in range(first, last):
            out[r, i] = given[r * row_step + i * column_step]
    for r in range(first, last):
        out[r, filled:] = 0


@kernel
def pack(matrix, panels, rows, width, row_step, column_step):
    """A matrix of any strides (in numbers) into panels that lie one behind the other."""
    tiles = (rows + TILE - 1) // TILE
    for task in prange((width + WIDTH - 1) // WIDTH * tiles):
        c, first = task // tiles, task % tiles * TILE
        start, panel = matrix + 4 * c * WIDTH * column_step, panels + 4 * WIDTH * c * rows
        last, filled = min(rows, first + TILE), min(WIDTH, width - c * WIDTH)
        _tile(start, panel, first, last, filled, row_step, column_step)


@njit(fastmath=FLAGS)
def _add_panel(out, panel, row_step, entries, size, field, starts, first, last, width, column):
    """`add` for some lists and one panel, whose columns begin at ``column``."""
    start, y = places(starts, 1, last + 1)[0], floats(out, last, width)
    tail, left = np.zeros(WIDTH, np.float32), width - column
    for r in range(first, last):
        one, other = entries + size * start[r], entries + size * start[r + 1]
        if left >= WIDTH:
            add_rows(out + 4 * (r * width + column), panel, row_step, one, other, size, field)
        else:
            tail[:left] = y[r, column:]
            add_rows(tail.ctypes.data, panel, row_step, one, other, size, field)
            y[r, column:] = tail[:left]


@kernel
def add(out, panels, row_step, panel_step, entries, fields, field, starts, lists, width):
    """Add sparse (lists, ·) × dense (·, width) to ``out``, the sparse values being a field of the entries."""
    parts = (lists + ROWS - 1) // ROWS
    for task in prange((width + WIDTH - 1) // WIDTH * parts):
        c, first = task // parts, task % parts * ROWS
        panel, last, size = panels + c * panel_step, min(lists, first + ROWS), 4 * fields
        _add_panel(out, panel, row_step, entries, size, 4 * field, starts, first, last, width, c * WIDTH)


@njit(fastmath=FLAGS)
def _few_part(out, panels, row_step, panel_step, z, gate, rows, d_ff, width, first, last, square, gated, factor):
    """Add what the hidden units from first to last give, some rows of the matrix at a time, whole ones, as they lie."""
    fields, count = 4 if gated else 3 if square else 2, last - first
    masks, starts = np.empty((count + WORD - 1) // WORD, np.int64), np.zeros(2, np.int64)
    lists = np.empty((count, fields), np.float32)
    mask, start, entries = masks.ctypes.data, starts.ctypes.data, lists.ctypes.data
    for t in range(rows):
        place = 4 * (t * d_ff + first)
        mark_row(z + place, mask, start, 0, count)
        find_row(z + place, gate + place, mask, entries, fields, 0, starts[1], 0, count, square, gated, factor)
        for k in range(0, starts[1], TOGETHER):
            one, other = entries + 4 * fields * k, entries + 4 * fields * min(starts[1], k + TOGETHER)
            for c in range((width + WIDTH - 1) // WIDTH):
                panel = panels + c * panel_step + first * row_step
                add_rows(out + 4 * (t * width + c * WIDTH), panel, row_step, one, other, 4 * fields, 4)


@njit(fastmath=FLAGS)
def _add_parts(out, sums, rows, width, parts):
    y, given = floats(out, rows, width), floats(sums, parts * rows, width)
    for part in range(parts):
        for t in range(rows):
            for i in range(width):
                y[t, i] += given[part * rows + t, i]


@kernel
def add_few(out, panels, row_step, panel_step, z, gate, rows, d_ff, width, square, gated, factor, sums, parts):
    """`find` and `add` at once, for few rows and whole panels: the hidden units are taken in ``parts``.

    ``sums`` (parts, rows, width) is zero.
    """
    size = (d_ff + parts - 1) // parts
    for part in prange(parts):
        first, last, own = min(d_ff, part * size), min(d_ff, (part + 1) * size), sums + 4 * part * rows * width
        if first < last:
            _few_part(own, panels, row_step, panel_step, z, gate, rows, d_ff, width, first, last, square, gated, factor)
    _add_parts(out, sums, rows, width, parts)


@njit(fastmath=FLAGS)
def _dots(dy, panels, row_step, panel_step, count, entries, size, starts, first, last, rows, dh):
    """dy·W₂ᵀ[j] for the entries of some rows into ``dh``, panel by panel."""
    start = places(starts, 1, last + 1)[0]
    floats(dh, 1, start[last])[0, start[first] :] = 0
    for c in range(count):
        for t in range(first, last):
            vector, panel, out = dy + 4 * WIDTH * (c * rows + t), panels + c * panel_step, dh + 4 * start[t]
            add_dots(vector, panel, row_step, entries + size * start[t], entries + size * start[t + 1], size, out)


@njit(fastmath=FLAGS)
def _through_hidden(entries, fields, starts, first, last, dh, out, square, gated, factor):
    """Entries of h, ∂/∂z and, with a gate, ∂/∂v: h = f(z) [⊙ v]. ``factor`` is dropout's scale, which r has."""
    start = places(starts, 1, last + 1)[0]
    stop, fields_out = start[last], 3 + gated
    index, given, found = indices(entries, stop, fields), floats(entries, stop, fields), floats(dh, 1, stop)[0]
    index_out, value = indices(out, stop, fields_out), floats(out, stop, fields_out)
    for k in range(start[first], stop):
        d = found[k]
        index_out[k, 0], value[k, 1] = index[k, 0], given[k, 1]
        if gated:
            r = given[k, 2]
            value[k, 3] = d * (r * r / factor if square else r)
            d *= given[k, 3]
        value[k, 2] = d * given[k, 2] * np.float32(2) if square else d * factor


@kernel
def differentiate(
    dy, panels, row_step, panel_step, count, entries, fields, starts, rows, dh, out, square, gated, factor, parts
):
    """∂/∂z and ∂/∂v of the hidden units that `find` found, beside their h, as the entries ``out``.

    ``dy`` is ``count`` panels of `pack`, and ``panels`` those of W₂ᵀ (d_ff, d_out). The rows are taken in ``parts``.
    """
    size = (rows + parts - 1) // parts
    for part in prange(parts):
        first, last = min(rows, part * size), min(rows, (part + 1) * size)
        _dots(dy, panels, row_step, panel_step, count, entries, 4 * fields, starts, first, last, rows, dh)
        _through_hidden(entries, fields, starts, first, last, dh, out, square, gated, factor)


@njit(fastmath=FLAGS)
def _add_sum(out, entries, fields, field, starts, r):
    start, total = places(starts, 1, r + 2)[0], np.float32(0)
    given = floats(entries, start[r + 1], fields)
    for k in range(start[r], start[r + 1]):
        total += given[k, field]
    floats(out, 1, r + 1)[0, r] += total


@kernel
def add_sums(out, entries, fields, field, starts, lists):
    """Add to out[r] the sum of list r's values."""
    for r in prange(lists):
        _add_sum(out, entries, fields, field, starts, r)
