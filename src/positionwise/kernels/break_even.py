"""Whether it pays to skip hidden units that are zero: a call's density against this machine's break-even point.

The first map is dense in either case, so a call's own z tells how many of its hidden units will not be zero: a few rows
of it are looked at. Nothing of earlier calls enters the decision, so that equal calls take the same path. The
break-even point of a kind of call is measured by the first one whose density makes it worth while.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from positionwise.kernels import dense, launch, product, sparse
from positionwise.kernels.answers import BREAK_EVEN, power
from positionwise.kernels.dense import Call, Weights
from positionwise.kernels.dropout import Masks

ROWS = 8
"""Rows of z that are looked at: of 2,048 hidden units, some 0.1 ms."""
WORK = 1 << 28
"""Multiply-adds of the first map below which that look would cost more than a fiftieth of a dense call."""
MOST = 0.35
"""A density above which no machine is known where skipping pays."""
LEAST = 128
"""Tokens below which the kernels' start costs more than they save."""
CHUNK = 1024
"""Tokens of the calls that are measured, at most."""
TRIED = (0.05, 0.2)
"""Densities at which the sparse path is timed; between them and beyond, its time is a line."""
ROUNDS = 5


def could_pay(activation: str, x: Tensor, w: Weights) -> bool:
    """Whether a call is of a kind that can skip, and large enough."""
    if len(x) < LEAST or activation not in sparse.ACTIVATIONS or x.dtype != torch.float32:
        return False
    return len(x) * w.w1.numel() >= WORK and launch.may_run()


def sample(rows: Tensor) -> Tensor:
    """Some of a call's rows, evenly spaced."""
    return rows[:: max(1, len(rows) // ROWS)]


def density(z: Tensor) -> float:
    """The share of hidden units that are not zero, in a sample of rows of z or of ReLU(z)."""
    return _positive(sample(z))


def _positive(rows: Tensor) -> float:
    return int((rows > 0).count_nonzero()) / max(1, rows.numel())


def pays(z: Tensor, w: Weights, training: bool) -> bool:
    """Whether the rest of a call that has z = W₁x + b₁ (T, d_ff) is faster without the units that are zero."""
    found = density(z)
    return found < MOST and launch.is_usable() and found < point(len(z), w, training)


def foretell(x: Tensor, w: Weights, training: bool) -> tuple[bool, str]:
    """What `pays` will say of a call with so many rows of x, and in words."""
    with torch.no_grad():
        found = _positive(torch.nn.functional.linear(sample(x), w.w1, w.b1))
    said = f"a hidden density of {found:.2f}"
    if found >= MOST or not launch.is_usable():
        return False, f"{said}, at which skipping zeros does not pay"
    most = point(len(x), w, training)
    return found < most, f"{said}, {'' if found < most else 'not '}below this machine's break-even point of {most:.2f}"


def point(tokens: int, w: Weights, training: bool) -> float:
    """The density below which a call with so many tokens is faster without the units that are zero."""
    size = min(CHUNK, power(tokens))
    sizes = (size, w.w1.shape[1], len(w.w1), len(w.w2))
    gated = w.v is not None
    kind = (int(training), int(gated), *sizes, torch.get_num_threads())
    found: float = BREAK_EVEN.get(kind, lambda: _measure(*sizes, is_gated=gated, training=training))
    return found


def _measure(tokens: int, d_model: int, d_ff: int, d_out: int, *, is_gated: bool, training: bool) -> float:
    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")

    generator = torch.Generator("cpu").manual_seed(0)
    x, dy = random(tokens, d_model), random(tokens, d_out)
    v = random(d_ff, d_model) if is_gated else None
    w = Weights(random(d_ff, d_model) / d_model**0.5, None, random(d_out, d_ff), None, v, None)
    biases = [
        torch.special.ndtri(torch.full((d_ff,), share, dtype=torch.float32, device="cpu")) for share in TRIED
    ]  # which make z's densities
    work = _training if training else _inference
    ways = [work(x, dy, w, False), *(work(x, dy, w._replace(b1=bias), True) for bias in biases)]
    with launch.told_when_slow("measuring below which density zeros are skipped, once for this kind of call"):
        plain, low, high = _times(ways)
    rise = max((high - low) / (TRIED[1] - TRIED[0]), 1e-9)
    return min(MOST, max(0.0, TRIED[0] + (plain - low) / rise))


def _training(x: Tensor, dy: Tensor, w: Weights, skip: bool) -> Callable[[], object]:
    call, asked = Call("relu", 0.0, None, CHUNK), [True, True, True, True, False, w.v is not None, False]

    def run_dense() -> object:
        _, kept, gate = dense.forward(x, w, call, True)
        return dense.backward(dy, x, kept, gate, w, call, asked)

    return (lambda: sparse.backward(dy, x, sparse.forward(x, w, call)[1], w, call, asked)) if skip else run_dense


def _inference(x: Tensor, dy: Tensor, w: Weights, skip: bool) -> Callable[[], object]:
    """The second map alone: the rest is the same."""
    z = product.linear(x, w.w1, w.b1)
    v = None if w.v is None else product.linear(x, w.v, w.c)
    masks = Masks(0.0, None)
    if not skip:
        return lambda: product.linear(z, w.w2, w.b2)
    return lambda: sparse.second(sparse.begin(w, len(x)), z, v, "relu", masks)


def _times(ways: list[Callable[[], object]]) -> list[float]:
    """The shortest of some rounds in turn: other work on the machine, which takes a core, must not decide."""
    times: list[list[float]] = [[] for _ in ways]
    for _ in range(ROUNDS + 1):
        for way, seen in zip(ways, times, strict=True):
            start = time.perf_counter()
            way()
            seen.append(time.perf_counter() - start)
    return [min(seen[1:]) for seen in times]
