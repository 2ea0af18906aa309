"""One contender in a process of its own: ``python -m positionwise.bench.worker JOB``.

It answers in lines of JSON: first that it is ready, then, for each line on standard input, the seconds of a round; or,
asked for its memory, the bytes alone. What goes wrong goes to standard error.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

import torch

from positionwise.bench.blocks import Timed, build, prepare
from positionwise.bench.cases import OURS, Job
from positionwise.bench.memory import peak_bytes, saved_bytes

LEAST = 3
"""Calls that a round is the median of, however long they take."""


def main() -> None:
    """Do the job that the command line holds."""
    job = Job.from_json(sys.argv[1])
    torch.set_num_threads(job.threads)
    timed = prepare(job)
    if job.task == "peak":
        _answer({"bytes": peak_bytes(timed.run)})
        return
    for _ in range(3):
        timed.run()
    _answer({"ready": job.library, "bytes": _saved(job)})
    for _ in sys.stdin:
        _answer({"seconds": round_of(timed, job.seconds)})


def _answer(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def _saved(job: Job) -> int | None:
    """Bytes saved for backward, where the case asks for them and the library is one that autograd shows them of."""
    if job.case.memory != "saved" or job.library not in ("eager", OURS):
        return None
    return saved_bytes(*build(job.case, job.library))


def round_of(timed: Timed, seconds: float) -> float:
    """The median of a call's seconds in a round.

    The weights are changed before it, untimed, so that nothing that was derived from them can help.
    """
    with torch.no_grad():
        for weight in timed.weights:
            weight.mul_(0.999)
    timed.run()
    times: list[float] = []
    while len(times) < LEAST or sum(times) < seconds:
        start = time.perf_counter()
        timed.run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


if __name__ == "__main__":
    main()
