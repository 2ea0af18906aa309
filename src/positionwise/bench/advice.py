"""What follows from a run's figures, in sentences; nothing is said that was not measured in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from positionwise.bench.cases import OURS
from positionwise.bench.results import ENOUGH, Figure, Result

Sentence = Callable[[str, list[Result]], str]


def recommend(results: Sequence[Result]) -> list[str]:
    """A sentence or two for each block of each row, and how many figures are noise."""
    said = []
    for (row, where), group in groupby(results, lambda result: (result.case.row, _where(result))):
        said.append(SENTENCES.get(row, _by_tokens)(where, list(group)))
    figures = [figure for result in results for figure in result.figures]
    even = sum(figure.seen == 0 for figure in figures)
    if any(figure.rounds < ENOUGH for figure in figures):
        return [f"Fewer than {ENOUGH} rounds show no spread, so that no difference counts as seen: take more.", *said]
    said.append(f"{even} of {len(figures)} ratios are within the noise of this run's rounds: no difference seen.")
    return said


def _where(result: Result) -> str:
    """The block and the work, as a sentence begins."""
    case = result.case
    between = " between a LayerNorm and a linear map" if case.between else ""
    tokens = f", T = {case.tokens:,}" if case.row in SENTENCES else ""
    return f"{case.label}{between}, {case.work}{tokens}"


def _by_tokens(where: str, results: list[Result]) -> str:
    """Where to take ours, where to keep which other, over the numbers of tokens."""
    heads = [(f"{result.case.tokens:,}", result.figures[0]) for result in results]
    ahead, even = [(t, f) for t, f in heads if f.seen > 0], [t for t, f in heads if f.seen == 0]
    parts = []
    if ahead:
        names = _list(dict.fromkeys(figure.base for _, figure in ahead))
        parts.append(f"{OURS} is ahead of {names} at T = {_list(t for t, _ in ahead)} ({_range(f for _, f in ahead)})")
    for base in dict.fromkeys(figure.base for _, figure in heads if figure.seen < 0):
        behind = [(t, f) for t, f in heads if f.seen < 0 and f.base == base]
        parts.append(f"keep {base} at T = {_list(t for t, _ in behind)} ({_range(f for _, f in behind)})")
    if even:
        parts.append(f"no difference seen at T = {_list(even)}")
    return f"{where}: {'; '.join(parts)}."


def _recompute(where: str, results: list[Result]) -> str:
    """What recomputation saves and costs."""
    (result,) = results
    time, held = result.figures[0], result.bytes
    eager, ours = held.get("eager"), held.get(OURS)
    cost = {0: f"no difference in time from {time.base} seen", 1: "and costs no time", -1: "at a cost in time"}[
        time.seen
    ]
    cost = f"{cost} ({time.ratio:.2f} × as fast)"
    if eager is None or ours is None:
        return f"Recompute, {where}: memory not measured here; {cost}."
    amounts = f"{megabytes(ours)} instead of {megabytes(eager)} at the peak"
    if ours >= eager:
        return f"Recompute, {where}: does not pay, it saves no memory here ({amounts}); {cost}."
    return f"Recompute, {where}: pays where memory is short, {amounts}; {cost}."


def _sparse(where: str, results: list[Result]) -> str:
    """At which densities the sparse path pays, the largest first."""
    results = sorted(results, key=lambda result: -result.case.density)
    base = results[0].figures[0].base
    words = {1: "pays", 0: "no difference seen", -1: "does not pay"}
    heads = [(f"{100 * result.case.density:.0f} %", result.figures[0]) for result in results]
    parts = [
        f"{words[seen]} at a density of {_list(d for d, _ in group)} ({_range(f for _, f in group)})"
        for seen, group in ((seen, list(group)) for seen, group in groupby(heads, lambda head: head[1].seen))
    ]
    paying = 0
    while paying < len(heads) and heads[-1 - paying][1].seen > 0:
        paying += 1
    limit = f"; of the densities measured, from {heads[-paying][0]} down" if paying and len(heads) > 1 else ""
    return f"Exact sparsity, {where}, against {base}: {'; '.join(parts)}{limit}."


def _bfloat16(where: str, results: list[Result]) -> str:
    """Whether half precision costs time, and whose is faster."""
    (result,) = results
    own, theirs = result.figures
    time = {0: "no difference in time from float32 seen", 1: "gains time", -1: "costs time here"}[own.seen]
    other = {0: "no difference from PyTorch's own seen", 1: "ahead of PyTorch's own", -1: "behind PyTorch's own"}
    return (
        f"bfloat16, {where}: {time} ({own.ratio:.2f} × float32's speed); {other[theirs.seen]} ({theirs.ratio:.2f} ×)."
    )


SENTENCES: dict[str, Sentence] = {"recompute": _recompute, "sparse": _sparse, "bfloat16": _bfloat16}
"""Of the rows that are not read over their numbers of tokens."""


def megabytes(count: int) -> str:
    """Bytes in words, of a million each."""
    return f"{count / 1e6:.1f} MB"


def _list(parts: Iterable[str]) -> str:
    return ", ".join(parts)


def _range(figures: Iterable[Figure]) -> str:
    """The smallest and the largest ratio."""
    ratios = sorted(figure.ratio for figure in figures)
    low, high = f"{ratios[0]:.2f}", f"{ratios[-1]:.2f}"
    return f"{low} ×" if low == high else f"{low} to {high} ×"
