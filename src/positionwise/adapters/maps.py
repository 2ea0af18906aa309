"""The linear maps of a model, whatever class holds them: what they read, what they write, what they store."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import nn

LINEAR, CONV1D = "nn.Linear (out, in)", "Conv1D (in, out)"


@dataclass(frozen=True)
class Map:
    """One linear map from ``wide_in`` to ``wide_out`` channels."""

    path: str
    """From the module that holds it: ``c_fc``, ``intermediate.dense``."""
    module: nn.Module
    wide_in: int
    wide_out: int
    layout: str
    kernel: tuple[int, ...] = ()
    """Of a convolution, where it is wider than one position."""
    groups: int = 1
    has_bias: bool = False

    @property
    def depthwise(self) -> bool:
        """Whether each channel is convolved by itself."""
        return self.groups > 1 and self.groups == self.wide_in == self.wide_out

    @property
    def weight(self) -> nn.Parameter | None:
        """The largest of its parameters: what a low-rank addition in the same module is added to."""
        return max(self.module.parameters(), key=torch.Tensor.numel, default=None)

    @property
    def parameters(self) -> int:
        """How many numbers the map has, bias included."""
        taps = math.prod(self.kernel)
        return self.wide_in // self.groups * self.wide_out * taps + (self.wide_out if self.has_bias else 0)

    @property
    def calculation(self) -> str:
        """The same, written out."""
        taps = " × ".join(f"{size:,}" for size in self.kernel)
        if self.depthwise:
            text = f"{self.wide_in:,} × {math.prod(self.kernel):,}"
        elif self.groups > 1:
            text = f"{self.groups} × ({self.wide_in // self.groups:,} × {self.wide_out // self.groups:,})"
        else:
            text = f"{self.wide_in:,} × {self.wide_out:,}"
        if taps and not self.depthwise:
            text += f" × {taps}"
        return text + (f" + {self.wide_out:,}" if self.has_bias else "")


def linear_map(module: nn.Module, path: str = "") -> Map | None:
    """The map that a module is, or None: a Linear, a Conv1D, a convolution, or one of their like by its attributes."""
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        size = module.kernel_size
        layout = f"nn.Conv{len(size)}d (out, in, {', '.join(map(str, size))})"
        kernel = tuple(size) if math.prod(size) > 1 else ()
        ends = module.in_channels, module.out_channels
        return Map(path, module, *ends, layout, kernel, module.groups, _has_bias(module))
    sizes = getattr(module, "in_features", None), getattr(module, "out_features", None)
    if _whole(sizes) and _holds_numbers(module):
        return Map(path, module, *sizes, LINEAR, has_bias=_has_bias(module))
    sizes = getattr(module, "nx", None), getattr(module, "nf", None)
    if _whole(sizes) and getattr(module._parameters.get("weight"), "shape", None) == sizes:
        return Map(path, module, *sizes, CONV1D, has_bias=_has_bias(module))
    return None


def _has_bias(module: nn.Module) -> bool:
    """Without asking for a computed bias: a parametrisation, such as spectral normalisation, changes as it is asked."""
    if "bias" in module._parameters:
        return module._parameters["bias"] is not None
    bias = inspect.getattr_static(module, "bias", None)
    if isinstance(bias, property):
        return True
    return module.bias() is not None if callable(bias) else bias is not None and bias is not False  # type: ignore


def _holds_numbers(module: nn.Module) -> bool:
    if inspect.getattr_static(module, "weight", None) is not None or "weight" in module._parameters:
        return True
    return any(True for _ in module.parameters()) or any(True for _ in module.buffers())


def _whole(sizes: tuple[Any, Any]) -> TypeGuard[tuple[int, int]]:
    return all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes)
