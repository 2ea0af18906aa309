"""Two accounts side by side, row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from positionwise.accounting.ledger import Account, Group

Value = int | float | str | bool | None
STACKS = ("encoder", "decoder", "vision", "visual", "audio", "speech", "text", "language")
"""Parts of a path that say which of a model's stacks a network stands in."""
SHOWN = ("float32", "bfloat16", "int8", "int4")
"""The dtypes whose bytes are held against each other."""
COLUMNS = ("", "a", "b", "difference")


@dataclass(frozen=True)
class Row:
    """One figure of both accounts; None where an account has no such row."""

    name: str
    a: Value
    b: Value
    adds: bool = True
    """Whether an absent figure is the same as nothing: of counts, not of widths."""

    @property
    def difference(self) -> int | float | None:
        """What b has more than a; None for words, and for what only one has unless it adds."""
        values = [value for value in (self.a, self.b) if value is not None]
        if any(isinstance(value, str | bool) for value in values) or len(values) < (1 if self.adds else 2):
            return None
        return round(_number(self.b) - _number(self.a), 4)

    @property
    def same(self) -> bool:
        """Whether both accounts say the same."""
        return self.a == self.b

    def to_dict(self) -> dict[str, Any]:
        """The row as JSON would hold it."""
        return {"name": self.name, "a": self.a, "b": self.b, "difference": self.difference}

    def texts(self) -> tuple[str, str, str, str]:
        """The row as a table holds it: ``=`` where nothing differs, ``≠`` where words do."""
        if self.same:
            change = "="
        elif self.difference is not None:
            change = _signed(self.difference)
        else:
            change = "only in b" if self.a is None else "only in a" if self.b is None else "≠"
        return self.name, _text(self.a), _text(self.b), change


@dataclass(frozen=True)
class Pair:
    """Feed-forward networks of two models that stand in the same place; None where only one model has them."""

    a: Group | None
    b: Group | None

    @property
    def name(self) -> str:
        """The path, both where they are not the same."""
        paths = [group.path for group in (self.a, self.b) if group is not None]
        if len(paths) == 1:
            return f"{paths[0]} (only in {'b' if self.a is None else 'a'})"
        return paths[0] if paths[0] == paths[1] else " ↔ ".join(paths)

    @property
    def rows(self) -> tuple[Row, ...]:
        """Sizes and kinds, instances and parameters; without what neither of the two has."""
        rows = (Row(name, _of(self.a, get), _of(self.b, get), name in ADDING) for name, get in FIGURES.items())
        known = tuple(row for row in rows if (row.a, row.b) != (None, None))
        return tuple(self._whole(row) if row.name == "Active per instance" else row for row in known)

    def _whole(self, row: Row) -> Row:
        """Of a network that is no mixture, all of it is active."""
        sides = [
            value if value is not None or group is None or group.experts is not None else int(group.per_instance)
            for value, group in ((row.a, self.a), (row.b, self.b))
        ]
        return replace(row, a=sides[0], b=sides[1])

    def to_dict(self) -> dict[str, Any]:
        """The pair as JSON would hold it."""
        return {"a": _of(self.a, _path), "b": _of(self.b, _path), "rows": [row.to_dict() for row in self.rows]}


@dataclass(frozen=True)
class Difference:
    """What two models have more and less of; it prints as tables."""

    a: Account
    b: Account

    @property
    def rows(self) -> tuple[Row, ...]:
        """Every component by its name, a name that stands twice in an account summed; they add up to the totals."""
        a, b = (_sizes(account) for account in (self.a, self.b))
        return tuple(Row(name, a.get(name), b.get(name)) for name in {**a, **b})

    @property
    def totals(self) -> tuple[Row, ...]:
        """The sums and the shares, FLOPs where they were asked for, and the weights' bytes in each dtype."""
        rows = [Row(name, get(self.a), get(self.b)) for name, get in TOTALS.items()]
        rows += [Row(f"Bytes in {name}", self.a.weights[name], self.b.weights[name]) for name in SHOWN]
        return tuple(row for row in rows if (row.a, row.b) != (None, None))

    @property
    def feed_forward(self) -> tuple[Pair, ...]:
        """The groups of both: by path, else in order within a stack; then those that only one has."""
        return tuple(_matched(self.a.feed_forward.groups, self.b.feed_forward.groups))

    @property
    def notes(self) -> tuple[str, ...]:
        """What is to be known of each account, and what it could not place."""
        sides = (("a", self.a), ("b", self.b))
        return tuple(
            f"{side}: {line}"
            for side, account in sides
            for line in (*account.notes, *(f"not counted: {line}" for line in account.unplaced))
        )

    @property
    def same(self) -> bool:
        """Whether no figure differs, whatever the models are called."""
        rows = [*self.rows, *self.totals, *(row for pair in self.feed_forward for row in pair.rows)]
        return all(row.same for row in rows)

    @property
    def verdict(self) -> str:
        """The names, and whether anything differs."""
        if self.same:
            return f"Nothing differs between a ({self.a.name}) and b ({self.b.name})."
        return f"a: {self.a.name}, b: {self.b.name}"

    def to_dict(self) -> dict[str, Any]:
        """The difference as JSON would hold it."""
        return {
            "a": self.a.name, "b": self.b.name, "same": self.same,
            "totals": [row.to_dict() for row in self.totals],
            "feed_forward": [pair.to_dict() for pair in self.feed_forward],
            "rows": [row.to_dict() for row in self.rows], "notes": list(self.notes),
        }  # fmt: skip

    def tables(self) -> Iterator[tuple[str, tuple[Row, ...]]]:
        """Titles and rows, as they are printed; none where nothing differs."""
        if self.same:
            return
        yield "Totals", self.totals
        for pair in self.feed_forward:
            yield pair.name, pair.rows
        yield "Components", self.rows

    def __str__(self) -> str:
        tables = [f"{title}\n{_columns(rows)}" for title, rows in self.tables()]
        return "\n\n".join([self.verdict, *tables, *(["\n".join(self.notes)] if self.notes else [])])


def difference(a: Account, b: Account) -> Difference:
    """Hold two accounts against each other, row by row.

    Args:
        a: of one model.
        b: of the other, counted with the same batch and sequence; the differences are b's figures less a's.
    """
    return Difference(a, b)


def _matched(first: tuple[Group, ...], second: tuple[Group, ...]) -> Iterator[Pair]:
    """Pairs in a's order, then what only b has; each group stands in one pair."""
    stack_a, stack_b = _stacks(first), _stacks(second)
    partners: dict[int, int] = {}
    for key in KEYS:
        for i, group in enumerate(first):
            free = (j for j in range(len(second)) if i not in partners and j not in partners.values())
            match = next((j for j in free if key(group, stack_a[i]) == key(second[j], stack_b[j])), None)
            if match is not None:
                partners[i] = match
    for i, group in enumerate(first):
        yield Pair(group, second[partners[i]] if i in partners else None)
    for j, group in enumerate(second):
        if j not in partners.values():
            yield Pair(None, group)


def _stacks(groups: tuple[Group, ...]) -> list[str]:
    """The stack of each group; nothing where all are of one, which then compares with any other model's only one."""
    stacks = [next((part for part in STACKS if part in group.path.lower()), "") for group in groups]
    return stacks if len(set(stacks)) > 1 else [""] * len(stacks)


def _kind(group: Group) -> tuple[Any, ...]:
    return group.experts is not None, group.d_model, group.d_ff, group.activation, group.gated


KEYS: tuple[Callable[[Group, str], tuple[Any, ...]], ...] = (
    lambda group, stack: (group.path, *_kind(group)),
    lambda group, stack: (group.path, group.experts is not None),
    lambda group, stack: (group.path,),
    lambda group, stack: (stack, group.experts is not None),
    lambda group, stack: (stack,),
)
"""What two groups must share, the most first."""


def _path(group: Group) -> str:
    return group.path


def _biases(group: Group) -> str:
    """Of the maps in, and of the map out."""
    return " and ".join(word for word, there in zip(("in", "out"), group.biases, strict=True) if there) or "none"


def _gate(group: Group) -> str:
    return "none" if not group.gated else "a map of its own" if group.gate_half is None else f"{group.gate_half} half"


def _experts(group: Group) -> str | None:
    return None if group.experts is None else f"{group.experts[1] or '?'} of {group.experts[0]}"


def _active(account: Account) -> int | None:
    """All parameters where no experts are chosen among; None where it is not known how many are."""
    mixed = any(group.experts is not None for group in account.feed_forward.groups)
    return account.active if mixed else int(account.total)


FIGURES: dict[str, Callable[[Group], Value]] = {
    "d_model": lambda group: int(group.d_model),
    "d_ff": lambda group: int(group.d_ff),
    "Activation": lambda group: group.activation,
    "Gate": _gate,
    "Biases": _biases,
    "Experts for one token": _experts,
    "Position-wise": lambda group: group.position_wise,
    "Instances": lambda group: group.instances,
    "Applications": lambda group: group.applications,
    "Per-instance total": lambda group: int(group.per_instance),
    "Active per instance": lambda group: group.active_per_instance,
    "Total": lambda group: int(group.total),
    "FLOPs, forward": lambda group: group.flops,
    "FLOPs, backward": lambda group: group.flops_backward,
    "Saved for backward, bytes": lambda group: group.saved_for_backward,
}
"""The rows of a pair."""
ADDING = ("Instances", "Applications", "Total", "FLOPs, forward", "FLOPs, backward", "Saved for backward, bytes")
TOTALS: dict[str, Callable[[Account], Value]] = {
    "Total": lambda account: int(account.total),
    "Trainable": lambda account: int(account.trainable),
    "Active for one token": _active,
    "Feed-forward networks": lambda account: int(account.feed_forward.total),
    "Feed-forward networks, share": lambda account: round(account.feed_forward.share, 4),
    "Buffers, not parameters": lambda account: int(account.buffers),
    "FLOPs, forward": lambda account: account.flops,
    "FLOPs, backward": lambda account: account.flops_backward,
}


def _of(group: Group | None, get: Callable[[Group], Value]) -> Value:
    return None if group is None else get(group)


def _sizes(account: Account) -> Counter[str]:
    sizes: Counter[str] = Counter()
    for part in account.components:
        sizes[part.name] += int(part.parameters)
    return sizes


def _number(value: Value) -> int | float:
    return value if isinstance(value, int | float) else 0


def _text(value: Value) -> str:
    if value is None:
        return "absent"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else f"{100 * value:.2f} %" if isinstance(value, float) else f"{value:,}"


def _signed(change: int | float) -> str:
    return f"{100 * change:+.2f} %" if isinstance(change, float) else f"{change:+,}"


def _columns(rows: tuple[Row, ...]) -> str:
    lines = [COLUMNS, *(row.texts() for row in rows)]
    name, a, b, change = (max(len(line[i]) for line in lines) for i in range(4))
    return "\n".join(f"{w:<{name}}  {x:>{a}}  {y:>{b}}  {z:>{change}}" for w, x, y, z in lines)
