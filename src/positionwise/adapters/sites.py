"""What is found: the feed-forward networks of a model, and what could not be placed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from torch import nn

from positionwise.adapters.maps import Map
from positionwise.spec import Component


@dataclass(frozen=True)
class Mixture:
    """What a mixture of experts has beyond one expert."""

    experts: int
    top_k: int | None
    """Routed experts that one token meets; None where neither the numbers nor the configuration say."""
    routed: int
    """Parameters of all routed experts."""
    per_expert: int
    """Parameters of one of them."""


@dataclass(frozen=True)
class Site:
    """One feed-forward network of a model."""

    path: str
    """Of the module that holds its maps, and maybe more than them: a layer where fc1 and fc2 stand in the layer."""
    module: nn.Module
    d_model: int
    d_ff: int
    """The width that enters the second map; of one routed expert in a mixture."""
    activation: str
    is_gated: bool
    gate_half: str | None
    """Of a fused gate and up map: which half is activated, first, second, even or odd, as the numbers show."""
    gate: str | None
    """Which map, or which half of a fused one, is activated, and which is linear; None without a gate."""
    layout: str
    components: tuple[Component, ...]
    parameters: tuple[tuple[str, nn.Parameter], ...]
    """(name from the holder, parameter) of everything that the components count."""
    first: tuple[Map, ...] = ()
    """The map or maps that read the input, the activated one before the linear one; none for expert tensors."""
    second: Map | None = None
    biases: tuple[bool, bool] = (False, False)
    """Whether the map or maps in, and the map out, have biases."""
    normed: bool = False
    """Whether a normalisation or a learned scale stands between the maps; its parameters are not counted here."""
    position_wise: bool = True
    mixture: Mixture | None = None
    evidence: str = "numbers"
    """numbers: its own code, run on numbers, shows it; structure: its shapes and the activation beside them do."""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        mixture = self.mixture
        kind = "" if mixture is None else f"{mixture.top_k or '?'} of {mixture.experts} experts, "
        gate = ", gated" if self.is_gated else ""
        there = " and ".join(side for side, has in zip(("in", "out"), self.biases, strict=True) if has)
        what = f"{kind}{self.activation}{gate}, {'biases ' + there if there else 'no biases'}"
        where = self.path or type(self.module).__name__
        return f"{where}: {self.d_model:,} → {self.d_ff:,}, {what}, {self.per_instance:,}"

    @property
    def maps(self) -> tuple[Map, ...]:
        """The maps that are modules, in the order of the data; none for expert tensors."""
        return () if self.second is None else (*self.first, self.second)

    @property
    def per_instance(self) -> int:
        """Parameters of the network in closed form."""
        return sum(part.parameters for part in self.components)

    @property
    def active(self) -> int:
        """Parameters that one token meets; all of them where the choice of experts is not known."""
        mixture = self.mixture
        if mixture is None or mixture.top_k is None:
            return self.per_instance
        return self.per_instance - mixture.routed + mixture.per_expert * mixture.top_k


@dataclass(frozen=True)
class Unplaced:
    """Something that looks like a feed-forward network, or a layer without one, and why it is not counted as one."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path or 'the module itself'}: {self.reason}"


@dataclass(frozen=True)
class Found(Sequence[Site]):
    """The sites in the order of the model, and what could not be placed."""

    sites: tuple[Site, ...]
    unplaced: tuple[Unplaced, ...]

    @overload
    def __getitem__(self, index: int) -> Site: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Site, ...]: ...
    def __getitem__(self, index: int | slice) -> Site | tuple[Site, ...]:
        """The site, or sites, at an index."""
        return self.sites[index]

    def __str__(self) -> str:
        """A row for each site, then what could not be placed."""
        return "\n".join([*map(str, self.sites), *(f"not counted: {entry}" for entry in self.unplaced)])

    def __repr__(self) -> str:
        return f"Found({len(self.sites)} sites, {len(self.unplaced)} unplaced)"

    def __len__(self) -> int:
        """How many sites there are."""
        return len(self.sites)

    def __iter__(self) -> Iterator[Site]:
        """Each site in turn."""
        return iter(self.sites)
