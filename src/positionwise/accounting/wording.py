"""Accounts in words: the rows of their tables, and equations as a terminal can show them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from positionwise.accounting.ledger import Account, Group

Row = tuple[str, str, str]
_SIGNS = {
    r"\left": "", r"\right": "", r"\odot": "⊙", r"\sigma": "σ", r"\sum": "Σ", r"\in": "∈", r"\max": "max",
    r"\tanh": "tanh", r"\,": "", r"\_": "_", "W_1": "W₁", "W_2": "W₂", "b_1": "b₁", "b_2": "b₂",
    "K_1": "K₁", "K_2": "K₂", "^2": "²",
}  # fmt: skip


def readable(equation: str) -> str:
    """LaTeX as plain text: y = W₂(SiLU(W₁x) ⊙ (Vx))."""
    text = re.sub(r"\\(?:mathrm|text|operatorname)\{((?:[^{}]|\\_)*)\}", r"\1", equation)
    text = re.sub(r"_\{([^{}]*)\}", r"[\1]", re.sub(r"\^\{\((\w)\)\}", r"", text))
    for sign, plain in _SIGNS.items():
        text = text.replace(sign, plain)
    text = re.sub(r"\\text\{(-)\}", r"\1", text)
    text = re.sub(r"(W₁|W₂|V|K₁|K₂) (?=[x(])", r"\1", text)
    return text.replace("{", "").replace("}", "").replace("\\", "")


def totals(account: Account) -> list[Row]:
    """The sums of an account, the most asked for first."""
    part, total = account.feed_forward, account.total
    rows = [("Total", _built(account), f"{total:,}")]
    if account.active is not None:
        rows.append(("Active for one token", _share(account.active, total, "of the total"), f"{account.active:,}"))
    rows.append(("Feed-forward networks", _share(part.total, total, "of the total"), f"{part.total:,}"))
    if account.tied_excess:
        names = (
            f"{len(account.tied)} tensors under several names" if len(account.tied) > 1 else " = ".join(account.tied[0])
        )
        rows.append(("Tied, and counted once", names, f"{account.tied_excess:,}"))
    if account.frozen:
        rows.append(("of which frozen", "", f"{account.frozen:,}"))
    if account.buffers:
        rows.append(("Buffers, not parameters", "", f"{account.buffers:,}"))
    if account.flops is not None:
        rows.append(("FLOPs, forward", "a multiply-add counts as two", f"{account.flops:,}"))
    if part.flops is not None:
        share = "" if account.flops is None else _share(part.flops, account.flops, "of these")
        rows.append(("FLOPs, feed-forward networks", share, f"{part.flops:,}"))
    if account.flops_backward is not None:
        rows.append(("FLOPs, backward", "", f"{account.flops_backward:,}"))
    return rows


def _built(account: Account) -> str:
    return "in " + " and ".join(name for name, _ in account.dtypes) if account.dtypes else ""


def _share(part: int, whole: int, of: str) -> str:
    return f"{100 * part / whole:.2f} % {of}" if whole else ""


def group_rows(group: Group) -> list[Row]:
    """A group's table: components, then one network, then all of them."""
    rows = [(part.name, part.calculation, f"{part.parameters:,}") for part in group.components]
    rows.append(("Per-instance total", "", f"{group.per_instance:,}"))
    if group.instances > 1:
        calculation = f"{group.per_instance:,} × {group.instances}"
        rows.append((f"{group.instances} independent instances", calculation, f"{group.total:,}"))
    if group.active_per_instance is not None and group.experts is not None:
        chosen = f"{group.experts[1] or 'all'} of {group.experts[0]} experts"
        rows.append(("Active for one token", chosen, f"{group.active_per_instance:,}"))
    times = "1 application" if group.applications == 1 else f"{group.applications} applications"
    costs = (
        ("FLOPs, forward", group.flops), ("FLOPs, backward", group.flops_backward),
        ("Saved for backward, bytes", group.saved_for_backward),
    )  # fmt: skip
    return rows + [(name, times, f"{cost:,}") for name, cost in costs if cost is not None]


def kind_of(group: Group) -> str:
    """Activation, gate and experts in a few words."""
    mixture = "" if group.experts is None else f", {group.experts[1] or '?'} of {group.experts[0]} experts"
    return group.activation + (", gated" if group.gated else "") + mixture


def group_lines(group: Group) -> list[str]:
    """What stands below a group's table."""
    where = "" if group.layers is None else f"layers {group.layers}"
    signals = f"in {group.input}, out {group.output}"
    return [line for line in (where, signals, readable(group.equation), str(group.source or ""), *group.notes) if line]


def account_text(account: Account) -> str:
    """The account as plain text: sums and notes, each kind of network, every component, what is not counted."""
    rows = [(part.name, part.calculation, f"{part.parameters:,}") for part in account.components]
    groups = [
        "\n".join([group.path, _columns(group_rows(group)), *group_lines(group)])
        for group in account.feed_forward.groups
    ]
    head = "\n".join([account.name, _columns(totals(account)), *account.notes])
    foot = [f"not counted: {line}" for line in account.unplaced]
    every = "\n".join(["All components", _columns([*rows, ("Total", "", f"{account.total:,}")]), *foot])
    return "\n\n".join([head, *groups, every])


def _columns(rows: list[Row]) -> str:
    first, second, third = (max(len(row[i]) for row in rows) for i in range(3))
    return "\n".join(f"{a:<{first}}  {b:<{second}}  {c:>{third}}" for a, b, c in rows)
