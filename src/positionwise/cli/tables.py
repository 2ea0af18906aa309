"""Accounts, differences and conversions as tables on a terminal."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from positionwise.accounting.ledger import Account, Group
from positionwise.accounting.wording import group_lines, group_rows, kind_of, totals

if TYPE_CHECKING:
    from positionwise.accounting.difference import Difference
    from positionwise.convert import Conversion

WEIGHTS = ("float32", "bfloat16", "int8", "int4")
"""The dtypes whose bytes are shown; an account has more."""
WIDEST = 1000
"""Columns where the output is no terminal and nobody said how wide it is, so that no name is broken."""


class Name:
    """A dotted name that breaks after a dot or a space where a column is narrow, inside a part only if it must."""

    def __init__(self, name: str) -> None:
        self.parts = re.findall(r"[^. ]*[. ]?", name)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(max(map(cell_len, self.parts)), sum(map(cell_len, self.parts))).clamp(1, options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [""]
        for part in self.parts:
            if lines[-1] and cell_len(lines[-1] + part.rstrip()) > options.max_width:
                lines.append("")
            lines[-1] += part
        yield Text("\n".join(line.rstrip() for line in lines), overflow="fold")


def show(account: Account) -> None:
    """Print an account: its sums, a line for each kind of feed-forward network, each kind, every component, notes."""
    console = _console()
    console.print(_summary(account), "")
    if account.notes:
        _say(console, (*account.notes, ""))
    groups = account.feed_forward.groups
    if groups:
        console.print(_overview(groups), "")
    for group in groups:
        console.print(_group_table(group))
        _say(console, group_lines(group))
        console.print()
    console.print(_components(account), "")
    _say(console, (f"not counted: {line}" for line in account.unplaced))


def show_difference(difference: Difference) -> None:
    """Print two accounts side by side."""
    console = _console()
    _say(console, [difference.verdict, ""])
    for title, rows in difference.tables():
        table = _table(title, "", right=("a", "b", "difference"))
        for row in rows:
            name, *figures = row.texts()
            table.add_row(Name(name), *figures)
        console.print(table, "")
    _say(console, difference.notes)


def _console() -> Console:
    """Plain text as it comes; as wide as it must be where nobody said how wide."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDEST
    return console


def _say(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(Text(line))


def _table(title: str, *left: str, right: tuple[str, ...]) -> Table:
    """A table without lines between its columns: eighty characters are for names and figures."""
    table = Table(
        title=Text(title, style="bold"), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False,
        show_edge=False,
    )  # fmt: skip
    for name in left:
        table.add_column(name, overflow="fold")
    for name in right:
        table.add_column(name, justify="right", overflow="fold")
    return table


def _summary(account: Account) -> Table:
    table = _table(account.name, "", "", right=("",))
    table.show_header = False
    for row in totals(account):
        table.add_row(*row)
    table.add_section()
    for name in WEIGHTS:
        table.add_row(f"Weights in {name}", "", _size(account.weights[name]))
    return table


def _size(count: int) -> str:
    unit, name = next((pair for pair in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")) if count >= pair[0]), (1, "B"))
    return f"{count / unit:,.2f} {name}" if unit > 1 else f"{count} B"


def _overview(groups: tuple[Group, ...]) -> Table:
    table = _table("Feed-forward networks", "Path", "Layers", "Widths", "Kind", right=("Instances", "Parameters"))
    for group in groups:
        widths = f"{int(group.d_model):,} → {int(group.d_ff):,}"
        table.add_row(
            Name(group.path), group.layers or "", widths, kind_of(group), f"{group.instances}", f"{group.total:,}"
        )
    return table


def _group_table(group: Group) -> Table:
    table = _table(group.path, "Component", "Calculation", right=("Parameters",))
    rows = group_rows(group)
    for name, *figures in rows[: len(group.components)]:
        table.add_row(Name(name), *figures)
    table.add_section()
    for row in rows[len(group.components) :]:
        table.add_row(*row, style="bold")
    return table


def _components(account: Account) -> Table:
    table = _table("All components", "Component", "Calculation", right=("Parameters",))
    for part in account.components:
        table.add_row(Name(part.name), part.calculation, f"{part.parameters:,}")
    table.add_section()
    table.add_row("Total", "", f"{account.total:,}", style="bold")
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
