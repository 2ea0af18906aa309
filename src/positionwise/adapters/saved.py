"""Shadows of modules, which run without numbers, and what a network's own code keeps for backward.

A shadow has the structure and the code of a module and tensors of its shapes on the meta device: whatever it is called
with, nothing is computed or allocated, while autograd notes what it would keep.
"""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from positionwise.adapters.maps import linear_map
from positionwise.adapters.shadows import bare
from positionwise.adapters.sites import Site


def shadow(
    module: nn.Module, *, training: bool, dtype: torch.dtype | None = None, hollow: tuple[nn.Module, ...] = ()
) -> nn.Module:
    """A copy of a module's structure on the meta device, without hooks.

    Args:
        module: on any device; nothing of it is changed.
        training: which mode the copy is in.
        dtype: of all floating-point tensors; their own without it.
        hollow: parts that are copied without anything in them.
    """
    tensors: dict[int, Tensor] = {}
    copies: dict[int, nn.Module] = {}
    emptied = {id(part) for part in hollow}

    def copied(part: nn.Module) -> nn.Module:
        if id(part) not in copies:
            copies[id(part)] = copy = _bare(part, training, id(part) in emptied)
            holders: tuple[dict[str, Any], ...] = (copy._parameters, copy._buffers, copy.__dict__)
            for held in holders:
                for name, value in held.items():
                    if isinstance(value, Tensor):
                        held[name] = tensors.setdefault(id(value), _empty(value, dtype))
            copy._modules = {name: child and copied(child) for name, child in copy._modules.items()}
        return copies[id(part)]

    return copied(module)


def _bare(part: nn.Module, training: bool, hollow: bool) -> nn.Module:
    copy = bare(part, training)
    copy.__dict__.pop("forward", None)  # bound to the module itself, as accelerate does
    if hollow:
        copy._modules, copy._parameters, copy._buffers = {}, {}, {}
    if is_table(part):
        # Scaled rotary tables look at the positions before they are computed; their shapes do not depend on it.
        copy.forward = MethodType(inspect.unwrap(type(part).forward), copy)
    return copy


def _empty(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    kind = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
    empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=kind, device="meta")
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty


def is_table(part: nn.Module) -> bool:
    """Whether a module has neither parameters nor parts: rotary tables, dropout, activations."""
    return not part._modules and not part._parameters


@contextmanager
def unseen() -> Iterator[None]:
    """Without the warnings and log lines of code that is run only to be looked at, on the meta device."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), torch.device("meta"), torch.enable_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def saved_bytes(site: Site, batch: int, sequence: int) -> int | None:
    """Bytes that autograd keeps of one application in training, as the network's own code runs on a CPU.

    The input counts where it is kept; parameters do not; storage that two tensors share counts once. Of a network that
    stands inline in a layer, what is kept from its first map's input up to its second map's input.

    Returns:
        None for a mixture, whose experts keep what the routing sends them, and for code that does not run by itself.
    """
    if site.second is None or site.mixture is not None:
        return None
    for x, filler in product(_inputs(site, batch, sequence), (False, True)):
        copy = shadow(site.module, training=True)
        kept = _Kept(copy, site)
        try:
            with unseen(), torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda tensor: tensor):
                copy(x, *[x if filler else None] * (_required(copy) - 1))
        except Exception:  # whatever the code raises for an input that it did not expect
            continue
        return kept.total()
    return None


def _inputs(site: Site, batch: int, sequence: int) -> Iterator[Tensor]:
    weight = next((p for p in site.first[0].module.parameters() if p.is_floating_point()), None)
    dtype, d = None if weight is None else weight.dtype, site.d_model
    shapes = [(batch, sequence, d), (batch * sequence, d)]
    if isinstance(site.first[0].module, nn.Conv1d):
        shapes = [(batch, d, sequence), *shapes]
    elif isinstance(site.first[0].module, nn.Conv2d):
        shapes = [(batch, d, sequence, 1)]
    for shape in shapes:
        yield torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)


def _required(module: nn.Module) -> int:
    parameters = inspect.signature(module.forward).parameters.values()
    return max(1, sum(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters))


class _Kept:
    """Distinct storages that are packed while the network runs."""

    def __init__(self, copy: nn.Module, site: Site) -> None:
        own = {id(p) for _, p in site.parameters}
        inside = [name for name, p in site.module.named_parameters() if p.dim() > 1 and id(p) not in own]
        self.recording = self.alone = not inside
        self.complete, self.disturbed = self.alone, False
        self.storages: dict[int, Any] = {}
        self.weights = {t.untyped_storage()._cdata for t in (*copy.parameters(), *copy.buffers())}
        if not self.alone:
            self._watch(copy, site)

    def _watch(self, copy: nn.Module, site: Site) -> None:
        """Record between the maps only, and see whether another map runs meanwhile."""
        within = {entry.path for entry in site.maps}
        second = "" if site.second is None else site.second.path
        for name, part in copy.named_modules():
            if name in within and name != second:
                part.register_forward_pre_hook(lambda *_: self._set(True))
            elif name == second:
                part.register_forward_hook(lambda *_: self._set(False))
            elif linear_map(part) is not None and not linear_map(part).depthwise:  # type: ignore[union-attr]
                part.register_forward_pre_hook(lambda *_: self._disturb())

    def _set(self, recording: bool) -> None:
        self.complete |= self.recording and not recording
        self.recording = recording

    def _disturb(self) -> None:
        self.disturbed |= self.recording

    def pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if self.recording and storage._cdata not in self.weights:
            self.storages[storage._cdata] = storage  # held, so that its address is not given to another
        return tensor

    def total(self) -> int | None:
        """Bytes; None where the network did not run, or not by itself."""
        if self.disturbed or not self.complete:
            return None
        return sum(int(storage.nbytes()) for storage in self.storages.values())
