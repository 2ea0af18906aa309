"""``positionwise account``."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from positionwise.cli.groups import load


def account(
    target: Annotated[str, typer.Argument(help="A preset: transformer-base, transformer-big, keras-translation, …")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the account as JSON.")] = False,
    vocab_size: Annotated[int | None, typer.Option(help="Vocabulary size of a preset.")] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences, for FLOPs and bytes.")] = None,
    sequence: Annotated[int | None, typer.Option(help="Positions of a sequence, for FLOPs and bytes.")] = None,
) -> None:
    """Count a model's parameters, and show where its feed-forward networks stand among them."""
    accounting = load("positionwise.accounting", "models")
    result = accounting.account(target, vocab_size=vocab_size, batch=batch, sequence=sequence)
    if as_json:
        print(json.dumps(result.to_dict(), ensure_ascii=False, indent=1))
        return
    load("positionwise.cli.tables", "models").show(result)
