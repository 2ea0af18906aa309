# mypy: ignore-errors
# LLVM builds it; it is no typed Python.
"""The inner loops of the sparse path, written for LLVM, which keeps their sums in registers.

The products read rows of a panel: `WIDTH` columns of a matrix that lie together, row by row. Written as loops over
arrays, Numba would load and store the sums again for every few rows, at half the speed.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from positionwise.kernels.vectors import (
    FLOAT,
    INT32,
    INT64,
    everywhere,
    four_sums,
    fuse,
    load,
    loop,
    place,
    shuffle,
    store,
    vector,
)

WIDTH = 64
"""Columns of a panel: sums that fit the registers of AVX2, in rows of four cache lines."""
LANES = 16
"""Numbers of an LLVM vector; a narrower processor takes each in parts."""
WORD = 64
"""Numbers whose signs are looked at together."""
SIDE = 8
"""Rows and columns that are transposed in registers."""

_vector = vector(LANES)


def _load(b, address):
    """The `WIDTH` numbers that begin at an address."""
    return [load(b, address, offset, _vector) for offset in range(0, 4 * WIDTH, 4 * LANES)]


def _row(b, panel, step, entry):
    """The row that an entry names, of a panel whose rows are ``step`` bytes apart."""
    index = b.load(place(b, entry, 0, INT32))
    return _load(b, b.add(panel, b.mul(b.sext(index, INT64), step)))


def _multiply(b, one, other):
    """The vectors' products, summed number by number."""
    total = _vector([0.0] * LANES)
    for left, right in zip(one, other, strict=True):
        total = fuse(b, total, left, right)
    return total


@intrinsic
def add_rows(typing_context, out, panel, step, first, stop, size, field):
    """Add Σ value · panel[index] over the entries from first to stop to the `WIDTH` numbers of ``out``.

    An entry is ``size`` bytes: its index, and ``field`` bytes from its beginning its value. The rest are addresses, and
    ``step``, the bytes from one row of the panel to the next.
    """

    def generate(context, b, signature, arguments):
        out, panel, step, first, stop, size, field = arguments

        def turn(places, sums):
            value = everywhere(b, b.load(place(b, b.add(places[0], field), 0, FLOAT)), LANES)
            row = _row(b, panel, step, places[0])
            return [fuse(b, total, value, w) for total, w in zip(sums, row, strict=True)]

        _, sums = loop(b, [first], stop, [size], _load(b, out), turn)
        for i, total in enumerate(sums):
            store(b, total, out, 4 * LANES * i)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 7), generate


@intrinsic
def add_dots(typing_context, given, panel, step, first, stop, size, out):
    """Add given · panel[index] to ``out``, number after number, for the entries from first to stop.

    Four entries at a time, whose sums over vectors are taken together.
    """

    def generate(context, b, signature, arguments):
        given, panel, step, first, stop, size, out = arguments
        given, four = _load(b, given), vector(4)
        kind, name = ir.FunctionType(FLOAT, [FLOAT, _vector]), f"llvm.vector.reduce.fadd.v{LANES}f32"
        reduce = b.module.globals.get(name) or ir.Function(b.module, kind, name)

        def four_entries(places, sums):
            entry, at = places
            each = []
            for _ in range(4):
                each.append(_multiply(b, given, _row(b, panel, step, entry)))
                entry = b.add(entry, size)
            store(b, b.fadd(load(b, at, 0, four), four_sums(b, each)), at)
            return sums

        def one_entry(places, sums):
            entry, at = places
            total = _multiply(b, given, _row(b, panel, step, entry))
            before = b.load(place(b, at, 0, FLOAT))
            store(b, b.call(reduce, [before, total], fastmath=("reassoc",)), at)
            return sums

        whole = b.sub(stop, b.mul(size, ir.Constant(INT64, 3)))
        places, _ = loop(b, [first, out], whole, [b.mul(size, ir.Constant(INT64, 4)), 16], [], four_entries)
        loop(b, places, stop, [size, 4], [], one_entry)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 7), generate


@intrinsic
def positive(typing_context, address):
    """Which of the `WORD` numbers that begin at an address are not zero or negative, as bits; NaN is among them."""

    def generate(context, b, signature, arguments):
        zero, bits = _vector([0.0] * LANES), ir.Constant(INT64, 0)
        for i in range(WORD // LANES):
            given = load(b, arguments[0], 4 * LANES * i, _vector)
            here = b.bitcast(b.fcmp_unordered(">", given, zero), ir.IntType(LANES))
            bits = b.or_(bits, b.shl(b.zext(here, INT64), ir.Constant(INT64, LANES * i)))
        return bits

    return types.int64(types.int64), generate


@intrinsic
def ones(typing_context, bits):
    """How many bits are set."""
    return types.int64(types.int64), lambda context, b, signature, arguments: b.ctpop(arguments[0])


@intrinsic
def lowest(typing_context, bits):
    """The place of the lowest bit that is set; one is."""

    def generate(context, b, signature, arguments):
        return b.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), generate


@intrinsic
def transpose(typing_context, given, given_step, out, out_step):
    """`SIDE` rows of `SIDE` numbers as columns; the steps are the bytes between rows."""

    def generate(context, b, signature, arguments):
        given, given_step, out, out_step = arguments
        rows = []
        for _ in range(SIDE):
            rows.append(load(b, given, 0, vector(SIDE)))
            given = b.add(given, given_step)
        step = 1
        while step < SIDE:  # exchange the off-diagonal squares of this size
            low = [i if not i & step else SIDE + i - step for i in range(SIDE)]
            high = [i + step if not i & step else SIDE + i for i in range(SIDE)]
            for i in (i for i in range(SIDE) if not i & step):
                one, other = rows[i], rows[i + step]
                rows[i], rows[i + step] = shuffle(b, one, other, low), shuffle(b, one, other, high)
            step *= 2
        for row in rows:
            store(b, row, out)
            out = b.add(out, out_step)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate
