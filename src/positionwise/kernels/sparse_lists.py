# mypy: ignore-errors
# Numba compiles it; it is no typed Python.
"""Kernels that find the hidden units that are not zero, and put them in order; compiled by Numba from Python.

A sparse matrix is lists of entries. An entry is ``fields`` numbers of four bytes: an index (int32), then float32
values, of which the first is h. List r is the entries from ``starts[r]`` to ``starts[r + 1]`` (int64). Lists of rows
name columns, lists of columns name rows, both in ascending order.

Arrays are given by their addresses. Each kernel only deals out tasks: in a function with `prange`, Numba drops what is
written to arrays that were made from addresses and are not read there.
"""

from __future__ import annotations

import numba
import numpy as np
from numba import njit, prange, types

from positionwise.kernels.sparse_loops import WORD, lowest, ones, positive
from positionwise.kernels.vectors import FLAGS, pointer

BUILT_ON = "a5bb5659baf9"
"""Digest of the modules whose functions these kernels contain: Numba keeps machine code by this file alone."""
TILE = 16
"""Rows of a task."""


def kernel(function):
    """Compile, or read from the cache, when the module is imported: there is one signature."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    signature = types.void(*(types.float32 if name == "factor" else types.int64 for name in names))
    return njit(signature, parallel=True, fastmath=FLAGS, cache=True, nogil=True)(function)


@njit
def floats(address, rows, width):
    """Memory as float32."""
    return numba.carray(pointer(address), (rows, width), np.float32)


@njit
def indices(address, rows, width):
    """Memory as int32."""
    return numba.carray(pointer(address), (rows, width), np.int32)


@njit
def places(address, rows, width):
    """Memory as int64."""
    return numba.carray(pointer(address), (rows, width), np.int64)


@njit
def mark_row(z, masks, starts, t, width):
    """`mark` for one row, but for the sum of those before it."""
    row, mask, found = z + 4 * t * width, places(masks, t + 1, (width + WORD - 1) // WORD)[t], 0
    for word in range(width // WORD):
        mask[word] = positive(row + 4 * WORD * word)
        found += ones(mask[word])
    if width % WORD:
        left, bits = floats(row, 1, width)[0], 0
        for i in range(width // WORD * WORD, width):
            if not left[i] <= 0:
                bits |= 1 << i % WORD
        mask[-1] = bits
        found += ones(bits)
    places(starts, 1, t + 2)[0, t + 1] = found


@njit
def _add_up(starts, rows):
    """Counts into places."""
    start = places(starts, 1, rows + 1)[0]
    start[0] = 0
    for t in range(rows):
        start[t + 1] += start[t]


@kernel
def mark(z, masks, starts, rows, width):
    """Which numbers are not zero or negative, as bits, and where the lists of them begin; the last place is how many.

    ``masks`` has a word for every `WORD` numbers of a row.
    """
    for t in prange(rows):
        mark_row(z, masks, starts, t, width)
    _add_up(starts, rows)


@njit
def find_row(z, gate, masks, entries, fields, start, stop, t, width, square, gated, factor):
    """`find` for one row."""
    r, v, at = floats(z, t + 1, width)[t], floats(gate, t + 1, width)[t], start
    index, value = indices(entries, stop, fields), floats(entries, stop, fields)
    mask = places(masks, t + 1, (width + WORD - 1) // WORD)[t]
    for word in range(len(mask)):
        bits = mask[word]
        while bits:
            i = word * WORD + lowest(bits)
            bits &= bits - 1
            index[at, 0], h = i, r[i]
            if square:
                value[at, 2], h = h, h * h * factor
            if gated:
                value[at, 2], value[at, 3], h = r[i], v[i], h * v[i]
            value[at, 1] = h
            at += 1


@njit
def _find_rows(z, gate, masks, entries, fields, starts, first, last, width, square, gated, factor):
    start = places(starts, 1, last + 1)[0]
    for t in range(first, last):
        find_row(z, gate, masks, entries, fields, start[t], start[t + 1], t, width, square, gated, factor)


@kernel
def find(z, gate, masks, entries, fields, starts, rows, width, square, gated, factor):
    """The lists of the hidden units that are not zero, from z, and with a gate Vx + c (T, d_ff).

    The fields are h, then r = ReLU(z) where h is something else, then the gate's number. ``factor`` takes dropout's
    scale, which z already has, out of a square.
    """
    for task in prange((rows + TILE - 1) // TILE):
        last = min(rows, task * TILE + TILE)
        _find_rows(z, gate, masks, entries, fields, starts, task * TILE, last, width, square, gated, factor)


@njit
def _count_columns(entries, fields, starts, first, last, places_of, width):
    """How many entries some rows have in each column."""
    start, place = places(starts, 1, last + 1)[0], places(places_of, 1, width)[0]
    place[:] = 0
    j = indices(entries, start[last], fields)
    for k in range(start[first], start[last]):
        place[j[k, 0]] += 1


@njit
def _set_places(places_of, list_starts, parts, width):
    """Counts into places: of column after column, in each part after part."""
    place, start, total = places(places_of, 1, parts * width)[0], places(list_starts, 1, width + 1)[0], 0
    for j in range(width):
        start[j] = total
        for at in range(j, parts * width, width):
            place[at], total = total, total + place[at]
    start[width] = total


@njit
def _deal(entries, fields, starts, first, last, places_of, width, lists, total):
    """Put the entries of some rows into the places of their columns."""
    start, place = places(starts, 1, last + 1)[0], places(places_of, 1, width)[0]
    given, out = indices(entries, start[last], fields), indices(lists, total, fields)
    for t in range(first, last):
        for k in range(start[t], start[t + 1]):
            at = place[given[k, 0]]
            place[given[k, 0]] = at + 1
            out[at, 0] = t
            for field in range(1, fields):
                out[at, field] = given[k, field]


@kernel
def transpose(entries, fields, starts, rows, width, lists, list_starts, places_of, parts):
    """The lists of rows as ``lists`` of columns. The rows are taken in ``parts``, with ``places_of`` (parts, width)."""
    size = (rows + parts - 1) // parts
    for part in prange(parts):
        first, last = min(rows, part * size), min(rows, part * size + size)
        _count_columns(entries, fields, starts, first, last, places_of + 8 * part * width, width)
    _set_places(places_of, list_starts, parts, width)
    total = places(starts, 1, rows + 1)[0, rows]
    for part in prange(parts):
        first, last = min(rows, part * size), min(rows, part * size + size)
        _deal(entries, fields, starts, first, last, places_of + 8 * part * width, width, lists, total)
