"""The account of any module: its own blocks and the networks that are found in it, then everything around them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from torch import nn

from positionwise.accounting.costs import whole_flops
from positionwise.accounting.enumeration import (
    feed_forward_groups,
    logical_size,
    packed_sizes,
    parameter_sizes,
    tied_names,
)
from positionwise.accounting.ledger import Account, Axes, FeedForwardAccount, Group
from positionwise.accounting.placed import applications_of, groups_of, pattern, rest_rows
from positionwise.adapters import Found, Site, find
from positionwise.errors import AccountError
from positionwise.feedforward import Network, SeparableLinear
from positionwise.kernels import is_plain
from positionwise.spec import Component

CONVENTION = "FLOPs: a multiply-add counts as two; products only, without biases, norms, softmax and activations."
SHARED, ADDED = "Shared between networks, counted once", "Added inside the networks"


def account_of_module(
    module: nn.Module, name: str, sizes: tuple[int, int] | None, notes: tuple[str, ...] = (), config: Any = None
) -> Account:
    """A module's parameters, each feed-forward network in it held against its closed form.

    Args:
        module: on any device, the meta device too.
        name: of the account.
        sizes: (batch, sequence) that each application sees, for FLOPs and bytes.
        notes: what the account shall say besides.
        config: of a transformers model, which tells how often a stack is gone through.
    """
    found = find(module)
    sites = [site for site in found if not isinstance(site.module, Network)]
    own = feed_forward_groups(module, tokens=None if sizes is None else sizes[0] * sizes[1])
    groups = own + groups_of(module, sites, applications_of(module, found, config), _positions(config), sizes)
    blocks = [(path, part) for path, part in module.named_modules() if isinstance(part, Network)]
    inside = {id(parameter) for _, block in blocks for parameter in block.parameters()}
    inside |= {id(parameter) for site in sites for _, parameter in site.parameters}
    distinct = sum(size for _, parameter, size in parameter_sizes(module) if id(parameter) in inside)
    rest = rest_rows(module, inside)
    within = {_below(site.path, entry.path) for site in sites for entry in site.maps}
    for path, size in packed_sizes(module):
        if path in within or any(path.startswith(f"{block}." if block else "") for block, _ in blocks):
            distinct += size
        else:
            rest.append(Component(path, "", size))
    added = sum(_beyond_spec(path, block) for path, block in blocks) + sum(_beyond_site(site) for site in sites)
    shared = sum(group.total for group in groups) + added - distinct
    rows = [row for group in groups for row in _rows(group, len(groups) == 1)]
    rows += [Component(ADDED, "", added)] if added else []
    rows += [Component(SHARED, "", -shared)] if shared else []
    whole_cost = None
    if groups and sizes is not None:
        notes = (*notes, CONVENTION)
    if sizes is not None and (sites or config is not None):
        whole_cost, said = whole_flops(module, list(found), sizes)
        notes = (*notes, *said)
    whole = sum(row.parameters for row in (*rows, *rest))
    compare({name: whole}, {name: _enumerated(module)})
    counted = account_from(
        name, [*rows, *rest], groups, distinct, module, (*notes, *_too_long(config, sizes)), None, found
    )
    if whole_cost is None:
        return replace(counted, sizes=sizes)
    return replace(counted, sizes=sizes, flops=whole_cost.forward, flops_backward=whole_cost.backward)


def _too_long(config: Any, sizes: tuple[int, int] | None) -> tuple[str, ...]:
    """A note where a sequence has more positions than the model knows."""
    most = getattr(config, "max_position_embeddings", None)
    if sizes is None or not isinstance(most, int) or not 0 < most < sizes[1]:
        return ()
    return (f"A sequence of {sizes[1]:,} is longer than the model's {most:,} positions.",)


def _enumerated(module: nn.Module) -> int:
    return sum(size for _, _, size in parameter_sizes(module)) + sum(size for _, size in packed_sizes(module))


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _positions(config: Any) -> dict[str, Axes]:
    batch = ("B", "batch")
    if getattr(config, "is_encoder_decoder", False):
        return {"encoder": (batch, ("S", "source positions")), "decoder": (batch, ("T", "target positions"))}
    return {}


def _rows(group: Group, alone: bool) -> tuple[Component, ...]:
    """A group's components over all its instances."""
    if alone and group.instances == 1 and "." not in group.path:
        return group.components
    return tuple(
        Component(
            f"{group.path}: {row.name}", f"{group.instances} × ({row.calculation})", group.instances * row.parameters
        )
        for row in group.components
    )


def _beyond_spec(path: str, block: Network) -> int:
    """How many parameters a block has beyond its spec: none, unless a layer was wrapped or replaced."""
    counted = sum(size for _, _, size in parameter_sizes(block)) + sum(size for _, size in packed_sizes(block))
    plain = all(
        is_plain(layer) or isinstance(layer, SeparableLinear)
        for layer in block.children()
        if layer is not block.activation
    )
    expected: int = block.spec.parameters
    if plain or counted < expected:
        name = path or type(block).__name__
        compare({name: expected}, {name: counted})
    return counted - expected


def _beyond_site(site: Site) -> int:
    """The same of a network that was found: its parameters against its closed form."""
    owners = dict(site.module.named_modules(remove_duplicate=False))
    within = {entry.path for entry in site.maps}
    counted = sum(size for path, size in packed_sizes(site.module) if path in within)
    for name, parameter in site.parameters:
        path, _, leaf = name.rpartition(".")
        counted += logical_size(owners[path], leaf, parameter)
    if counted < site.per_instance:
        name = site.path or type(site.module).__name__
        compare({name: site.per_instance}, {name: counted})
    return counted - site.per_instance


def account_from(
    name: str,
    rows: list[Component],
    groups: list[Group],
    part: int,
    module: nn.Module,
    notes: tuple[str, ...],
    flops: int | None,
    found: Found | None = None,
) -> Account:
    """The account of rows that are known to agree with the module."""
    total = sum(row.parameters for row in rows)
    return Account(
        name=name,
        feed_forward=FeedForwardAccount(tuple(groups), part, part / total if total else 0.0),
        components=tuple(rows),
        frozen=sum(size for _, parameter, size in parameter_sizes(module) if not parameter.requires_grad),
        buffers=sum(buffer.numel() for buffer in module.buffers()),
        tied=tied_names(module),
        tied_excess=_tied_excess(module),
        dtypes=_dtypes(module),
        active=_active(groups, total),
        flops=flops,
        notes=notes,
        unplaced=() if found is None else _collapsed(found),
    )


def _dtypes(module: nn.Module) -> tuple[tuple[str, int], ...]:
    sizes: Counter[str] = Counter()
    for _, parameter, size in parameter_sizes(module):
        sizes[str(parameter.dtype).removeprefix("torch.")] += size
    return tuple(sizes.most_common())


def _tied_excess(module: nn.Module) -> int:
    everywhere = sum(parameter.numel() for _, parameter in module.named_parameters(remove_duplicate=False))
    return everywhere - sum(parameter.numel() for parameter in module.parameters())


def _active(groups: list[Group], total: int) -> int | None:
    """Parameters that one token meets; None without a mixture, or where the choice of experts is not known."""
    mixtures = [group for group in groups if group.experts is not None]
    if not mixtures or any(group.experts is not None and group.experts[1] is None for group in mixtures):
        return None
    return total - sum(group.instances * (group.per_instance - (group.active_per_instance or 0)) for group in mixtures)


def _collapsed(found: Found) -> tuple[str, ...]:
    """What could not be placed, the same in several places of a stack once."""
    lines = (f"{pattern(entry.path) or 'the module itself'}: {entry.reason}" for entry in found.unplaced)
    return tuple(dict.fromkeys(lines))


def compare(closed: dict[str, int], counted: dict[str, int]) -> None:
    """Hold two counts against each other, row by row.

    Raises:
        AccountError: naming every row that differs.
    """
    differing = [name for name in {**closed, **counted} if closed.get(name, 0) != counted.get(name, 0)]
    if differing:
        rows = "; ".join(f"{name}: {closed.get(name, 0):,} and {counted.get(name, 0):,}" for name in differing)
        raise AccountError(f"expected the closed form and the parameters to agree; got {rows}")
