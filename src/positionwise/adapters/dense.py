"""Feed-forward networks whose maps are modules: one or two maps in, one map out, in one block."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations

import torch
from torch import Tensor, nn

from positionwise.adapters.evidence import Link, link
from positionwise.adapters.maps import Map, linear_map
from positionwise.adapters.names import UNKNOWN, held, is_learned, name_of
from positionwise.adapters.numbers import TOKENS, Product, Record
from positionwise.adapters.running import run

MOST_WIDTHS = 8
"""How many widths a block's input is tried with: its maps' own, then those of its other parts."""


@dataclass(frozen=True)
class Chain:
    """Maps of a block that follow each other through an activation; paths are the block's own."""

    first: tuple[Map, ...]
    inner: Map | None
    """A depthwise convolution between them."""
    second: Map
    activation: str
    is_gated: bool
    gate_half: str | None
    evidence: str
    normed: bool = False
    """Whether a normalisation or a learned scale of the hidden units stands between the maps."""
    scaled: bool = False
    """Whether parameters of the block, which are taken as ones, multiply its numbers."""
    both: bool = False
    """Whether both branches of the gate are activated."""
    gates: bool = False
    """Whether what the second map gives passes through another function before it leaves the block."""

    @property
    def maps(self) -> tuple[Map, ...]:
        """All of them, in the order of the data."""
        return (*self.first, *([self.inner] if self.inner else []), self.second)


def own_maps(block: nn.Module) -> list[Map]:
    """The maps that belong to a block itself: children, children in plain lists, and those of thin wrappers.

    A thin wrapper is a part with one map among its children, or two of one shape, such as BERT's intermediate and
    output parts.
    """
    found = []
    for name, child in block.named_children():
        listed = isinstance(child, nn.ModuleList | nn.ModuleDict)
        parts = {f"{name}.{key}": part for key, part in child.named_children()} if listed else {name: child}
        for path, part in parts.items():
            own = linear_map(part, path)
            inside = [linear_map(leaf, f"{path}.{key}") for key, leaf in part.named_children()]
            wrapped = [entry for entry in inside if entry is not None]
            if own is not None:
                found.append(own)
            elif isinstance(part, nn.MultiheadAttention):
                continue  # its other maps are parameters of its own
            elif (adapted := _with_low_rank(wrapped, path, part)) is not None:
                found.append(adapted)
            elif len({(entry.wide_in, entry.wide_out) for entry in wrapped}) == 1:
                found += wrapped if len(wrapped) <= (1 if isinstance(part, nn.Sequential) else 2) else []
    return found


def _with_low_rank(wrapped: list[Map], path: str, part: nn.Module) -> Map | None:
    """The map that a part is which adds a low-rank product to a map of its own; the part as a whole."""
    if len(wrapped) != 3:
        return None
    base = max(wrapped, key=lambda entry: entry.parameters)
    down, up = [entry for entry in wrapped if entry is not base]
    fits = (down.wide_in, up.wide_out) == (base.wide_in, base.wide_out) and down.wide_out == up.wide_in
    return replace(base, path=path, module=part) if fits else None


def may_pair(maps: list[Map]) -> bool:
    """Whether the widths of two maps fit as a first and a second."""
    ends = [entry for entry in maps if not entry.depthwise]
    return any(first is not second and _fits(first, second) for first in ends for second in ends)


def _fits(first: Map, second: Map) -> bool:
    return first.wide_out in (second.wide_in, 2 * second.wide_in)


def look(block: nn.Module, maps: list[Map]) -> tuple[list[Chain], str | None]:
    """The chains among a block's own maps, and what is doubtful of maps that fit and are not among them."""
    proven, ran = chains(block, maps)
    if proven:
        return proven, None
    fitting = by_structure(block, maps)
    if not ran:
        doubtful = not fitting and _only_held(block, tuple(maps)) is not None
        return fitting, "its maps fit, but its code did not run by itself" if doubtful else None
    kept = [replace(chain, evidence="numbers") for chain in fitting if by_rows(block, maps, chain)]
    mixing = "its maps fit, but what lies between them is not of one position alone"
    return kept, None if len(kept) == len(fitting) else mixing


def chains(block: nn.Module, maps: list[Map]) -> tuple[list[Chain], bool]:
    """The block's chains, and whether its code ran, so that what is not among them is known not to be one."""
    wanted = {id(entry.weight) for entry in maps}
    others = (entry.wide_in for entry in map(linear_map, block.modules()) if entry is not None)
    for width in list(dict.fromkeys([*(entry.wide_in for entry in maps), *others]))[:MOST_WIDTHS]:
        for record in run(block, width, tuple(maps)):
            found = _proven(block, maps, record)
            ran = wanted <= {product.weight for product in record.products}
            if found or ran:
                return found, ran
    return [], False


def _proven(block: nn.Module, maps: list[Map], record: Record) -> list[Chain]:
    seen = list(_joined(maps, record).items())
    found: list[Chain] = []
    for index, (second, product) in enumerate(seen):
        chain = None if second.depthwise else _chain(block, second, product, seen[:index])
        if chain is not None:
            hidden = second.wide_in
            normed = hidden in record.normed and hidden != chain.first[0].wide_in
            gates = _gates(product, record)
            found.append(replace(chain, normed=normed, gates=gates, scaled=record.scaled))
    return found


def _gates(second: Product, record: Record) -> bool:
    out = record.output
    if out is None or out.shape != second.gave.shape:
        return False
    after = link([second.gave], out)
    return after is not None and not after.is_linear


def _joined(maps: list[Map], record: Record) -> dict[Map, Product]:
    """Each map's product, in the order of the first calls; one that is called in pieces has all their rows."""
    owners = {id(entry.weight): entry for entry in maps}
    calls: dict[Map, list[Product]] = {}
    for product in record.products:
        if product.weight in owners:
            calls.setdefault(owners[product.weight], []).append(product)
    return {entry: _one(products) for entry, products in calls.items()}


def _one(products: list[Product]) -> Product:
    if len({(p.read.shape[-1], p.gave.shape[-1]) for p in products}) > 1:
        return products[-1]
    reads, gives = [p.read for p in products], [p.gave for p in products]
    return Product(products[0].weight, torch.cat(reads), torch.cat(gives))


def _chain(block: nn.Module, second: Map, product: Product, before: list[tuple[Map, Product]]) -> Chain | None:
    for entry, earlier in reversed(before):
        if entry.depthwise and (between := _link([earlier.gave], product.read)) and not between.is_linear:
            return _through(block, entry, earlier, second, between, before)
        between = _link([earlier.gave], product.read)
        if between is not None and (between.is_gated or not between.is_linear) and not entry.depthwise:
            return _named(block, (entry,), None, second, between)
    for (one, first), (two, other) in combinations(before, 2):
        between = _link([first.gave, other.gave], product.read)
        if between is not None and not one.depthwise and not two.depthwise:
            order = (one, two) if between.activated == 0 else (two, one)
            return _named(block, order, None, second, between)
    return None


def _through(
    block: nn.Module, inner: Map, product: Product, second: Map, after: Link, before: list[tuple[Map, Product]]
) -> Chain | None:
    """A chain with a depthwise convolution between the first map and the activation."""
    for entry, earlier in before:
        ahead = _link([earlier.gave], product.read)
        if ahead is not None and not ahead.is_gated and not entry.depthwise:
            chain = _named(block, (entry,), inner, second, after)
            before_it = "" if ahead.is_identity else f"{name_of(ahead, block) or UNKNOWN}, "
            return replace(chain, activation=before_it + chain.activation)
    return None


def _link(gave: list[Tensor], read: Tensor) -> Link | None:
    """The link, wherever the rows lie in a sequence that was padded between the maps."""
    rows = len(gave[0])
    if any(len(out) != rows for out in gave) or not TOKENS <= rows <= len(read) < 2 * rows:
        return None  # a squeezed block reads one row for all positions
    found = (link(gave, read[start : start + rows]) for start in range(len(read) - rows + 1))
    return next((between for between in found if between is not None), None)


def _named(block: nn.Module, first: tuple[Map, ...], inner: Map | None, second: Map, between: Link) -> Chain:
    learned = any(is_learned(part) for part in block.modules())  # its numbers are not known where weights are not
    name = name_of(between, block) or (_only_held(block) if learned else None) or UNKNOWN
    return Chain(first, inner, second, name, between.is_gated, between.gate_half, "numbers", both=between.both)


def _only_held(block: nn.Module, maps: tuple[Map, ...] = ()) -> str | None:
    """The one activation beside the maps: in their thin wrappers, else in the block itself, else anywhere in it."""
    wrappers = [block.get_submodule(entry.path.rpartition(".")[0]) for entry in maps if "." in entry.path]
    for parts in (wrappers, [block]):
        names = {name for part in parts for name, _ in held(part, deep=False)}
        if len(names) == 1:
            return names.pop()
    names = {name for name, _ in held(block)}
    return names.pop() if len(names) == 1 else None


def by_rows(block: nn.Module, maps: list[Map], chain: Chain) -> bool:
    """Whether what the second map reads at a position depends on the first maps there alone, though not elementwise.

    Such as Gemma 3n's activation, which cuts a position's units by their own mean and deviation.
    """
    first = frozenset(id(entry.weight) for entry in chain.first)
    others = frozenset(id(entry.weight) for entry in maps) - first
    width, kept = chain.first[0].wide_in, tuple(maps)
    runs = (run(block, width, kept), run(block, width, kept, first), run(block, width, kept, others))
    for records in zip(*runs, strict=False):
        plain, moved_rows, other = (_read_by(record, chain.second) for record in records)
        if plain is None or moved_rows is None or other is None or plain.shape != moved_rows.shape:
            continue
        changed = (plain != moved_rows).any(-1)
        alone = bool(changed[0]) and not bool(changed[1:].any()) and torch.equal(plain, other)
        return alone and len(changed) >= TOKENS
    return False


def _read_by(record: Record, entry: Map) -> Tensor | None:
    product = _joined([entry], record).get(entry)
    return None if product is None else product.read


def by_structure(block: nn.Module, maps: list[Map]) -> list[Chain]:
    """Chains by widths alone, where no numbers tell: d → f and f → d with one activation held beside."""
    activation = _only_held(block, tuple(maps))
    wide = [entry for entry in maps if entry.depthwise]
    ends = [entry for entry in maps if not entry.depthwise and entry.wide_in != entry.wide_out]
    found: list[Chain] = []
    used: set[str] = set()
    for index, second in enumerate(ends):
        before = [entry for entry in ends[:index] if entry.path not in used and _back(entry, second)]
        if activation is None or not before:
            continue
        like = [entry for entry in ends if entry.path not in used and _back(entry, second)]
        alone = sum(_back(before[-1], entry) for entry in ends) == 1
        chosen = like if alone and len(like) == 2 else before[-1:]
        gated = len(chosen) == 2 or chosen[0].wide_out == 2 * second.wide_in
        inner = wide[0] if len(wide) == 1 and wide[0].wide_in == second.wide_in else None
        found.append(Chain(tuple(chosen), inner, second, activation, gated, None, "structure"))
        used |= {entry.path for entry in (*chosen, second)}
    return found


def _back(first: Map, second: Map) -> bool:
    return first.wide_in == second.wide_out and _fits(first, second)


def moved(chain: Chain, block: nn.Module) -> Chain:
    """The same chain in another block of the same kind."""

    def there(entry: Map) -> Map:
        return replace(entry, module=block.get_submodule(entry.path))

    inner = None if chain.inner is None else there(chain.inner)
    return replace(chain, first=tuple(map(there, chain.first)), inner=inner, second=there(chain.second))
