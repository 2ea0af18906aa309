"""``positionwise convert``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from positionwise.cli.groups import load
from positionwise.errors import ConvertError, unknown_name

OPTIONS = {
    "tensor2tensor": ("num_heads", "target_space_id", "padding"),
    "keras": ("num_heads", "epsilon", "norm_first", "activation"),
    "labml": ("activation", "dropout", "prefix"),
}
"""What each library's files may leave unsaid."""


def convert(
    source: Annotated[Path, typer.Argument(help="A checkpoint, an archive of arrays, a weights file, a state dict.")],
    library: Annotated[str, typer.Option("--from", help="tensor2tensor, keras or labml.")],
    out: Annotated[Path, typer.Option(help="The new folder.")],
    num_heads: Annotated[int | None, typer.Option("--num-heads", "--heads", help="Attention heads.")] = None,
    target_space_id: Annotated[int | None, typer.Option(help="tensor2tensor's target space, 0 to 31.")] = None,
    padding: Annotated[str | None, typer.Option(help="Of wide kernels alone: same, left, valid.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Of Keras's layer norms.")] = None,
    norm_first: Annotated[bool | None, typer.Option(help="Whether Keras's layers are pre-norm.")] = None,
    activation: Annotated[
        str | None, typer.Option(help="Of the feed-forward networks; a state dict or a weights file does not hold it.")
    ] = None,
    dropout: Annotated[float | None, typer.Option(help="Of labml's block, which its state dict does not hold.")] = None,
    prefix: Annotated[str | None, typer.Option(help="Of the one block to take from a state dict of several.")] = None,
    vocabulary: Annotated[
        Path | None, typer.Option(help="tensor2tensor's vocabulary file, with which translate runs the model.")
    ] = None,
) -> None:
    """Read another library's weights, say what went where, and write them as our model."""
    values = locals()
    if library not in OPTIONS:
        raise unknown_name("--from", library, OPTIONS)
    names = sorted({name for each in OPTIONS.values() for name in each})
    given = {name: values[name] for name in names if values[name] is not None}
    if foreign := sorted(given.keys() - set(OPTIONS[library])):
        raise ConvertError(f"expected options of {library} ({', '.join(OPTIONS[library])}); got {', '.join(foreign)}")
    conversion = load("positionwise.convert", "convert").CONVERTERS[library](source, **given)
    _write(conversion, out, vocabulary, {"from": library, "source": source.name, **given})
    load("positionwise.cli.tables", "models").show_conversion(conversion)


def _write(conversion: Any, out: Path, vocabulary: Path | None, record: dict[str, Any]) -> None:
    """A whole model becomes a run that translates; a part of one, its weights."""
    if type(conversion.module).__name__ == "TransformerForTranslation":
        load("positionwise.training.converted", "convert").converted_run(out, conversion.module, vocabulary, record)
        return
    if vocabulary is not None:
        kind = type(conversion.module).__name__
        raise ConvertError(f"expected a whole model to go with the vocabulary; got variables of {kind}")
    load("positionwise.convert.save", "convert").save_part(conversion, out)
