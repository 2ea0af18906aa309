"""The performance table of the block, measured again on the user's own machine.

Every contender runs in a process of its own, as two thread pools in one process disturb each other, and the rounds are
taken in turn, so that a machine that drifts slows all of them alike.
"""

from positionwise.bench.advice import recommend
from positionwise.bench.cases import Case, chosen
from positionwise.bench.machine import describe
from positionwise.bench.results import Figure, Result, report
from positionwise.bench.rounds import Settings, absent, measure

__all__ = [
    "Case", "Figure", "Result", "Settings", "absent", "chosen", "describe", "measure",
    "recommend", "report",
]  # fmt: skip
