"""The Transformer around the feed-forward network: configuration, layers, models, presets."""

from positionwise.transformer.config import TransformerConfig, variant_fields
from positionwise.transformer.layers import DecoderLayer, EncoderLayer, FeedForwardBlock
from positionwise.transformer.models import TransformerForTranslation
from positionwise.transformer.parameter_attention import ParameterAttention
from positionwise.transformer.presets import PRESETS, preset

__all__ = [
    "PRESETS",
    "DecoderLayer",
    "EncoderLayer",
    "FeedForwardBlock",
    "ParameterAttention",
    "TransformerConfig",
    "TransformerForTranslation",
    "preset",
    "variant_fields",
]
