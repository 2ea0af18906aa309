"""A tiny language, a training of 30 steps on it, and one that was stopped after 11."""

import itertools
import os
import shutil
import signal
from dataclasses import dataclass, field
from typing import Any

import pytest

VERBS = {"see": "veo", "have": "tengo", "want": "quiero", "buy": "compro", "sell": "vendo", "take": "tomo"}
ADJECTIVES = {"red": "rojo", "black": "negro", "small": "pequeño", "old": "viejo", "clean": "limpio"}
NOUNS = {"cat": "gato", "dog": "perro", "book": "libro", "horse": "caballo", "glass": "vaso", "shoe": "zapato"}


@dataclass
class Listener:
    """Keeps what a training tells, and stops it with a signal at the first report of ``stop_at`` or later."""

    stop_at: int | None = None
    signal: int = signal.SIGINT
    notes: list[str] = field(default_factory=list)
    reports: list[Any] = field(default_factory=list)

    def note(self, text):
        self.notes.append(text)

    def progress(self, progress):
        self.reports.append(progress)
        if self.stop_at is not None and progress.step >= self.stop_at:
            self.stop_at = None
            os.kill(os.getpid(), self.signal)

    @property
    def losses(self):
        """(step, loss) of every report of a loss."""
        return [(report.step, report.loss) for report in self.reports if report.loss is not None]

    @property
    def scores(self):
        """(step, scores) of every report of a validation."""
        return [(report.step, report.scores) for report in self.reports if report.scores]


@pytest.fixture(scope="session")
def listen():
    return Listener


@pytest.fixture(scope="session")
def pairs():
    """180 pairs of 180 distinct sources."""
    from positionwise.training.data import Pair

    words = itertools.product(VERBS.items(), ADJECTIVES.items(), NOUNS.items())
    return [Pair(f"I {v} the {a} {n}.", f"Yo {w} el {m} {b}.") for (v, w), (a, b), (n, m) in words]


@pytest.fixture(scope="session")
def tiny():
    """Makes the options of a training of a second or two; arguments override."""
    from positionwise.training.options import TrainOptions

    def make(**changes):
        sizes = {"d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
        schedule = {"minutes": None, "max_steps": 30, "batch_tokens": 256, "validation": 5, "held_out": 10}
        return TrainOptions(**{"vocab_size": 320, **sizes, **schedule, **changes})

    return make


@pytest.fixture(scope="session")
def trained(tmp_path_factory, pairs, tiny):
    """Trains in a new folder; gives the run and what was told."""
    from positionwise.training.train import start

    def make(**changes):
        told = Listener()
        return start(pairs, tmp_path_factory.mktemp("run") / "new", tiny(**changes), told), told

    return make


@pytest.fixture(scope="session")
def finished(trained):
    """A finished run of 30 steps and what was told; only to be read."""
    return trained()


@pytest.fixture(scope="session")
def stopped_once(tmp_path_factory, pairs, tiny):
    from positionwise.errors import Stopped
    from positionwise.training.train import start

    path = tmp_path_factory.mktemp("run") / "stopped"
    with pytest.raises(Stopped, match="SIGINT after 11 steps"):
        start(pairs, path, tiny(), Listener(stop_at=10))
    return path


@pytest.fixture
def stopped(stopped_once, tmp_path):
    """The folder of a run of 30 steps that SIGINT stopped after 11; a copy for each test."""
    return shutil.copytree(stopped_once, tmp_path / "stopped")


@pytest.fixture
def run(finished, tmp_path):
    """A copy of the finished run, to be spoilt."""
    from positionwise.training.run import Run

    return Run.open(shutil.copytree(finished[0].path, tmp_path / "finished"))
