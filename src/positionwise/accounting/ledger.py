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
    layers: str | None = None
    """Where they stand in their stack, such as 0–2, 5; None where they stand in several lists or in none."""
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
            "layers": self.layers, "position_wise": self.position_wise, "gate": self.gate,
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

    @property
    def flops(self) -> int | None:
        """Of one forward pass of all of them; None where that of any is not known."""
        known = [group.flops for group in self.groups if group.flops is not None]
        return sum(known) if self.groups and len(known) == len(self.groups) else None

    def to_dict(self) -> dict[str, Any]:
        """The part as JSON would hold it."""
        entry = {
            "total": self.total, "share": round(self.share, 4), "instances": self.instances,
            "applications": self.applications, "groups": [group.to_dict() for group in self.groups],
        }  # fmt: skip
        return entry if self.flops is None else entry | {"flops": self.flops}


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
    dtypes: tuple[tuple[str, int], ...] = ()
    """(dtype, parameters) as the model is built."""
    sizes: tuple[int, int] | None = None
    """(batch, sequence) of the FLOPs and bytes."""
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
        batch, sequence = self.sizes or (None, None)
        costs = {
            "dtypes": dict(self.dtypes), "batch": batch, "sequence": sequence, "flops": self.flops,
            "flops_backward": self.flops_backward,
        }  # fmt: skip
        return entry | {name: cost for name, cost in costs.items() if cost is not None}

    def __str__(self) -> str:
        from positionwise.accounting.wording import account_text

        return account_text(self)
