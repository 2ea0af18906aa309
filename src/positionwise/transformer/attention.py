"""Multi-head attention and its masks."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.cache_utils import EncoderDecoderCache

from positionwise.errors import InputError


def additive_mask(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A mask (B, S) or (B, S, S), true = keep, as what is added to the scores: (B, 1, 1 or S, S).

    What is added to a masked pair is finite, and so low that the score itself is lost: a row with no pair left attends
    evenly instead of being NaN. float16 has no number that low: such a row then attends as if nothing were masked.

    A mask of four axes has been through here and is returned as it is.
    """
    if mask is None or (mask.dim() == 4 and mask.is_floating_point()):
        return mask
    if mask.dim() not in (2, 3):
        raise InputError(f"expected a mask of shape (B, S) or (B, S, S); got {tuple(mask.shape)}")
    keep = (mask[:, None, None, :] if mask.dim() == 2 else mask[:, None]).bool()
    lowest = torch.finfo(dtype).min / 2
    return torch.zeros(keep.shape, dtype=dtype, device=keep.device).masked_fill_(~keep, lowest)


def causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """(1, queries, keys), true where the key is not later than the query; the last query meets the last key."""
    return torch.ones(1, queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


class MultiHeadAttention(nn.Module):
    """softmax(q·kᵀ/√key_dim)·v over several heads, with biases everywhere.

    Source: Vaswani et al. 2017, arXiv 1706.03762, eq. 1 and section 3.2.2.
    """

    def __init__(
        self, d_model: int, num_heads: int, key_dim: int, value_dim: int, dropout: float, layer: int = 0
    ) -> None:
        super().__init__()
        self.query = nn.Linear(d_model, num_heads * key_dim)
        self.key = nn.Linear(d_model, num_heads * key_dim)
        self.value = nn.Linear(d_model, num_heads * value_dim)
        self.output = nn.Linear(num_heads * value_dim, d_model)
        self.num_heads = num_heads
        self.dropout = dropout
        self.layer = layer

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
    ) -> Tensor:
        """Attend from x to memory, or to x itself.

        Args:
            x: (B, T, d_model).
            memory: (B, S, d_model); None for self-attention.
            mask: (B, S) or (B, T, S), true = keep: which positions of memory may be attended to; or additive, of four
                axes, broadcast over (B, heads, T, S).
            cache: keys and values of earlier calls; x are then the new positions only.

        Returns:
            (B, T, d_model).

        Raises:
            InputError: for a mask of another rank or kind.
        """
        if mask is not None and mask.dim() < 4 and mask.is_floating_point():
            raise InputError("expected a mask (B, S) or (B, S, S), true = keep, or an additive one of four axes; "
                             f"got {mask.dtype} of shape {tuple(mask.shape)}")  # fmt: skip
        mask = additive_mask(mask, x.dtype)
        keys, values = self._keys_and_values(x, memory, cache)
        p = self.dropout if self.training else 0.0
        heads = F.scaled_dot_product_attention(self._split(self.query(x)), keys, values, mask, p)
        y: Tensor = self.output(heads.transpose(1, 2).flatten(2))
        return y

    def _keys_and_values(
        self, x: Tensor, memory: Tensor | None, cache: EncoderDecoderCache | None
    ) -> tuple[Tensor, Tensor]:
        if cache is None:
            source = x if memory is None else memory
            return self._split(self.key(source)), self._split(self.value(source))
        if memory is None:
            new = self._split(self.key(x)), self._split(self.value(x))
            return cache.self_attention_cache.update(*new, self.layer)
        if not cache.is_updated.get(self.layer):
            cache.is_updated[self.layer] = True
            new = self._split(self.key(memory)), self._split(self.value(memory))
            return cache.cross_attention_cache.update(*new, self.layer)
        held = cast(Any, cache.cross_attention_cache.layers[self.layer])
        return held.keys, held.values

    def _split(self, x: Tensor) -> Tensor:
        """(B, S, heads·key_dim) → (B, heads, S, key_dim)."""
        return x.view(*x.shape[:-1], self.num_heads, -1).transpose(1, 2)
