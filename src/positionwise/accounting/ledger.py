"""What an account holds, as data, as a dictionary and as a plain table."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from positionwise.spec import Component

BITS = {"float64": 64, "float32": 32, "bfloat16": 16, "float16": 16, "float8": 8, "int8": 8, "int4": 4}

Axes = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Signal:
    """A tensor's symbol and its axes, each a size or letter with its meaning."""

    symbol: str
    axes: Axes

    def to_dict(self) -> dict[str, Any]:
        """The signal as JSON would hold it."""
        return {"symbol": self.symbol, "axes": [list(axis) for axis in self.axes]}

    def __str__(self) -> str:
        return f"{self.symbol} [{', '.join(f'{size} {name}' for size, name in self.axes)}]"


@dataclass(frozen=True)
class Source:
    """Where the code of a block stands."""

    package: str
    version: str
    revision: str | None
    file: str
    lines: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.package} {self.version}, {self.file} {self.lines[0]}–{self.lines[1]}"


@dataclass(frozen=True)
class Group:
    """Feed-forward networks of one kind: equal in every size, independent in storage."""

    path: str
    instances: int
    applications: int
    d_model: int
    d_ff: int
    activation: str
    gated: bool
    gate_half: str | None
    layout: str
    input: Signal
    output: Signal
    components: tuple[Component, ...]
    equation: str
    source: Source | None
    """None for code that no file holds."""
    position_wise: bool = True
    """False where a convolution between or in the maps mixes positions."""
    experts: tuple[int, int | None] | None = None
    """Of a mixture: how many, and how many of them one token meets (None where that is not known)."""
    active_per_instance: int | None = None
    """Parameters of one mixture that one token meets."""
    gate: str | None = None
    """Which map, or which half of a fused one, is activated, and which is linear; None without a gate."""
    biases: tuple[bool, bool] = (False, False)
    """Whether the map or maps in, and the map out, have biases."""
    parameters: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """(name, shape) of the parameters of the first network."""
    evidence: str = "structure"
    """numbers: the block's own code shows what it is; structure: its class or its shapes do."""
    notes: tuple[str, ...] = ()
    flops_per_token: int | None = None
    """Of one application, forward; a multiply-add counts as two."""
    flops: int | None = None
    """Of one forward pass of all applications, where batch and sequence are given."""
    flops_backward: int | None = None
    """Of the gradients of their inputs and of the weights that are not frozen."""
    saved_for_backward: int | None = None
    """Bytes in training of all applications, where batch and sequence are given."""

    @property
    def per_instance(self) -> int:
        """Parameters of one network."""
        return sum(part.parameters for part in self.components)

    @property
    def total(self) -> int:
        """Parameters of all of them."""
        return self.per_instance * self.instances

    def to_dict(self) -> dict[str, Any]:
        """The group as JSON would hold it."""
        entry: dict[str, Any] = {
            "path": self.path, "instances": self.instances, "applications": self.applications,
            "d_model": int(self.d_model), "d_ff": int(self.d_ff), "activation": self.activation, "gated": self.gated,
            "gate_half": self.gate_half, "layout": self.layout, "input": self.input.to_dict(),
            "output": self.output.to_dict(), "components": [part.to_dict() for part in self.components],
            "per_instance": int(self.per_instance), "total": int(self.total), "equation": self.equation,
            "source": None if self.source is None else {**asdict(self.source), "lines": list(self.source.lines)},
            "position_wise": self.position_wise, "gate": self.gate,
            "biases": {"in": self.biases[0], "out": self.biases[1]},
            "parameters": [{"name": name, "shape": list(shape)} for name, shape in self.parameters],
            "evidence": self.evidence, "notes": list(self.notes),
        }  # fmt: skip
        if self.experts is not None:
            entry["experts"] = {"count": self.experts[0], "per_token": self.experts[1]}
            entry["active_per_instance"] = self.active_per_instance
        costs = {
            "flops_per_token": self.flops_per_token, "flops": self.flops, "flops_backward": self.flops_backward,
            "saved_for_backward": self.saved_for_backward,
        }  # fmt: skip
        return entry | {name: cost for name, cost in costs.items() if cost is not None}


@dataclass(frozen=True)
class FeedForwardAccount:
    """The feed-forward networks' part of a model."""

    groups: tuple[Group, ...]
    total: int
    """Parameters of every network: the groups' own, less what they share, and what was added to their layers."""
    share: float
    """Of all parameters, from 0 to 1."""

    @property
    def instances(self) -> int:
        """How many networks have parameters of their own."""
        return sum(group.instances for group in self.groups)

    @property
    def applications(self) -> int:
        """How many times one is applied in a forward pass."""
        return sum(group.applications for group in self.groups)

    def to_dict(self) -> dict[str, Any]:
        """The part as JSON would hold it."""
        return {
            "total": self.total, "share": round(self.share, 4), "instances": self.instances,
            "applications": self.applications, "groups": [group.to_dict() for group in self.groups],
        }  # fmt: skip


@dataclass(frozen=True)
class Account:
    """A model's parameters, every one of them in exactly one component."""

    name: str
    feed_forward: FeedForwardAccount
    components: tuple[Component, ...]
    frozen: int = 0
    buffers: int = 0
    tied: tuple[tuple[str, ...], ...] = ()
    """Names under which one stored parameter stands more than once; it is counted once."""
    tied_excess: int = 0
    """How many more parameters there would be if each of those names had its own."""
    active: int | None = None
    """Parameters that one token meets, for a mixture of experts."""
    flops: int | None = None
    """Of one forward pass, where batch and sequence are given; a multiply-add counts as two."""
    flops_backward: int | None = None
    """Of the gradients of that pass."""
    notes: tuple[str, ...] = field(default=())
    unplaced: tuple[str, ...] = ()
    """What looks like a feed-forward network, or a layer without one, and why it is not counted as one."""

    @property
    def weights(self) -> dict[str, int]:
        """Bytes of all parameters in each dtype, whichever the model is in."""
        return {name: self.total * bits // 8 for name, bits in BITS.items()}

    @property
    def total(self) -> int:
        """All parameters, tied ones once, frozen ones too."""
        return sum(part.parameters for part in self.components)

    @property
    def trainable(self) -> int:
        """Parameters that training changes."""
        return self.total - self.frozen

    def to_dict(self) -> dict[str, Any]:
        """The account as JSON would hold it."""
        entry = {
            "name": self.name, "total": self.total, "trainable": self.trainable, "active": self.active,
            "tied": [list(names) for names in self.tied], "buffers": self.buffers,
            "feed_forward": self.feed_forward.to_dict(),
            "components": [part.to_dict() for part in self.components], "notes": list(self.notes),
            "frozen": self.frozen, "tied_excess": self.tied_excess, "weights": self.weights,
            "unplaced": list(self.unplaced),
        }  # fmt: skip
        costs = {"flops": self.flops, "flops_backward": self.flops_backward}
        return entry | {name: cost for name, cost in costs.items() if cost is not None}

    def __str__(self) -> str:
        return "\n\n".join([self.name, *(_group_text(group) for group in self.feed_forward.groups), self._model_text()])

    def _model_text(self) -> str:
        rows = [(part.name, part.calculation, f"{part.parameters:,}") for part in self.components]
        return "\n".join(
            [_columns([*rows, *self.totals()]), *self.notes, *(f"not counted: {line}" for line in self.unplaced)]
        )

    def totals(self) -> list[tuple[str, str, str]]:
        """The closing rows of the table."""
        part = self.feed_forward
        rows = [("Total", "", f"{self.total:,}")]
        if self.tied_excess:
            rows += [("Tied: counted once, not again", f"{len(self.tied)} shared", f"{self.tied_excess:,}")]
        if self.frozen:
            rows += [("of which frozen", "", f"{self.frozen:,}")]
        if self.active is not None:
            rows += [
                ("Active for one token", f"{100 * self.active / self.total:.2f} % of the total", f"{self.active:,}")
            ]
        if self.buffers:
            rows += [("Buffers, not parameters", "", f"{self.buffers:,}")]
        rows += [("Feed-forward networks", f"{100 * part.share:.2f} % of the total", f"{part.total:,}")]
        if self.flops is not None:
            rows += [("FLOPs, forward", "a multiply-add counts as two", f"{self.flops:,}")]
        if self.flops_backward is not None:
            rows += [("FLOPs, backward", "", f"{self.flops_backward:,}")]
        return rows


def group_rows(group: Group) -> list[tuple[str, str, str]]:
    """A group's table: components, then one network, then all of them."""
    rows = [(part.name, part.calculation, f"{part.parameters:,}") for part in group.components]
    rows.append(("Per-instance total", "", f"{group.per_instance:,}"))
    if group.instances > 1:
        calculation = f"{group.per_instance:,} × {group.instances}"
        rows.append((f"{group.instances} independent instances", calculation, f"{group.total:,}"))
    if group.active_per_instance is not None and group.experts is not None:
        chosen = f"{group.experts[1] or 'all'} of {group.experts[0]} experts"
        rows.append(("Active for one token", chosen, f"{group.active_per_instance:,}"))
    if group.flops is not None:
        rows.append(("FLOPs, forward", f"{group.applications} applications", f"{group.flops:,}"))
    if group.flops_backward is not None:
        rows.append(("FLOPs, backward", f"{group.applications} applications", f"{group.flops_backward:,}"))
    if group.saved_for_backward is not None:
        rows.append(
            ("Saved for backward, bytes", f"{group.applications} applications", f"{group.saved_for_backward:,}")
        )
    return rows


def _group_text(group: Group) -> str:
    head = f"{group.path}\nin:  {group.input}\nout: {group.output}\n{group.equation}\n"
    end = "".join(f"\n{line}" for line in (str(group.source or ""), *group.notes) if line)
    return head + _columns(group_rows(group)) + end


def _columns(rows: list[tuple[str, str, str]]) -> str:
    first, second, third = (max(len(row[i]) for row in rows) for i in range(3))
    return "\n".join(f"{a:<{first}}  {b:<{second}}  {c:>{third}}" for a, b, c in rows)
