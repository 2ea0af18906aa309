"""Products by the engine that is fastest on this machine.

Four engines compute W·x + b: PyTorch's own product (MKL or OpenBLAS), PyTorch's oneDNN, for few tokens a kernel of
ours, and for many NumPy's OpenBLAS on the tensors' memory. Numbers of half precision may also be widened to float32, in
which a processor without half precision of its own is many times faster.

Which one wins depends on the processor and on the sizes. Each kind of product is tried once with each engine, on the
operands of the first call of that kind; the answer is kept, so that equal calls take the same engine and give equal
bits. PyTorch's own stays unless another is clearly faster, and for a single token always.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor

from positionwise.kernels import launch
from positionwise.kernels.answers import PRODUCTS

MARGIN = 0.9
"""Another engine is taken where it needs at most this share of PyTorch's time."""
ROUNDS = 11
PAUSE = 0.03
"""Seconds after which the threads of a library no longer wait for work in a loop, and leave the cores to others."""
LEAST = 1 << 17
"""Weights of fewer numbers are left to PyTorch: nothing is to be won."""
FEW = 64
"""Tokens up to which our kernel is tried, and above which NumPy's product."""
BLOCK = 512
"""Rows of a weight that are widened at once."""
HALF = (torch.bfloat16, torch.float16)
_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool = False) -> Tensor:
    """W·x + b, its negative part set to zero on request.

    Shapes: x (T, in), weight (out, in), bias (out,); returns (T, out).
    """
    return run(engine(x, weight), x, weight, bias, relu)


def run(name: str, x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    """`linear` by the engine of that name."""
    if name == "numba":
        return launch.linear(x, weight, bias, relu)
    if name == "onednn":  # whose own ReLU would turn NaN into zero
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    elif name == "wide":
        y = _wide(x, weight, bias)
    elif name == "numpy":
        y = _multiply(x, weight.t(), x.new_empty(len(x), len(weight)))
        y = y if bias is None else y.add_(bias)
    else:
        y = torch.nn.functional.linear(x, weight, bias)
    return y.relu_() if relu else y


def _wide(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product in float32 of numbers in half precision, the weight widened a block of rows at a time."""
    y, wide = x.new_empty(len(x), len(weight)), x.float()
    for start in range(0, len(weight), BLOCK):
        rows = slice(start, start + BLOCK)
        b = None if bias is None else bias[rows].float()
        y[:, rows] = torch.nn.functional.linear(wide, weight[rows].float(), b)
    return y


def linear_(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
    """`linear` into ``out``, without a kernel of ours: for many tokens."""
    if x.dtype in HALF:
        return out.copy_(linear(x, weight, bias))
    if _engine_of(x, weight.t()) == "numpy":
        _multiply(x, weight.t(), out)
        return out if bias is None else out.add_(bias)
    if bias is None:
        return torch.mm(x, weight.t(), out=out)
    return torch.addmm(bias, x, weight.t(), out=out)


def matmul(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """a·b into ``out``, or as a new tensor; of half precision where that is faster, widened: then new in float32.

    Shapes: a (m, k), b (k, n).
    """
    if a.dtype in HALF and engine(a, b.t()) == "wide":
        product = torch.mm(a.float(), b.float())
        return product if out is None else out.copy_(product)
    if _engine_of(a, b) == "numpy":
        return _multiply(a, b, a.new_empty(len(a), b.shape[1]) if out is None else out)
    return torch.mm(a, b) if out is None else torch.mm(a, b, out=out)


def add_(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a·b."""
    if a.dtype in HALF or _engine_of(a, b) == "numpy":
        total += matmul(a, b)
    else:
        total.addmm_(a, b)


def _multiply(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """The product by NumPy, which reads and writes the tensors' own memory."""
    with np.errstate(all="ignore"):  # infinities are the caller's own, as in PyTorch
        np.matmul(a.detach().numpy(), b.detach().numpy(), out=out.numpy())
    return out


def engine(x: Tensor, weight: Tensor) -> str:
    """The engine for x·Wᵀ: ``torch``, ``onednn``, ``numba``, ``numpy``, or ``wide`` for half precision."""
    count, dtype = x.shape[0], x.dtype
    if count < 2 or dtype not in _CODES or weight.numel() < LEAST:
        return "torch"
    kind = (_power(count), *weight.shape, torch.get_num_threads(), _CODES[dtype])
    name: str = PRODUCTS.get(kind, lambda: _measure(x, weight))
    if name == "numpy":
        return name if _numpy_follows() else "torch"
    return name if name != "numba" or launch.is_usable(x, weight) else "torch"


def _engine_of(a: Tensor, b: Tensor) -> str:
    """The engine for a·b of many tokens in float32: ``torch`` or ``numpy``."""
    (m, k), n = a.shape, b.shape[1]
    if a.dtype != torch.float32 or min(m, k, n) <= FEW or m * k * n < FEW * LEAST or not _numpy_follows():
        return "torch"
    layouts = (int(a.stride(0) < a.stride(1)), int(b.stride(0) < b.stride(1)))
    kind = (_power(m), _power(k), _power(n), *layouts, torch.get_num_threads())
    name: str = PRODUCTS.get(kind, lambda: _measure_of(a, b))
    return name


def _power(count: int) -> int:
    """Kinds are told apart by powers of two."""
    return 1 << (count - 1).bit_length()


@cache
def _numpy_threads() -> int:
    """Threads that NumPy's products take; 0 where they are not OpenBLAS's."""
    from threadpoolctl import threadpool_info

    found = [pool["num_threads"] for pool in threadpool_info() if "numpy" in pool["filepath"]]
    return found[0] if len(found) == 1 else 0


def _numpy_follows() -> bool:
    """Whether NumPy takes as many threads as PyTorch."""
    return _numpy_threads() == torch.get_num_threads()


def _measure(x: Tensor, weight: Tensor) -> str:
    names = ["torch"]
    if x.dtype in HALF:
        names.append("wide")
    else:
        if torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            names.append("onednn")
        if len(x) <= FEW and launch.is_usable(x, weight):
            names.append("numba")
    ways = {name: partial(run, name, x, weight, None, False) for name in [*names, "numpy"]}
    times: dict[str, list[float]] = {name: [] for name in names}
    with torch.no_grad():
        for _ in range(ROUNDS + 1):
            for name in names:
                times[name].append(_time(ways[name]))
        medians = {name: statistics.median(seen[1:]) for name, seen in times.items()}
        best = min(medians, key=lambda name: medians[name])
        best = best if medians[best] < MARGIN * medians["torch"] else "torch"
        if len(x) <= FEW or x.dtype != torch.float32 or not _numpy_follows():
            return best
        return "numpy" if _is_clearly_faster(ways["numpy"], ways[best]) else best


def _measure_of(a: Tensor, b: Tensor) -> str:
    out = a.new_empty(len(a), b.shape[1])
    with torch.no_grad(), launch.told_when_slow("measuring products, once for this machine"):
        faster = _is_clearly_faster(lambda: _multiply(a, b, out), lambda: torch.mm(a, b, out=out))
    return "numpy" if faster else "torch"


def _is_clearly_faster(one: Callable[[], object], other: Callable[[], object]) -> bool:
    """Whether one library's product is, with work of PyTorch's threads before each: waiting threads take cores."""
    times: tuple[list[float], list[float]] = ([], [])
    work = torch.zeros(1 << 18)
    for _ in range(3):
        for run_one, seen in zip((one, other), times, strict=True):
            time.sleep(PAUSE)
            run_one()
            for _ in range(3):
                work.add_(1)
                seen.append(_time(run_one))
    return statistics.median(times[0]) < MARGIN * statistics.median(times[1])


def _time(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
