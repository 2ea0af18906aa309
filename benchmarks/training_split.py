"""Where a training step's time goes, by torch's profiler.

    python benchmarks/training_split.py [--data FILE] [--steps 30]

Without --data it learns the phrasebook of the demonstration, at the default sizes of `train`. The share is of
the epochs' time less validation and checkpoints.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from torch.profiler import ProfilerActivity, profile, record_function
from transformers import Trainer

import machine
from positionwise.training.data import read_pairs, split_by_source
from positionwise.training.demo import split
from positionwise.training.options import TrainOptions
from positionwise.training.train import Listener, start_split
from positionwise.training.trainer import TranslationTrainer


def named(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function under a name that the profiler shows."""

    @wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        with record_function(name):
            return function(*args, **kwargs)

    return recorded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--steps", type=int, default=30)
    chosen = parser.parse_args()
    options = TrainOptions(minutes=None, max_steps=chosen.steps, validation=100, held_out=1_000)
    parts = split(0)
    if chosen.data:
        parts = split_by_source(read_pairs([chosen.data]), options.validation, options.held_out, options.seed)
    Trainer.compute_loss = named("forward", Trainer.compute_loss)  # type: ignore[method-assign]
    Accelerator.backward = named("backward", Accelerator.backward)  # type: ignore[method-assign]
    Trainer._clip_grad_norm = named("clip", Trainer._clip_grad_norm)  # type: ignore[method-assign]
    Trainer._run_epoch = named("epochs", Trainer._run_epoch)  # type: ignore[method-assign]
    for name, method in (("validation", "evaluate"), ("checkpoint", "_save_checkpoint")):
        setattr(TranslationTrainer, method, named(name, getattr(TranslationTrainer, method)))
    with tempfile.TemporaryDirectory() as folder, profile(activities=[ProfilerActivity.CPU]) as record:
        start_split(parts, Path(folder, "run"), options, Listener())
    report(record, chosen.steps)


def report(record: Any, steps: int) -> None:
    spent: dict[str, float] = defaultdict(float)
    for event in record.events():
        name = "optimizer" if event.name.startswith("Optimizer.step") else event.name
        if name in {"forward", "backward", "optimizer", "clip", "epochs", "validation", "checkpoint"}:
            spent[name] += event.cpu_time_total / 1e6
    whole = spent.pop("epochs") - spent.pop("validation", 0) - spent.pop("checkpoint", 0)
    shares = {name: round(seconds / whole, 4) for name, seconds in spent.items()}
    shares["data and the rest"] = round(1 - sum(shares.values()), 4)
    for name, share in shares.items():
        print(f"{name:<18} {100 * share:5.1f} %")
    print(f"{'forward, backward':<18} {100 * (shares['forward'] + shares['backward']):5.1f} %")
    print(json.dumps({**machine.describe(), "steps": steps, "seconds": round(whole, 2), "shares": shares}))


if __name__ == "__main__":
    main()
