"""tensor2tensor's embeddings: one table in several variables, the first of which are one row larger."""

from __future__ import annotations

import numpy as np
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


def join_shards(shards: dict[str, Tensor]) -> Tensor:
    """The table (rows, d_model) of shards in their order, by name.

    Raises:
        ConvertError: when a shard has not the rows that its place asks for, or another width; it names it.
    """
    rows = sum(len(shard) for shard in shards.values())
    width = next(iter(shards.values())).shape[1:]
    for (name, shard), size in zip(shards.items(), shard_sizes(rows, len(shards)), strict=True):
        if shard.dim() != 2 or shard.shape[1:] != width:
            raise ConvertError(f"expected rows of the first shard's width in {name!r}; got {tuple(shard.shape)}")
        if len(shard) != size:
            raise ConvertError(f"expected {size} of the table's {rows} rows in {name!r}; got {len(shard)}")
    return torch.cat(list(shards.values()))


def split_shards(table: np.ndarray, count: int) -> dict[str, np.ndarray]:
    """A table (rows, d_model) as ``weights_0`` … in tensor2tensor's sizes: what `join_shards` puts together again."""
    edges = np.cumsum(shard_sizes(len(table), count))[:-1]
    return {f"weights_{shard}": part for shard, part in enumerate(np.split(table, edges))}
