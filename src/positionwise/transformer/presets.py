"""Published models by name."""

from __future__ import annotations

from typing import Any

from positionwise.errors import unknown_name
from positionwise.transformer.config import TransformerConfig

# tensor2tensor v1.0.14, transformer.py, transformer_base(); 37,000 is the paper's vocabulary (section 5.1).
_TENSOR2TENSOR: dict[str, Any] = {"vocab_size": 37_000, "target_spaces": 32}

# Chollet, Deep Learning with Python, chapter 15; Keras's layer defaults.
_KERAS: dict[str, Any] = {
    "vocab_size": 15_000, "d_model": 256, "d_ff": 2048, "num_heads": 8, "encoder_layers": 1, "decoder_layers": 1,
    "positions": "learned", "max_positions": 20, "embedding_scale": False, "share_embeddings": False,
    "tie_word_embeddings": False, "mask_pad_embedding": False, "output_bias": True, "dropout": 0.0,
    "embedding_dropout": 0.0, "output_dropout": 0.5, "layer_norm_eps": 1e-3, "label_smoothing": 0.0,
}  # fmt: skip

PRESETS: dict[str, dict[str, Any]] = {"transformer-base": _TENSOR2TENSOR, "keras-translation": _KERAS}


def preset(name: str, vocab_size: int | None = None) -> TransformerConfig:
    """The configuration of a published model, at its own vocabulary size unless told otherwise.

    Raises:
        SpecError: for a name that is not in `PRESETS`; the message lists the names.
    """
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    fields = dict(PRESETS[name])
    return TransformerConfig(**fields if vocab_size is None else {**fields, "vocab_size": vocab_size})
