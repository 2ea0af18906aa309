"""What networks that were found cost: FLOPs forward and backward, and bytes that are saved for backward.

FLOPs count a multiply-add as two, and products only: no biases, norms, softmax, activations or gates. Backward is a
product of the same size for each operand that has a gradient: the inputs, and the weights unless they are frozen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from positionwise.accounting.products import Flops, NoCountError, count_products
from positionwise.adapters import Site, saved_bytes

NOTES = (
    "FLOPs of the feed-forward networks and bytes saved for backward: for batch × sequence positions of each network, "
    "whatever it sees in the model; bytes as PyTorch keeps them in training on a CPU, in the parameters' own dtypes.",
    "FLOPs of the whole: attention's products over all pairs of positions, masked or not, as eager code computes them; "
    "products of rotary tables are left out. Backward: one product for the gradient of each operand that has one.",
)


@dataclass(frozen=True)
class Costs:
    """Of all applications of a group of networks."""

    flops_per_token: int | None
    """Of one application, forward."""
    flops: int | None = None
    flops_backward: int | None = None
    saved_for_backward: int | None = None
    notes: tuple[str, ...] = ()


def costs_of(
    sites: Sequence[Site], applications: Mapping[str, int], sizes: tuple[int, int] | None, trained: bool
) -> Costs:
    """What networks of one kind cost.

    Args:
        sites: of one kind.
        applications: of each in a forward pass, by its path.
        sizes: (batch, sequence) that each application sees; FLOPs of one token alone without it.
        trained: whether anything of the model is trained; without it there is no backward pass.
    """
    each = [per_token(site) for site in sites]
    known = [cost for cost in each if cost is not None]
    first = known[0].forward if known else None
    if sizes is None:
        return Costs(first)
    notes, times, tokens = [], [applications[site.path] for site in sites], sizes[0] * sizes[1]
    forward = backward = None
    if len(known) == len(sites):
        forward = tokens * sum(n * cost.forward for n, cost in zip(times, known, strict=True))
        backward = trained * tokens * sum(n * cost.backward for n, cost in zip(times, known, strict=True))
    else:
        notes.append("FLOPs are not counted: how many experts a token meets, or which of them are frozen, is not known")
    saved = _saved(sites, times, sizes)
    if saved is None:
        why = "they depend on which experts are chosen" if sites[0].mixture else "its code does not run by itself"
        notes.append(f"bytes saved for backward are not counted: {why}")
    return Costs(first, forward, backward, saved, tuple(notes))


def learns(module: nn.Module) -> bool:
    """Whether anything of a module is trained."""
    return any(parameter.requires_grad for parameter in module.parameters())


def _saved(sites: Sequence[Site], times: list[int], sizes: tuple[int, int]) -> int | None:
    """Bytes of all applications, each kind of network run once; None where they are not known."""
    known: dict[Any, int | None] = {}
    total = 0
    for site, applied in zip(sites, times, strict=True):
        key = _what_saving_depends_on(site.module)
        if key not in known:
            known[key] = saved_bytes(site, *sizes)
        bytes_of_one = known[key]
        if bytes_of_one is None:
            return None
        total += applied * bytes_of_one
    return total


def _what_saving_depends_on(module: nn.Module) -> Any:
    """Beside its shapes: dtypes, what is frozen, and plain attributes such as dropout's rate."""
    stored = tuple((parameter.dtype, parameter.requires_grad) for parameter in module.parameters())
    plain = tuple(v for part in module.modules() for v in part.__dict__.values() if isinstance(v, float | bool | str))
    return stored, plain


def per_token(site: Site) -> Flops | None:
    """FLOPs of one application for one token; None for a mixture of which not enough is known."""
    products = _dense(site) if site.mixture is None else _mixture(site)
    if products is None:
        return None
    return Flops(2 * sum(size for size, _ in products), 2 * sum(size * (1 + learned) for size, learned in products))


def _dense(site: Site) -> list[tuple[int, bool]]:
    """(weights, whether they are trained) of each map that a token meets."""
    inside = {id(parameter) for entry in site.maps for parameter in entry.module.parameters()}
    products = [
        (entry.parameters - (entry.wide_out if entry.has_bias else 0), _is_trained(entry.module)) for entry in site.maps
    ]
    rest = [parameter for _, parameter in site.parameters if parameter.dim() > 1 and id(parameter) not in inside]
    adapters = [parameter for parameter in rest if parameter.dim() == 2][:2]  # an application meets one pair of them
    convolutions = [parameter for parameter in rest if parameter.dim() > 2]
    return products + [(p.numel(), p.requires_grad) for p in (*adapters, *convolutions)]


def _is_trained(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters() if parameter.dim() > 1)


def _mixture(site: Site) -> list[tuple[int, bool]] | None:
    """The same: the chosen experts, and everything else with two axes: router, shared experts and their gate."""
    mixture = site.mixture
    wide = [parameter for _, parameter in site.parameters if parameter.dim() > 1]
    trained = {parameter.requires_grad for parameter in wide}
    if mixture is None or mixture.top_k is None or len(trained) != 1 or not all(p.is_floating_point() for p in wide):
        return None
    expert = (3 if site.is_gated else 2) * site.d_model * site.d_ff
    # Biases of stacked experts have two axes, (E, width), and are among the experts' parameters.
    stored = mixture.routed if site.layout.startswith("(E") else mixture.experts * expert
    rest = sum(parameter.numel() for parameter in wide) - stored
    return [(mixture.top_k * expert + rest, trained.pop())]


def whole_flops(module: nn.Module, sites: list[Site], sizes: tuple[int, int]) -> tuple[Flops | None, tuple[str, ...]]:
    """FLOPs of one pass over the whole model, and what there is to say about them.

    Args:
        module: any; only a transformers model over token ids has a count.
        sites: its feed-forward networks.
        sizes: (batch, sequence); targets are as long as sources.
    """
    mixtures = {site.path: per_token(site) for site in sites if site.mixture is not None}
    known = {path: cost for path, cost in mixtures.items() if cost is not None}
    notes = NOTES[:1] if sites else ()
    try:
        if len(known) < len(mixtures):
            raise NoCountError("FLOPs of its mixtures are not known")
        cost = count_products(module, sites, known, sizes)
        return (cost if learns(module) else Flops(cost.forward, 0)), (*notes, *NOTES[1:])
    except NoCountError as error:
        return None, (*notes, f"FLOPs of the whole model are not counted: {error}.")
