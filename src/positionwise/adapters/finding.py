"""Finding the feed-forward networks of a model: by structure, proven by numbers where its code runs."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import torch
from torch import nn

from positionwise.adapters import building
from positionwise.adapters.dense import look, may_pair, moved, own_maps
from positionwise.adapters.judging import (
    Above,
    holds_a_stack,
    is_convolutional,
    looks_like_one,
    mixes_only,
    mixes_positions,
    not_a_network,
    own_words,
)
from positionwise.adapters.maps import linear_map
from positionwise.adapters.mixtures import Experts, chosen_of_list, experts_of, holds_expert_tensors
from positionwise.adapters.raw import raw_site
from positionwise.adapters.sites import Found, Site, Unplaced
from positionwise.errors import AccountError
from positionwise.feedforward import Network


def find(model: nn.Module) -> Found:
    """The feed-forward networks of a model, and what could not be placed.

    Blocks are recognised by what they do, not by their names: maps d → f and f → d that follow each other through an
    activation. A block's own code is run on a few numbers without its weights (which may stand on the meta device);
    where it does not run, its shapes and the activation beside them decide, or it is said to be unplaced.

    Args:
        model: any module; nothing of it is changed.

    Returns:
        The sites, a sequence, with ``.unplaced`` beside.

    Raises:
        AccountError: for what is no module, and for a model whose parameters have no shape yet.
    """
    if not isinstance(model, nn.Module):
        raise AccountError(f"expected a module; got {type(model).__name__}")
    for name, parameter in model.named_parameters():
        if nn.parameter.is_lazy(parameter):
            raise AccountError(f"expected parameters with a shape; got {name}, which has none before the first call")
    with torch.device("cpu"):
        return _Search(model).found()


class _Search:
    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.sites: dict[str, Site] = {}
        self.unplaced: dict[str, Unplaced] = {}
        self.known: dict[Any, Any] = {}
        self.claimed: set[int] = set()
        self.pending: list[tuple[str, nn.Module]] = []
        self.convolutional: list[str] = []

    def found(self) -> Found:
        self._visit(self.model, "", ())
        self._matrices()
        self._layers_without()
        matrices = sum(parameter.dim() >= 2 for parameter in self.model.parameters())
        if not self.sites and not self.unplaced and matrices >= 2:
            self.unplaced[""] = Unplaced("", f"{matrices} matrices, but no feed-forward network was recognised")
        order = {path: index for index, (path, _) in enumerate(self.model.named_modules(remove_duplicate=False))}
        sites = sorted(self.sites.values(), key=lambda site: order[site.path])
        return Found(tuple(sites), tuple(self.unplaced.values()))

    def _visit(self, module: nn.Module, path: str, above: Above) -> None:
        if linear_map(module) is not None or id(module) in self.claimed:
            return
        self.claimed.add(id(module))
        if isinstance(module, Network):
            self.sites[path] = building.own_site(path, module)
            return
        for name, child in module.named_children():
            self._visit(child, f"{path}.{name}" if path else name, (*above, (path, module)))
        if isinstance(module, nn.ModuleList | nn.ModuleDict):
            return
        self._dense(module, path, above)
        self._list_of_experts(module, path)
        if holds_expert_tensors(module):
            self.pending.append((path, module))
        self._expert_tensors(module, path)

    def _dense(self, block: nn.Module, path: str, above: Above) -> None:
        maps = [entry for entry in own_maps(block) if not self._inside_site(path, entry.path)]
        if not may_pair(maps):
            return
        if holds_a_stack(block):
            if looks_like_one(block, maps):
                self.unplaced[path] = Unplaced(path, "maps that fit stand beside whole stacks of layers: a head?")
            return
        key = ("dense", _kind(block, path))
        if key not in self.known:  # attention is known by its code, which need not be run
            self.known[key] = ([], None) if mixes_only(block) else look(block, maps)
        known, doubt = self.known[key]
        if doubt is not None:
            self.unplaced[path] = Unplaced(path, doubt)
        found = [moved(chain, block) for chain in known]
        seconds = {chain.second.path for chain in found}
        firsts = {entry.path for chain in found for entry in chain.first}
        for chain in found:
            reason = not_a_network(chain, seconds & firsts, path, block, above)
            if reason is None and chain.evidence == "structure" and self._holds_sites(path):
                reason = "its maps fit, but its code did not run by itself, and the layer has another network"
            if reason is None:
                site = building.dense_site(path, block, chain, len(found), mixes_positions(chain, block, above))
                self.sites[_key(site, self.sites)] = site
            elif "nn.Conv" in chain.first[0].layout:
                self.convolutional.append(path)
            else:
                self.unplaced[path] = Unplaced(path, reason)

    def _holds_sites(self, path: str) -> bool:
        return any(place.startswith(f"{path}.") for place in self.sites)

    def _inside_site(self, path: str, below: str) -> bool:
        parts = below.split(".")[:-1]
        prefixes = [".".join([*([path] if path else []), *parts[: i + 1]]) for i in range(len(parts))]
        return any(prefix in self.sites for prefix in prefixes)

    def _list_of_experts(self, block: nn.Module, path: str) -> None:
        """Networks of one kind in a list of the block, where a router of the block chooses among them."""
        for name, part in block.named_children():
            where = f"{path}.{name}" if path else name
            if not isinstance(part, nn.ModuleList | nn.ModuleDict):
                continue
            parts = [
                (f"{where}.{key}", one) for key, one in part.named_children() if any(True for _ in one.parameters())
            ]
            if not any(len(parts) in p.shape for p in block.parameters()):
                continue  # nothing gives one number for each of them
            experts = [site for place, one in parts if (site := self._only_network(place, one)) is not None]
            if len(experts) < max(2, len(parts)) or len({site.components for site in experts}) > 1:
                continue
            key = ("list", _kind(block, path))
            if key not in self.known:
                self.known[key] = chosen_of_list(block, experts, self._taken(path))
            if self.known[key] is not None:
                shared = self._beside(path, where)
                self._merge(building.listed_mixture(path, block, self.known[key], experts, shared))

    def _only_network(self, place: str, part: nn.Module) -> Site | None:
        """The network that a part of a list is, itself or in what it wraps, with nothing but vectors beside."""
        inside = [site for path, site in self.sites.items() if path == place or path.startswith(f"{place}.")]
        if len(inside) != 1:
            return None
        own = {id(parameter) for _, parameter in inside[0].parameters}
        alone = all(p.numel() == max(p.shape, default=1) for p in part.parameters() if id(p) not in own)
        return inside[0] if alone else None

    def _taken(self, path: str) -> set[int]:
        """Ids of the parameters of all networks in a block."""
        start = f"{path}." if path else ""
        return {id(q) for p, s in self.sites.items() if p.startswith(start) for _, q in s.parameters}

    def _beside(self, path: str, experts: str) -> list[Site]:
        """Sites in a block that are not among its experts: the shared ones."""
        start = f"{path}." if path else ""
        return [s for p, s in self.sites.items() if p.startswith(start) and not f"{p}.".startswith(f"{experts}.")]

    def _merge(self, site: Site) -> None:
        """A mixture takes the place of the networks that are parts of it."""
        own = {id(parameter) for _, parameter in site.parameters}
        kept = {p: s for p, s in self.sites.items() if not {id(q) for _, q in s.parameters} <= own}
        self.sites = kept | {site.path: site}

    def _expert_tensors(self, block: nn.Module, path: str) -> None:
        """Expert tensors of the block or its parts, tried in ever larger blocks until the router is among them."""
        start = f"{path}." if path else ""
        for where, holder in list(self.pending):
            below = where[len(start) :] if where != path else ""
            if where != path and not where.startswith(start):
                continue
            if below.count(".") > 1 or isinstance(block, nn.ModuleList):
                continue
            key = ("experts", _kind(block, path), below)
            if key not in self.known:
                self.known[key] = experts_of(block, holder, self._taken(path))
            if self.known[key] is not None:
                self.pending.remove((where, holder))
                self._mixture(path, block, self.known[key], where)

    def _mixture(self, path: str, block: nn.Module, experts: Experts, holder: str) -> None:
        shared = self._beside(path, holder) if holder != path else self._beside(path, f"{path}.none")
        self._merge(building.tensor_mixture(path, block, experts, shared))

    def _layers_without(self) -> None:
        """Layers of a stack in which nothing was found are said, so that no network is left out silently."""
        said = [*self.sites, *self.unplaced, *self.convolutional]
        if "" in self.sites:
            return  # the model is a network itself
        networks = {id(site.module) for site in self.sites.values()}
        kinds: dict[Any, list[str]] = defaultdict(list)
        for name, part in self.model.named_modules():
            below = f"{name}." if name else ""
            if not isinstance(part, nn.ModuleList | nn.Sequential) or any(
                f"{name}.".startswith(f"{p}.") for p in said if p
            ):
                continue
            for key, layer in part.named_children():
                path = below + key
                inside = any(entry == path or entry.startswith(f"{path}.") for entry in said)
                inside |= any(id(inner) in networks for inner in layer.modules())  # a network of an earlier layer
                if not inside and not mixes_only(layer) and is_convolutional(layer):
                    self.convolutional.append(path)
                elif not inside and not mixes_only(layer):
                    kinds[name, type(layer)].append(path)
        for paths in kinds.values():
            layer = self.model.get_submodule(paths[0])
            parts = ", ".join(f"{key} {type(child).__name__}" for key, child in layer.named_children())
            reason = (
                f"{len(paths)} of this kind of layer hold maps, but no feed-forward network was recognised ({parts})"
            )
            self.unplaced[paths[0]] = Unplaced(paths[0], reason)
        if self.convolutional:
            first = self.convolutional[0]
            self.unplaced[first] = Unplaced(first, f"a convolutional block, one of {len(self.convolutional)}")

    def _matrices(self) -> None:
        """Blocks with matrices of their own that no router chooses among: networks of their own, or said."""
        for path, block in self.pending:
            if own_maps(block):
                continue  # tables beside its maps, such as attention's of distances
            site = None if any(place.startswith(f"{path}.") for place in self.sites) else raw_site(path, block)
            if site is not None and path not in self.sites:
                self.sites[path] = site
            elif path not in self.sites:
                self.unplaced[path] = Unplaced(
                    path, "it holds matrices of its own, and its code does not show what for"
                )


def _key(site: Site, sites: dict[str, Site]) -> str:
    """A place of its own for each of several networks in one layer."""
    return site.path if site.path not in sites else f"{site.path}#{site.second.path if site.second else len(sites)}"


def _kind(block: nn.Module, path: str) -> Any:
    """What two blocks of one kind share: classes, names and shapes of all parts, and what else they hold.

    A layer's own index is no difference between layers whose code does not read it. An object is the same only as
    itself, a configuration that layers share for instance.
    """
    places = {int(part) for part in path.split(".") if part.isdigit()}
    parts = []
    for name, part in block.named_modules():
        read = own_words(part)
        held = ((key, value) for key, value in part.__dict__.items() if key not in _OF_EVERY_MODULE)
        said = tuple((key, _said(key, value, set() if key in read else places)) for key, value in held)
        parts.append((name, type(part), said))
    return tuple(parts), tuple((name, tuple(p.shape)) for name, p in block.named_parameters())


_OF_EVERY_MODULE = set(nn.Module().__dict__)
_INDEX = re.compile(r"idx|index|layer|block|depth|number|_id$")


def _said(key: str, value: Any, places: set[int]) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and value in places and _INDEX.search(key):
        return "its index"
    if isinstance(value, bool | int | float | str | None):
        return value
    if isinstance(value, list | tuple | set | dict):
        return repr(value)[:2000]
    return id(value)
