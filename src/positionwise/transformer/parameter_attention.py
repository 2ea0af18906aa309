"""tensor2tensor's parameter attention: a network whose hidden units are a softmax over learned keys."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from positionwise.errors import SpecError
from positionwise.feedforward import Network
from positionwise.functional import glorot_uniform_
from positionwise.spec import Component


@dataclass(frozen=True)
class ParameterAttentionSpec:
    """Parameter attention as data; the fields are those of `ParameterAttention`.

    Raises:
        SpecError: for sizes that no network can have.
    """

    d_model: int
    d_ff: int
    num_heads: int
    key_dim: int | None = None
    value_dim: int | None = None
    dropout: float = 0.0

    is_gated = False
    d_out = None
    equation = (
        r"y = W_o \, \mathrm{concat}_h \left(\mathrm{softmax}\left(\sqrt{H} \, K_h (W_q x + b_q)_h\right)^\top "
        r"\sqrt{d} \, V_h\right) + b_o"
    )

    def __post_init__(self) -> None:
        """Check the sizes."""
        for name in ("d_model", "d_ff", "num_heads", "key_dim", "value_dim"):
            value = getattr(self, name)
            if value is None and name in ("key_dim", "value_dim"):
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise SpecError(f"expected {name} to be an integer of at least 1; got {value!r}")
        if None in (self.key_dim, self.value_dim) and self.d_model % self.num_heads:
            raise SpecError(f"expected d_model to be a multiple of num_heads; got {self.d_model} and {self.num_heads}")
        if not isinstance(self.dropout, (int, float)) or not 0 <= self.dropout <= 1:
            raise SpecError(f"expected dropout to be a number from 0 to 1; got {self.dropout!r}")

    @property
    def output_width(self) -> int:
        """d_model."""
        return self.d_model

    @property
    def head_dims(self) -> tuple[int, int]:
        """Width of one head's keys and of its values."""
        share = self.d_model // self.num_heads
        return self.key_dim or share, self.value_dim or share

    @property
    def components(self) -> tuple[Component, ...]:
        """The learned parts, each with its calculation written out."""
        d, f, heads = self.d_model, self.d_ff, self.num_heads
        keys, values = self.head_dims
        wide_in, wide_out = heads * keys, heads * values
        return (
            Component("Query map", f"{d:,} × {wide_in:,} + {wide_in:,}", d * wide_in + wide_in),
            Component("Keys", f"{heads} × {f:,} × {keys:,}", f * wide_in),
            Component("Values", f"{heads} × {f:,} × {values:,}", f * wide_out),
            Component("Output map", f"{wide_out:,} × {d:,} + {d:,}", wide_out * d + d),
        )

    @property
    def parameters(self) -> int:
        """How many numbers the network learns."""
        return sum(part.parameters for part in self.components)

    def flops(self, tokens: int) -> int:
        """Floating-point operations of one forward pass; a multiply-add counts as two, softmax and biases not."""
        wide = self.num_heads * sum(self.head_dims)
        return 2 * tokens * wide * (self.d_model + self.d_ff)


class ParameterAttention(Network):
    """y = W_o·concat(softmax(√H·K(W_q x + b_q))ᵀ·√d_model·V) + b_o over H heads, the same at every position.

    The keys K and values V are learned, so that ``d_ff`` pairs of them take the place of the hidden units. The queries
    are not scaled.

    Args:
        d_model: width of input and output.
        d_ff: keys, and values, of each head.
        num_heads: H.
        key_dim: width of one head's keys; None for d_model / num_heads.
        value_dim: width of one head's values; None for d_model / num_heads.
        dropout: share of the values, whole rows of a head, that are set to zero in training: the same for every
            position.

    Shapes: (..., d_model) → (..., d_model); ``keys`` (num_heads, d_ff, key_dim), ``values`` (…, value_dim).

    Raises:
        SpecError: for sizes that no network can have.

    Source: tensor2tensor v1.0.14, ``common_attention.parameter_attention``.
    """

    activation = "softmax"

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        num_heads: int,
        key_dim: int | None = None,
        value_dim: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.spec = ParameterAttentionSpec(d_model, d_ff, num_heads, key_dim, value_dim, dropout)
        keys, values = self.spec.head_dims
        self.query = nn.Linear(d_model, num_heads * keys)
        self.keys = nn.Parameter(torch.empty(num_heads, d_ff, keys))
        self.values = nn.Parameter(torch.empty(num_heads, d_ff, values))
        self.output = nn.Linear(num_heads * values, d_model)
        self.dropout = dropout
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights as published: keys and values N(0, 1/d_model), maps Glorot uniform, biases zero."""
        for table in (self.keys, self.values):
            nn.init.normal_(table, std=self.spec.d_model**-0.5)
        for layer in (self.query, self.output):
            glorot_uniform_(layer.weight, layer.in_features, layer.out_features)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the network: (..., d_model) → (..., d_model)."""
        heads, d_model = self.spec.num_heads, self.spec.d_model
        queries = self.query(x).reshape(-1, heads, self.keys.shape[-1]).transpose(0, 1)
        values = self.values * d_model**0.5
        if self.training and self.dropout:
            values = values * F.dropout(values.new_ones(heads, values.shape[1], 1), self.dropout)
        mixed = F.scaled_dot_product_attention(queries, self.keys * heads**0.5, values, scale=1.0)
        y: Tensor = self.output(mixed.transpose(0, 1).reshape(*x.shape[:-1], self.output.in_features))
        return y
