"""Running a case: workers, rounds in turn, and what becomes of a contender that is missing or dies."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from positionwise.bench.cases import ENGINES, OURS, VARIANTS, Case, Job
from positionwise.bench.results import Result
from positionwise.errors import PositionwiseError, SpecError

RETURNING = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""With these, glibc hands freed blocks back at once, so that resident memory is memory in use: `peak_bytes`."""
NEEDED = ("eager", OURS, *VARIANTS)
"""Contenders without which there is nothing to say; one of the others that does not start is left out, and told."""


class WorkerError(PositionwiseError, ChildProcessError):
    """A contender's process that ended before it had answered."""


@dataclass(frozen=True)
class Settings:
    """How long and on how many threads a case is measured.

    Raises:
        SpecError: for a number that is out of range.
    """

    rounds: int
    seconds: float
    """Of a round."""
    threads: int

    def __post_init__(self) -> None:
        if not 1 <= self.rounds <= 1000:
            raise SpecError(f"expected --rounds from 1 to 1000; got {self.rounds}")
        if not (math.isfinite(self.seconds) and 0 < self.seconds <= 60):
            raise SpecError(f"expected --seconds above 0, up to 60; got {self.seconds:g}")
        cores = os.cpu_count() or 1
        if not 1 <= self.threads <= cores:
            raise SpecError(f"expected --threads from 1 to this machine's {cores}; got {self.threads}")


class Worker:
    """A contender's process; use it as a context, which ends it."""

    def __init__(self, name: str, job: Job) -> None:
        self.name = name
        self.said = tempfile.TemporaryFile()  # its standard error: a pipe that nobody reads would stop it
        threads = {"OMP_NUM_THREADS": str(job.threads)}
        if not job.case.between:  # there PyTorch's own threads wait as they do for users, in a loop for some time
            threads["OMP_WAIT_POLICY"] = "PASSIVE"
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "positionwise.bench.worker", job.to_json()],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said, text=True, encoding="utf-8",
            env={**os.environ, **threads, **(RETURNING if job.task == "peak" else {})},
        )  # fmt: skip

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *failure: object) -> None:
        self.process.kill()
        self.process.communicate()
        self.said.close()

    def answer(self) -> dict[str, Any]:
        """Its next answer; what a library prints in between is passed over.

        Raises:
            WorkerError: when it ends without one.
        """
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise WorkerError(f"expected figures of {self.name}; got the end of its process: {self._last_words()}")

    def round(self) -> float:
        """The seconds of its next round."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, which the missing answer tells, with its reason
        return float(self.answer()["seconds"])

    def _last_words(self) -> str:
        """The last line on its standard error, or how it ended."""
        code = self.process.wait()
        self.said.seek(0)
        lines = self.said.read().decode("utf-8", "replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return said[-1][:300] if said else f"exit code {code}"


def absent(cases: Iterable[Case]) -> dict[str, str]:
    """The contenders of some cases that cannot be measured here, each with the package that it lacks."""
    return {
        name: f"{package} is not installed"
        for name in sorted({name for case in cases for name in case.contenders}.intersection(ENGINES))
        for package in ("onnx", name)
        if find_spec(package) is None
    }


def measure(case: Case, settings: Settings, missing: dict[str, str]) -> Result:
    """Time a case's contenders, and measure its bytes.

    Args:
        case: what to measure.
        settings: for how long.
        missing: contenders that do not run here, with the reason; one that does not start is added.

    Raises:
        WorkerError: when a contender that is needed does not start, or any does not go on.
    """
    held: dict[str, int | None] = {}
    with ExitStack() as stack:
        names = [name for name in case.contenders if name not in missing]
        ready = []
        for name in names:  # one after the other: engines that are chosen by measuring need the cores for themselves
            worker = stack.enter_context(_start(name, case, settings, "time"))
            if (answer := _ready(worker, missing)) is not None:
                ready.append(worker)
                if answer["bytes"] is not None:
                    held[worker.name] = answer["bytes"]
        times: dict[str, list[float]] = {worker.name: [] for worker in ready}
        for _ in range(settings.rounds):
            for worker in ready:
                times[worker.name].append(worker.round())
    if case.memory == "peak":
        held = {name: _peak(name, case, settings) for name in times}
    return Result(case, times, held)


def _start(name: str, case: Case, settings: Settings, task: str) -> Worker:
    library, own = case.as_of(name)
    return Worker(name, Job(own, library, settings.threads, settings.seconds, task))


def _ready(worker: Worker, missing: dict[str, str]) -> dict[str, Any] | None:
    """Its first answer; None, and the reason noted, where a contender that can be done without does not start."""
    try:
        return worker.answer()
    except WorkerError as error:
        if worker.name in NEEDED:
            raise
        missing[worker.name] = str(error)
        return None


def _peak(name: str, case: Case, settings: Settings) -> int | None:
    with _start(name, case, settings, "peak") as worker:
        held: int | None = worker.answer()["bytes"]
        return held
