"""Encoder and decoder layers: attention in front of a feed-forward block.

Each sublayer f stands in a residual: post-norm x ← LN(x + dropout(f(x))) as published, or pre-norm
x ← x + dropout(f(LN(x))).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from torch import Tensor, nn
from transformers.cache_utils import EncoderDecoderCache

from positionwise.errors import InputError
from positionwise.feedforward import FeedForward
from positionwise.spec import FFNSpec
from positionwise.transformer.attention import MultiHeadAttention, additive_mask, causal_mask
from positionwise.transformer.config import TransformerConfig
from positionwise.transformer.dropout import Dropout
from positionwise.transformer.parameter_attention import ParameterAttention


class FeedForwardBlock(nn.Module):
    """The feed-forward network with its residual, dropout and norm: (B, S, d_model) → (B, S, d_model).

    Source: Vaswani et al. 2017, arXiv 1706.03762, sections 3.1 and 3.3.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.feed_forward = feed_forward(config)
        self.feed_forward_norm = layer_norm(config)
        self.dropout = Dropout(config.dropout)
        self.norm_first = config.norm_first

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block at every position."""
        return self.residual(x, self.feed_forward, self.feed_forward_norm)

    def residual(self, x: Tensor, sublayer: Callable[[Tensor], Tensor], norm: nn.Module) -> Tensor:
        """A sublayer with its residual, dropout and norm."""
        y: Tensor
        if self.norm_first:
            y = x + self.dropout(sublayer(norm(x)))
        else:
            y = norm(x + self.dropout(sublayer(x)))
        return y


class EncoderLayer(FeedForwardBlock):
    """Self-attention, then the feed-forward block."""

    def __init__(self, config: TransformerConfig, layer: int = 0) -> None:
        super().__init__(config)
        self.self_attention = attention(config, layer)
        self.self_attention_norm = layer_norm(config)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Apply the layer.

        Args:
            x: (B, S, d_model).
            mask: (B, S) or (B, S, S), true = keep: which positions may be attended to.

        Returns:
            (B, S, d_model).
        """
        added = additive_mask(mask, x.dtype)
        x = self.residual(x, lambda q: self.self_attention(q, mask=added), self.self_attention_norm)
        return super().forward(x)


class DecoderLayer(FeedForwardBlock):
    """Causal self-attention, attention to the encoder's output, then the feed-forward block."""

    def __init__(self, config: TransformerConfig, layer: int = 0) -> None:
        super().__init__(config)
        self.self_attention = attention(config, layer)
        self.self_attention_norm = layer_norm(config)
        self.cross_attention = attention(config, layer)
        self.cross_attention_norm = layer_norm(config)

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
    ) -> Tensor:
        """Apply the layer.

        Args:
            x: (B, T, d_model); with a cache, the new positions only.
            memory: (B, S, d_model), the encoder's output.
            mask: (B, T) or (B, T, T), true = keep, on top of the causal mask; with a cache its last axis holds the
                cached positions too.
            memory_mask: (B, S) or (B, T, S), true = keep: the source's positions.
            cache: keys and values of the earlier positions.

        Returns:
            (B, T, d_model).
        """
        own = decoder_mask(x, mask, cache)
        other = additive_mask(memory_mask, x.dtype)
        x = self.residual(x, lambda q: self.self_attention(q, mask=own, cache=cache), self.self_attention_norm)
        x = self.residual(x, lambda q: self.cross_attention(q, memory, other, cache), self.cross_attention_norm)
        return super().forward(x)


def decoder_mask(x: Tensor, mask: Tensor | None, cache: EncoderDecoderCache | None) -> Tensor | None:
    """The causal mask over the cached and the new positions, joined with the caller's, as an additive mask."""
    if mask is not None and mask.dim() == 4:
        return additive_mask(mask, x.dtype)
    past = 0 if cache is None else cache.get_seq_length()
    if mask is None and x.shape[1] == 1:
        return None
    causal = causal_mask(x.shape[1], past + x.shape[1], x.device)
    if mask is not None:
        if mask.shape[-1] != causal.shape[-1]:
            raise InputError(f"expected a mask over {causal.shape[-1]} positions; got {tuple(mask.shape)}")
        causal = causal & (mask[:, None, :] if mask.dim() == 2 else mask).bool()
    return additive_mask(causal, x.dtype)


def feed_forward(config: TransformerConfig) -> nn.Module:
    """The feed-forward network of a configuration."""
    spec = config.feed_forward_spec()
    if isinstance(spec, FFNSpec):
        return FeedForward.from_spec(spec)
    return nn.Identity() if spec is None else ParameterAttention(**asdict(spec))


def attention(config: TransformerConfig, layer: int) -> MultiHeadAttention:
    """The attention of a configuration."""
    return MultiHeadAttention(
        config.d_model, config.num_heads, config.head_dim, config.head_value_dim, config.attention_dropout, layer
    )


def layer_norm(config: TransformerConfig) -> nn.LayerNorm:
    """Layer norm over the last axis with biased variance (Ba et al. 2016, arXiv 1607.06450)."""
    return nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
