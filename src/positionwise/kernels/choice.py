"""Which path a call takes, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import torch
from torch import Tensor, is_autocast_enabled, is_grad_enabled, nn
from torch._C import _are_functorch_transforms_active as _are_transforms_active
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.nn.modules.module import _has_any_global_hook
from torch.utils.checkpoint import checkpoint

from positionwise.functional import Map, compose, feed_forward
from positionwise.kernels import break_even, operators, sparse
from positionwise.kernels.dense import Weights
from positionwise.kernels.dropout import draw_seed, drop, is_replaced
from positionwise.kernels.inference import infer

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
    run: Callable[[Block, Tensor, Weights | None], Tensor]


def run_reference(block: Block, x: Tensor, w: Weights | None) -> Tensor:
    """The reference function on the block's own weights."""
    assert w is not None
    return feed_forward(
        x, w.w1, w.w2, bias1=w.b1, bias2=w.b2, weight_v=w.v, bias_gate=w.c,
        activation=block.activation, dropout=block.dropout, training=block.training,
    )  # fmt: skip


def run_layers(block: Block, x: Tensor, w: Weights | None) -> Tensor:
    """The same composition, calling the block's layers as modules."""
    rate = block.dropout if block.training else 0.0
    return compose(x, block.layer1, block.layer2, block.linear_v, block.activation, lambda h: drop(h, rate))


def run_checkpoint(block: Block, x: Tensor, w: Weights | None) -> Tensor:
    """`run_layers`, of which PyTorch's checkpointing saves x alone and computes the rest again, both maps."""
    if not torch.is_grad_enabled():
        return run_layers(block, x, w)
    return cast(Tensor, checkpoint(lambda given: run_layers(block, given, w), x, use_reentrant=False))


def run_lean(block: Block, x: Tensor, w: Weights | None) -> Tensor:
    """The operator that saves one hidden-sized tensor for backward, two with a gate; less where zeros are skipped."""
    return _operator(block, x, w, save=True, chunk=CHUNK)


def run_recompute(block: Block, x: Tensor, w: Weights | None) -> Tensor:
    """The operator that saves x alone and computes the first maps again."""
    return _operator(block, x, w, save=False, chunk=block.spec.chunk_size or RECOMPUTE_CHUNK)


def _operator(block: Block, x: Tensor, weights: Weights | None, save: bool, chunk: int) -> Tensor:
    assert weights is not None
    rate = block.dropout if block.training else 0.0
    seed = draw_seed() if rate else None
    rows = x.reshape(-1, x.shape[-1])
    given = (rows, *weights, _activation(block), rate, seed, save, chunk)
    if is_compiling():
        y: Tensor = operators.feed_forward(*given)[0]
    else:
        skip = _skip(block.spec.backend, _activation(block), rows, weights) if save else False
        y = operators.Direct.apply(*given, skip)  # type: ignore[no-untyped-call]
    return y.reshape(*x.shape[:-1], y.shape[-1])


def run_dense(block: Block, x: Tensor, w: Weights | None) -> Tensor:
    """The products by the fastest engine, the rest in place: nothing is kept."""
    assert w is not None
    rate = block.dropout if block.training else 0.0
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    activation = _activation(block)
    y = infer(rows, w, activation, rate, _skip(block.spec.backend, activation, rows, w))
    return y if rows is x else y.reshape(*x.shape[:-1], y.shape[-1])


def _skip(backend: str, activation: str, rows: Tensor, w: Weights) -> bool | None:
    """Whether zeros are skipped; None where the call's density is to decide."""
    if backend == "auto":
        return None if break_even.could_pay(activation, rows, w) else False
    return backend == "sparse" and sparse.can(activation, rows)


REFERENCE = Path("reference", "the layers are plain linear maps", run_reference)
CHOSEN = Path("reference", "backend='reference'", run_reference)
COMPILED = Path("reference", "torch.compile fuses the plain network itself", run_reference)
SPECIAL = Path("reference", "a tensor, the activation or a transform is not an ordinary one", run_reference)
REPLACED = Path("reference", "PyTorch's dropout was replaced by another, which is called", run_reference)
LAYERS = Path("layers", "a layer is not a plain nn.Linear without hooks, so each layer is called", run_layers)
CHECKPOINT = Path("checkpoint", "the layers are called, and called again in backward", run_checkpoint)
LEAN = Path("lean", "gradients are on, and the layers are plain linear maps", run_lean)
RECOMPUTE = Path("recompute", "recompute is on, and the layers are plain linear maps", run_recompute)
DENSE = Path("dense", "no gradients are to be saved for, and the layers are plain linear maps", run_dense)


CAN_SKIP = "backend='sparse': hidden units that are zero are skipped"
CANNOT_SKIP = "backend='sparse' skips the zeros of ReLU and squared ReLU, in float32"


def compute(block: Block, x: Tensor) -> Tensor:
    """The network on x, by the path that `choose` names."""
    weights = _weights(block)
    return _choose(block, x, weights).run(block, x, weights)


def choose(block: Block, x: Tensor) -> Path:
    """The path of a call: the layers themselves where calling them could mean more than a product.

    Where the hidden density decides, some rows of the first map are computed to tell.
    """
    weights = _weights(block)
    path = _choose(block, x, weights)
    if weights is None or path not in (LEAN, DENSE):
        return path
    rows = x.detach().reshape(-1, x.shape[-1])
    skip = _skip(block.spec.backend, _activation(block), rows, weights)
    reason = path.reason
    if skip is None:
        skip, found = break_even.foretell(rows if path is DENSE else rows[:CHUNK], weights, path is LEAN)
        reason = found if skip else f"{reason}; {found}"
    elif block.spec.backend == "sparse":
        reason = CAN_SKIP if skip else f"{reason}; {CANNOT_SKIP}"
    return replace(path, name="sparse" if skip else path.name, reason=reason)


def saved_sparsely(block: Block, x: Tensor) -> int | None:
    """Bytes that a call saves for backward on the sparse path; None where dropout decides."""
    weights = _weights(block)
    if weights is None or (block.training and block.dropout):
        return None
    with torch.no_grad():
        return sparse.saved_bytes(x.reshape(-1, x.shape[-1]), weights, _activation(block), CHUNK)


def _choose(block: Block, x: Tensor, weights: Weights | None) -> Path:
    spec = block.spec
    if weights is None or _has_any_global_hook():  # type: ignore[no-untyped-call]
        return CHECKPOINT if spec.recompute else LAYERS
    compiling = is_compiling()
    if not compiling and (_are_transforms_active() or forward_ad._current_level >= 0):
        return SPECIAL
    ordinary = bool(_activation(block)) and x.is_cpu and not is_autocast_enabled("cpu")
    ordinary = ordinary and (compiling or _are_ordinary(x, weights))
    if block.training and block.dropout and is_replaced():
        return REPLACED
    if spec.recompute:
        return RECOMPUTE if ordinary else CHECKPOINT
    if spec.backend == "reference":
        return CHOSEN
    if compiling and spec.backend == "auto":
        return COMPILED
    if not ordinary:
        return SPECIAL
    if is_grad_enabled() and (x.requires_grad or any(t is not None and t.requires_grad for t in weights)):
        return LEAN
    return REFERENCE if compiling else DENSE


def _are_ordinary(x: Tensor, weights: Weights) -> bool:
    """Whether an operator computes what the reference would: plain tensors of one dtype on the CPU."""
    dtype = x.dtype
    if type(x) not in (Tensor, nn.Parameter) or dtype not in DTYPES or x.layout is not torch.strided or x.is_neg():
        return False
    for t in weights:
        if t is None:
            continue
        if t.dtype is not dtype or not t.is_cpu or t.is_neg() or type(t) not in (nn.Parameter, Tensor):
            return False
    return True


def _weights(block: Block) -> Weights | None:
    """The parameters of a block of plain layers, None for others; read past nn.Module's own lookup, for speed."""
    modules = cast(Any, block)._modules
    first, second, gate = modules["layer1"], modules["layer2"], modules.get("linear_v")
    if not (is_plain(first) and is_plain(second) and (gate is None or is_plain(gate))):
        return None
    one, two, v = first._parameters, second._parameters, None if gate is None else gate._parameters
    if v is None:
        return Weights(one["weight"], one["bias"], two["weight"], two["bias"], None, None)
    return Weights(one["weight"], one["bias"], two["weight"], two["bias"], v["weight"], v["bias"])


def skips(activation: Any) -> bool:
    """Whether an activation leaves exact zeros that can be skipped."""
    return _name(activation) in sparse.ACTIVATIONS


def _activation(block: Block) -> str:
    return _name(block.activation)


def _name(row: Any) -> str:
    """An activation's name; "" for one of the caller's own, whatever it is called."""
    return str(getattr(row, "name", "")) if getattr(row, "derivative", None) is not None else ""


def is_plain(layer: nn.Module) -> bool:
    """Whether calling the layer is W·x + b and nothing else: no subclass, parametrisation or hook."""
    return type(layer) is nn.Linear and not (
        layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
        or "forward" in layer.__dict__
    )
