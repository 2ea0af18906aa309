"""What the structure of a model does not tell, by family: rounds through a stack, and where versions differ."""

from __future__ import annotations

import re
from typing import Any

KNOWN = {
    "t5": "transformers 4 built T5 v1.1 with an output map of its own, as its checkpoints have it.",
    "mt5": "transformers 4 built mT5 with an output map of its own, as its checkpoints have it.",
    "umt5": "transformers 4 built UMT5 with an output map of its own, as its checkpoints have it.",
    "sam": "transformers 4.57 counted the 256 numbers of the shared positional embedding once; 5.24 stores them twice.",
}
"""Where the library's versions build different models of one configuration, by model type."""


def rounds(path: str, config: Any) -> int:
    """How often a layer is gone through in a forward pass, beyond once for each of its names.

    ALBERT goes through its groups of layers until it has made ``num_hidden_layers`` of them; Funnel repeats the layers
    of a block, and Perceiver its stack of self-attention.
    """
    groups, layers = (getattr(config, name, None) for name in ("num_hidden_groups", "num_hidden_layers"))
    first = re.search(r"\.(\d+)\.", f".{path}.")
    if groups and layers and first:  # the library's own rounding: layer i is of group int(i / (layers / groups))
        return sum(int(layer / (layers / groups)) == int(first[1]) for layer in range(layers))
    if getattr(config, "model_type", "") == "perceiver" and "self_attends." in path:
        return int(config.num_blocks)
    repeats = getattr(config, "block_repeats", None)
    block = re.search(r"blocks\.(\d+)\.", path)
    return int(repeats[int(block[1])]) if repeats and block and int(block[1]) < len(repeats) else 1


def differs_between_versions(config: Any) -> str | None:
    """What is known of a family whose model the library's versions build differently."""
    kind = getattr(config, "model_type", None)
    if kind == "t5" and not str(getattr(config, "feed_forward_proj", "")).startswith("gated"):
        return None
    return KNOWN.get(str(kind))
