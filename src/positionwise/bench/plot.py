"""A run as a picture: a panel for each row, a line for each block."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

from positionwise.bench.results import Result


def plot(results: Sequence[Result], path: Path) -> None:
    """Draw each case's first ratio with the spread of its rounds, as the format that the path's ending names."""
    rows = [list(group) for _, group in groupby(results, lambda result: result.case.row)]
    figure: Any = import_module("matplotlib.figure").Figure(figsize=(8, 3 * len(rows)), layout="constrained")
    for axes, row in zip(figure.subplots(len(rows), squeeze=False)[:, 0], rows, strict=True):
        _panel(axes, row)
    figure.savefig(path)


def _panel(axes: Any, row: list[Result]) -> None:
    for label, group in groupby(row, _line):
        cases = list(group)
        heads = [case.figures[0] for case in cases]
        ratios = [head.ratio for head in heads]
        spread = [[head.ratio - head.low for head in heads], [head.high - head.ratio for head in heads]]
        axes.errorbar([_place(case) for case in cases], ratios, spread, marker="o", capsize=3, label=label)
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set_title(row[0].case.row)
    axes.set_ylabel("times as fast")
    axes.legend(fontsize="small")


def _line(result: Result) -> str:
    """The line that a case is a point of."""
    case = result.case
    other = "the best other" if case.against[0] == "best" else case.against[0]
    return f"{case.label}, {case.work}, against {other}"


def _place(result: Result) -> str:
    """Where a case stands on its panel's axis."""
    case = result.case
    return f"T = {case.tokens}, {100 * case.density:.0f} %" if case.row == "sparse" else f"T = {case.tokens}"
