"""The lean path as operators of PyTorch's dispatcher, so that autograd, torch.compile and torch.export know it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch
from torch.compiler import is_compiling
from torch.utils.flop_counter import register_flop_formula

from positionwise.kernels import break_even, dense, launch, sparse
from positionwise.kernels.dense import Call, Weights


@torch.library.custom_op("positionwise::feed_forward", mutates_args=())
def feed_forward(
    x: Tensor,
    w1: Tensor,
    b1: Tensor | None,
    w2: Tensor,
    b2: Tensor | None,
    v: Tensor | None,
    c: Tensor | None,
    activation: str,
    dropout: float,
    seed: Tensor | None,
    save: bool,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Y (T, d_out) for x (T, d_model), and what backward needs; see `positionwise.kernels.dense.forward`."""
    return dense.forward(x, Weights(w1, b1, w2, b2, v, c), Call(activation, dropout, seed, chunk), save)


@feed_forward.register_fake
def _(
    x: Tensor, w1: Tensor, b1: Any, w2: Tensor, b2: Any, v: Any, c: Any, activation: str, dropout: float, seed: Any,
    save: bool, chunk: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    kept = x.new_empty((x.shape[0], w1.shape[0]) if save else 0)
    return x.new_empty(x.shape[0], w2.shape[0]), kept, x.new_empty(kept.shape if save and v is not None else 0)


@torch.library.custom_op("positionwise::feed_forward_backward", mutates_args=())
def feed_forward_backward(
    dy: Tensor,
    x: Tensor,
    kept: Tensor,
    gate: Tensor,
    w1: Tensor,
    b1: Tensor | None,
    w2: Tensor,
    b2: Tensor | None,
    v: Tensor | None,
    c: Tensor | None,
    activation: str,
    dropout: float,
    seed: Tensor | None,
    chunk: int,
    asked: list[bool],
) -> list[Tensor]:
    """The gradients that are asked for, in the order of `positionwise.kernels.dense.Gradients`."""
    return _backward(dy, x, kept, gate, w1, b1, w2, b2, v, c, activation, dropout, seed, chunk, asked)


def _backward(dy: Tensor, x: Tensor, kept: Tensor, gate: Tensor, *rest: Any) -> list[Tensor]:
    *weights, activation, dropout, seed, chunk, asked = rest
    call = Call(activation, dropout, seed, chunk)
    found = dense.backward(dy, x, kept, gate, Weights(*weights), call, asked)
    return [gradient for gradient in found if gradient is not None]


def _backward_sparse(dy: Tensor, x: Tensor, *rest: Any) -> list[Tensor]:
    *saved, activation, dropout, seed, chunk, asked = rest
    lists, weights = saved[:-6], Weights(*saved[-6:])
    found = sparse.backward(dy, x, lists, weights, Call(activation, dropout, seed, chunk), asked)
    return [gradient for gradient in found if gradient is not None]


@feed_forward_backward.register_fake
def _(
    dy: Tensor, x: Tensor, kept: Tensor, gate: Tensor, w1: Tensor, b1: Any, w2: Tensor, b2: Any, v: Any, c: Any,
    activation: str, dropout: float, seed: Any, chunk: int, asked: list[bool],
) -> list[Tensor]:  # fmt: skip
    weights = zip((w1, b1, w2, b2, v, c), asked[1:], strict=True)
    found = [tensor.new_empty(tensor.shape) for tensor, wanted in weights if wanted and tensor is not None]
    return [*([torch.empty_like(x)] if asked[0] else []), *found]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, ctx.activation, ctx.dropout, seed, _, ctx.chunk = inputs
    _, kept, gate = output
    ctx.mark_non_differentiable(kept, gate)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, seed, kept, gate)


def _differentiate(ctx: Any, dy: Tensor | None, *unused: Any) -> tuple[Tensor | None, ...]:
    return _gradients(ctx, dy, feed_forward_backward)


def _gradients(ctx: Any, dy: Tensor | None, run: Callable[..., list[Tensor]]) -> tuple[Tensor | None, ...]:
    held = ctx.saved_tensors  # once: each reading unpacks what hooks have packed
    tensors, (seed, *saved) = held[:7], held[7:]
    if dy is None:
        return (None,) * 12
    x, *weights = tensors
    asked = [wanted and tensor is not None for wanted, tensor in zip(ctx.needs_input_grad, tensors, strict=False)]
    rest = (None, None, None, None, None)
    call = Call(ctx.activation, ctx.dropout, seed, ctx.chunk)
    if torch.is_grad_enabled():  # somebody will differentiate the gradients
        return (*dense.differentiable(dy, x, Weights(*weights), call, asked), *rest)
    forked = getattr(ctx, "is_sparse", False) and not launch.may_run()
    if forked or (not is_compiling() and _is_batched(dy)):  # a child of a fork, or many derivatives at once
        with torch.enable_grad():
            return (*dense.differentiable(dy, x, Weights(*weights), call, asked, create_graph=False), *rest)
    found = iter(run(dy.resolve_neg(), x, *saved, *weights, *call, asked))
    return (*(next(found) if wanted else None for wanted in asked), *rest)


def _is_batched(dy: Tensor) -> bool:
    """Whether it stands for many: `is_grads_batched`, a vectorised Jacobian."""
    return bool(_functorch.is_legacy_batchedtensor(dy) or _functorch.is_functorch_wrapped_tensor(dy))


feed_forward.register_autograd(_differentiate, setup_context=_keep)


class Direct(torch.autograd.Function):
    """The same outside of compiled code: the dispatcher's way to an operator in Python takes a millisecond a call."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        """See `dense.forward`; the last argument says whether zeros are skipped, None: where it pays."""
        *tensors, activation, dropout, seed, save, chunk, skip = inputs
        (x, *rest), call = tensors, Call(activation, dropout, seed, chunk)
        weights = Weights(*rest)
        begun = dense.begin(x, weights, call) if skip is None else None
        if begun is not None:
            skip = break_even.pays(begun[:chunk], weights, training=True)
        ctx.activation, ctx.dropout, ctx.chunk, ctx.is_sparse = activation, dropout, chunk, skip
        ctx.set_materialize_grads(False)
        if skip:
            y, saved = sparse.forward(x, weights, call, begun)
        else:
            y, *saved = dense.forward(x, weights, call, save, begun)
        ctx.save_for_backward(*tensors, seed, *saved)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """See `positionwise.kernels.dense.backward`."""
        return *_gradients(ctx, grads[0], _backward_sparse if ctx.is_sparse else _backward), None


@register_flop_formula(torch.ops.positionwise.feed_forward)
def _forward_flops(x: Any, w1: Any, b1: Any, w2: Any, b2: Any, v: Any, *rest: Any, **options: Any) -> int:
    products = [w1, w2, *([v] if v is not None else [])]
    return sum(2 * int(x[0]) * int(shape[0]) * int(shape[1]) for shape in products)


@register_flop_formula(torch.ops.positionwise.feed_forward_backward)
def _backward_flops(
    dy: Any, x: Any, kept: Any, gate: Any, w1: Any, b1: Any, w2: Any, b2: Any, v: Any, c: Any, *rest: Any,
    **options: Any,
) -> int:  # fmt: skip
    asked, again = rest[-1], kept[0] != x[0]
    times = [(w2, 1 + asked[3]), (w1, asked[0] + asked[1] + again)]
    if v is not None:
        times.append((v, asked[0] + asked[5] + again))
    return sum(2 * int(x[0]) * int(shape[0]) * int(shape[1]) * int(count) for shape, count in times)
