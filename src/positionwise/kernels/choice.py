"""Which path a call takes, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.utils.checkpoint import checkpoint

from positionwise.functional import Map, compose, feed_forward
from positionwise.kernels.dropout import draw_seed, drop
from positionwise.kernels.elementwise import TABLE
from positionwise.kernels.operators import feed_forward as lean_operator

CHUNK = 1024
"""Tokens that the lean path takes at once: enough for a product's full speed, few enough for buffers in the cache."""
RECOMPUTE_CHUNK = 512
"""The same for the recompute path, whose memory it bounds."""
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class Block(Protocol):
    """What a path needs of a feed-forward module."""

    spec: Any
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
    w1, b1, w2, b2, v, c = parameters(block)
    assert w1 is not None
    assert w2 is not None
    return feed_forward(
        x, w1, w2, bias1=b1, bias2=b2, weight_v=v, bias_gate=c,
        activation=block.activation, dropout=block.dropout, training=block.training,
    )  # fmt: skip


def run_layers(block: Block, x: Tensor) -> Tensor:
    """The same composition, calling the block's layers as modules."""
    rate = block.dropout if block.training else 0.0
    return compose(x, block.layer1, block.layer2, block.linear_v, block.activation, lambda h: drop(h, rate))


def run_checkpoint(block: Block, x: Tensor) -> Tensor:
    """`run_layers`, of which PyTorch's checkpointing saves x alone and computes the rest again, both maps."""
    if not torch.is_grad_enabled():
        return run_layers(block, x)
    return cast(Tensor, checkpoint(lambda given: run_layers(block, given), x, use_reentrant=False))


def run_lean(block: Block, x: Tensor) -> Tensor:
    """The operator that saves one hidden-sized tensor for backward, two with a gate."""
    return _operator(block, x, save=True, chunk=CHUNK)


def run_recompute(block: Block, x: Tensor) -> Tensor:
    """The operator that saves x alone and computes the first maps again."""
    return _operator(block, x, save=False, chunk=block.spec.chunk_size or RECOMPUTE_CHUNK)


def _operator(block: Block, x: Tensor, save: bool, chunk: int) -> Tensor:
    weights = parameters(block)
    rate = block.dropout if block.training else 0.0
    seed = draw_seed() if rate else None
    y: Tensor = lean_operator(
        x.reshape(-1, x.shape[-1]), *weights, _activation(block), rate, seed, save, chunk
    )[0]  # fmt: skip
    return y.reshape(*x.shape[:-1], y.shape[-1])


REFERENCE = Path("reference", "the layers are plain linear maps", run_reference)
LAYERS = Path("layers", "a layer is not a plain nn.Linear without hooks, so each layer is called", run_layers)
CHECKPOINT = Path("checkpoint", "the layers are called, and called again in backward", run_checkpoint)
LEAN = Path("lean", "gradients are on, and the layers are plain linear maps", run_lean)
RECOMPUTE = Path("recompute", "recompute is on, and the layers are plain linear maps", run_recompute)


def choose(block: Block, x: Tensor) -> Path:
    """The path of a call: the layers themselves where calling them could mean more than a product."""
    layers = (block.layer1, block.layer2) if block.linear_v is None else (block.layer1, block.layer2, block.linear_v)
    if torch_module._has_any_global_hook() or not all(is_plain(layer) for layer in layers):  # type: ignore[no-untyped-call]
        return CHECKPOINT if block.spec.recompute else LAYERS
    if _is_transformed(block, x):
        return Path("reference", "a transform of torch.func or a forward-mode derivative is at work", run_reference)
    if block.spec.recompute:
        return RECOMPUTE if _is_ordinary(block, x) else CHECKPOINT
    if block.spec.backend == "reference":
        return Path("reference", "backend='reference'", run_reference)
    if why := _not_lean(block, x):
        return Path("reference", why, run_reference)
    return LEAN


def _not_lean(block: Block, x: Tensor) -> str | None:
    if torch.compiler.is_compiling() and block.spec.backend == "auto":
        return "torch.compile fuses the plain network itself"
    if not _is_ordinary(block, x):
        return "the layers are plain linear maps, and a tensor or the activation is not an ordinary one"
    if not torch.is_grad_enabled() or not any(t.requires_grad for t in (x, *_given(block))):
        return "the layers are plain linear maps, and there are no gradients to save for"
    return None


def _is_ordinary(block: Block, x: Tensor) -> bool:
    """Whether the operator computes what the reference would: no subclass, transform or autocast sees the parts."""
    if _activation(block) not in TABLE or _is_autocast(x):
        return False
    if torch.compiler.is_compiling():
        return True
    tensors = (x, *_given(block))
    return all(
        type(t) in (Tensor, nn.Parameter)
        and t.dtype == x.dtype
        and t.device == x.device
        and t.layout == torch.strided
        for t in tensors
    ) and (x.dtype in DTYPES and x.device.type == "cpu")  # fmt: skip


def _is_transformed(block: Block, x: Tensor) -> bool:
    """Whether vmap, grad, jvp and their like see the parts of the computation."""
    if torch.compiler.is_compiling():
        return False
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return torch.autograd.forward_ad._current_level >= 0 or any(wrapped(t) for t in (x, *_given(block)))


def _given(block: Block) -> Iterator[Tensor]:
    return (t for t in parameters(block) if t is not None)


def parameters(block: Block) -> tuple[Tensor | None, ...]:
    """W₁, b₁, W₂, b₂, V, c of a block of plain layers."""
    first, second = cast(nn.Linear, block.layer1), cast(nn.Linear, block.layer2)
    gate = cast("nn.Linear | None", block.linear_v)
    v, c = (None, None) if gate is None else (gate.weight, gate.bias)
    return first.weight, first.bias, second.weight, second.bias, v, c


def _activation(block: Block) -> str:
    """The activation's name; "" for one of the caller's own, whatever it is called."""
    row = block.activation
    return str(getattr(row, "name", "")) if getattr(row, "derivative", None) is not None else ""


def _is_autocast(x: Tensor) -> bool:
    return torch.amp.is_autocast_available(x.device.type) and torch.is_autocast_enabled(x.device.type)


def is_plain(layer: nn.Module) -> bool:
    """Whether calling the layer is W·x + b and nothing else: no subclass, parametrisation or hook."""
    return type(layer) is nn.Linear and not (
        layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
        or "forward" in layer.__dict__
    )
