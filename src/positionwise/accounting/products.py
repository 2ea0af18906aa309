"""The products of a model's own forward pass over token ids, counted on its shadow: shapes only, nothing is computed.

A multiply-add counts as two. Attention's two products are counted over all pairs of positions, as eager code computes
them, causal or sliding or not. Mixtures are passed by, since which experts run depends on numbers: they count as the
maps that each token meets. What mixes positions without a product (a scan, say) has no count here, so a model with
such layers has none.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from torch.utils.flop_counter import flop_registry

from positionwise.adapters import Site, linear_map
from positionwise.adapters.saved import is_table, shadow, unseen

MOST_STEPS = 20_000
"""Operations of a pass, a few seconds' worth; layers of one kind run once, so published models stay far below it."""
RETURNS: tuple[Callable[[Tensor], Any], ...] = (lambda x: x, lambda x: (x, None), lambda x: (x, None, None))
"""What mixtures give in published layers: their output alone, or beside the router's logits and the like."""
MASKS = ((), ("attention_mask", "decoder_attention_mask"), ("decoder_attention_mask",))
"""Masks to give: with one, some code need not look at numbers to see that nothing is masked; other code then must."""


class NoCountError(Exception):
    """Why the products of a model cannot be counted."""


class _NotRunError(NoCountError):
    """The model's code raised."""


@dataclass(frozen=True)
class Flops:
    """Of a forward pass, and of its gradients."""

    forward: int
    backward: int


@dataclass
class _Seen:
    """What a pass has counted so far."""

    forward: int = 0
    backward: int = 0
    mixing: int = 0
    """Products of two activations: attention's."""
    met: set[int] = field(default_factory=set)
    """Storages of the weights that entered a product."""
    steps: int = 0
    in_table: bool = False
    without: list[str] = field(default_factory=list)
    """Layers in which no product mixed the positions."""


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, weights: set[int], seen: _Seen) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.weights, self.seen = weights, seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.seen.steps += 1
        if self.seen.steps > MOST_STEPS:
            raise NoCountError(f"a pass takes more than {MOST_STEPS:,} operations, as recurrences do")
        out = func(*args, **kwargs)
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self._product(func.__name__, count(*args, **kwargs, out_val=out), args)
        return out

    def _product(self, name: str, flops: int, args: Any) -> None:
        operands = args[1:3] if name.startswith(("addmm", "baddbmm")) else args[:2]
        if self.seen.in_table and operands[0].shape[-1] == 1:
            return  # an outer product of frequencies and positions
        met = {_storage(operand) for operand in operands} & self.weights
        self.seen.met |= met
        self.seen.mixing += not met
        self.seen.forward += flops
        # The gradient of each operand that has one is a product of the same size.
        self.seen.backward += flops * sum(operand.requires_grad for operand in operands)


def count_products(model: nn.Module, sites: list[Site], mixtures: Mapping[str, Flops], sizes: tuple[int, int]) -> Flops:
    """FLOPs of one pass over sequences of equal length, targets as long as sources.

    Args:
        model: any; only a transformers model that reads token ids has a count.
        sites: its feed-forward networks.
        mixtures: FLOPs for one token of those among them that are mixtures, by path.
        sizes: (batch, sequence).

    Raises:
        NoCountError: where something of the model has no count.
    """
    if getattr(model, "main_input_name", None) != "input_ids":
        raise NoCountError(
            "it is no transformers model that reads token ids, so that batch and sequence do not say what its parts see"
        )
    with unseen():
        passing = _Pass(model, sites, mixtures)
        reason: _NotRunError | None = None
        for masked, returns in product(MASKS, RETURNS if mixtures else RETURNS[:1]):
            try:
                if mixtures:  # with a batch of one, code that unpacks what is no tuple fails
                    passing.run((1, 8), masked, returns)
                return passing.run(sizes, masked, returns)
            except _NotRunError as error:
                reason = reason or error
        raise reason or NoCountError("")


class _Pass:
    """A model's shadow, prepared to be counted."""

    def __init__(self, model: nn.Module, sites: list[Site], mixtures: Mapping[str, Flops]) -> None:
        self.copy = shadow(
            model, training=False, dtype=torch.float32, hollow=tuple(model.get_submodule(path) for path in mixtures)
        )
        _eager(self.copy)
        self.maps = {path: part for path, part in self.copy.named_modules() if linear_map(part) is not None}
        self.weights = {_storage(parameter) for parameter in self.copy.parameters()}
        self.known: dict[Any, tuple[Any, _Seen, set[str]]] = {}
        self.seen, self.returns = _Seen(), RETURNS[0]
        for path, cost in mixtures.items():
            self.copy.get_submodule(path).forward = self._passed_by(cost)
        for part in self.copy.modules():
            if is_table(part):
                part.register_forward_pre_hook(lambda *_: setattr(self.seen, "in_table", True))
                part.register_forward_hook(lambda *_: setattr(self.seen, "in_table", False))
        networks = {f"{site.path}.{entry.path}" for site in sites for entry in site.maps}
        others = {path: part for path, part in self.maps.items() if path not in networks}
        for name, stack in self.copy.named_modules():
            for key, layer in stack.named_children() if isinstance(stack, nn.ModuleList) else ():
                path = f"{name}.{key}"
                beside = [part for other, part in others.items() if other.startswith(f"{path}.")]
                layer.forward = self._layer(layer, path, beside, _kind(layer, key))

    def run(self, sizes: tuple[int, int], masked: tuple[str, ...], returns: Callable[[Tensor], Any]) -> Flops:
        """One pass over token ids of these sizes (batch, sequence)."""
        self.seen, self.returns, self.known = _Seen(), returns, {}
        accepted = inspect.signature(self.copy.forward).parameters
        ids = torch.empty(sizes, dtype=torch.long, device="meta")
        given = {**dict.fromkeys(("input_ids", "decoder_input_ids", *masked), ids), "use_cache": False}
        try:
            with _Counter(self.weights, self.seen):
                self.copy(**{name: value for name, value in given.items() if name in accepted})
        except NoCountError:
            raise
        except Exception as error:  # whatever the library's code raises
            said = (str(error).strip() or type(error).__name__).splitlines()[0][:120]
            raise _NotRunError(f"its code does not run on shapes alone ({said})") from None
        unmet = [path for path, part in self.maps.items() if not self.seen.met & set(map(_storage, part.parameters()))]
        for paths, why in ((unmet, "a pass does not meet"), (self.seen.without, "no product mixes the positions in")):
            if paths:
                more = f" and {len(paths) - 1} more parts" if paths[1:] else ""
                raise NoCountError(f"{why} {paths[0]}{more}")
        return Flops(self.seen.forward, self.seen.backward)

    def _passed_by(self, cost: Flops) -> Callable[..., Any]:
        """A mixture that counts as the maps that each token meets, and gives what it was given."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            x = next(a for a in (*args, *kwargs.values()) if isinstance(a, Tensor))
            tokens = x.numel() // x.shape[-1]
            self.seen.forward += cost.forward * tokens
            self.seen.backward += cost.backward * tokens
            return self.returns(x)

        return forward

    def _layer(self, layer: nn.Module, path: str, beside: list[nn.Module], kind: Any) -> Callable[..., Any]:
        """A layer of a stack, run once among those of its kind that are given tensors of the same shapes.

        Where it holds maps beside its feed-forward networks, a product of two activations has to mix the positions. A
        depthwise convolution is taken for a state-space layer's, whose scan is no product.
        """
        original = layer.forward
        scans = any(entry.depthwise for entry in map(linear_map, beside) if entry is not None)
        names = {_storage(parameter): name for name, parameter in layer.named_parameters()}

        def forward(*args: Any, **kwargs: Any) -> Any:
            key = (kind, _shapes(args, kwargs))
            if key not in self.known:
                before = replace(self.seen, met=set(self.seen.met))
                out = original(*args, **kwargs)
                cost = _Seen(*(getattr(self.seen, n) - getattr(before, n) for n in ("forward", "backward", "mixing")))
                self.known[key] = out, cost, {names[one] for one in self.seen.met if one in names}
            else:
                out, cost, met = self.known[key]
                for name in ("forward", "backward", "mixing"):
                    setattr(self.seen, name, getattr(self.seen, name) + getattr(cost, name))
                self.seen.met |= {storage for storage, name in names.items() if name in met}
            if beside and (scans or not cost.mixing):
                self.seen.without.append(path)
            return out

        return forward


def _shapes(args: Any, kwargs: Any) -> tuple[Any, ...]:
    """What a layer is given, as far as its products can depend on it; other objects are themselves."""
    leaves, structure = tree_flatten((args, kwargs))
    return (
        str(structure),
        *(
            (tuple(leaf.shape), leaf.dtype, leaf.requires_grad) if isinstance(leaf, Tensor)
            else leaf if isinstance(leaf, int | float | str | None) else id(leaf)
            for leaf in leaves
        ),
    )  # fmt: skip


def _kind(layer: nn.Module, index: str) -> Any:
    """What layers of one kind share: classes, shapes, and plain attributes but for the layer's own index."""
    parts = []
    for name, part in layer.named_modules():
        plain = {
            attribute: "index" if str(value) == index else value
            for attribute, value in part.__dict__.items()
            if isinstance(value, int | float | str | None)
        }
        shapes = [(n, tuple(p.shape), p.requires_grad) for n, p in part._parameters.items() if p is not None]
        parts.append((name, type(part), tuple(plain.items()), tuple(shapes)))
    return tuple(parts)


def _eager(copy: nn.Module) -> None:
    """Let a shadow compute its attention as products, whichever way its model was built with."""
    configs: dict[int, Any] = {}
    for part in copy.modules():
        config = part.__dict__.get("config")
        if hasattr(config, "_attn_implementation"):
            if id(config) not in configs:
                configs[id(config)] = deepcopy(config)
                configs[id(config)]._attn_implementation = "eager"
            part.config = configs[id(config)]


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
