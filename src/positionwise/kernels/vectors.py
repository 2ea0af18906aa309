# mypy: ignore-errors
# LLVM builds it; it is no typed Python.
"""What the kernels' inner loops are built of, for LLVM: vectors in memory, loops over places, sums of vectors."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

FLAGS = {"reassoc", "contract", "nsz", "arcp"}
"""What LLVM may do with floating point: reorder sums and fuse, but not assume that there is no NaN."""
FUSE = ("contract",)

FLOAT, INT32, INT64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)


@intrinsic
def pointer(typing_context, address):
    """An address as a pointer."""

    def generate(context, b, signature, arguments):
        return b.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


def vector(lanes):
    """The type of so many float32."""
    return ir.VectorType(FLOAT, lanes)


def place(b, address, offset, kind):
    """The pointer to what lies so many bytes behind an address."""
    return b.inttoptr(b.add(address, ir.Constant(INT64, offset)), kind.as_pointer())


def load(b, address, offset, kind):
    """A vector from memory, wherever it lies."""
    return b.load(place(b, address, offset, kind), align=4)


def store(b, value, address, offset=0):
    """A vector into memory, wherever it lies."""
    b.store(value, place(b, address, offset, value.type), align=4)


def shuffle(b, one, other, places):
    """The numbers at some places of two vectors, one behind the other."""
    return b.shuffle_vector(one, other, ir.VectorType(INT32, len(places))(list(places)))


def everywhere(b, value, lanes):
    """A vector of one number."""
    one = b.insert_element(vector(lanes)(ir.Undefined), value, INT32(0))
    return shuffle(b, one, one, [0] * lanes)


def fuse(b, total, one, other):
    """Total + one · other, rounded once where the processor can."""
    return b.fadd(total, b.fmul(one, other, flags=FUSE), flags=FUSE)


def four_sums(b, vectors):
    """The sums of four vectors, as one vector of four."""
    one, two, three, four = vectors
    each = _halves(b, _halves(b, one, two, 1), _halves(b, three, four, 1), 2)
    total = shuffle(b, each, each, range(4))
    for start in range(4, each.type.count, 4):
        total = b.fadd(total, shuffle(b, each, each, range(start, start + 4)))
    return total


def _halves(b, one, other, width):
    """In each four numbers of two vectors, one half added to the other, ``width`` of a vector's sums side by side."""
    lanes = one.type.count
    order = [(0, 0), (0, lanes), (1, 0), (1, lanes)] if width == 1 else [(0, 0), (1, 0), (0, lanes), (1, lanes)]
    low, high = ([of + start + at + i for start in range(0, lanes, 4) for i, of in order] for at in (0, 2))
    return b.fadd(shuffle(b, one, other, low), shuffle(b, one, other, high), flags=("reassoc",))


def loop(b, first, stop, sizes, sums, turn):
    """While the first of some places is below ``stop``: sums = turn(places, sums), and each place moves on by its size.

    Returns the last places and sums. The comparison is signed: a bound may lie before address 0.
    """
    before, head, body, end = b.block, *(b.append_basic_block(name) for name in ("head", "body", "end"))
    b.branch(head)
    b.position_at_end(head)
    places, held = [b.phi(INT64) for _ in first], [b.phi(each.type) for each in sums]
    b.cbranch(b.icmp_signed("<", places[0], stop), body, end)
    b.position_at_end(body)
    found = turn(places, held)
    steps = [ir.Constant(INT64, size) if isinstance(size, int) else size for size in sizes]
    following = [b.add(each, step) for each, step in zip(places, steps, strict=True)]
    for phi, start, later in zip([*places, *held], [*first, *sums], [*following, *found], strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(later, b.block)
    b.branch(head)
    b.position_at_end(end)
    return places, held
