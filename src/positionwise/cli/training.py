"""``positionwise train`` and ``positionwise demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from positionwise.cli.groups import load
from positionwise.errors import RunError, SpecError

Out = Annotated[Path, typer.Option(help="The folder of the run.")]
BUDGET = ("minutes", "max_steps")


def train(
    out: Out,
    data: Annotated[
        list[Path] | None,
        typer.Option(help="Pairs: TSV or JSON lines (plain, .gz or .zip). Give it twice for two aligned files."),
    ] = None,
    more: Annotated[list[Path] | None, typer.Argument(metavar="[TARGET]", help="The second aligned file.")] = None,
    languages: Annotated[tuple[str, str] | None, typer.Option(help="Keys of source and target in JSON lines.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out from its last checkpoint.")
    ] = False,
    minutes: Annotated[float | None, typer.Option(help="Time to train; 20 unless --max-steps is given.")] = None,
    max_steps: Annotated[int | None, typer.Option(help="Steps to train.")] = None,
    variant: Annotated[str | None, typer.Option(help="Feed-forward network: relu, gelu, swiglu, reglu, …")] = None,
    d_model: Annotated[int | None, typer.Option(help="Width of the model.")] = None,
    d_ff: Annotated[int | None, typer.Option(help="Width of the feed-forward network.")] = None,
    num_heads: Annotated[int | None, typer.Option("--heads", help="Attention heads.")] = None,
    layers: Annotated[int | None, typer.Option(help="Layers of encoder and decoder each.")] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Entries of the vocabulary.")] = None,
    dropout: Annotated[float | None, typer.Option(help="Dropout of every sublayer and of the embeddings.")] = None,
    batch_tokens: Annotated[int | None, typer.Option(help="Padded ids in a batch, on each side.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    validation: Annotated[int | None, typer.Option(help="Sources to watch while training.")] = None,
    held_out: Annotated[int | None, typer.Option(help="Sources kept to judge by.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Longest sentence, in pieces of words.")] = None,
    checkpoint_minutes: Annotated[float | None, typer.Option(help="Minutes between checkpoints.")] = None,
    summaries: Annotated[
        bool | None,
        typer.Option("--summaries", help="TensorBoard histograms of the hidden units, at step 1 and every 100th."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of every draw.")] = None,
) -> None:
    """Train a translation Transformer on sentence pairs."""
    names = (
        "minutes", "max_steps", "variant", "d_model", "d_ff", "num_heads", "vocab_size", "dropout", "batch_tokens",
        "learning_rate", "validation", "held_out", "max_length", "checkpoint_minutes", "summaries",
        "seed",
    )  # fmt: skip
    values = locals()
    given = {name: values[name] for name in names if values[name] is not None}
    if layers is not None:
        given |= {"encoder_layers": layers, "decoder_layers": layers}
    paths = [*(data or []), *(more or [])]
    if resume:
        _resume(out, paths, languages, given)
    else:
        _start(out, paths, languages, given)


def _start(out: Path, paths: list[Path], languages: tuple[str, str] | None, given: dict[str, Any]) -> None:
    if not paths:
        raise typer.BadParameter("expected a file of pairs; got none", param_hint="--data")
    options = _options(given)
    pairs = load("positionwise.training.data", "train").read_pairs(paths, languages)
    with load("positionwise.cli.progress", "train").TrainingProgress() as progress:
        run = load("positionwise.training.train", "train").start(
            pairs, out, options, progress, {"files": [str(path.resolve()) for path in paths], "languages": languages}
        )
    print(f"the run is in {run.path}: positionwise translate {run.path} < sentences")


def _resume(out: Path, paths: list[Path], languages: tuple[str, str] | None, given: dict[str, Any]) -> None:
    if fixed := sorted(given.keys() - set(BUDGET)):
        raise SpecError(f"expected a resumed run to keep its options; got {', '.join(fixed)}")
    training = load("positionwise.training.train", "train")
    run = load("positionwise.training.run", "train").Run.open(out)
    run.unfinished()
    origin = run.record.get("data", {})
    paths = paths or [Path(name) for name in origin.get("files", ())]
    if not paths:
        raise RunError(f"expected run.json in {out} to name its files of pairs; got none (give them with --data)")
    pairs = load("positionwise.training.data", "train").read_pairs(paths, languages or origin.get("languages"))
    with load("positionwise.cli.progress", "train").TrainingProgress() as progress:
        run = training.resume(pairs, out, progress, **given)
    print(f"the run is in {run.path}")


def _options(given: dict[str, Any]) -> Any:
    if "max_steps" in given:
        given.setdefault("minutes", None)
    return load("positionwise.training.options", "train").TrainOptions(**given)


def demo(
    out: Annotated[Path | None, typer.Option(help="The folder of the run; a new one under runs/ without it.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of every draw.")] = 0,
) -> None:
    """Learn a small English-Spanish phrasebook in two minutes and show what happens."""
    load("positionwise.cli.demonstration", "train").show_demo(out, seed)
