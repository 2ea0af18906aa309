"""One block against PyTorch's eager mode and torch.compile: each in a process of its own, rounds in turn.

    python benchmarks/feed_forward.py forward [--tokens 1 16 256] [--activation gelu] [--gated] [--dtype bfloat16]
    python benchmarks/feed_forward.py train --recompute

A round is the median of its repetitions, a figure the median of the rounds, and ratios are taken round by round: above
1 a contender is faster than eager. The weights are changed, untimed, before each round, so that nothing that was
derived from them can help.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import machine

CONTENDERS = ("eager", "compile", "positionwise")
ACTIVATIONS = ("relu", "gelu", "silu")


def block(contender: str, a: argparse.Namespace) -> Any:
    """The block as a contender has it, with the same weights in all of them."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    from positionwise import FeedForward

    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    options = {"dropout": 0.0, "activation": a.activation, "is_gated": a.gated, "dtype": getattr(torch, a.dtype)}
    ours = FeedForward(a.d_model, a.d_ff, **options, recompute=a.recompute and contender == "positionwise")
    if contender == "positionwise":
        return ours
    f = {"relu": torch.relu, "gelu": F.gelu, "silu": F.silu}[a.activation]

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer1, self.layer2, self.linear_v = ours.layer1, ours.layer2, ours.linear_v

        def forward(self, x: Any) -> Any:
            h = f(self.layer1(x))
            return self.layer2(h if self.linear_v is None else h * self.linear_v(x))

    return torch.compile(Plain()) if contender == "compile" else Plain()


def work(contender: str, a: argparse.Namespace) -> tuple[Any, Callable[[], object]]:
    """The block and what is timed of it."""
    import torch

    ffn = block(contender, a)
    x = torch.randn(a.tokens[0], a.d_model, dtype=getattr(torch, a.dtype))
    if a.mode == "forward":
        ffn.eval().requires_grad_(False)

        def forward() -> object:
            with torch.no_grad():
                return ffn(x)

        return ffn, forward
    x.requires_grad_()
    dy, leaves = torch.randn_like(x), [x, *ffn.parameters()]
    return ffn, lambda: torch.autograd.grad(ffn(x), leaves, dy)


def worker(contender: str, a: argparse.Namespace) -> None:
    """Answer each line on standard input with the time of a round."""
    import torch

    ffn, run = work(contender, a)
    for _ in range(3):
        run()
    start = time.perf_counter()
    run()
    repetitions = max(3, min(400, int(a.seconds / (time.perf_counter() - start))))
    print("ready", flush=True)
    for _ in sys.stdin:
        with torch.no_grad():
            for parameter in ffn.parameters():
                parameter.mul_(0.999)
        run()
        times = []
        for _ in range(repetitions):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        print(statistics.median(times), flush=True)


def measure(tokens: int, a: argparse.Namespace, rest: list[str]) -> dict[str, list[float]]:
    """The rounds' times of every contender."""
    command = [sys.executable, __file__, *rest, "--tokens", str(tokens)]
    processes = {
        name: subprocess.Popen([*command, "--worker", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for name in a.contenders
    }
    times: dict[str, list[float]] = {name: [] for name in processes}
    for process in processes.values():
        while process.stdout and process.stdout.readline() != "ready\n":
            assert process.poll() is None, "a contender ended before it was ready"
    for _ in range(a.rounds):
        for name, process in processes.items():
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            times[name].append(float(process.stdout.readline()))
    for process in processes.values():
        process.communicate()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["forward", "train"])
    parser.add_argument("--contenders", nargs="+", default=CONTENDERS)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 4, 16, 64, 256, 1024, 4096])
    for name, default in (("d-model", 512), ("d-ff", 2048), ("threads", 2), ("rounds", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--activation", choices=ACTIVATIONS, default="relu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--gated", action="store_true")
    parser.add_argument("--recompute", action="store_true")
    parser.add_argument("--seconds", type=float, default=0.15)
    parser.add_argument("--worker")
    a = parser.parse_args()
    if a.worker:
        return worker(a.worker, a)
    print(json.dumps(machine.describe()))
    for tokens in a.tokens:
        times = measure(tokens, a, sys.argv[1:])
        ratios = {
            name: statistics.median(e / t for e, t in zip(times["eager"], each, strict=True))
            for name, each in times.items()
        }
        figures = (f"{name} {1e6 * statistics.median(times[name]):,.0f} µs ({ratios[name]:.2f} ×)" for name in times)
        print(f"T = {tokens}: {', '.join(figures)}", flush=True)


if __name__ == "__main__":
    main()
