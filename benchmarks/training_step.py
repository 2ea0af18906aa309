"""What the choices behind a training step are worth: each contender in a process of its own, rounds in turn.

    python benchmarks/training_step.py [--rounds 5] [--steps 4]

`as trained` is what `positionwise train` does at its default sizes; every other contender leaves one choice out.
Ratios are taken round by round against it: above 1 the contender is slower.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from contextlib import nullcontext

import machine

CONTENDERS = ("as trained", "PyTorch's dropout", "freed memory handed back", "bfloat16 autocast")


def worker(contender: str, steps: int) -> None:
    import torch

    from positionwise.training.batches import Examples, TokenBatches, collate
    from positionwise.training.demo import split
    from positionwise.training.memory import keep_freed_memory
    from positionwise.training.options import TrainOptions
    from positionwise.training.tokenizer import train_tokenizer
    from positionwise.transformer import TransformerForTranslation, dropout

    if contender != "freed memory handed back":
        keep_freed_memory()
    if contender == "PyTorch's dropout":
        dropout.Dropout.forward = torch.nn.Dropout.forward  # type: ignore[method-assign]
    options = TrainOptions()
    train = split(0).train[:10_000]
    tokenizer = train_tokenizer((text for pair in train for text in pair), 1000)
    examples = Examples(*(tokenizer.encode([pair[side] for pair in train]) for side in (0, 1)))
    batches = [collate([examples[i] for i in batch]) for batch in TokenBatches(examples, options.batch_tokens, 0)]
    model = TransformerForTranslation(options.model_config(options.vocab_size)).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    low = torch.autocast("cpu", torch.bfloat16) if contender == "bfloat16 autocast" else nullcontext()

    def step(batch: dict[str, torch.Tensor]) -> None:
        with low:
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for batch in batches[:3]:
        step(batch)
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        for batch in batches[3 : 3 + steps]:
            step(batch)
        print((time.perf_counter() - start) / steps, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--worker")
    chosen = parser.parse_args()
    if chosen.worker:
        worker(chosen.worker, chosen.steps)
        return
    processes = {name: start(name, chosen.steps) for name in CONTENDERS}
    times: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for _ in range(chosen.rounds):
        for name, process in processes.items():
            assert process.stdin
            assert process.stdout
            process.stdin.write("\n")
            process.stdin.flush()
            times[name].append(float(process.stdout.readline()))
    base = times["as trained"]
    rows = {
        name: {
            "ms per step": round(1000 * statistics.median(row), 1),
            "of as trained": round(statistics.median(a / b for a, b in zip(row, base, strict=True)), 3),
        }
        for name, row in times.items()
    }
    for name, row in rows.items():
        print(f"{name:<26} {row['ms per step']:8.1f} ms  {row['of as trained']:6.3f}")
    print(json.dumps({**machine.describe(), "results": rows}))


def start(name: str, steps: int) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--steps", str(steps), "--worker", name]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    while process.stdout.readline().strip() != "ready":
        if process.poll() is not None:
            raise SystemExit(f"{name} did not start")
    return process


if __name__ == "__main__":
    main()
