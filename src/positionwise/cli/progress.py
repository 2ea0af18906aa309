"""Progress on standard error: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as Bars

from positionwise.training.train import Listener

if TYPE_CHECKING:
    from positionwise.training.trainer import Progress

EVERY = 30.0
"""Seconds between two lines where there is no terminal."""


@contextmanager
def sentences(total: int) -> Iterator[Callable[[int], None]]:
    """A bar over sentences; nothing where there is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done: None
        return
    with Bars(TextColumn("translating"), BarColumn(), TaskProgressColumn(), console=console, transient=True) as bars:
        task = bars.add_task("", total=total)
        yield lambda done: bars.update(task, completed=done)


class TrainingProgress(Listener):
    """A training's bar: loss, tokens/s, time left, the latest validation; use it as a context."""

    def __init__(self, every: float = EVERY) -> None:
        self.console = Console(stderr=True, highlight=False)
        self.bars = Bars(TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), console=self.console)
        self.task = self.bars.add_task("training", total=1.0)
        self.losses: list[tuple[int, float]] = []
        self.printed = 0.0
        self.every = every

    def __enter__(self) -> TrainingProgress:
        if self.console.is_terminal:
            self.bars.start()
        return self

    def __exit__(self, *failure: object) -> None:
        if self.bars.live.is_started:
            self.bars.stop()

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        self.console.print(text, soft_wrap=True, markup=False)

    def progress(self, progress: Progress) -> None:
        """Move the bar, or print a line when one is due."""
        if progress.scores:
            self.note(
                f"step {progress.step:,}: "
                + ", ".join(f"{k.replace('_', ' ')} {v:.2f}" for k, v in progress.scores.items())
            )
            return
        if progress.loss is not None:
            self.losses.append((progress.step, progress.loss))
        line = describe(progress)
        self.bars.update(self.task, completed=progress.done, description=line)
        now = time.monotonic()
        if not self.console.is_terminal and now - self.printed > self.every:
            self.printed = now
            self.note(f"{100 * progress.done:5.1f} %  {line}")


def describe(progress: Progress) -> str:
    """A training's state in a line."""
    left = "" if progress.seconds_left is None else f"  {_clock(progress.seconds_left)} left"
    loss = "" if progress.loss is None else f"  loss {progress.loss:.3f}"
    return f"step {progress.step:,}{loss}  {progress.tokens_per_second:,.0f} tokens/s{left}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
