"""Sizes that several tensors share: what most of them say holds, and what contradicts it is named."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

from positionwise.errors import ConvertError


class Claim(NamedTuple):
    """What one tensor says of a size."""

    size: str
    """The size's name, as errors give it."""
    tensor: str
    value: Hashable


def agree(claims: Iterable[Claim]) -> dict[str, Any]:
    """Every size by its name.

    Raises:
        ConvertError: where tensors disagree; it names those against most of the others, or both sides where neither
            has more.
    """
    said: dict[str, dict[Hashable, list[str]]] = {}
    for size, tensor, value in claims:
        said.setdefault(size, {}).setdefault(value, []).append(tensor)
    disputed = [_votes(size, values) for size, values in said.items() if len(values) > 1]
    if disputed:  # first where most agree, since there the fault is in one place
        raise ConvertError(max(disputed)[1])
    return {size: next(iter(values)) for size, values in said.items()}


def _votes(size: str, values: dict[Hashable, list[str]]) -> tuple[bool, str]:
    """Whether one value has most votes, and the error."""
    ranked = sorted(values.items(), key=lambda item: -len(item[1]))
    (most, voters), (other, against) = ranked[:2]
    if len(voters) > len(against):
        return True, f"expected {size} of {most}, as in {voters[0]!r}; got {other} in {_list(against)}"
    return False, f"expected one {size}; got {most} in {_list(voters)} and {other} in {_list(against)}"


def _list(names: list[str]) -> str:
    """Two names at most, so that an error stays short."""
    return " and ".join(map(repr, names[:2])) + (f" and {len(names) - 2} more" if len(names) > 2 else "")
