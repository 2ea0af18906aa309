"""Sites from what was seen: components with their calculations, the parameters that they count, notes."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from positionwise.adapters.dense import Chain
from positionwise.adapters.maps import Map, linear_map
from positionwise.adapters.mixtures import Experts
from positionwise.adapters.names import is_learned
from positionwise.adapters.running import is_norm
from positionwise.adapters.sites import Mixture, Site
from positionwise.feedforward import Network
from positionwise.spec import Component


def own_site(path: str, block: Network) -> Site:
    """The site of a network of this package."""
    spec = block.spec
    given = block.activation
    name = given if isinstance(given, str) else str(getattr(given, "name", type(given).__name__))
    return Site(
        path, block, spec.d_model, spec.d_ff, name, spec.is_gated, None,
        "separate: layer1 activated, linear_v linear" if spec.is_gated else None, "nn.Linear (out, in)",
        spec.components,
        tuple(block.named_parameters()), biases=(getattr(spec, "bias1", False), getattr(spec, "bias2", False)),
        position_wise=not getattr(spec, "convolved_axes", 0),
        evidence="structure",
    )  # fmt: skip


def dense_site(path: str, block: nn.Module, chain: Chain, of: int, mixing: str | None) -> Site:
    """The site of one chain of a block that holds ``of`` of them; ``mixing`` says why it is not position-wise."""
    counted = {id(p) for entry in chain.maps for p in entry.module.parameters()}
    parameters = [(name, p) for name, p in block.named_parameters() if id(p) in counted]
    components = list(_components(chain))
    if of == 1:
        parameters, components = _with_adapters(block, chain, parameters, components)
        parameters, components = _with_further(block, chain, parameters, components)
    notes = [] if mixing is None else [mixing]
    if chain.normed:
        notes.append("a normalisation or learned scale between the maps, whose parameters are not counted here")
    if chain.scaled:
        notes.append("parameters of the block multiply numbers in it: its function is shown as if they were ones")
    if chain.both:
        notes.append("both branches of the gate are activated; the equation shows one function")
    if own := sum(p.numel() for part in block.modules() if is_learned(part) for p in part.parameters()):
        notes.append(f"the activation has parameters of its own ({own:,}), which are not counted here")
    if chain.evidence == "structure" and chain.is_gated and len(chain.first) == 1:
        notes.append("which half of the fused map is the gate is not proven: the block's code did not run by itself")
    return Site(
        path, block, chain.first[0].wide_in, chain.second.wide_in, chain.activation, chain.is_gated,
        chain.gate_half, _gate(chain),
        chain.first[0].layout, tuple(components), tuple(parameters), chain.first, chain.second,
        (any(entry.has_bias for entry in chain.first), chain.second.has_bias), chain.normed, mixing is None, None,
        chain.evidence, tuple(notes),
    )  # fmt: skip


def _gate(chain: Chain) -> str | None:
    if chain.both and len(chain.first) == 2:
        return f"separate: {chain.first[0].path} and {chain.first[1].path}, both activated"
    return _gate_of(chain.is_gated, [entry.path for entry in chain.first], chain.gate_half, chain.evidence)


def _gate_of(is_gated: bool, first: list[str], half: str | None, evidence: str) -> str | None:
    """In words: which of the maps that read the input is activated."""
    if not is_gated:
        return None
    if len(first) == 2 and evidence == "numbers":
        return f"separate: {first[0]} activated, {first[1]} linear"
    if len(first) == 2:
        return f"separate: {first[0]} and {first[1]}; which of them is activated is not proven"
    if half is None:
        why = (
            "both halves are activated, or neither is"
            if evidence == "numbers"
            else "which half is activated is not proven"
        )
        return f"fused {first[0]}: {why}"
    part = f"{half} half" if half in ("first", "second") else f"{half} rows"
    return f"fused {first[0]}: {part} activated, the others linear"


def _components(chain: Chain) -> list[Component]:
    first, second = chain.first, chain.second
    if len(first) == 2:
        rows = [("Gate map", first[0]), ("Up map", first[1])]
    elif chain.is_gated:
        rows = [("Fused gate+up map", first[0])]
    elif first[0].kernel:
        rows = [("First conv", first[0])]
    else:
        rows = [("First linear map", first[0])]
    if chain.inner is not None:
        rows.append((f"Depthwise {'x'.join(map(str, chain.inner.kernel))} conv", chain.inner))
    last = "Down map" if chain.is_gated else "Second conv" if second.kernel else "Second linear map"
    rows.append((last, second))
    return [Component(name, _calculation(name, entry), entry.parameters) for name, entry in rows]


def _calculation(name: str, entry: Map) -> str:
    if name != "Fused gate+up map":
        return entry.calculation
    bias = f" + {entry.wide_out:,}" if entry.has_bias else ""
    return f"{entry.wide_in:,} × (2 × {entry.wide_out // 2:,})" + bias


def _with_adapters(
    block: nn.Module, chain: Chain, parameters: list[tuple[str, nn.Parameter]], components: list[Component]
) -> tuple[list[tuple[str, nn.Parameter]], list[Component]]:
    """Further low-rank maps from the input to the first map's output that the block holds: part of the network."""
    first = chain.first[0]
    pairs: list[tuple[Map, Map]] = []
    for name, part in block.named_modules():
        if isinstance(part, nn.Sequential) and len(part) == 2:
            down, up = (linear_map(child, f"{name}.{i}") for i, child in enumerate(part))
            if down and up and (down.wide_in, up.wide_out) == (first.wide_in, first.wide_out):
                pairs.append((down, up))
    if not pairs:
        return parameters, components
    down, up = pairs[0]
    size = sum(one.parameters + two.parameters for one, two in pairs)
    written = _calculation("Fused gate+up map", up) if chain.is_gated and len(chain.first) == 1 else up.calculation
    calculation = f"{len(pairs)} × ({down.calculation} + {written.replace('(', '').replace(')', '')})"
    added = {id(p) for pair in pairs for entry in pair for p in entry.module.parameters()}
    more = [(name, p) for name, p in block.named_parameters() if id(p) in added]
    return [*parameters, *more], [*components, Component("Per-use low-rank adapters", calculation, size)]


def _with_further(
    block: nn.Module, chain: Chain, parameters: list[tuple[str, nn.Parameter]], components: list[Component]
) -> tuple[list[tuple[str, nn.Parameter]], list[Component]]:
    """One more map of d_model to d_model in a block that holds nothing else, such as RWKV's receptance."""
    known = {id(p) for _, p in parameters}
    maps = (linear_map(part, name) for name, part in block.named_modules())
    more = [entry for entry in maps if entry is not None and id(entry.weight) not in known]
    width = chain.first[0].wide_in
    if len(more) != 1 or (more[0].wide_in, more[0].wide_out) != (width, width) or more[0].kernel:
        return parameters, components
    (entry,) = more
    counted = known | {id(p) for p in entry.module.parameters()}
    if any(p.numel() != max(p.shape, default=1) for p in block.parameters() if id(p) not in counted):
        return parameters, components  # the block holds more than a network
    added = [(f"{entry.path}.{leaf}", p) for leaf, p in entry.module.named_parameters()]
    return [*parameters, *added], [
        *components,
        Component(f"Further map: {entry.path}", entry.calculation, entry.parameters),
    ]


def tensor_mixture(path: str, block: nn.Module, found: Experts, shared: list[Site]) -> Site:
    """The site of experts that stand in tensors."""
    named = dict(block.named_parameters())
    (e_in, e_out), d, f = found.stored, found.d_model, found.d_ff
    into, out = _expert_biases(named, found)
    fused, width = ("2 × ", f"(2 × {f:,})") if found.is_gated else ("", f"{f:,}")
    wide = 2 * f if found.is_gated else f
    first = f"{e_in} × {d:,} × {width}" + (f" + {e_in} × {fused}{f:,}" if into else "")
    second = f"{e_out} × {f:,} × {d:,}" + (f" + {e_out} × {d:,}" if out else "")
    one = (d * wide + (wide if into else 0), f * d + (d if out else 0))
    rows = [
        Component("Experts gate+up" if found.is_gated else "Experts first map", first, e_in * one[0]),
        Component("Experts down", second, e_out * one[1]),
    ]
    mixture = Mixture(e_out, found.top_k, sum(row.parameters for row in rows), sum(one))
    draft = Site(
        path, block, d, f, found.activation, found.is_gated, found.gate_half,
        _gate_of(found.is_gated, list(found.first), found.gate_half, "numbers"), _stack_layout(named, found), (), (),
        biases=(bool(into), bool(out)), mixture=mixture,
    )  # fmt: skip
    return _mixed(draft, (found.router, found.choices), {*found.first, found.second, *into, *out}, rows, shared)


def _expert_biases(named: dict[str, nn.Parameter], found: Experts) -> tuple[list[str], list[str]]:
    """Names of the experts' biases (E, width) beside their tensors: of the maps in, and of the map out."""
    d, f = found.d_model, found.d_ff
    owners = {name.rpartition(".")[0] for name in (*found.first, found.second)}
    tensors = {*found.first, found.second}
    candidates = {name: p for name, p in named.items() if p.dim() == 2 and len(p) in found.stored}
    beside = [
        name for name in candidates
        if name not in tensors and name != found.router and name.rpartition(".")[0] in owners
    ]  # fmt: skip
    wide = 2 * f if found.is_gated and len(found.first) == 1 else f
    into = [name for name in beside if named[name].shape[1] == wide][: len(found.first)]
    return into, [name for name in beside if name not in into and named[name].shape[1] == d]


def _stack_layout(named: dict[str, nn.Parameter], found: Experts) -> str:
    (e, e_out), d, f = found.stored, found.d_model, found.d_ff
    wide = 2 * f if found.is_gated and len(found.first) == 1 else f
    letter = "2f" if wide != f else "f"
    names = {(e, wide, d): f"(E, {letter}, d)", (e, d, wide): f"(E, d, {letter})", (e * f, d): "(E·f, d)"}
    down = {(e_out, d, f): "(E, d, f)", (e_out, f, d): "(E, f, d)", (e_out * f, d): "(E·f, d)"}
    first, second = tuple(named[found.first[0]].shape), tuple(named[found.second].shape)
    return f"{names.get(first, first)} and {down.get(second, second)}"


def listed_mixture(
    path: str, block: nn.Module, chosen: tuple[str, int | None], experts: list[Site], shared: list[Site]
) -> Site:
    """The site of experts that are networks in a list."""
    one, e = experts[0], len(experts)
    parts = " + ".join(part.calculation for part in one.components)
    row = Component("Experts", f"{e} × ({parts})", e * one.per_instance)
    inside = {id(p) for site in experts for _, p in site.parameters}
    names = {name for name, p in block.named_parameters() if id(p) in inside}
    mixture = Mixture(e, chosen[1], row.parameters, one.per_instance)
    draft = replace(one, path=path, module=block, mixture=mixture, components=(), parameters=(), first=(), second=None)
    return _mixed(draft, (chosen[0], e), names, [row], shared)


def _mixed(draft: Site, routes: tuple[str, int], experts: set[str], rows: list[Component], shared: list[Site]) -> Site:
    """The draft with everything that belongs to the mixture: router, experts, shared experts and their gate.

    Args:
        draft: the site without components and parameters.
        routes: the router's weight, and how many numbers it gives.
        experts: names of the routed experts' parameters.
        rows: their components.
        shared: networks beside them in the block.
    """
    (router, choices), block, d = routes, draft.module, draft.d_model
    named = dict(block.named_parameters())
    in_shared = {id(p) for site in shared for _, p in site.parameters}
    norms = _norms(block, choices)
    rest = {n: p for n, p in named.items() if n not in experts and id(p) not in in_shared and n not in norms}
    top = router.partition(".")[0]
    routing = {n: p for n, p in rest.items() if n.startswith(f"{top}.") or n == router or p.numel() == choices}
    further = {n: p for n, p in rest.items() if n not in routing}
    components = [_router(routing, choices, d), *rows]
    counted = {*experts, *routing}
    if all(p.numel() in (d, 1) for p in further.values()):  # else the block is a layer with attention and more in it
        components += [*_shared(shared), *(_further(p, d) for p in further.values())]
        counted = set(named) - norms
    parameters = tuple((n, p) for n, p in named.items() if n in counted)
    return replace(draft, components=tuple(components), parameters=parameters)


def _norms(block: nn.Module, experts: int) -> set[str]:
    """Names of the parameters of normalisations in a block; a vector of one number for each expert is the router's."""
    return {
        f"{name}.{leaf}" for name, part in block.named_modules() if name and is_norm(part)
        for leaf, p in part._parameters.items() if p is not None and p.numel() != experts
    }  # fmt: skip


def _shared(shared: list[Site]) -> list[Component]:
    if not shared:
        return []
    text = " + ".join(_short(site) for site in shared)
    return [Component("Shared expert(s)", text, sum(site.per_instance for site in shared))]


def _further(parameter: nn.Parameter, d: int) -> Component:
    """A vector beside the experts: added to the output, or the map to the number that scales the shared experts."""
    if parameter.numel() == 1 < d:
        return Component("Shared-expert gate's bias", "1", 1)
    if parameter.dim() == 1:
        return Component("Output bias", f"{d:,}", d)
    return Component("Shared-expert gate", f"{d:,} × 1", d)


def _router(routing: dict[str, nn.Parameter], experts: int, d: int) -> Component:
    size = sum(p.numel() for p in routing.values())
    extra = size - d * experts
    text = f"{d:,} × {experts:,}" + (f" + {extra:,}" if extra else "")
    return Component("Router", text, size)


def _short(site: Site) -> str:
    """3 × d × f for a gated network without biases; its calculations otherwise."""
    if site.is_gated and site.per_instance == 3 * site.d_model * site.d_ff:
        return f"3 × {site.d_model:,} × {site.d_ff:,}"
    return " + ".join(part.calculation for part in site.components)
