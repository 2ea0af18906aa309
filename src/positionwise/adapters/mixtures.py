"""Mixtures of experts: tensors that hold all experts, parts that hold one stack each, or lists of networks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

import torch
from torch import nn

from positionwise.adapters.evidence import Link, link
from positionwise.adapters.maps import linear_map
from positionwise.adapters.names import UNKNOWN, name_of
from positionwise.adapters.numbers import TOKENS, Record
from positionwise.adapters.running import asks_for_one, is_norm, run, run_experts
from positionwise.adapters.sites import Site


@dataclass(frozen=True)
class Experts:
    """Expert tensors and what the numbers say of them; names are those of the block that was run."""

    first: tuple[str, ...]
    """Of the tensors that read the input: one, fused or not gated, or the activated one and the linear one."""
    second: str
    router: str
    choices: int
    """Numbers that the router gives; more than the experts where a token may choose to meet none."""
    stored: tuple[int, int]
    """Experts in the first tensor and in the second."""
    top_k: int | None
    """Experts that one token meets; None where neither the numbers nor the block's own words tell."""
    d_model: int
    d_ff: int
    activation: str
    is_gated: bool
    gate_half: str | None


def holds_expert_tensors(module: nn.Module) -> bool:
    """Whether a module owns several matrices or stacks of them itself, or several of its parts own a stack each."""
    if linear_map(module) is not None or is_norm(module):
        return False
    own = [p for p in _own(module) if p.dim() in (2, 3) and min(p.shape[-2:]) > 1]
    stacks = sum(_owns_a_stack(child) for child in module.children())
    return len(own) >= 2 or stacks >= 2


def _owns_a_stack(module: nn.Module) -> bool:
    return linear_map(module) is None and any(p.dim() == 3 and min(p.shape[-2:]) > 1 for p in _own(module))


def _own(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module._parameters.values() if parameter is not None]


def experts_of(block: nn.Module, holder: nn.Module, taken: set[int]) -> Experts | None:
    """What the holder's tensors do in the block, if its code runs and a router chooses among them.

    Args:
        block: the module that may hold the router too.
        holder: the module inside it, or itself, whose tensors they are.
        taken: ids of parameters of networks in the block, of which none is the router.
    """
    tensors = {id(p) for p in holder.parameters() if p.dim() in (2, 3)}
    for width in _widths(holder) if asks_for_one(block) else ():
        for record in run(block, width):
            found = _read(block, holder, record, tensors, taken)
            if found is not None and found.d_model == width:
                return found
    return _alone(block, holder, tensors)


def _alone(block: nn.Module, holder: nn.Module, tensors: set[int]) -> Experts | None:
    """The same with a choice made up, where the router's own code does not run: the router is the map to E numbers."""
    stacks = [p for p in holder.parameters() if p.dim() == 3]
    beside = {id(p) for part in holder.modules() if any(p.dim() == 3 for p in _own(part)) for p in _own(part)}
    names = {id(parameter): name for name, parameter in block.named_parameters()}
    for width in _widths(holder) if stacks else ():
        count = len(stacks[0])
        routers = [
            name for name, p in block.named_parameters() if tuple(p.shape) == (count, width) and id(p) not in beside
        ]
        for record in run_experts(holder, width, count) if routers else ():
            reads, gives = _joined(record, tensors)
            between = _between(reads, gives)
            if between is not None:
                first, second, shown = between
                stored = (count, _stored(block, names[second], count))
                return Experts(
                    tuple(names[key] for key in first), names[second], routers[0], count, stored, said_top_k(block),
                    width, reads[second].shape[-1], name_of(shown, holder) or UNKNOWN, shown.is_gated, shown.gate_half,
                )  # fmt: skip
    return None


TOP_K = (
    "top_k", "num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk", "top_k_experts",
    "num_selected_experts", "moe_k", "topk", "experts_per_token",
)  # fmt: skip


def said_top_k(block: nn.Module) -> int | None:
    """What a block's parts, or their configuration, call the number of experts of a token."""
    for part in block.modules():
        for holder in (part.__dict__, getattr(part.__dict__.get("config"), "__dict__", {})):
            for name in TOP_K:
                if isinstance(holder.get(name), int):
                    return int(holder[name])
    return None


def _widths(holder: nn.Module) -> Iterator[int]:
    """What may be d_model: the sizes of the tensors, without the first, which counts experts."""
    sizes = (size for p in holder.parameters() if p.dim() in (2, 3) for size in reversed(p.shape[1:]))
    yield from dict.fromkeys(sizes)


def _read(block: nn.Module, holder: nn.Module, record: Record, tensors: set[int], taken: set[int]) -> Experts | None:
    names = {id(parameter): name for name, parameter in block.named_parameters() if id(parameter) not in taken}
    numel = {id(parameter): parameter.numel() for parameter in block.parameters()}
    reads, gives = _joined(record, tensors)
    between = _between(reads, gives)
    if between is None:
        return None
    first, second, shown = between
    d, f = reads[first[0]].shape[-1], reads[second].shape[-1]
    for product in sorted(record.products, key=lambda product: product.gave.shape[-1]):
        count = product.gave.shape[-1]
        routes = product.weight in names and product.weight not in {*first, second} and product.read.shape[-1] == d
        stored = (_stored(block, names[first[0]], count), _stored(block, names[second], count))
        if routes and max(stored) <= count and numel[second] == stored[1] * d * f:
            if len(gives[first[0]]) == len(reads[first[0]]):
                top_k = _chosen(record, count) or _met(reads[first[0]], said_top_k(block))
            else:  # one product of all experts with all positions
                top_k = len(reads[second]) // TOKENS
            top_k = top_k if top_k is not None and top_k <= count else None
            chosen = tuple(names[key] for key in first)
            return Experts(
                chosen, names[second], names[product.weight or 0], count, stored, top_k, d, f,
                name_of(shown, holder) or UNKNOWN, shown.is_gated, shown.gate_half,
            )  # fmt: skip
    return None


def _stored(block: nn.Module, name: str, experts: int) -> int:
    """How many experts a tensor holds: a stack says it itself, a matrix of all experts' rows does not."""
    tensor = block.get_parameter(name)
    return len(tensor) if tensor.dim() == 3 else experts


@dataclass(frozen=True)
class TensorChain:
    """Tensors that follow each other in a run, by their ids."""

    first: tuple[int, ...]
    second: int
    link: Link
    d: int
    f: int


def chain_of_tensors(record: Record, tensors: set[int]) -> TensorChain | None:
    """Which of the tensors read an input and which one reads what an activation makes of it."""
    reads, gives = _joined(record, tensors)
    between = _between(reads, gives)
    if between is None:
        return None
    first, second, shown = between
    return TensorChain(first, second, shown, reads[first[0]].shape[-1], reads[second].shape[-1])


def _joined(record: Record, tensors: set[int]) -> tuple[dict[int, torch.Tensor], dict[int, torch.Tensor]]:
    """What each tensor's products read and gave, all experts' rows together."""
    calls: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = defaultdict(list)
    for product in record.products:
        if product.weight in tensors:
            calls[product.weight].append((product.read, product.gave))
    even = {key: value for key, value in calls.items() if _even(value)}
    reads = {key: torch.cat([read for read, _ in value]) for key, value in even.items()}
    return reads, {key: torch.cat([gave for _, gave in value]) for key, value in even.items()}


def _even(calls: list[tuple[torch.Tensor, torch.Tensor]]) -> bool:
    return len({(read.shape[-1], gave.shape[-1]) for read, gave in calls}) == 1


def _between(
    reads: dict[int, torch.Tensor], gives: dict[int, torch.Tensor]
) -> tuple[tuple[int, ...], int, Link] | None:
    """(first tensors, second tensor, function between them)."""
    for first, second in permutations(gives, 2):
        if len(gives[first]) == len(reads[second]):
            found = link([gives[first]], reads[second])
            if found is not None and (found.is_gated or not found.is_linear):
                return (first,), second, found
    for one, two, second in permutations(gives, 3):
        if len(gives[one]) == len(gives[two]) == len(reads[second]) and one < two:
            found = link([gives[one], gives[two]], reads[second])
            if found is not None:
                return (one, two) if found.activated == 0 else (two, one), second, found
    return None


def chosen_of_list(block: nn.Module, experts: list[Site], taken: set[int]) -> tuple[str, int | None] | None:
    """(name of the router's weight, experts that one token meets) where a block chooses among networks of a list.

    The router comes before them; a head of as many classes as a stack has layers comes after.
    """
    names = {id(parameter): name for name, parameter in block.named_parameters() if id(parameter) not in taken}
    firsts = {id(site.first[0].weight) for site in experts if site.first}
    width = experts[0].d_model
    for record in run(block, width):
        calls = [index for index, product in enumerate(record.products) if product.weight in firsts]
        reads = [record.products[index].read for index in calls]
        for product in record.products[: calls[0]] if calls else ():
            if product.weight in names and product.gave.shape[-1] == len(experts):
                top_k = _chosen(record, len(experts)) or _met(torch.cat(reads), said_top_k(block))
                return names[product.weight or 0], top_k
    return None


def _met(reads: torch.Tensor, said: int | None) -> int | None:
    """Experts that one token meets: how often each position is among the rows that the experts read.

    Where that differs from one position to the next (a choice of none, or experts that choose their tokens), what the
    block itself says, if no position meets more.
    """
    _, counts = torch.unique(reads, dim=0, return_counts=True)
    if len(counts) == TOKENS and int(counts.min()) == int(counts.max()):
        return int(counts[0])
    return said if said is not None and int(counts.max()) <= said else None


def _chosen(record: Record, experts: int) -> int | None:
    """Experts of a token, where a router gives a weight for each expert and zero for those that are not chosen."""
    for output in record.outputs:
        if output.shape[-1] == experts and output.is_floating_point():
            met = (output != 0).sum(-1)
            if 0 < int(met.max()) < experts:
                return int(met.max())
    return None
