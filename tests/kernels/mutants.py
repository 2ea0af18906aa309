"""Mistakes that people make in kernels, each planted in a copy of the real ones, for the tests to find.

None of them leaves its arrays: what is read or written in the wrong place is a number of the same tensor. Lists that
lack entries would lead others out of theirs, so the tests of the lists come before those that follow them.
"""

import importlib
import re
from itertools import count
from pathlib import Path
from typing import NamedTuple

from positionwise import kernels

SOURCE = Path(kernels.__file__).parent
WRONG, TAIL, STALE = KINDS = "wrong index", "dropped tail", "stale buffer"
SPARSE = ("vectors", "sparse_loops", "sparse_lists", "sparse_kernels")
_numbers = count()


class Mutant(NamedTuple):
    """One mistake: in which kernel's code, of which module and kind, and what stands there instead."""

    kernel: str
    module: str
    kind: str
    old: str
    new: str

    @property
    def function(self):
        """The function of the module in which it is made."""
        return re.findall(r"^def (\w+)", source(self.module).partition(self.old)[0], re.MULTILINE)[-1]


def source(module):
    return (SOURCE / f"{module}.py").read_text("utf-8")


def copy(folder, names, mutant=None):
    """Import copies of some modules, which import each other as a package of their own, with a mistake in one.

    The folder is on Python's path. Of the sparse kernels, only the mutant's is compiled.
    """
    package = folder / f"copy_{next(_numbers)}"
    package.mkdir()
    (package / "__init__.py").touch()
    for name in names:
        text = source(name).replace("cache=True", "cache=False")
        text = re.sub(rf"positionwise\.kernels(?=(\.| import )({'|'.join(names)})\b)", package.name, text)
        if mutant is not None:
            text = re.sub(rf"@kernel\n(?!def {mutant.kernel}\()", "", text)
        if mutant is not None and name == mutant.module:
            text = text.replace(mutant.old, mutant.new)
        (package / f"{name}.py").write_text(text, "utf-8")
    importlib.invalidate_caches()
    return [importlib.import_module(f"{package.name}.{name}") for name in names]


def few(*mistake):
    return Mutant("_linear", "few", *mistake)


def dense(*mistake):
    return Mutant("dense", "dense", *mistake)


def loops(kernel, *mistake):
    return Mutant(kernel, "sparse_loops", *mistake)


def lists(kernel, *mistake):
    return Mutant(kernel, "sparse_lists", *mistake)


def products(kernel, *mistake):
    return Mutant(kernel, "sparse_kernels", *mistake)


def around(*mistake):
    return Mutant("sparse", "sparse", *mistake)


FEW_TOKENS = [
    few(WRONG, "x + t * step, w + r * step, step,", "x, w + r * step, step,"),
    few(STALE, "    total = np.float32(0)", "    total = numba.carray(pointer(y), (1,), np.float32)[0]"),
    few(TAIL, "for r in range(whole, last):", "for r in range(last, last):"),
    few(TAIL, "_rest(b, xs, ws, whole, step, fours)", "_rest(b, xs, ws, step, step, fours)"),
    few(TAIL, "min(rows, part * block + block)", "min(rows, part * block + block - 1)"),
    few(TAIL, "while t < tokens:", "while t + TOKENS <= tokens:"),
    few(WRONG, "sums[ROWS * t + i], given, w)", "sums[i], given, w)"),
    few(STALE, "b.fadd(total, before)", "b.fadd(total, load(b, b.add(y, b.mul(y_step, INT64(t))), 0, vector(ROWS)))"),
    few(WRONG, "tokens, d_model, d_ff, 1, block1", "tokens, d_model, d_ff, 0, block1"),
    few(TAIL, "_linear(h, w2, b2, y, tokens,", "_linear(h, w2, b2, y, tokens - 1,"),
    Mutant("_linear", "vectors", TAIL, "range(4, each.type.count, 4)", "range(8, each.type.count, 4)"),
    Mutant("_linear", "vectors", WRONG, "for at in (0, 2))", "for at in (0, 0))"),
]

LLVM_LOOPS = [
    loops("add", WRONG, "row = _row(b, panel, step, places[0])", "row = _load(b, panel)"),
    loops("add", WRONG, "b.add(places[0], field), 0, FLOAT", "b.add(first, field), 0, FLOAT"),
    loops("add", TAIL, "for i, total in enumerate(sums):", "for i, total in enumerate(sums[:-1]):"),
    loops("differentiate", WRONG, "entry = b.add(entry, size)", "entry = places[0]"),
    loops("differentiate", TAIL, "loop(b, places, stop, [size, 4], [], one_entry)", "pass"),
    loops("pack", WRONG, "given = b.add(given, given_step)", "pass"),
    loops("pack", TAIL, "for row in rows:", "for row in rows[:-1]:"),
    loops("mark", WRONG, "load(b, arguments[0], 4 * LANES * i, _vector)", "load(b, arguments[0], 0, _vector)"),
    loops("mark", TAIL, "for i in range(WORD // LANES):", "for i in range(WORD // LANES - 1):"),
]

SPARSE_LISTS = [
    lists("mark", WRONG, "= z + 4 * t * width, places(", "= z, places("),
    lists("mark", TAIL, "range(width // WORD * WORD, width):", "range(width // WORD * WORD, width - 1):"),
    lists("mark", STALE, "mask[word] = positive(", "mask[word] |= positive("),
    lists("find", WRONG, "floats(gate, t + 1, width)[t]", "floats(gate, t + 1, width)[0]"),
    lists("find", WRONG, "i = word * WORD + lowest(bits)", "i = lowest(bits)"),
    lists("find", TAIL, "for word in range(len(mask)):", "for word in range(len(mask) - 1):"),
    lists("find", TAIL, "task * TILE + TILE)", "task * TILE + TILE - 1)"),
    lists("find", STALE, "value[at, 1] = h", "value[at, 1] += h"),
    lists("transpose", WRONG, "out[at, 0] = t", "out[at, 0] = t - first"),
    lists("transpose", TAIL, "for field in range(1, fields):", "for field in range(1, fields - 1):"),
    lists("transpose", STALE, "start[width] = total", "pass"),
]

SPARSE_PRODUCTS = [
    products("pack", WRONG, "matrix + 4 * c * WIDTH * column_step", "matrix"),
    products("pack", TAIL, "min(rows, first + TILE)", "min(rows, first + TILE - 1)"),
    products("pack", TAIL, "for i in range(filled):", "for i in range(filled - 1):"),
    products("pack", STALE, "out[r, filled:] = 0", "pass"),
    products("add", WRONG, "size = panels + c * panel_step,", "size = panels,"),
    products("add", TAIL, "min(lists, first + ROWS)", "min(lists, first + ROWS - 1)"),
    products("add", TAIL, "y[r, column:] = tail[:left]", "pass"),
    products("add", STALE, "tail[:left] = y[r, column:]", "pass"),
    products("add_few", WRONG, "panels + c * panel_step + first * row_step", "panels + c * panel_step"),
    products("add_few", WRONG, "+= given[part * rows + t, i]", "+= given[t, i]"),
    products("add_few", TAIL, "min(starts[1], k + TOGETHER)", "min(starts[1], k + TOGETHER - 1)"),
    products("add_few", STALE, "        mark_row(z + place,", "        if t == 0: mark_row(z + place,"),
    products("differentiate", WRONG, "4 * WIDTH * (c * rows + t)", "4 * WIDTH * (c * rows + first)"),
    products("differentiate", TAIL, "for c in range(count):", "for c in range(count - 1):"),
    products("differentiate", STALE, "floats(dh, 1, start[last])[0, start[first] :] = 0", "pass"),
    products("add_sums", WRONG, "total += given[k, field]", "total += given[k, 1]"),
    products("add_sums", TAIL, "range(start[r], start[r + 1]):", "range(start[r], start[r + 1] - 1):"),
    products("add_sums", STALE, "np.float32(0)\n    given", "floats(out, 1, r + 1)[0, r]\n    given"),
]

AROUND_SPARSE = [
    around(WRONG, "enumerate(self.first, DZ)", "enumerate(self.first, H)"),
    around(STALE, "sums, flags = _zeros(", "sums, flags = _empty("),
    around(STALE, "self.dx = _zeros(", "self.dx = _empty("),
    around(STALE, "self.weights = [_zeros(", "self.weights = [_empty("),
]

DENSE = [
    dense(WRONG, "here = part if save else", "here ="),
    dense(TAIL, "range(0, tokens, size))", "range(0, tokens - size + 1, size))"),
    dense(STALE, "product.linear_(h, w.w2, w.b2, y[part])", "y[part] += F.linear(h, w.w2, w.b2)"),
    dense(STALE, "if begun is None or part.start:", "if begun is None and not part.start:"),
    dense(WRONG, "z, v = kept[part],", "z, v = kept[:size],"),
    dense(WRONG, "sums[name].product(d, x[part])", "sums[name].product(d, x[:size])"),
    dense(WRONG, "z, v, call, redrawn)", "z, v, call, masks)"),
    dense(TAIL, "product.add_(self.total, a.t(), b)", "pass"),
    dense(STALE, "product.matmul(dy[part], w.w2, dh)", "pass"),
    dense(STALE, "product.matmul(dh, w.w1, dx[part])", "dx[part] += dh @ w.w1"),
    dense(STALE, "if self.total is None else self.total.add_(summed)", ""),
]

QUICK = [*FEW_TOKENS[:2], *AROUND_SPARSE, *DENSE]
SLOW = [*FEW_TOKENS[2:], *LLVM_LOOPS, *SPARSE_LISTS, *SPARSE_PRODUCTS]
"""Those for which much is compiled."""
