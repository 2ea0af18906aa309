"""Token embeddings and positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from positionwise.errors import InputError
from positionwise.transformer.config import TransformerConfig


def sinusoids(start: int, length: int, width: int, device: torch.device | None = None) -> Tensor:
    """Positions start … start + length − 1 as (length, width): a half of sines, then a half of cosines.

    The inverse frequencies are exp(−i·ln(10⁴) / (width/2 − 1)); an odd width ends in a zero channel.

    Source: tensor2tensor v1.0.14, ``common_attention.get_timing_signal``; the paper (section 3.5) interleaves the two
    and divides by width/2.
    """
    half = width // 2
    rates = torch.exp(torch.arange(half, device=device) * (-math.log(1e4) / max(half - 1, 1)))
    angles = torch.arange(start, start + length, device=device, dtype=rates.dtype)[:, None] * rates
    return F.pad(torch.cat([angles.sin(), angles.cos()], dim=1), (0, width % 2))


class Positions(nn.Module):
    """Adds positions to (B, S, d_model)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.kind = config.positions
        self.limit = config.max_positions
        if self.kind == "learned":
            self.weight = nn.Parameter(torch.empty(config.max_positions, config.d_model))

    def forward(self, x: Tensor, start: int = 0) -> Tensor:
        """Add the rows from position ``start`` on.

        Raises:
            InputError: beyond the last learned position.
        """
        end = start + x.shape[1]
        if self.kind == "learned":
            if end > self.limit:
                raise InputError(f"expected at most {self.limit} positions; got {end}")
            return x + self.weight[start:end]
        if self.kind == "sinusoidal":
            return x + sinusoids(start, x.shape[1], x.shape[2], x.device).to(x.dtype)
        return x


def embed(table: nn.Embedding, ids: Tensor, config: TransformerConfig) -> Tensor:
    """Token ids (B, S) → (B, S, d_model), scaled and the padding's rows zero where the configuration says so."""
    x: Tensor = table(ids)
    if config.embedding_scale:
        x = x * math.sqrt(config.d_model)
    if config.mask_pad_embedding:
        x = x * (ids != config.pad_token_id).unsqueeze(-1).to(x.dtype)
    return x
