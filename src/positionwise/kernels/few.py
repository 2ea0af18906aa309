"""Few tokens: a kernel that reads each weight once, compiled by Numba from Python.

A product of few tokens is bound by reading the weights. Each thread takes blocks of the weight's rows, small enough to
stay in its second-level cache, and computes tiles of up to four tokens by four rows in registers. Sums are reordered,
as in any fast product; NaN and infinities come out as they should, for nothing is assumed about them.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import njit, prange, types
from numba.core import cgutils
from numba.extending import intrinsic

BLOCK = 32
"""Rows of a block."""
FLAGS = {"reassoc", "contract", "nsz", "arcp"}
"""What LLVM may do with floating point: reorder sums and fuse, but not assume that there is no NaN."""


@intrinsic
def _pointer(typing_context: Any, address: Any) -> Any:
    """An address as a pointer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


@njit(fastmath=FLAGS, inline="always")
def _tile4(x, w, b, y, t, r):
    zero = np.float32(0)
    a00 = a01 = a02 = a03 = a10 = a11 = a12 = a13 = zero
    a20 = a21 = a22 = a23 = a30 = a31 = a32 = a33 = zero
    for k in range(x.shape[1]):
        x0, x1, x2, x3 = x[t, k], x[t + 1, k], x[t + 2, k], x[t + 3, k]
        w0, w1, w2, w3 = w[r, k], w[r + 1, k], w[r + 2, k], w[r + 3, k]
        a00 += x0 * w0
        a01 += x0 * w1
        a02 += x0 * w2
        a03 += x0 * w3
        a10 += x1 * w0
        a11 += x1 * w1
        a12 += x1 * w2
        a13 += x1 * w3
        a20 += x2 * w0
        a21 += x2 * w1
        a22 += x2 * w2
        a23 += x2 * w3
        a30 += x3 * w0
        a31 += x3 * w1
        a32 += x3 * w2
        a33 += x3 * w3
    y[t, r], y[t, r + 1], y[t, r + 2], y[t, r + 3] = a00 + b[r], a01 + b[r + 1], a02 + b[r + 2], a03 + b[r + 3]
    t += 1
    y[t, r], y[t, r + 1], y[t, r + 2], y[t, r + 3] = a10 + b[r], a11 + b[r + 1], a12 + b[r + 2], a13 + b[r + 3]
    t += 1
    y[t, r], y[t, r + 1], y[t, r + 2], y[t, r + 3] = a20 + b[r], a21 + b[r + 1], a22 + b[r + 2], a23 + b[r + 3]
    t += 1
    y[t, r], y[t, r + 1], y[t, r + 2], y[t, r + 3] = a30 + b[r], a31 + b[r + 1], a32 + b[r + 2], a33 + b[r + 3]


@njit(fastmath=FLAGS, inline="always")
def _tile2(x, w, b, y, t, r):
    a00 = a01 = a02 = a03 = a10 = a11 = a12 = a13 = np.float32(0)
    for k in range(x.shape[1]):
        x0, x1 = x[t, k], x[t + 1, k]
        w0, w1, w2, w3 = w[r, k], w[r + 1, k], w[r + 2, k], w[r + 3, k]
        a00 += x0 * w0
        a01 += x0 * w1
        a02 += x0 * w2
        a03 += x0 * w3
        a10 += x1 * w0
        a11 += x1 * w1
        a12 += x1 * w2
        a13 += x1 * w3
    y[t, r], y[t, r + 1], y[t, r + 2], y[t, r + 3] = a00 + b[r], a01 + b[r + 1], a02 + b[r + 2], a03 + b[r + 3]
    t += 1
    y[t, r], y[t, r + 1], y[t, r + 2], y[t, r + 3] = a10 + b[r], a11 + b[r + 1], a12 + b[r + 2], a13 + b[r + 3]


@njit(fastmath=FLAGS, inline="always")
def _tile1(x, w, b, y, t, r):
    a0 = a1 = a2 = a3 = np.float32(0)
    for k in range(x.shape[1]):
        x0 = x[t, k]
        a0 += x0 * w[r, k]
        a1 += x0 * w[r + 1, k]
        a2 += x0 * w[r + 2, k]
        a3 += x0 * w[r + 3, k]
    y[t, r], y[t, r + 1], y[t, r + 2], y[t, r + 3] = a0 + b[r], a1 + b[r + 1], a2 + b[r + 2], a3 + b[r + 3]


@njit(fastmath=FLAGS, inline="always")
def _row(x, w, b, y, t, r):
    a = np.float32(0)
    for k in range(x.shape[1]):
        a += x[t, k] * w[r, k]
    y[t, r] = a + b[r]


@njit(parallel=True, fastmath=FLAGS, cache=True, nogil=True)
def _linear(xp, wp, bp, yp, tokens, d_in, d_out, relu, block):
    x, w = numba.carray(_pointer(xp), (tokens, d_in), np.float32), numba.carray(_pointer(wp), (d_out, d_in), np.float32)
    b, y = numba.carray(_pointer(bp), (d_out,), np.float32), numba.carray(_pointer(yp), (tokens, d_out), np.float32)
    # Numba drops what is written under prange to such an array that is never read there: the ReLU below reads y.
    for part in prange((d_out + block - 1) // block):
        first, last = part * block, min(d_out, (part + 1) * block)
        whole = first + (last - first) // 4 * 4
        t = 0
        while t < tokens:
            for r in range(first, whole, 4):
                if t + 4 <= tokens:
                    _tile4(x, w, b, y, t, r)
                elif t + 2 <= tokens:
                    _tile2(x, w, b, y, t, r)
                else:
                    _tile1(x, w, b, y, t, r)
            step = 4 if t + 4 <= tokens else 2 if t + 2 <= tokens else 1
            for r in range(whole, last):
                for i in range(step):
                    _row(x, w, b, y, t + i, r)
            t += step
        if relu:
            for i in range(tokens):
                for r in range(first, last):
                    if y[i, r] < 0:
                        y[i, r] = 0


def linear_(x: Any, weight: Any, bias: Any, out: Any, relu: bool) -> None:
    """W·x + b into ``out``, the negative set to zero on request.

    Shapes: x (T, in), weight (out, in), bias (out,), out (T, out); float32, contiguous.
    """
    rows, width = weight.shape
    block = min(BLOCK, max(4, -(-rows // (4 * numba.get_num_threads())) // 4 * 4))
    _linear(x.data_ptr(), weight.data_ptr(), bias.data_ptr(), out.data_ptr(), x.shape[0], width, rows, relu, block)
