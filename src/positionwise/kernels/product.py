"""Products by the engine that is fastest on this machine.

Three engines compute W·x + b: PyTorch's own product (MKL or OpenBLAS), PyTorch's oneDNN, and for few tokens a kernel
of ours. Numbers of half precision may also be widened to float32, in which a processor without half precision of its
own is many times faster.

Which one wins depends on the processor and on the sizes. Each kind of product is tried once with each engine, in turn,
on the operands of the first call of that kind; the answer is kept, so that equal calls take the same engine and give
equal bits. PyTorch's own stays unless another is clearly faster, and for a single token's product always. For few
tokens and ReLU both maps are tried as one call of our kernel.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor

from positionwise.kernels import launch
from positionwise.kernels.answers import PRODUCTS, power

MARGIN = 0.9
"""Another engine is taken where it needs at most this share of PyTorch's time."""
ROUNDS, ENOUGH = 11, 0.5
"""Rounds of a measurement, and seconds after which five are enough."""
LEAST = 1 << 17
"""Weights of fewer numbers are left to PyTorch: nothing is to be won."""
FEW = 1024
"""Tokens up to which our kernel is tried: it packs nothing, so that others win at last."""
MERGED = 64
"""Tokens up to which both maps are tried in one call."""
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
        bias = bias if bias is None else bias.contiguous()  # its strides are not looked at
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    elif name == "wide":
        y = _wide(x, weight, bias)
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
    """`linear` into ``out``."""
    name = engine(x, weight)
    if name == "wide":
        return out.copy_(run(name, x, weight, bias, False))
    if name == "numba" and out.is_contiguous():
        return launch.linear(x, weight, bias, False, out)
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
    return torch.mm(a, b) if out is None else torch.mm(a, b, out=out)


def add_(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a·b."""
    if a.dtype in HALF and (total.dtype != a.dtype or engine(a, b.t()) == "wide"):
        total += matmul(a, b)
    else:
        total.addmm_(a, b)


def engine(x: Tensor, weight: Tensor) -> str:
    """The engine for x·Wᵀ: ``torch``, ``onednn``, ``numba``, or ``wide`` for half precision."""
    count, dtype = x.shape[0], x.dtype
    if count < 2 or dtype not in _CODES or weight.numel() < LEAST:
        return "torch"
    kind = (power(count), *weight.shape, torch.get_num_threads(), _CODES[dtype])
    name: str = PRODUCTS.known(kind) or PRODUCTS.get(kind, lambda: _measure(x, weight))
    return name if name != "numba" or launch.is_usable(x, weight) else "torch"


def network(x: Tensor, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor | None) -> Tensor:
    """W₂·max(0, W₁x + b₁) + b₂: in one call of our kernel where that is faster than two products.

    Shapes: x (T, d_model), w1 (d_ff, d_model), w2 (d_out, d_ff); returns (T, d_out).
    """
    if _is_one_call(x, w1, b1, w2, b2):
        return launch.network(x, w1, b1, w2, b2)
    return _two_products(x, w1, b1, w2, b2)


def _two_products(x: Tensor, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor | None) -> Tensor:
    return linear(linear(x, w1, b1, relu=True), w2, b2)


def _is_one_call(x: Tensor, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor | None) -> bool:
    rows, width = w1.shape
    if not 0 < len(x) <= MERGED or rows * width < LEAST or x.dtype is not torch.float32:
        return False
    kind = (power(len(x)), rows, width, len(w2), torch.get_num_threads(), 0)
    answer = PRODUCTS.known(kind)
    if answer is None and launch.is_usable(x, w1, w2):
        given = x, w1, b1, w2, b2
        ways = {"numba": partial(launch.network, *given), "torch": partial(_two_products, *given)}
        answer = PRODUCTS.get(kind, lambda: _fastest(ways))
    return answer == "numba" and launch.is_usable(x, w1, w2)


def _measure(x: Tensor, weight: Tensor) -> str:
    names = ["torch"]
    if x.dtype in HALF:
        names.append("wide")
    else:
        if torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            names.append("onednn")
        if len(x) <= FEW and launch.is_usable(x, weight):
            names.append("numba")
    return _fastest({name: partial(run, name, x, weight, None, False) for name in names})


def _fastest(ways: Mapping[str, Callable[[], object]]) -> str:
    """The way to take: ``torch``, unless another is clearly faster."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    begun = time.perf_counter()
    with torch.no_grad(), launch.told_when_slow("measuring products, once for this kind of call"):
        for done in range(ROUNDS + 1):
            if done > 5 and time.perf_counter() - begun > ENOUGH:
                break
            for name, way in ways.items():
                way()  # wakes its threads, which another library's calls have put to sleep
                start = time.perf_counter()
                way()
                way()
                times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(seen[1:]) for name, seen in times.items()}
    best = min(medians, key=lambda name: medians[name])
    return best if medians[best] < MARGIN * medians["torch"] else "torch"
