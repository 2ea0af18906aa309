"""Which path a call takes, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from positionwise.functional import Map, compose, feed_forward


class Block(Protocol):
    """What a path needs of a feed-forward module."""

    layer1: nn.Module
    layer2: nn.Module
    linear_v: nn.Module | None
    activation: Map
    dropout: float
    training: bool


@dataclass(frozen=True)
class Path:
    """A way to compute the network, with the reason for taking it."""

    name: str
    reason: str
    run: Callable[[Block, Tensor], Tensor]


def run_reference(block: Block, x: Tensor) -> Tensor:
    """The reference function on the block's own weights."""
    first, second = cast(nn.Linear, block.layer1), cast(nn.Linear, block.layer2)
    gate = cast("nn.Linear | None", block.linear_v)
    return feed_forward(
        x, first.weight, second.weight, bias1=first.bias, bias2=second.bias,
        weight_v=None if gate is None else gate.weight, bias_gate=None if gate is None else gate.bias,
        activation=block.activation, dropout=block.dropout, training=block.training,
    )  # fmt: skip


def run_layers(block: Block, x: Tensor) -> Tensor:
    """The same composition, calling the block's layers as modules."""
    return compose(x, block.layer1, block.layer2, block.linear_v, block.activation, block.dropout, block.training)


REFERENCE = Path("reference", "the layers are plain linear maps", run_reference)
LAYERS = Path("layers", "a layer is not a plain nn.Linear without hooks, so each layer is called", run_layers)


def choose(block: Block) -> Path:
    """The path of a call: the layers themselves where calling them could mean more than a product."""
    layers = (block.layer1, block.layer2) if block.linear_v is None else (block.layer1, block.layer2, block.linear_v)
    if torch_module._has_any_global_hook() or not all(is_plain(layer) for layer in layers):  # type: ignore[no-untyped-call]
        return LAYERS
    return REFERENCE


def is_plain(layer: nn.Module) -> bool:
    """Whether calling the layer is W·x + b and nothing else: no subclass, parametrisation or hook."""
    return type(layer) is nn.Linear and not (
        layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
        or "forward" in layer.__dict__
    )
