# mypy: ignore-errors
# Numba and LLVM build it; it is no typed Python.
"""Few tokens: a kernel that reads each weight once, compiled by Numba from Python.

A product of few tokens is bound by reading the weights. Each thread takes blocks of the weight's rows, small enough to
stay in its second-level cache, and computes tiles of some tokens by four rows, whose sums are in registers. Sums are
reordered, as in any fast product; NaN and infinities come out as they should, for nothing is assumed about them.
"""

from __future__ import annotations

import numba
import numpy as np
from llvmlite import binding, ir
from numba import njit, prange, types
from numba.extending import intrinsic

from positionwise.kernels.vectors import (
    FLAGS,
    FLOAT,
    INT32,
    INT64,
    everywhere,
    four_sums,
    fuse,
    load,
    loop,
    place,
    pointer,
    store,
    vector,
)

BUILT_ON = "da77e4af4835"
"""Digest of the module whose functions these kernels contain: Numba keeps machine code by this file alone."""
BLOCK = 32
"""Rows of a block."""
ROWS = 4
"""Rows of a tile: their sums are written as one vector."""


def _is_wide():
    """Whether the kernels are compiled for registers of 512 bits, of which there are 32."""
    if numba.config.CPU_NAME not in (None, "", "host"):
        return False
    return bool(binding.get_host_cpu_features().get("avx512f"))


LANES, TOKENS = (16, 6) if _is_wide() else (8, 3)
"""Numbers of a register, and tokens of a tile: as many as leave room for the operands."""


def _tile(tokens):
    """The kernel of a tile of so many tokens."""

    @intrinsic
    def tile(typing_context, x, w, step, bias, y, y_step, relu):
        """Some rows of x times `ROWS` rows of w, plus the bias, into y, the negative set to zero on request.

        All are addresses but the steps, the bytes from row to row, of which x and w have ``step``.
        """

        def generate(context, b, signature, arguments):
            x, w, step, bias, y, y_step, relu = arguments
            xs, ws = (
                [b.add(start, b.mul(step, INT64(i))) for i in range(count)] for start, count in ((x, tokens), (w, ROWS))
            )
            whole = b.and_(step, INT64(-4 * LANES))
            sums = _whole(b, xs, ws, whole)
            fours = [four_sums(b, sums[ROWS * t : ROWS * t + ROWS]) for t in range(tokens)]
            before, zero = load(b, bias, 0, vector(ROWS)), vector(ROWS)([0.0] * ROWS)
            for t, total in enumerate(_rest(b, xs, ws, whole, step, fours)):
                plain = b.fadd(total, before)
                positive = b.select(b.fcmp_ordered("<", plain, zero), zero, plain)
                out = b.select(b.icmp_signed("!=", relu, INT64(0)), positive, plain)
                store(b, out, b.add(y, b.mul(y_step, INT64(t))))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), generate

    return tile


def _whole(b, xs, ws, stop):
    """The products of all pairs of rows, up to a place, as vectors that are yet to be summed."""

    def turn(places, sums):
        at = [load(b, b.add(w, places[0]), 0, vector(LANES)) for w in ws]
        found = []
        for t, x in enumerate(xs):
            given = load(b, b.add(x, places[0]), 0, vector(LANES))
            found += [fuse(b, sums[ROWS * t + i], given, w) for i, w in enumerate(at)]
        return found

    nothing = vector(LANES)([0.0] * LANES)
    return loop(b, [INT64(0)], stop, [4 * LANES], [nothing] * len(xs) * ROWS, turn)[1]


def _rest(b, xs, ws, start, stop, sums):
    """The numbers behind the last whole vectors, one by one."""

    def turn(places, sums):
        at = vector(ROWS)(ir.Undefined)
        for i, w in enumerate(ws):
            at = b.insert_element(at, b.load(place(b, b.add(w, places[0]), 0, FLOAT)), INT32(i))
        given = [everywhere(b, b.load(place(b, b.add(x, places[0]), 0, FLOAT)), ROWS) for x in xs]
        return [fuse(b, total, one, at) for total, one in zip(sums, given, strict=True)]

    return loop(b, [start], stop, [4], sums, turn)[1]


_one, _two, _three, _four, _five, _six = (_tile(tokens) for tokens in range(1, 7))


@njit(fastmath=FLAGS)
def _tiles(count, x, w, step, bias, y, y_step, relu):
    """A tile of ``count`` tokens; those that are larger than `TOKENS` are not compiled."""
    if count == 1:
        _one(x, w, step, bias, y, y_step, relu)
    elif count == 2:
        _two(x, w, step, bias, y, y_step, relu)
    elif count == 3:
        _three(x, w, step, bias, y, y_step, relu)
    elif TOKENS > 3:
        if count == 4:
            _four(x, w, step, bias, y, y_step, relu)
        elif count == 5:
            _five(x, w, step, bias, y, y_step, relu)
        else:
            _six(x, w, step, bias, y, y_step, relu)


@njit(fastmath=FLAGS)
def _row(x, w, bias, y, width, relu):
    """One number of the output."""
    one = numba.carray(pointer(x), (width,), np.float32)
    other = numba.carray(pointer(w), (width,), np.float32)
    total = np.float32(0)
    for k in range(width):
        total += one[k] * other[k]
    total += numba.carray(pointer(bias), (1,), np.float32)[0]
    numba.carray(pointer(y), (1,), np.float32)[0] = np.float32(0) if relu and total < 0 else total


@njit(fastmath=FLAGS)
def _block(x, w, bias, y, tokens, width, rows, first, last, relu):
    """The output's columns from first to last; tokens are dealt out to tiles of about one size."""
    whole, step, y_step = first + (last - first) // ROWS * ROWS, 4 * width, 4 * rows
    t = 0
    while t < tokens:
        count = -(-(tokens - t) // -(-(tokens - t) // TOKENS))
        for r in range(first, whole, ROWS):
            _tiles(count, x + t * step, w + r * step, step, bias + 4 * r, y + t * y_step + 4 * r, y_step, relu)
        t += count
    for r in range(whole, last):
        for t in range(tokens):
            _row(x + t * step, w + r * step, bias + 4 * r, y + t * y_step + 4 * r, width, relu)


@njit(types.void(*[types.int64] * 9), parallel=True, fastmath=FLAGS, cache=True, nogil=True)
def _linear(x, w, bias, y, tokens, width, rows, relu, block):
    for part in prange((rows + block - 1) // block):
        _block(x, w, bias, y, tokens, width, rows, part * block, min(rows, part * block + block), relu)


@njit(types.void(*[types.int64] * 13), cache=True, nogil=True)
def _network(x, w1, b1, h, w2, b2, y, tokens, d_model, d_ff, d_out, block1, block2):
    _linear(x, w1, b1, h, tokens, d_model, d_ff, 1, block1)
    _linear(h, w2, b2, y, tokens, d_ff, d_out, 0, block2)


def _rows(rows):
    """Rows of a block of so many, so that every thread has several."""
    return min(BLOCK, max(ROWS, -(-rows // (4 * numba.get_num_threads())) // ROWS * ROWS))


def linear_(x, weight, bias, out, relu):
    """W·x + b into ``out``, the negative set to zero on request.

    Shapes: x (T, in), weight (out, in), bias (out,), out (T, out); float32, contiguous.
    """
    tokens, width = x.shape
    rows = weight.shape[0]
    places = x.data_ptr(), weight.data_ptr(), bias.data_ptr(), out.data_ptr()
    _linear(*places, tokens, width, rows, relu, _rows(rows))


def network_(x, w1, b1, hidden, w2, b2, out):
    """The network with ReLU into ``out``, and its hidden units into ``hidden``: one call takes little of Python.

    Shapes: x (T, d_model), w1 (d_ff, d_model), w2 (d_out, d_ff), the biases as long; float32, contiguous.
    """
    tokens, d_model = x.shape
    d_out, d_ff = w2.shape
    _network(
        x.data_ptr(), w1.data_ptr(), b1.data_ptr(), hidden.data_ptr(), w2.data_ptr(), b2.data_ptr(), out.data_ptr(),
        tokens, d_model, d_ff, d_out, _rows(d_ff), _rows(d_out),
    )  # fmt: skip
