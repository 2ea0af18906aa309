"""The translation Transformer's configuration."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from transformers import PreTrainedConfig

from positionwise.errors import SpecError, unknown_name
from positionwise.spec import INITIALISATIONS, FFNSpec
from positionwise.transformer.parameter_attention import ParameterAttentionSpec
from positionwise.variants import VARIANTS, variant

POSITIONS = ("sinusoidal", "learned", "none")
FFN_LAYERS = ("conv_hidden_relu", "conv_hidden_relu_with_sepconv", "parameter_attention", "none")
_DERIVED = ("target_vocab_size", "key_dim", "value_dim", "parameter_key_dim", "parameter_value_dim")
"""Sizes that follow from others where they are None."""
_LEAST = {
    "vocab_size": 2, "target_vocab_size": 2, "d_model": 1, "d_ff": 1, "num_heads": 1, "key_dim": 1, "value_dim": 1,
    "parameter_key_dim": 1, "parameter_value_dim": 1, "encoder_layers": 0, "decoder_layers": 0, "max_positions": 1,
    "target_spaces": 0, "target_space_id": 0, "pad_token_id": 0,
}  # fmt: skip
"""The least value of each size and id."""


class TransformerConfig(PreTrainedConfig):
    """Sizes and choices of an encoder-decoder Transformer; the defaults are tensor2tensor's ``transformer_base``.

    Fields:
        vocab_size: rows of the source embedding.
        target_vocab_size: rows of the target embedding and of the output; None where both sides have one vocabulary.
        d_model, d_ff, num_heads, encoder_layers, decoder_layers: as in Vaswani et al. 2017, table 3.
        key_dim: width of one head's queries and keys; None for d_model / num_heads.
        value_dim: width of one head's values; None for key_dim, as in Keras.
        ffn_layer: the kind of every feed-forward network, by tensor2tensor's names: ``conv_hidden_relu``
            (`FeedForward`, whatever its activation), ``conv_hidden_relu_with_sepconv`` (causal kernels over 3 and 31
            positions before its maps), ``parameter_attention`` (`ParameterAttention` with d_ff keys in each of
            num_heads heads) or ``none`` (the layer's input itself).
        parameter_key_dim, parameter_value_dim: widths of one head in parameter attention; None for d_model / num_heads.
        activation, is_gated, bias1, bias2, bias_gate: of every `FeedForward`.
        init: of every linear map, ``xavier_uniform`` with zero biases or ``pytorch``.
        dropout: of each sublayer's output. embedding_dropout: of the embedded input. attention_dropout: of the
            attention weights. hidden_dropout: of the feed-forward network's hidden units. output_dropout: before the
            output map.
        positions: ``sinusoidal`` (two halves, not interleaved), ``learned`` (max_positions rows for each side) or
            ``none``.
        embedding_scale: whether embeddings are multiplied by √d_model.
        share_embeddings: one table for source and target. tie_word_embeddings: the output map is the target's table.
        mask_pad_embedding: whether the embedding of ``pad_token_id`` is zero whatever the table holds.
        output_bias: of the output map.
        target_spaces: rows of the table of target spaces (tensor2tensor's problems), one row of which is added to
            the embedded source; 0 for none. target_space_id: that row.
        norm_first: pre-norm (with a norm at the end of each stack) instead of post-norm as published.
        layer_norm_eps: added to the variance.
        label_smoothing: probability taken from the target and spread evenly over the other words.

    Raises:
        SpecError: for a value or combination that no model can be built from, and for unknown fields.
    """

    model_type = "positionwise_transformer"
    attribute_map = {
        "hidden_size": "d_model", "num_attention_heads": "num_heads", "num_hidden_layers": "decoder_layers"
    }  # fmt: skip

    vocab_size: int = 37_000
    target_vocab_size: int | None = None
    d_model: int = 512
    d_ff: int = 2048
    num_heads: int = 8
    key_dim: int | None = None
    value_dim: int | None = None
    encoder_layers: int = 6
    decoder_layers: int = 6
    ffn_layer: str = "conv_hidden_relu"
    parameter_key_dim: int | None = None
    parameter_value_dim: int | None = None
    activation: str = "relu"
    is_gated: bool = False
    bias1: bool = True
    bias2: bool = True
    bias_gate: bool = True
    init: str = "xavier_uniform"
    dropout: float = 0.1
    embedding_dropout: float = 0.1
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    output_dropout: float = 0.0
    positions: str = "sinusoidal"
    max_positions: int = 1024
    embedding_scale: bool = True
    share_embeddings: bool = True
    tie_word_embeddings: bool = True
    mask_pad_embedding: bool = True
    output_bias: bool = False
    target_spaces: int = 0
    target_space_id: int = 0
    norm_first: bool = False
    layer_norm_eps: float = 1e-6
    label_smoothing: float = 0.1
    is_encoder_decoder: bool = True
    use_cache: bool = True
    pad_token_id: int = 0
    eos_token_id: int = 1
    bos_token_id: int | None = None
    decoder_start_token_id: int = 0

    def __post_init__(self, **kwargs: Any) -> None:
        """Check the fields; only what transformers itself writes may stand beside them."""
        super().__post_init__(**kwargs)
        written = {"model_type", "name_or_path", "_name_or_path", "torch_dtype", "_commit_hash"}
        if unknown := [key for key in kwargs if key not in written and not hasattr(PreTrainedConfig, key)]:
            raise SpecError(f"expected fields of TransformerConfig; got {', '.join(sorted(unknown))}")
        self.check()

    def check(self) -> None:
        """Refuse what no model can be built from."""
        self._check_numbers()
        for name, known in (("positions", POSITIONS), ("init", INITIALISATIONS), ("ffn_layer", FFN_LAYERS)):
            if getattr(self, name) not in known:
                raise unknown_name(name, getattr(self, name), known)
        for name in ("is_gated", "embedding_scale", "share_embeddings", "tie_word_embeddings", "mask_pad_embedding",
                     "output_bias", "norm_first"):  # fmt: skip
            if not isinstance(getattr(self, name), bool):
                raise SpecError(f"expected {name} to be True or False; got {getattr(self, name)!r}")
        self.feed_forward_spec()
        self._check_idle_fields()
        self._check_combinations()

    def _check_numbers(self) -> None:
        rates = ("dropout", "embedding_dropout", "attention_dropout", "output_dropout", "label_smoothing")
        for name in (*rates, "hidden_dropout"):
            value = getattr(self, name)
            limit = "at most" if name == "hidden_dropout" else "below"
            if not isinstance(value, (int, float)) or not (0 <= value < 1 or (value == 1 and limit == "at most")):
                raise SpecError(f"expected {name} to be at least 0 and {limit} 1; got {value!r}")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is None and name in _DERIVED:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise SpecError(f"expected {name} to be an integer of at least {least}; got {value!r}")
        if not isinstance(self.layer_norm_eps, (int, float)) or not 0 <= self.layer_norm_eps < math.inf:
            raise SpecError(f"expected layer_norm_eps to be at least 0; got {self.layer_norm_eps!r}")

    def _check_idle_fields(self) -> None:
        """Refuse what the kind of network has no use for."""
        idle: dict[str, Any] = {}
        if self.ffn_layer != "parameter_attention":
            idle |= {"parameter_key_dim": None, "parameter_value_dim": None}
        if self.ffn_layer in ("parameter_attention", "none"):
            idle |= {"activation": "relu", "is_gated": False, "bias1": True, "bias2": True, "bias_gate": True,
                     "hidden_dropout": 0.0}  # fmt: skip
        if given := [name for name, default in idle.items() if getattr(self, name) != default]:
            raise SpecError(f"expected fields that ffn_layer={self.ffn_layer!r} has a use for; got {', '.join(given)}")

    def _check_combinations(self) -> None:
        if self.key_dim is None and self.d_model % self.num_heads:
            raise SpecError(f"expected d_model to be a multiple of num_heads; got {self.d_model} and {self.num_heads}")
        for name, size in (("pad_token_id", min(self.vocab_size, self.target_size)),
                           ("decoder_start_token_id", self.target_size)):  # fmt: skip
            if not 0 <= getattr(self, name) < size:
                raise SpecError(f"expected {name} below the vocabulary's {size}; got {getattr(self, name)!r}")
        if self.target_space_id >= max(self.target_spaces, 1):
            raise SpecError(
                f"expected target_space_id below target_spaces={self.target_spaces}; got {self.target_space_id}"
            )
        if self.label_smoothing > 1 - 1 / self.target_size:
            most = f"{1 - 1 / self.target_size:.4g} for {self.target_size:,} words"
            raise SpecError(f"expected label_smoothing of at most {most}; got {self.label_smoothing!r}")
        if self.share_embeddings and self.target_size != self.vocab_size:
            raise SpecError(
                "expected one vocabulary size where source and target share their embeddings; "
                f"got {self.vocab_size} and {self.target_size} (share_embeddings=False keeps two tables)"
            )
        if self.tie_word_embeddings and self.output_bias:
            raise SpecError("expected no output_bias where the output map is the embedding; got output_bias=True")

    @property
    def target_size(self) -> int:
        """Rows of the target's vocabulary."""
        return self.vocab_size if self.target_vocab_size is None else self.target_vocab_size

    @property
    def head_dim(self) -> int:
        """Width of one attention head's queries and keys."""
        return self.d_model // self.num_heads if self.key_dim is None else self.key_dim

    @property
    def head_value_dim(self) -> int:
        """Width of one attention head's values."""
        return self.head_dim if self.value_dim is None else self.value_dim

    @property
    def is_cacheable(self) -> bool:
        """Whether a decoder can go on from new positions alone: not where the networks' kernels read earlier ones."""
        return self.ffn_layer != "conv_hidden_relu_with_sepconv"

    def feed_forward_spec(self) -> FFNSpec | ParameterAttentionSpec | None:
        """The feed-forward network of every layer; None for ``none``.

        Source of the kinds: tensor2tensor v1.0.14, ``transformer.transformer_ffn_layer``; there parameter attention
        drops by ``attention_dropout``.
        """
        if self.ffn_layer == "none":
            return None
        if self.ffn_layer == "parameter_attention":
            return ParameterAttentionSpec(
                self.d_model, self.d_ff, self.num_heads, self.parameter_key_dim, self.parameter_value_dim,
                self.attention_dropout,
            )  # fmt: skip
        spec = FFNSpec(
            self.d_model, self.d_ff, self.hidden_dropout, self.activation, self.is_gated, self.bias1, self.bias2,
            self.bias_gate, init=self.init,
        )  # fmt: skip
        if self.ffn_layer == "conv_hidden_relu_with_sepconv":
            return replace(spec, kernel_size=3, second_kernel_size=31, padding="left")
        return spec


def variant_fields(name: str, d_model: int, d_ff: int, match_parameters: bool = False) -> dict[str, Any]:
    """The configuration's fields for a variant of the literature: activation, gate and width.

    Raises:
        SpecError: for a name that is not in `positionwise.variants.VARIANTS`.
    """
    if name not in VARIANTS:
        raise unknown_name("variant", name, VARIANTS)
    spec = variant(name, d_model, d_ff, match_parameters)
    return {"activation": spec.activation, "is_gated": spec.is_gated, "d_model": d_model, "d_ff": spec.d_ff}
