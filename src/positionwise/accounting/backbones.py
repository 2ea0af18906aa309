"""Backbones that come from timm, where it is not installed: the same network of transformers' own."""

from __future__ import annotations

import copy
import importlib.util
from typing import Any

_RESNETS = {
    "resnet18": ("basic", [64, 128, 256, 512], [2, 2, 2, 2]),
    "resnet34": ("basic", [64, 128, 256, 512], [3, 4, 6, 3]),
    "resnet50": ("bottleneck", [256, 512, 1024, 2048], [3, 4, 6, 3]),
    "resnet101": ("bottleneck", [256, 512, 1024, 2048], [3, 4, 23, 3]),
    "resnet152": ("bottleneck", [256, 512, 1024, 2048], [3, 8, 36, 3]),
}
"""He et al. 2015, arXiv 1512.03385, table 1: kind of layer, widths and depths."""


def without_timm(config: Any) -> tuple[Any, tuple[str, ...]]:
    """The configuration with transformers' ResNet for timm's where timm cannot be imported, and a note that says so."""
    backbone: Any = getattr(config, "backbone_config", None)
    name = getattr(backbone, "backbone", None)
    if importlib.util.find_spec("timm") is not None or getattr(backbone, "model_type", "") != "timm_backbone":
        return config, ()
    if name not in _RESNETS:
        return config, ()
    from transformers import ResNetConfig

    kind, widths, depths = _RESNETS[name]
    stages = [f"stage{index}" for index in backbone.out_indices or (4,) if index]
    changed = copy.deepcopy(config)
    sizes = {"num_channels": backbone.num_channels, "layer_type": kind, "hidden_sizes": widths, "depths": depths}
    changed.backbone_config = ResNetConfig.from_dict(sizes | {"out_features": stages})
    note = f"timm is not installed: its {name}, the backbone, is counted as transformers' ResNet of the same sizes."
    return changed, (note,)
