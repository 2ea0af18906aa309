"""What ``positionwise demo`` prints."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from positionwise.accounting import account
from positionwise.cli.progress import TrainingProgress
from positionwise.cli.tables import show
from positionwise.training.demo import Outcome, demonstrate, options, split
from positionwise.training.scoring import Scores

MINUTES = 1.75
"""Of training, so that all of it stays under two minutes."""


def show_demo(out: Path | None, seed: int) -> None:
    """Run the demonstration and print it."""
    console = Console(highlight=False, markup=False)
    parts = split(seed)
    console.print(f"English-Spanish phrasebook: {len(parts.train):,} pairs to learn from, {len(parts.test):,} held out")
    chosen = options(seed, MINUTES)
    console.print("\nThe network's account:")
    show(account(chosen.model_config(chosen.vocab_size)))
    with TrainingProgress(every=5.0) as progress:
        outcome = demonstrate(out or free_folder(), parts, chosen, progress)
    _print_losses(console, progress.losses)
    _print_scores(console, outcome)
    _print_examples(console, outcome)
    path = outcome.run.path
    sys.stdout.flush()
    print(f'the run is in {path}: echo "{outcome.examples[0].source}" | positionwise translate {path}')


def free_folder() -> Path:
    """The first folder of runs/demo, runs/demo-2, … that is not there."""
    number = 1
    while (path := Path("runs", "demo" if number == 1 else f"demo-{number}")).exists():
        number += 1
    return path


def _print_losses(console: Console, losses: list[tuple[int, float]]) -> None:
    shown = losses[:: max(1, len(losses) // 8)]
    console.print("loss by step: " + "  ".join(f"{step}: {loss:.2f}" for step, loss in shown))


def _print_scores(console: Console, outcome: Outcome) -> None:
    table = Table("held-out combinations", "exact match", "BLEU", "chrF")
    for name, scores in (("the model", outcome.model), ("the nearest training sentence", outcome.baseline)):
        table.add_row(name, *_cells(scores))
    console.print(table)
    console.print(
        "(No held-out translation stands in the training pairs, so the baseline matches none; BLEU tells more.)"
    )


def _cells(scores: Scores) -> tuple[str, str, str]:
    return f"{scores.exact_match:.1f} %", f"{scores.bleu:.1f}", f"{scores.chrf:.1f}"


def _print_examples(console: Console, outcome: Outcome) -> None:
    table = Table("source", "reference", "translation")
    for example in outcome.examples:
        table.add_row(*example)
    console.print(table)
