"""Products by the engine that is fastest on this machine.

Three engines compute W·x + b: PyTorch's own product (MKL or OpenBLAS), PyTorch's oneDNN, and for few tokens a kernel
of ours. Numbers of half precision may also be widened to float32, in which a processor without half precision of its
own is many times faster.

Which one wins depends on the processor and on the sizes. Each kind of product is tried once with each engine, in turn,
on the operands of the first call of that kind; the answer is kept for the process and in a file for later ones, so that
equal calls take the same engine and give equal bits. PyTorch's own stays unless another is clearly faster, and for a
single token always.
"""

from __future__ import annotations

import json
import os
import statistics
import threading
import time
from pathlib import Path

import torch
from torch import Tensor

from positionwise.kernels import launch

MARGIN = 0.9
"""Another engine is taken where it needs at most this share of PyTorch's time."""
ROUNDS = 11
LEAST = 1 << 17
"""Weights of fewer numbers are left to PyTorch: nothing is to be won."""
FEW = 64
"""Tokens up to which our kernel is tried."""
BLOCK = 512
"""Rows of a weight that are widened at once."""
HALF = (torch.bfloat16, torch.float16)
_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}

Kind = tuple[int, ...]
_lock = threading.Lock()
_chosen: dict[Kind, str] | None = None


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


def matmul(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """a·b into ``out``, or as a new tensor; of half precision where that is faster, widened: then new in float32.

    Shapes: a (m, k), b (k, n).
    """
    if a.dtype not in HALF or engine(a, b.t()) != "wide":
        return torch.mm(a, b) if out is None else torch.mm(a, b, out=out)
    product = torch.mm(a.float(), b.float())
    return product if out is None else out.copy_(product)


def engine(x: Tensor, weight: Tensor) -> str:
    """The engine for x·Wᵀ: ``torch``, ``onednn``, ``numba``, or ``wide`` for half precision."""
    count, dtype = x.shape[0], x.dtype
    if count < 2 or dtype not in _CODES or weight.numel() < LEAST:
        return "torch"
    tokens = 1 << (count - 1).bit_length()  # kinds are told apart by powers of two
    kind = (tokens, *weight.shape, torch.get_num_threads(), _CODES[dtype])
    chosen = _answers() if _chosen is None else _chosen
    name = chosen.get(kind)
    if name is None:
        with _lock:
            name = chosen.get(kind) or _measure(x, weight)
            chosen[kind] = name
            _save(chosen)
    return name if name != "numba" or launch.is_usable(x, weight) else "torch"


def _measure(x: Tensor, weight: Tensor) -> str:
    names = ["torch"]
    if x.dtype in HALF:
        names.append("wide")
    else:
        if torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            names.append("onednn")
        if len(x) <= FEW and launch.is_usable(x, weight):
            names.append("numba")
    times: dict[str, list[float]] = {name: [] for name in names}
    with torch.no_grad():
        for _ in range(ROUNDS + 1):
            for name in names:
                start = time.perf_counter()
                run(name, x, weight, None, False)
                times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(seen[1:]) for name, seen in times.items()}
    best = min(medians, key=lambda name: medians[name])
    return best if medians[best] < MARGIN * medians["torch"] else "torch"


def _answers() -> dict[Kind, str]:
    global _chosen
    if _chosen is None:
        try:
            held = json.loads(_file().read_text(encoding="utf-8"))
            _chosen = {tuple(map(int, key.split("x"))): str(name) for key, name in held.items()}
        except (OSError, ValueError, AttributeError):
            _chosen = {}
    return _chosen


def _save(chosen: dict[Kind, str]) -> None:
    """Write the answers beside their place, then rename; a folder that cannot be written to costs a measurement."""
    path = _file()
    text = json.dumps({"x".join(map(str, kind)): name for kind, name in sorted(chosen.items())}, indent=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError:
        pass


def _file() -> Path:
    """Where answers are kept: a file for each processor and version of PyTorch."""
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "positionwise" / f"products-{_processor()}-{torch.__version__}.json"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    found = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines[:30])}
    name = " ".join(found.get(key, "") for key in ("model name", "model", "stepping"))
    return "".join(c if c.isalnum() else "-" for c in name) or "unknown"
