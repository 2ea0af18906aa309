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
_PASSED = {
    "layer_norm", "rms_norm", "batch_norm", "group_norm", "instance_norm", "normalize", "dropout", "alpha_dropout",
    "feature_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d", "dropout3d",
}  # fmt: skip
_CLAMPS = {"clamp", "clamp_", "clip", "clip_"}
_NEUTRAL = {"add": 0, "sub": 0, "__add__": 0, "__radd__": 0, "__sub__": 0, "__rsub__": 0, "__iadd__": 0, "prelu": 0.25}
"""What a weight becomes where it is no factor of a product; elsewhere ones."""
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
    output: Tensor | None = None
    """What the block gave, channels last, one row for each position; None where that is no tensor."""
    scaled: bool = False
    """Whether weights were taken as ones, outside of products and normalisations."""
    normed: set[int] = field(default_factory=set)
    """Widths of the normalisations and learned scales that were passed by."""
    outputs: list[Tensor] = field(default_factory=list)
    """What parts gave that has a row for each token: a router's choice of experts is among them."""


class WithoutWeights(TorchFunctionMode):
    """Products with a weight are drawn; all other operations happen.

    Weights are tensors on the meta device: all that reaches an operation from there.

    Args:
        origin: ids of what the weights stand for, by their own ids.
        record: where products are noted.
        drawn: ids of those whose products are drawn, where not all are; the others' products are zero.
        shaken: ids of those whose products are drawn with other signs at the first position.
    """

    def __init__(self, origin: dict[int, int], record: Record, drawn: set[int] | None, shaken: frozenset[int]) -> None:
        super().__init__()
        self.origin = origin
        self.drawn = drawn
        self.shaken = shaken
        self.record = record
        self.generator = torch.Generator().manual_seed(0)
        self.met: dict[int | None, int] = {}
        self.derived: list[Tensor] = []  # kept, so that no id is given to another

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _PASSED:
            return args[0] if args else kwargs["input"]
        tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
        weights = [tensor for tensor in tensors if tensor.is_meta]
        if not weights:
            if name in _PRODUCTS:
                _check_size(func, args, kwargs)
            return func(*args, **kwargs)
        if name in _PRODUCTS and len(weights) < len(tensors):
            return self._product(func, args, kwargs, tensors, weights)
        if name == "__getitem__" and args[0].is_meta:
            return self._derived(func(args[0], tree_map(_plain_index, args[1])), args[0])
        if len(weights) == len(tensors):
            out = func(*args, **kwargs)
            if not isinstance(out, Tensor):
                return out
            like = [w for w in weights if len(weights) == 1 or (id(w) in self.origin and w.numel() == out.numel())]
            return self._derived(out, like[0]) if like else out
        if name in _CLAMPS and not args[0].is_meta:
            return args[0]  # between limits that are stored, and so not known
        self.record.scaled |= name not in _NEUTRAL
        args, kwargs = tree_map(lambda leaf: self._stand_in(leaf, name), (args, kwargs))
        return func(*args, **kwargs)

    def _derived(self, out: Tensor, weight: Tensor) -> Tensor:
        """The output, known to come of the weight: a part of it, or all of it in another form."""
        if id(weight) in self.origin:
            self.origin[id(out)] = self.origin[id(weight)]
            self.derived.append(out)
        return out

    def _stand_in(self, leaf: Any, name: str) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.is_meta:
            return leaf
        if leaf.numel() > _LARGEST_STAND_IN:
            raise ValueError(f"expected a weight of at most {_LARGEST_STAND_IN} numbers; got {tuple(leaf.shape)}")
        return torch.full(leaf.shape, _NEUTRAL.get(name, 1), dtype=leaf.dtype)

    def _product(self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor], weights: list[Tensor]) -> Tensor:
        number = next(tensor for tensor in tensors if not tensor.is_meta)
        args, kwargs = tree_map(lambda leaf: _to_meta(leaf, number.dtype), (args, kwargs))
        shape = func(*args, **kwargs).shape
        index = torch.randint(len(GRID), shape, generator=self.generator)
        weight = max(weights, key=Tensor.numel)
        known = self.origin.get(id(weight))
        order = self.met.setdefault(known, len(self.met))
        gave = torch.tensor(GRID, dtype=number.dtype)[index] * (1 + 0.01 * (order % 17))  # two maps' are told apart
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
