"""What was measured on this machine: kept for the process, and in a file for later ones.

Equal calls of a process get equal answers, so that they take the same way and give equal bits; `measured` and
`restore` carry them from a training run to the one that resumes it.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Kind = tuple[int, ...]


def power(count: int) -> int:
    """The power of two from a count on: kinds of calls are told apart by these."""
    return 1 << (count - 1).bit_length()


class Answers:
    """Answers to one question, by the kind of call."""

    def __init__(self, name: str, kind: type) -> None:
        self.name, self.kind = name, kind
        self.lock = threading.RLock()  # measuring one kind may ask for another
        self.held: dict[Kind, Any] | None = None

    def known(self, kind: Kind) -> Any:
        """The answer that this process has for a kind of call; None where it has none yet."""
        return None if self.held is None else self.held.get(kind)

    def get(self, kind: Kind, measure: Callable[[], Any]) -> Any:
        """The answer for a kind of call: measured by the first of its calls on this machine."""
        held = self.held if self.held is not None else self._read()
        answer = held.get(kind)
        if answer is None:
            with self.lock:
                answer = held.get(kind)
                if answer is None:
                    answer = held[kind] = measure()
                    self._write(held)
        return answer

    def _read(self) -> dict[Kind, Any]:
        with self.lock:
            if self.held is None:
                try:
                    self.held = self.decoded(json.loads(self.file().read_text(encoding="utf-8")))
                except (OSError, ValueError, AttributeError, RuntimeError):  # the last where there is no home
                    self.held = {}
            return self.held

    def _write(self, held: dict[Kind, Any]) -> None:
        """Write beside the place, then rename; a folder that cannot be written to costs a measurement."""
        try:
            path = self.file()
            partial = path.with_suffix(f".{os.getpid()}")
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps(encoded(held), indent=1), encoding="utf-8")
            partial.replace(path)
        except (OSError, RuntimeError):
            pass

    def decoded(self, held: dict[str, Any]) -> dict[Kind, Any]:
        """Text as kinds; what is no answer of this sort is left out."""
        return {tuple(map(int, key.split("x"))): each for key, each in held.items() if isinstance(each, self.kind)}

    def file(self) -> Path:
        """A file for each processor and version of PyTorch."""
        folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(folder) / "positionwise" / f"{self.name}-{_processor()}-{torch.__version__}.json"


PRODUCTS = Answers("products", str)
"""The engine of a product."""
BREAK_EVEN = Answers("densities", float)
"""The hidden density below which zeros are skipped."""


def measured() -> dict[str, dict[str, Any]]:
    """All answers that this process has, as JSON has them."""
    return {each.name: encoded(each.held or {}) for each in (PRODUCTS, BREAK_EVEN)}


def restore(answers: dict[str, dict[str, Any]]) -> None:
    """Put the answers of another process before this one's; the file stays as it is."""
    for each in (PRODUCTS, BREAK_EVEN):
        each._read().update(each.decoded(answers.get(each.name, {})))


def encoded(held: dict[Kind, Any]) -> dict[str, Any]:
    """Kinds as text."""
    return {"x".join(map(str, kind)): answer for kind, answer in sorted(held.items())}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    found = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines[:30])}
    name = " ".join(found.get(key, "") for key in ("model name", "model", "stepping"))
    return "".join(c if c.isalnum() else "-" for c in name) or "unknown"
