"""tensor2tensor's embeddings: one table in several variables, the first of which are one row larger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from positionwise.errors import ConvertError


def shard_sizes(rows: int, count: int) -> list[int]:
    """How many rows each of ``count`` shards holds.

    Source: tensor2tensor v1.0.14, ``modalities.SymbolModality._get_weights``.
    """
    if count < 1 or rows < 1:
        raise ConvertError(f"expected at least one row and one shard; got {rows} rows in {count} shards")
    return [rows // count + (shard < rows % count) for shard in range(count)]


def join_shards(shards: Mapping[str, Any]) -> Tensor:
    """The table (rows, d_model) of shards in their order, by name.

    Raises:
        ConvertError: when a shard has not the rows that its place asks for, or another width; it names it.
    """
    parts = {name: torch.as_tensor(shard) for name, shard in shards.items()}
    width: tuple[int, ...] | None = None
    for name, part in parts.items():
        width = tuple(part.shape[1:]) if width is None else width
        if part.dim() != 2 or part.shape[1:] != width:
            raise ConvertError(f"expected rows of the first shard's width in {name!r}; got {tuple(part.shape)}")
    rows = sum(len(part) for part in parts.values())
    for (name, part), size in zip(parts.items(), shard_sizes(rows, len(parts)), strict=True):
        if len(part) != size:
            raise ConvertError(f"expected {size} of the table's {rows} rows in {name!r}; got {len(part)}")
    return torch.cat(list(parts.values()))


def split_shards(table: Any, count: int) -> dict[str, Tensor]:
    """A table (rows, d_model) as ``weights_0`` … in tensor2tensor's sizes: what `join_shards` puts together again."""
    parts = torch.split(torch.as_tensor(table), shard_sizes(len(table), count))
    return {f"weights_{shard}": part for shard, part in enumerate(parts)}
