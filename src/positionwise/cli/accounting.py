"""``positionwise account``."""

from __future__ import annotations

import atexit
import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from positionwise.cli.groups import load


def account(
    target: Annotated[
        str,
        typer.Argument(
            help="A folder with a config.json, such a file, or a preset: transformer-base, keras-translation, …"
        ),
    ],
    against: Annotated[str | None, typer.Option(help="Another such target: show how the two differ.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the account, or the difference, as JSON.")] = False,
    vocab_size: Annotated[int | None, typer.Option(help="Vocabulary size of a preset.")] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences, for FLOPs and bytes; with --sequence.")] = None,
    sequence: Annotated[int | None, typer.Option(help="Positions of each sequence; with --batch.")] = None,
) -> None:
    """Count a model's parameters, and show where its feed-forward networks stand among them.

    No weights are read and nothing is downloaded: the model is built from its configuration, without storage.
    """
    with _no_collection():
        accounting = load("positionwise.accounting", "models")
        options = {"vocab_size": vocab_size, "batch": batch, "sequence": sequence}
        result = accounting.account(target, **options)
        if against is not None:
            result = accounting.difference(result, accounting.account(against, **options))
        if as_json:
            print(json.dumps(result.to_dict(), ensure_ascii=False, indent=1))
            return
        tables = load("positionwise.cli.tables", "models")
        (tables.show if against is None else tables.show_difference)(result)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Spare a short command the collector's passes over modules that stay: a fifth of its time, at its end too."""
    enabled = gc.isenabled()
    gc.disable()
    atexit.register(gc.freeze)
    try:
        yield
    finally:
        if enabled:
            gc.enable()
