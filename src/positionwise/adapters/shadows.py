"""Copies of modules that have their structure and their code, and share nothing that running them could change."""

from __future__ import annotations

from collections import deque
from typing import Any

from torch import nn


def bare(part: nn.Module, training: bool) -> nn.Module:
    """A copy of one module without its hooks, with the same tensors and parts; its containers are its own.

    Args:
        part: nothing of it is changed.
        training: which mode the copy is in.
    """
    copy = object.__new__(type(part))
    copy.__dict__.update(part.__dict__)
    for name, value in part.__dict__.items():
        if isinstance(value, dict | list | set | deque):
            copy.__dict__[name] = type(value)() if name.endswith("hooks") else _own(value)
    copy.__dict__["training"] = training
    return copy


def _own(value: Any) -> Any:
    """A container's copy, with copies of the containers in it."""
    if isinstance(value, dict):
        copy = value.copy()
        copy.update((key, _own(inner)) for key, inner in value.items() if isinstance(inner, dict | list | set | deque))
        return copy
    if isinstance(value, list | deque):
        return type(value)(_own(inner) for inner in value)
    return value.copy() if isinstance(value, set) else value
