# mypy: ignore-errors
# LLVM builds it; it is no typed Python.
"""The two inner loops of the sparse products, written for LLVM, which keeps their sums in registers.

Both read rows of a panel: `WIDTH` columns of a matrix that lie together, row by row. Written as loops over arrays,
Numba would load and store the sums again for every few rows, at half the speed.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

WIDTH = 64
"""Columns of a panel: sums that fit the registers of AVX2, in rows of four cache lines."""
VECTOR = 16
"""Numbers of an LLVM vector; a narrower processor takes each in parts."""
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


def _loop(b, first, stop, size, sums, turn):
    """For each entry of ``size`` bytes from first to stop, sums = turn(entry, sums); returns the last sums."""
    before, head, body, end = b.block, *(b.append_basic_block(name) for name in ("head", "body", "end"))
    b.branch(head)
    b.position_at_end(head)
    entry, held = b.phi(_int64), [b.phi(_vector) for _ in sums]
    b.cbranch(b.icmp_unsigned("<", entry, stop), body, end)
    b.position_at_end(body)
    found = turn(entry, held)
    following = b.add(entry, size)
    for phi, start, later in zip([entry, *held], [first, *sums], [following, *found], strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(later, body)
    b.branch(head)
    b.position_at_end(end)
    return held


@intrinsic
def add_rows(typing_context, out, panel, step, first, stop, size, field):
    """Add Σ value · panel[index] over the entries from first to stop to the `WIDTH` numbers of ``out``.

    An entry is ``size`` bytes: its index, and ``field`` bytes from its beginning its value. The rest are addresses, and
    ``step``, the bytes from one row of the panel to the next.
    """

    def generate(context, b, signature, arguments):
        out, panel, step, first, stop, size, field = arguments

        def turn(entry, sums):
            value = b.load(_pointer(b, b.add(entry, field), 0, _float))
            one = b.insert_element(_vector(ir.Undefined), value, _int32(0))
            every = b.shuffle_vector(one, _vector(ir.Undefined), ir.VectorType(_int32, VECTOR)([0] * VECTOR))
            row = _row(b, panel, step, entry)
            return [b.fadd(a, b.fmul(every, w, flags=FUSE), flags=FUSE) for a, w in zip(sums, row, strict=True)]

        sums = _loop(b, first, stop, size, _load(b, out), turn)
        for i, total in enumerate(sums):
            b.store(total, _pointer(b, out, 4 * VECTOR * i, _vector), align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 7), generate


@intrinsic
def add_dots(typing_context, vector, panel, step, first, stop, size, field):
    """Add vector · panel[index] to the value of each entry from first to stop; the arguments are as above."""

    def generate(context, b, signature, arguments):
        vector, panel, step, first, stop, size, field = arguments
        given = _load(b, vector)
        kind, name = ir.FunctionType(_float, [_float, _vector]), f"llvm.vector.reduce.fadd.v{VECTOR}f32"
        reduce = b.module.globals.get(name) or ir.Function(b.module, kind, name)

        def turn(entry, sums):
            total = _vector([0.0] * VECTOR)
            for one, other in zip(given, _row(b, panel, step, entry), strict=True):
                total = b.fadd(total, b.fmul(one, other, flags=FUSE), flags=FUSE)
            place = _pointer(b, b.add(entry, field), 0, _float)
            b.store(b.call(reduce, [b.load(place), total], fastmath=("reassoc",)), place)
            return sums

        _loop(b, first, stop, size, [], turn)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 7), generate
