"""``positionwise bench``."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from positionwise.errors import MissingGroupError, SpecError

if TYPE_CHECKING:
    from positionwise.bench import Case, Figure, Result, Settings

PICTURES = (".png", ".svg")
WIDTH = 130
"""Columns of a table that goes to a file, so that no cell is folded."""


def bench(
    rows: Annotated[
        list[str] | None,
        typer.Option(
            help="A row of the table: forward, activations, between, train, recompute, sparse, bfloat16. Give it again "
            "for more; all without it, which takes about twenty minutes."
        ),
    ] = None,
    tokens: Annotated[list[int] | None, typer.Option(help="Only cases of that many tokens; may be repeated.")] = None,
    rounds: Annotated[int, typer.Option(help="Times that every contender has its turn.")] = 7,
    seconds: Annotated[float, typer.Option(help="Length of a turn.")] = 0.1,
    threads: Annotated[int | None, typer.Option(help="Of each contender; PyTorch's own number without it.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write everything measured to that file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the ratios into that .png or .svg file.")] = None,
) -> None:
    """Measure the block against PyTorch and other engines on this machine, and say where it is worth using."""
    import torch

    from positionwise import bench as benchmark

    settings = benchmark.Settings(rounds, seconds, torch.get_num_threads() if threads is None else threads)
    cases = benchmark.chosen(rows or (), tokens or ())
    _check_files(json_file, plot)
    machine, missing = benchmark.describe(), benchmark.absent(cases)
    print(_machine_line(machine, settings))
    _tell(missing)
    known = set(missing)
    results = _measure(cases, settings, missing)
    _tell({name: why for name, why in missing.items() if name not in known})
    advice = benchmark.recommend(results)
    print("\n".join(["Recommendation, from this run alone:", *advice]))
    if json_file:
        run = {"command": " ".join(["positionwise", *sys.argv[1:]]), **asdict(settings)}
        entry = benchmark.report(machine, run, results, missing, advice)
        json_file.write_text(json.dumps(entry, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    if plot:
        import_module("positionwise.bench.plot").plot(results, plot)


def _check_files(json_file: Path | None, plot: Path | None) -> None:
    """Find out before anything is measured whether the files can be written."""
    if plot and plot.suffix not in PICTURES:
        raise SpecError(f"expected --plot to end in {' or '.join(PICTURES)}; got {plot}")
    if plot and find_spec("matplotlib") is None:
        raise MissingGroupError("--plot needs matplotlib: pip install 'positionwise[all]'", name="matplotlib")
    if plot and json_file and plot.absolute() == json_file.absolute():
        raise SpecError(f"expected two files for --json and --plot; got {plot} for both")
    for option, path in (("--json", json_file), ("--plot", plot)):
        if path is None:
            continue
        try:
            path.open("xb").close()
        except FileExistsError as error:
            raise SpecError(f"expected a new file for {option}; got {path}, which exists") from error
        except OSError as error:
            raise SpecError(
                f"expected a file that can be written for {option}; got {path}: {error.strerror}"
            ) from error
        path.unlink()  # a run that is interrupted leaves no empty file


def _machine_line(machine: dict[str, Any], settings: Settings) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    features = ", ".join(machine["features"]) or "no known vector features"
    return (
        f"{machine['processor']} ({features}), {machine['cores']} cores, {settings.threads} threads; "
        f"{versions}, Python {machine['python']}"
    )


def _tell(missing: dict[str, str]) -> None:
    for name, why in missing.items():
        print(f"not measured: {name}: {why}")


def _measure(cases: list[Case], settings: Settings, missing: dict[str, str]) -> list[Result]:
    """Measure case by case, and print a row's table once it is complete."""
    from positionwise.bench import measure

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    results: list[Result] = []
    for _, group in groupby(cases, lambda case: case.row):
        row: list[Result] = []
        for case in group:
            _progress(f"{len(results) + len(row) + 1} of {len(cases)}: {case.row}, {_label(case)}, T = {case.tokens}")
            row.append(measure(case, settings, missing))
        _progress("")
        console.print(_table(row))
        results += row
    return results


def _progress(text: str) -> None:
    """On a terminal a line that is written over; elsewhere a line of each case."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


def _table(row: list[Result]) -> Table:
    """A row's times, ratios with the spread of their rounds, and bytes."""
    names = list(dict.fromkeys(name for result in row for name in result.times))
    against = list(dict.fromkeys(name for result in row for name in result.case.against))
    held = list(dict.fromkeys(name for result in row for name in result.bytes))
    table = Table(title=row[0].case.row, title_justify="left", title_style="bold")
    for name in ("block", "T"):
        table.add_column(name)
    for name in [*names, *(f"× {name}" for name in against), *(f"{row[0].case.memory}, {name}" for name in held)]:
        table.add_column(name, justify="right")
    for result in row:
        figures = {figure.against: _ratio(figure) for figure in result.figures}
        table.add_row(
            _block(result.case),
            f"{result.case.tokens:,}",
            *(_time(result.seconds[name]) if name in result.seconds else "" for name in names),
            *(figures.get(name, "") for name in against),
            *(_bytes(result.bytes.get(name)) for name in held),
        )
    return table


def _block(case: Case) -> str:
    return f"{_label(case)}\n{case.work}"


def _label(case: Case) -> str:
    return f"{case.label}, {100 * case.density:.0f} %" if case.row == "sparse" else case.label


def _time(seconds: float) -> str:
    return f"{1e6 * seconds:,.0f} µs" if seconds < 1e-3 else f"{1e3 * seconds:,.1f} ms"


def _ratio(figure: Figure) -> str:
    """The ratio, marked ≈ within noise; below it the spread, and whom ``best`` was."""
    sign = "" if figure.seen else "≈ "
    return f"{sign}{figure.ratio:.2f} {figure.base if figure.against == 'best' else ''}".rstrip() + (
        f"\n{figure.low:.2f}–{figure.high:.2f}"
    )


def _bytes(count: int | None) -> str:
    return "not measured" if count is None else f"{count / 1e6:.1f} MB"
