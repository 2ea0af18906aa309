"""Accounts and conversions as tables on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from positionwise.accounting.ledger import Account, Group, group_rows
from positionwise.convert import Conversion


def show(account: Account) -> None:
    """Print an account: one table for each kind of feed-forward network, then one for the model."""
    console = Console(highlight=False)
    for group in account.feed_forward.groups:
        console.print(_group_table(group))
    console.print(_model_table(account))
    for note in (*account.notes, *(f"not counted: {line}" for line in account.unplaced)):
        console.print(Text(note))


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("Component", overflow="fold")
    table.add_column("Calculation", overflow="fold")
    table.add_column("Parameters", justify="right")
    return table


def _group_table(group: Group) -> Table:
    table = _table(group.path)
    rows = group_rows(group)
    for row in rows[: len(group.components)]:
        table.add_row(*row)
    table.add_section()
    for row in rows[len(group.components) :]:
        table.add_row(*row, style="bold")
    lines = (f"in {group.input}", f"out {group.output}", group.equation, str(group.source or ""), *group.notes)
    table.caption = "\n".join(line for line in lines if line).replace("[", r"\[")
    table.caption_justify = "left"
    return table


def _model_table(account: Account) -> Table:
    table = _table(account.name)
    for part in account.components:
        table.add_row(part.name, part.calculation, f"{part.parameters:,}")
    table.add_section()
    for row in account.totals():
        table.add_row(*row, style="bold")
    return table


def show_conversion(conversion: Conversion) -> None:
    """Print what went where."""
    console = Console(highlight=False)
    rows = [(row.source, " × ".join(map(str, row.shape)), row.target) for row in conversion.rows]
    if console.is_terminal:
        table = Table(title=type(conversion.module).__name__, title_justify="left", title_style="bold")
        for name in ("Tensor", "Shape", "Goes to"):
            table.add_column(name, overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))
        console.print(table)
    else:
        print("\n".join("\t".join(row) for row in rows))
    for line in conversion.assumed:
        print(f"assumed, as the file does not say: {line}")
    if aside := conversion.set_aside:
        print(f"set aside, no weights of the module: {len(aside)}, such as {aside[0]}")
    used = len({row.source for row in conversion.rows})
    print(f"{used} of {used} tensors used")
