"""Groups of feed-forward networks from the sites that were found, and rows for everything around them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from positionwise.accounting.costs import costs_of, learns
from positionwise.accounting.enumeration import logical_size, source_of
from positionwise.accounting.equations import equation
from positionwise.accounting.ledger import Axes, Group, Signal, Source
from positionwise.adapters import Found, Site, linear_map
from positionwise.adapters.families import rounds
from positionwise.spec import Component

INDEX = re.compile(r"(?:^|(?<=\.))\d+(?=\.|$)")


def pattern(path: str) -> str:
    """A path with ``*`` for the places in lists."""
    return INDEX.sub("*", path)


def groups_of(
    module: nn.Module, sites: list[Site], applications: Mapping[str, int], positions: Mapping[str, Axes],
    sizes: tuple[int, int] | None = None,
) -> list[Group]:  # fmt: skip
    """Sites of one kind and place together.

    Args:
        module: the model.
        sites: of the model.
        applications: of each site in a forward pass, by its path.
        positions: the axes before d_model by the first part of the path that is among them; (…) without it.
        sizes: (batch, sequence), for FLOPs and bytes.
    """
    places: dict[Any, list[Site]] = defaultdict(list)
    for site in sites:
        kind = (pattern(site.path), site.components, site.activation, site.gate_half, site.position_wise, site.mixture)
        places[kind].append(site)
    return [_group(module, same, applications, positions, sizes) for same in places.values()]


def _group(
    module: nn.Module, sites: list[Site], applications: Mapping[str, int], positions: Mapping[str, Axes],
    sizes: tuple[int, int] | None,
) -> Group:  # fmt: skip
    site, costs = sites[0], costs_of(sites, applications, sizes, learns(module))
    axes = next((positions[part] for part in site.path.split(".") if part in positions), (("…", "positions"),))
    return Group(
        path=pattern(site.path) or type(site.module).__name__,
        instances=len({frozenset(id(p) for _, p in one.parameters) or id(one.module) for one in sites}),
        applications=sum(applications[one.path] for one in sites),
        d_model=site.d_model,
        d_ff=site.d_ff,
        activation=site.activation,
        gated=site.is_gated,
        gate_half=site.gate_half,
        layout=site.layout,
        input=Signal("x", (*axes, (f"{site.d_model}", "d_model"))),
        output=Signal("Δ" if site.path else "y", (*axes, (f"{site.d_model}", "d_model"))),
        components=site.components,
        equation=equation(site),
        source=_source(module, site),
        layers=_layers([one.path for one in sites]),
        position_wise=site.position_wise,
        gate=site.gate,
        biases=site.biases,
        parameters=tuple((name, tuple(parameter.shape)) for name, parameter in site.parameters),
        experts=None if site.mixture is None else (site.mixture.experts, site.mixture.top_k),
        active_per_instance=site.active if site.mixture else None,
        evidence=site.evidence,
        notes=(*site.notes, *costs.notes),
        flops_per_token=costs.flops_per_token,
        flops=costs.flops,
        flops_backward=costs.flops_backward,
        saved_for_backward=costs.saved_for_backward,
    )


def _layers(paths: list[str]) -> str | None:
    """The places of networks that stand in one list of layers, runs of them as 0–2."""
    places = [INDEX.findall(path) for path in paths]
    varying = [i for i in range(len(places[0])) if len({numbers[i] for numbers in places}) > 1]
    if not places[0] or len(varying) > 1:
        return None
    which = sorted({int(numbers[varying[0] if varying else 0]) for numbers in places})
    runs = [[which[0], which[0]]]
    for number in which[1:]:
        if number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in runs)


def _source(module: nn.Module, site: Site) -> Source | None:
    """Of the class that holds the maps; of the class around it where that is one of PyTorch's containers."""
    path = site.path
    holder = site.module
    while type(holder).__module__.startswith("torch.nn.modules.container") and path:
        path = path.rpartition(".")[0]
        holder = module.get_submodule(path)
    return source_of(type(holder))


def applications_of(module: nn.Module, found: Found, config: Any) -> dict[str, int]:
    """How many times each site is applied in a forward pass: under each of its names, and in each round of a stack."""
    names = Counter(id(part) for _, part in module.named_modules(remove_duplicate=False))
    return {site.path: names[id(site.module)] * rounds(site.path, config) for site in found}


def rest_rows(module: nn.Module, counted: set[int]) -> list[Component]:
    """Everything outside of the networks, parts of one shape and place together, each parameter once.

    Args:
        module: the model.
        counted: ids of the parameters that have their place already.
    """
    rows: dict[tuple[str, str, int], list[str]] = defaultdict(list)
    for name, calculation, size in _parts(module, set(counted)):
        rows[pattern(name), calculation, size].append(name)
    return [
        Component(names[0], calculation, size)
        if len(names) == 1
        else Component(place, f"{len(names)} × {_grouped(calculation)}", len(names) * size)
        for (place, calculation, size), names in rows.items()
    ]


def _grouped(calculation: str) -> str:
    return f"({calculation})" if " " in calculation else calculation


def _parts(module: nn.Module, counted: set[int]) -> Iterator[tuple[str, str, int]]:
    """(name, calculation, size): maps and tables as wholes from their own sizes, other parameters one by one."""
    for path, part in module.named_modules():
        own = {leaf: p for leaf, p in part._parameters.items() if p is not None and id(p) not in counted}
        counted |= {id(p) for p in own.values()}
        entry = linear_map(part)
        whole = own.keys() >= {leaf for leaf, p in part._parameters.items() if p is not None}
        if entry is not None and own and whole and _is_whole(entry.parameters, part, own):
            yield path, entry.calculation, entry.parameters
            continue
        if isinstance(part, nn.Embedding) and own:
            yield path, f"{part.num_embeddings:,} × {part.embedding_dim:,}", part.num_embeddings * part.embedding_dim
            continue
        for leaf, parameter in own.items():
            name = f"{path}.{leaf}" if path else leaf
            shape = " × ".join(f"{size:,}" for size in parameter.shape)
            yield name, shape or "1", logical_size(part, leaf, parameter)


def _is_whole(size: int, part: nn.Module, own: dict[str, nn.Parameter]) -> bool:
    return size == sum(logical_size(part, leaf, parameter) for leaf, parameter in own.items())
