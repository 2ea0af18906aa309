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

WIDTH = 64
"""Columns of a panel: sums that fit the registers of AVX2, in rows of four cache lines."""
VECTOR = 16
"""Numbers of an LLVM vector; a narrower processor takes each in parts."""
WORD = 64
"""Numbers whose signs are looked at together."""
SIDE = 8
"""Rows and columns that are transposed in registers."""
FUSE = ("contract",)

_float, _vector = ir.FloatType(), ir.VectorType(ir.FloatType(), VECTOR)
_int32, _int64 = ir.IntType(32), ir.IntType(64)


def _pointer(b, address, offset, kind):
    return b.inttoptr(b.add(address, ir.Constant(_int64, offset)), kind.as_pointer())


def _load(b, address):
    """The `WIDTH` numbers that begin at an address."""
    offsets = range(0, 4 * WIDTH, 4 * VECTOR)
    return [b.load(_pointer(b, address, offset, _vector), align=4) for offset in offsets]


def _row(b, panel, step, entry):
    """The row that an entry names, of a panel whose rows are ``step`` bytes apart."""
    index = b.load(_pointer(b, entry, 0, _int32))
    return _load(b, b.add(panel, b.mul(b.sext(index, _int64), step)))


def _multiply(b, one, other):
    """The vectors' products, summed number by number."""
    total = _vector([0.0] * VECTOR)
    for left, right in zip(one, other, strict=True):
        total = b.fadd(total, b.fmul(left, right, flags=FUSE), flags=FUSE)
    return total


def _shuffle(b, one, other, places):
    return b.shuffle_vector(one, other, ir.VectorType(_int32, len(places))(list(places)))


def _pairs(b, one, other, width):
    """Sums of two vectors' halves, in each four numbers; ``width`` of them are kept side by side."""
    fours = range(0, VECTOR, 4)
    halves = (
        [of + four + at + i for four in fours for i, of in _order(width)]
        for at in (0, 2)
    )  # fmt: skip
    low, high = (_shuffle(b, one, other, places) for places in halves)
    return b.fadd(low, high, flags=("reassoc",))


def _order(width):
    """Of four results the place in their source, and which source: 0 and `VECTOR` in turn, or two and two."""
    return [(0, 0), (0, VECTOR), (1, 0), (1, VECTOR)] if width == 1 else [(0, 0), (1, 0), (0, VECTOR), (1, VECTOR)]


def _four_sums(b, vectors):
    """The sums of four vectors, as one vector of four."""
    one, two, three, four = vectors
    each = _pairs(b, _pairs(b, one, two, 1), _pairs(b, three, four, 1), 2)
    total = _shuffle(b, each, each, range(4))
    for start in range(4, VECTOR, 4):
        total = b.fadd(total, _shuffle(b, each, each, range(start, start + 4)))
    return total


def _loop(b, first, stop, sizes, sums, turn):
    """While the first of some places is below ``stop``: sums = turn(places, sums), and each place moves on by its size.

    Returns the last places and sums.
    """
    before, head, body, end = b.block, *(b.append_basic_block(name) for name in ("head", "body", "end"))
    b.branch(head)
    b.position_at_end(head)
    places, held = [b.phi(_int64) for _ in first], [b.phi(_vector) for _ in sums]
    b.cbranch(b.icmp_signed("<", places[0], stop), body, end)  # a bound may lie before address 0
    b.position_at_end(body)
    found = turn(places, held)
    following = [b.add(place, ir.Constant(_int64, size) if isinstance(size, int) else size)
                 for place, size in zip(places, sizes, strict=True)]  # fmt: skip
    for phi, start, later in zip([*places, *held], [*first, *sums], [*following, *found], strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(later, b.block)
    b.branch(head)
    b.position_at_end(end)
    return places, held


@intrinsic
def add_rows(typing_context, out, panel, step, first, stop, size, field):
    """Add Σ value · panel[index] over the entries from first to stop to the `WIDTH` numbers of ``out``.

    An entry is ``size`` bytes: its index, and ``field`` bytes from its beginning its value. The rest are addresses, and
    ``step``, the bytes from one row of the panel to the next.
    """

    def generate(context, b, signature, arguments):
        out, panel, step, first, stop, size, field = arguments

        def turn(places, sums):
            value = b.load(_pointer(b, b.add(places[0], field), 0, _float))
            one = b.insert_element(_vector(ir.Undefined), value, _int32(0))
            every = _shuffle(b, one, one, [0] * VECTOR)
            row = _row(b, panel, step, places[0])
            return [b.fadd(a, b.fmul(every, w, flags=FUSE), flags=FUSE) for a, w in zip(sums, row, strict=True)]

        _, sums = _loop(b, [first], stop, [size], _load(b, out), turn)
        for i, total in enumerate(sums):
            b.store(total, _pointer(b, out, 4 * VECTOR * i, _vector), align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 7), generate


@intrinsic
def add_dots(typing_context, vector, panel, step, first, stop, size, out):
    """Add vector · panel[index] to ``out``, number after number, for the entries from first to stop.

    Four entries at a time, whose sums over vectors are taken together.
    """

    def generate(context, b, signature, arguments):
        vector, panel, step, first, stop, size, out = arguments
        given, four = _load(b, vector), ir.VectorType(_float, 4)
        kind, name = ir.FunctionType(_float, [_float, _vector]), f"llvm.vector.reduce.fadd.v{VECTOR}f32"
        reduce = b.module.globals.get(name) or ir.Function(b.module, kind, name)

        def four_entries(places, sums):
            entry, place = places
            each = []
            for _ in range(4):
                each.append(_multiply(b, given, _row(b, panel, step, entry)))
                entry = b.add(entry, size)
            at = _pointer(b, place, 0, four)
            b.store(b.fadd(b.load(at, align=4), _four_sums(b, each)), at, align=4)
            return sums

        def one_entry(places, sums):
            entry, place = places
            at = _pointer(b, place, 0, _float)
            total = _multiply(b, given, _row(b, panel, step, entry))
            b.store(b.call(reduce, [b.load(at), total], fastmath=("reassoc",)), at)
            return sums

        whole = b.sub(stop, b.mul(size, ir.Constant(_int64, 3)))
        places, _ = _loop(b, [first, out], whole, [b.mul(size, ir.Constant(_int64, 4)), 16], [], four_entries)
        _loop(b, places, stop, [size, 4], [], one_entry)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 7), generate


@intrinsic
def positive(typing_context, address):
    """Which of the `WORD` numbers that begin at an address are not zero or negative, as bits; NaN is among them."""

    def generate(context, b, signature, arguments):
        zero, bits = _vector([0.0] * VECTOR), ir.Constant(_int64, 0)
        for i in range(WORD // VECTOR):
            given = b.load(_pointer(b, arguments[0], 4 * VECTOR * i, _vector), align=4)
            here = b.bitcast(b.fcmp_unordered(">", given, zero), ir.IntType(VECTOR))
            bits = b.or_(bits, b.shl(b.zext(here, _int64), ir.Constant(_int64, VECTOR * i)))
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
        kind, rows = ir.VectorType(_float, SIDE), []
        for _ in range(SIDE):
            rows.append(b.load(_pointer(b, given, 0, kind), align=4))
            given = b.add(given, given_step)
        step = 1
        while step < SIDE:  # exchange the off-diagonal squares of this size
            low = [i if not i & step else SIDE + i - step for i in range(SIDE)]
            high = [i + step if not i & step else SIDE + i for i in range(SIDE)]
            for i in (i for i in range(SIDE) if not i & step):
                one, other = rows[i], rows[i + step]
                rows[i], rows[i + step] = _shuffle(b, one, other, low), _shuffle(b, one, other, high)
            step *= 2
        for row in rows:
            b.store(row, _pointer(b, out, 0, kind), align=4)
            out = b.add(out, out_step)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate
