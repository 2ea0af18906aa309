"""Published models by name."""

from __future__ import annotations

from typing import Any

from positionwise.errors import unknown_name
from positionwise.transformer.config import TransformerConfig

# tensor2tensor v1.0.14, transformer.py, transformer_base(); 37,000 is the paper's vocabulary (section 5.1).
_BASE: dict[str, Any] = {"vocab_size": 37_000, "target_spaces": 32}
_BIG = {"d_model": 1024, "d_ff": 4096, "num_heads": 16}
_SEPARATE = {"share_embeddings": False, "tie_word_embeddings": False}  # shared_embedding_and_softmax_weights = 0


def _residual_dropout(rate: float) -> dict[str, Any]:
    """tensor2tensor's ``residual_dropout`` is at work after each sublayer and on the embedded input."""
    return {"dropout": rate, "embedding_dropout": rate}


# What each set of tensor2tensor's hyperparameters changes of transformer_base, as far as the model is concerned.
_SETS: dict[str, dict[str, Any]] = {
    "base": {},
    "base-single-gpu": {},
    "big": {**_BIG, **_residual_dropout(0.3)},
    "big-dr1": _BIG,
    "big-dr2": {**_BIG, **_residual_dropout(0.2)},
    "big-enfr": {**_BIG, "d_ff": 8192, **_SEPARATE},
    "big-single-gpu": _BIG,
    "dr0": _residual_dropout(0.0),
    "dr2": _residual_dropout(0.2),
    "ff1024": {"d_ff": 1024},
    "ff4096": {"d_ff": 4096},
    "h1": {"num_heads": 1},
    "h4": {"num_heads": 4},
    "h16": {"num_heads": 16},
    "h32": {"num_heads": 32},
    "hs256": {"d_model": 256},
    "hs1024": {"d_model": 1024},
    "k128": {"key_dim": 128 // 8, "value_dim": 512 // 8},  # attention_key_channels are those of all heads
    "k256": {"key_dim": 256 // 8, "value_dim": 512 // 8},
    "l2": {"encoder_layers": 2, "decoder_layers": 2},
    "l4": {"encoder_layers": 4, "decoder_layers": 4},
    "l8": {"encoder_layers": 8, "decoder_layers": 8},
    "ls0": {"label_smoothing": 0.0},
    "ls2": {"label_smoothing": 0.2},
    "parameter-attention-a": {"ffn_layer": "parameter_attention", "d_ff": 1536},
    "parameter-attention-b": {
        "ffn_layer": "parameter_attention", "d_ff": 512, "num_heads": 16,
        "parameter_key_dim": 1024 // 16, "parameter_value_dim": 1024 // 16,
    },
    "parsing-base": {"d_model": 1024, "attention_dropout": 0.2, **_residual_dropout(0.2), **_SEPARATE},
    "parsing-big": _BIG,
    "parsing-ice": _SEPARATE,
    "tiny": {"d_model": 64, "d_ff": 128, "num_heads": 4},
}  # fmt: skip

# Chollet, Deep Learning with Python, chapter 15; Keras's layer defaults.
_KERAS: dict[str, Any] = {
    "vocab_size": 15_000, "d_model": 256, "d_ff": 2048, "num_heads": 8, "encoder_layers": 1, "decoder_layers": 1,
    "positions": "learned", "max_positions": 20, "embedding_scale": False, "share_embeddings": False,
    "tie_word_embeddings": False, "mask_pad_embedding": False, "output_bias": True, "dropout": 0.0,
    "embedding_dropout": 0.0, "output_dropout": 0.5, "layer_norm_eps": 1e-3, "label_smoothing": 0.0,
}  # fmt: skip

PRESETS: dict[str, dict[str, Any]] = {
    **{f"transformer-{name}": {**_BASE, **changes} for name, changes in _SETS.items()},
    "keras-translation": _KERAS,
}


def preset(name: str, vocab_size: int | None = None) -> TransformerConfig:
    """The configuration of a published model, at its own vocabulary size unless told otherwise.

    Raises:
        SpecError: for a name that is not in `PRESETS`; the message lists the names.
    """
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    fields = dict(PRESETS[name])
    return TransformerConfig(**fields if vocab_size is None else {**fields, "vocab_size": vocab_size})
