"""What was measured, the ratios in it, and the record of it all."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from positionwise.bench.cases import OURS, Case

ENOUGH = 3
"""Rounds below which the spread says nothing, and no difference counts as seen."""


@dataclass(frozen=True)
class Figure:
    """How many times as fast as another contender ours was, round by round."""

    against: str
    """As the case asks for it: a contender, or ``best``."""
    base: str
    """The contender that it is."""
    ratio: float
    """The rounds' median; above 1, ours is faster."""
    low: float
    high: float
    rounds: int

    @property
    def seen(self) -> int:
        """1 where ours is seen to be faster, -1 slower, 0 where the rounds' ratios cover 1 or are too few."""
        if self.rounds < ENOUGH or self.low <= 1.0 <= self.high:
            return 0
        return 1 if self.low > 1.0 else -1


@dataclass(frozen=True)
class Result:
    """A case's times and bytes."""

    case: Case
    times: dict[str, list[float]]
    """Each contender's rounds, in seconds."""
    bytes: dict[str, int | None]
    """What ``case.memory`` names, of each contender; None where it was not measured."""

    @property
    def seconds(self) -> dict[str, float]:
        """The median of each contender's rounds."""
        return {name: statistics.median(rounds) for name, rounds in self.times.items()}

    @property
    def figures(self) -> list[Figure]:
        """The ratios that the case asks for, of the contenders that ran."""
        return [self._figure(against) for against in self.case.against]

    def _figure(self, against: str) -> Figure:
        others = {name: seconds for name, seconds in self.seconds.items() if name != OURS}
        base = min(others, key=lambda name: others[name]) if against == "best" else against
        ratios = [theirs / ours for theirs, ours in zip(self.times[base], self.times[OURS], strict=True)]
        return Figure(against, base, statistics.median(ratios), min(ratios), max(ratios), len(ratios))

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON holds it."""
        return {
            **asdict(self.case),
            "seconds": self.times,
            "ratios": [asdict(figure) for figure in self.figures],
            "bytes": self.bytes,
        }


def report(
    machine: dict[str, Any],
    run: dict[str, Any],
    results: Sequence[Result],
    missing: dict[str, str],
    advice: Sequence[str],
) -> dict[str, Any]:
    """The record of a run: where, how (``run``: its command and settings), what was measured, what was made of it."""
    return {
        "machine": machine,
        **run,
        "not_measured": missing,
        "results": [result.to_dict() for result in results],
        "recommendation": list(advice),
    }
