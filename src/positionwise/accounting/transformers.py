"""The translation Transformer's account in closed form, from its configuration alone."""

from __future__ import annotations

import re

from positionwise.spec import Component
from positionwise.transformer import TransformerConfig

POSITIONS = {
    "encoder": (("B", "batch"), ("S", "source positions")),
    "decoder": (("B", "batch"), ("T", "target positions")),
}


def closed_form(config: TransformerConfig) -> list[Component]:
    """Every component's size from the configuration, those of no parameters left out."""
    d, encoders, decoders = config.d_model, config.encoder_layers, config.decoder_layers
    rows = [
        _table("Source and target embedding" if config.share_embeddings else "Source embedding", config.vocab_size, d)
    ]
    if not config.share_embeddings:
        rows.append(_table("Target embedding", config.target_size, d))
    rows.append(_table("Target-space embedding", config.target_spaces, d))
    if config.positions == "learned":
        rows += [_table(f"{side} positions", config.max_positions, d) for side in ("Source", "Target")]
    rows += [
        _attention("Encoder self-attention", config, encoders),
        _attention("Decoder self-attention", config, decoders),
        _attention("Cross-attention", config, decoders),
        _norms(config),
        _feed_forward("Encoder feed-forward networks", config, encoders),
        _feed_forward("Decoder feed-forward networks", config, decoders),
    ]
    if not config.tie_word_embeddings:
        bias = config.target_size if config.output_bias else 0
        calculation = f"{d:,} × {config.target_size:,}" + (f" + {bias:,}" if bias else "")
        rows.append(Component("Output map", calculation, d * config.target_size + bias))
    return [row for row in rows if row.parameters]


def _table(name: str, rows: int, width: int) -> Component:
    return Component(name, f"{rows:,} × {width:,}", rows * width)


def _attention(name: str, config: TransformerConfig, layers: int) -> Component:
    d, keys, values = config.d_model, config.num_heads * config.head_dim, config.num_heads * config.head_value_dim
    if keys == values:
        into = f"3 × ({d:,} × {keys:,} + {keys:,})"
    else:
        into = f"2 × ({d:,} × {keys:,} + {keys:,}) + {d:,} × {values:,} + {values:,}"
    size = (2 * keys + values) * (d + 1) + values * d + d
    return Component(name, f"{layers} × ({into} + {values:,} × {d:,} + {d:,})", layers * size)


def _norms(config: TransformerConfig) -> Component:
    count = 2 * config.encoder_layers + 3 * config.decoder_layers + (2 if config.norm_first else 0)
    return Component("Layer norms", f"{count} × 2 × {config.d_model:,}", count * 2 * config.d_model)


def _feed_forward(name: str, config: TransformerConfig, layers: int) -> Component:
    spec = config.feed_forward_spec()
    size = 0 if spec is None else spec.parameters
    return Component(name, f"{layers} × {size:,}", layers * size)


# A parameter's name, and the closed form's component that it belongs to.
_PLACES = (
    (r"source_embedding\.", "Source embedding"),
    (r"target_embedding\.", "Target embedding"),
    (r"target_space_embedding\.", "Target-space embedding"),
    (r"source_positions\.", "Source positions"),
    (r"target_positions\.", "Target positions"),
    (r".*norm\.", "Layer norms"),
    (r"encoder\.layers\.\d+\.self_attention\.", "Encoder self-attention"),
    (r"decoder\.layers\.\d+\.self_attention\.", "Decoder self-attention"),
    (r"decoder\.layers\.\d+\.cross_attention\.", "Cross-attention"),
    (r"encoder\.layers\.\d+\.feed_forward\.", "Encoder feed-forward networks"),
    (r"decoder\.layers\.\d+\.feed_forward\.", "Decoder feed-forward networks"),
    (r"output\.", "Output map"),
)


def place(parameter: str, config: TransformerConfig) -> str:
    """The component that a parameter of the model belongs to, by its name; the name itself if to none."""
    name = next((name for pattern, name in _PLACES if re.match(pattern, parameter)), parameter)
    return "Source and target embedding" if name == "Source embedding" and config.share_embeddings else name


def forward_flops(config: TransformerConfig, batch: int, sequence: int) -> int:
    """FLOPs of one forward pass over sources and targets of ``sequence`` positions each.

    A multiply-add counts as two; products only: no biases, norms, softmax or activations. Attention's two products are
    counted over all pairs of positions, causal or not, as they are computed.
    """
    d, width = config.d_model, config.num_heads * (config.head_dim + config.head_value_dim)
    maps = 2 * d * width * sequence
    scores = width * sequence * sequence
    attentions = config.encoder_layers + 2 * config.decoder_layers
    blocks = config.encoder_layers + config.decoder_layers
    output = d * config.target_size * sequence
    products = attentions * (maps + scores) + output
    spec = config.feed_forward_spec()
    return batch * 2 * products + (0 if spec is None else blocks * spec.flops(batch * sequence))
