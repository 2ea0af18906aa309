"""Running a module's own code on numbers while its weights stay out of it.

A product with a weight gives drawn numbers of the right shape instead of being computed, so that a block of any size
runs in no time, on the meta device too, and everything between its maps (activation, gate, halves) really happens.
Normalisations are passed by: what goes into them comes out. What each product read and gave is recorded, and tells
which maps follow which, and through what function.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

GRID = (-2.3, -1.1, -0.4, 0.3, 0.9, 1.7, 2.6, 11.0)
"""What products give: few values, so that a function of one number shows as equal outputs for equal inputs; the last
lies beyond the limits at which published blocks clamp."""
SIDE = 4
TOKENS = SIDE * SIDE
_PRODUCTS = {
    "linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "addmm", "baddbmm", "einsum", "conv1d", "conv2d",
    "conv3d", "grouped_mm", "_grouped_mm",
}  # fmt: skip
_NORMS = {"layer_norm", "rms_norm", "batch_norm", "group_norm", "instance_norm", "normalize"}
_LARGEST_STAND_IN = 1 << 24
"""Elements of the largest weight that a sum or elementwise product replaces by zeros or ones."""
_LARGEST_PRODUCT = 1 << 22
"""Elements of the largest product of two numbers that is computed."""


@dataclass(frozen=True)
class Product:
    """One product with a weight: what went in and what came out, channels last, one row for each position."""

    weight: int | None
    """id of the parameter; None where the weight was a copy of a part of it."""
    read: Tensor
    gave: Tensor


@dataclass
class Record:
    """What a run saw."""

    products: list[Product] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    """What parts gave that has a row for each token: a router's choice of experts is among them."""


class WithoutWeights(TorchFunctionMode):
    """Products with a weight are drawn; all other operations happen.

    Args:
        weights: the parameters and buffers of the block, by their ids.
        drawn: ids of those whose products are drawn, where not all are; the others' products are zero.
        shaken: ids of those whose products are drawn with other signs at the first position.
    """

    def __init__(
        self, weights: dict[int, Tensor], drawn: set[int] | None = None, shaken: frozenset[int] = frozenset()
    ) -> None:
        super().__init__()
        self.shaken = shaken
        self.weights = weights
        self.drawn = drawn
        self.record = Record()
        self.generator = torch.Generator().manual_seed(0)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _NORMS:
            return args[0] if args else kwargs["input"]
        tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
        weights = [tensor for tensor in tensors if self._is_weight(tensor)]
        if not weights:
            if name in _PRODUCTS:
                _check_size(func, args, kwargs)
            return func(*args, **kwargs)
        if name in _PRODUCTS and len(weights) < len(tensors):
            return self._product(func, args, kwargs, tensors, weights)
        if name == "__getitem__" and self._is_weight(args[0]):
            return func(args[0], tree_map(_plain_index, args[1]))
        if len(weights) == len(tensors):
            return func(*args, **kwargs)
        neutral = torch.zeros if name in {"add", "sub", "__add__", "__radd__", "__sub__", "__rsub__"} else torch.ones
        args, kwargs = tree_map(lambda leaf: self._stand_in(leaf, neutral), (args, kwargs))
        return func(*args, **kwargs)

    def _is_weight(self, tensor: Tensor) -> bool:
        return tensor.is_meta or id(tensor) in self.weights or id(tensor._base) in self.weights

    def _stand_in(self, leaf: Any, neutral: Any) -> Any:
        if not isinstance(leaf, Tensor) or not self._is_weight(leaf):
            return leaf
        if leaf.numel() > _LARGEST_STAND_IN:
            raise ValueError(f"expected a weight of at most {_LARGEST_STAND_IN} numbers; got {tuple(leaf.shape)}")
        return neutral(leaf.shape, dtype=leaf.dtype)

    def _product(self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor], weights: list[Tensor]) -> Tensor:
        number = next(tensor for tensor in tensors if not self._is_weight(tensor))
        args, kwargs = tree_map(lambda leaf: _to_meta(leaf, number.dtype), (args, kwargs))
        shape = func(*args, **kwargs).shape
        index = torch.randint(len(GRID), shape, generator=self.generator)
        scale = 1 + 0.01 * (len(self.record.products) % 17)  # so that two maps' numbers are told apart
        gave = torch.tensor(GRID, dtype=number.dtype)[index] * scale
        weight = max(weights, key=Tensor.numel)
        known = next((key for key in (id(weight), id(weight._base)) if key in self.weights), None)
        if self.drawn is not None and known not in self.drawn:
            return torch.zeros_like(gave)
        if known in self.shaken:
            places = gave.flatten(2)[..., 0] if func.__name__.startswith("conv") else gave.view(-1, gave.shape[-1])[0]
            places.neg_()
        axis = 1 if func.__name__.startswith("conv") else -1
        self.record.products.append(Product(known, _rows(number, axis), _rows(gave, axis)))
        return gave


def _check_size(func: Any, args: Any, kwargs: Any) -> None:
    """Refuse a product of two numbers that comes of a wrong argument; attention's are small at so few positions."""
    shapes = tree_map(lambda leaf: leaf.to("meta") if isinstance(leaf, Tensor) else leaf, (args, kwargs))
    if (size := func(*shapes[0], **shapes[1]).numel()) > _LARGEST_PRODUCT:
        raise ValueError(f"expected a product of at most {_LARGEST_PRODUCT} numbers; got {size}")


def _to_meta(leaf: Any, dtype: torch.dtype) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf.to("meta", dtype if leaf.is_floating_point() else leaf.dtype)


def _plain_index(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return int(leaf) if leaf.dim() == 0 else leaf.to("meta")
    return leaf


def _rows(tensor: Tensor, axis: int) -> Tensor:
    """(positions, channels)."""
    last = tensor.detach().movedim(axis, -1)
    return last.reshape(-1, last.shape[-1]).clone()
