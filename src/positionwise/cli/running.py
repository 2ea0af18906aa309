"""``positionwise translate`` and ``positionwise evaluate``: using a run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from positionwise.cli.groups import load
from positionwise.errors import DataError

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder that train or demo left.")]
Beam = Annotated[int, typer.Option(min=1, help="Hypotheses of beam search; 1 is greedy.")]


def translate(
    run: RunFolder,
    file: Annotated[Path | None, typer.Argument(help="Sentences, one a line; standard input without it.")] = None,
    beam: Beam = 1,
) -> None:
    """Translate sentences, one a line, to standard output; an empty line stays empty."""
    load("positionwise.training.run", "train").Run.open(run)
    data = load("positionwise.training.data", "train")
    name = "standard input" if file is None else str(file)
    lines = list(data.decode_lines(sys.stdin.buffer, name) if file is None else data.read_lines(file))
    if not lines:
        raise DataError(f"expected sentences, one a line, in {name}; got nothing")
    for number, line in enumerate(lines, 1):
        if line.strip():
            data.check_sentence(line, f"{name}, line {number}")
        else:
            print(f"note: {name}, line {number} is empty, and so is its translation", file=sys.stderr)
    model, tokenizer = _open(run)
    with _progress(len(lines)) as progress:
        translated = load("positionwise.training.translate", "train").translate(
            model, tokenizer, lines, beams=beam, progress=progress
        )
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    print("\n".join(translated))


def evaluate(
    run: RunFolder,
    data: Annotated[
        list[Path] | None, typer.Option(help="Pairs to judge by; the run's own held-out pairs without it.")
    ] = None,
    beam: Beam = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the scores as JSON.")] = False,
) -> None:
    """Score a run's translations with sacreBLEU's BLEU and chrF."""
    pairs_of = load("positionwise.training.data", "train")
    folder = load("positionwise.training.run", "train").Run.open(run)
    pairs = pairs_of.read_pairs(data) if data else folder.pairs("test")
    held_out = pairs_of.references(pairs)
    model, tokenizer = _open(run)
    with _progress(len(held_out)) as progress:
        scores = load("positionwise.training.train", "train").score_model(
            model, tokenizer, held_out, beams=beam, progress=progress
        )
    print(json.dumps(scores.to_dict(), indent=1) if as_json else scores)


def _open(run: Path) -> tuple[Any, Any]:
    folder = load("positionwise.training.run", "train").Run.open(run)
    return folder.model(), folder.tokenizer()


def _progress(total: int) -> Any:
    return load("positionwise.cli.progress", "train").sentences(total)
