"""Running a module's own code on numbers while its weights stay out of it.

A product with a weight gives drawn numbers of the right shape instead of being computed, so that a block of any size
runs in no time, on the meta device too, and everything between its maps (activation, gate, halves) really happens.
Normalisations are passed by: what goes into them comes out. What each product read and gave is recorded, and tells
which maps follow which, and through what function.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
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
    chosen: list[Tensor] = field(default_factory=list)
    """Integer tensors that modules were called with: a router's choice of experts is among them."""
    output: Any = None


class _WithoutWeights(TorchFunctionMode):
    def __init__(self, weights: dict[int, Tensor]) -> None:
        super().__init__()
        self.weights = weights
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
            return func(*args, **kwargs)
        if name in _PRODUCTS and len(weights) < len(tensors):
            return self._product(func, args, kwargs, tensors, weights)
        if name == "__getitem__" and self._is_weight(args[0]):
            return func(args[0], tree_map(_plain_index, args[1]))
        if len(weights) == len(tensors):
            return func(*tree_map(_to_meta, args), **tree_map(_to_meta, kwargs))
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
        shape = func(*tree_map(_to_meta, args), **tree_map(_to_meta, kwargs)).shape
        index = torch.randint(len(GRID), shape, generator=self.generator)
        scale = 1 + 0.01 * (len(self.record.products) % 17)  # so that two maps' numbers are told apart
        gave = torch.tensor(GRID, dtype=number.dtype)[index] * scale
        weight = max(weights, key=Tensor.numel)
        known = next((key for key in (id(weight), id(weight._base)) if key in self.weights), None)
        axis = 1 if func.__name__.startswith("conv") else -1
        self.record.products.append(Product(known, _rows(number, axis), _rows(gave, axis)))
        return gave


def _to_meta(leaf: Any) -> Any:
    return leaf.to("meta") if isinstance(leaf, Tensor) and not leaf.is_meta else leaf


def _plain_index(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return int(leaf) if leaf.dim() == 0 else leaf.to("meta")
    return leaf


def _rows(tensor: Tensor, axis: int) -> Tensor:
    """(positions, channels)."""
    last = tensor.detach().movedim(axis, -1)
    return last.reshape(-1, last.shape[-1]).clone()


def run(module: nn.Module, width: int, dtype: torch.dtype = torch.float64) -> Iterator[Record]:
    """Records of the module's forward, one for each way of calling it that its code accepts.

    Args:
        module: the block; nothing of it is changed.
        width: channels of its input.
        dtype: of the numbers.
    """
    x = torch.tensor(GRID, dtype=dtype)[torch.arange(TOKENS * width) % len(GRID)].reshape(1, TOKENS, width)
    inputs = (x, x[0], x.mT, x.mT.reshape(1, width, SIDE, SIDE), x.reshape(1, SIDE, SIDE, width))
    for tensor in inputs:
        for filler in (None, tensor, SIDE, torch.ones(1, TOKENS, dtype=dtype)):
            arguments = _arguments(module, tensor, filler)
            if arguments is None:
                continue
            record = _run(module, arguments)
            if record is not None:
                yield record
            if len(arguments) == 1:
                break  # no filler was asked for


def _arguments(module: nn.Module, tensor: Tensor, filler: Any) -> tuple[Any, ...] | None:
    """What to call forward with: the tensor, and the filler for every other argument without a default."""
    try:
        parameters = list(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):
        return None
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = sum(p.default is p.empty for p in positional)
    if not positional and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return None
    return (tensor, *[filler] * (required - 1))


def _run(module: nn.Module, arguments: tuple[Any, ...]) -> Record | None:
    weights = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    mode = _WithoutWeights(weights)
    try:
        with torch.no_grad(), torch.device("cpu"), _resting(module, mode.record), mode:
            mode.record.output = module(*(a.clone() if isinstance(a, Tensor) else a for a in arguments))
    except Exception:  # whatever the module's code raises on numbers it did not expect: this way of calling is not one
        return None
    return mode.record


@contextmanager
def _resting(module: nn.Module, record: Record) -> Iterator[None]:
    """Evaluation, norms passed by, and a note of integer arguments; all of it undone at the end."""
    training = {part: part.training for part in module.modules()}
    with ExitStack() as stack:
        for part in training:
            part.training = False
            original = getattr(type(part).forward, "__wrapped__", None)
            if original is not None and any(weight.dim() == 3 for weight in part._parameters.values() if weight is not None):
                part.forward = MethodType(original, part)  # its plain loop over experts, not a grouped kernel
                stack.callback(part.__dict__.pop, "forward")
            if is_norm(part):
                stack.callback(part.register_forward_hook(lambda _module, args, _output: args[0]).remove)
            elif part is not module:
                stack.callback(part.register_forward_pre_hook(_choices(record)).remove)
        try:
            yield
        finally:
            for part, was in training.items():
                part.training = was


def _choices(record: Record) -> Any:
    def look(_module: nn.Module, args: tuple[Any, ...]) -> None:
        record.chosen.extend(a for a in args if isinstance(a, Tensor) and not a.is_floating_point() and a.dim() == 2)

    return look


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a normalisation or a learned scale: a leaf that owns vectors only."""
    own = [parameter for parameter in module._parameters.values() if parameter is not None]
    vectors = bool(own) and all(parameter.dim() == 1 and parameter.numel() > 1 for parameter in own)
    return (vectors and not any(True for _ in module.children())) or type(module).__name__.endswith("Norm")
