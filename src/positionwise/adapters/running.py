"""Calling a block on numbers: on a copy of its structure, in the ways that blocks are called."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from positionwise.adapters.maps import Map, linear_map
from positionwise.adapters.numbers import GRID, SIDE, TOKENS, Record, WithoutWeights
from positionwise.adapters.shadows import bare

_MOST_PLACES = 64
"""Layers that a shared block is tried as."""


class _Named(dict[str, Any]):
    """A dictionary that has the same value under every name."""

    def __missing__(self, _key: str) -> Any:
        return self["x"]


_RETURNS = (lambda x: (x, None), lambda x: x, lambda x: (x, None, None), lambda x: _Named(x=x))
"""What attention gives in published layers: its output with weights or a cache beside, alone, or by name."""


def run(
    block: nn.Module, width: int, kept: tuple[Map, ...] = (), shaken: frozenset[int] = frozenset()
) -> Iterator[Record]:
    """Records of a block's forward, one for each way of calling it that its code accepts.

    Args:
        block: any module; a copy of its structure is run, which shares its weights, so that nothing of it changes.
        width: channels of its input.
        kept: where given, parts with several maps of which none is among these are passed by (what goes in comes out),
            and other maps give zeros, such as low-rank additions to these.
        shaken: ids of weights whose products are others at the first position.
    """
    x = _input(width)
    inputs = [x, x[0], x.reshape(1, SIDE, SIDE, width)]
    if any(isinstance(part, nn.Conv1d | nn.Conv2d) for part in block.modules()):
        inputs += [x.mT, x.mT.reshape(1, width, SIDE, SIDE)]
    by = _passed_by(block, tuple(entry.module for entry in kept)) if kept else ()
    drawn = {id(entry.weight) for entry in kept} if kept else None
    for returns in (*_RETURNS, None) if by else (None,):
        for tensor in inputs:
            for filler in (None, tensor, SIDE, (SIDE, SIDE), torch.ones(1, TOKENS, 1, dtype=torch.double)):
                arguments = _arguments(block, tensor, filler)
                record = (
                    None if arguments is None else _run(block, arguments, by if returns else (), returns, drawn, shaken)
                )
                if record is not None:
                    yield record
                if arguments is None or len(arguments) == 1:
                    break  # no filler was asked for
    for place in _places(block):
        record = _run(block, (x, place), (), None, drawn, shaken)
        if record is not None:
            yield record


def _input(width: int) -> Tensor:
    """(1, positions, width), no two positions alike, so that it is seen which of them are chosen."""
    x = torch.tensor(GRID, dtype=torch.double)[torch.arange(TOKENS * width) % len(GRID)].reshape(1, TOKENS, width)
    return x * (1 + torch.arange(TOKENS, dtype=torch.double)[:, None] / 1000)


def _places(block: nn.Module) -> Iterator[int]:
    """Numbers of layers that a shared block knows as its places, such as Zamba2's, which asks for one of them."""
    for value in block.__dict__.values():
        if isinstance(value, dict):
            yield from [key for key in value if isinstance(key, int)][:_MOST_PLACES]


def run_experts(holder: nn.Module, width: int, experts: int) -> Iterator[Record]:
    """Records of a module that is given its input, the experts chosen for it, and their weights, in either order."""
    x = _input(width)[0]
    chosen = torch.arange(TOKENS * 2).reshape(TOKENS, 2) % experts
    weights = torch.ones(TOKENS, 2, dtype=torch.float64)
    for arguments in ((x, chosen, weights), (x, weights, chosen), (x[None], chosen, weights), (x, chosen)):
        record = _run(holder, arguments, (), None)
        if record is not None:
            yield record


def _passed_by(block: nn.Module, kept: tuple[nn.Module, ...]) -> tuple[str, ...]:
    """Names of the block's parts that hold several maps and none of the kept ones: attention and its like."""
    names = []
    for name, part in block.named_children():
        listed = isinstance(part, nn.ModuleList)
        for key, one in part.named_children() if listed else [("", part)]:
            modules = list(one.modules())
            several = isinstance(one, nn.MultiheadAttention) or sum(linear_map(m) is not None for m in modules) >= 2
            if several and not any(inner is keep for inner in modules for keep in kept):
                names.append(f"{name}.{key}" if listed else name)
    return tuple(names)


def asks_for_one(block: nn.Module) -> bool:
    """Whether a block's forward asks for no more than its input; experts ask for the choice among them too."""
    arguments = _arguments(block, torch.empty(0), None)
    return arguments is not None and len(arguments) == 1


def _arguments(block: nn.Module, tensor: Tensor, filler: Any) -> tuple[Any, ...] | None:
    """What to call forward with: the tensor, and the filler for every other argument without a default."""
    try:
        parameters = list(inspect.signature(block.forward).parameters.values())
    except (TypeError, ValueError):
        return None
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if not positional and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return None
    required = sum(p.default is p.empty for p in positional)
    return (tensor, *[filler] * (required - 1))


def _run(
    block: nn.Module,
    arguments: tuple[Any, ...],
    by: tuple[str, ...],
    returns: Any,
    drawn: set[int] | None = None,
    shaken: frozenset[int] = frozenset(),
) -> Record | None:
    twins: dict[int, Tensor] = {}
    try:
        record = Record()
        copy = _skeleton(block, record, {name: _Passed(returns) for name in by}, twins)
        mode = WithoutWeights({id(twin): original for original, twin in twins.items()}, record, drawn, shaken)
        with warnings.catch_warnings(action="ignore"), torch.random.fork_rng(devices=[]), torch.no_grad(), mode:
            output = copy(*(a.clone() if isinstance(a, Tensor) else a for a in arguments))
            output = output[0] if isinstance(output, tuple) and output else output
            if isinstance(output, Tensor) and not output.is_meta:
                record.output = output.reshape(-1, output.shape[-1])
    except BaseException as error:  # whatever the code raises on numbers it did not expect: not a way of calling it
        if isinstance(error, Exception | SystemExit) or type(error).__module__.startswith("transformers"):
            return None  # transformers' error for a missing package is no Exception
        raise
    return record


class _Passed(nn.Module):
    """Stands for a part that is passed by: gives what it is given, the way that attention does."""

    def __init__(self, returns: Any) -> None:
        super().__init__()
        self.returns = returns

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.returns(next(a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)))


def _skeleton(module: nn.Module, record: Record, by: dict[str, nn.Module], twins: dict[int, Tensor]) -> nn.Module:
    """A copy without numbers: in evaluation, without hooks, norms passed by, outputs noted, parts replaced.

    Its weights are twins on the meta device, so that whatever its code does to them, the module's stay as they are.
    """
    copies: dict[int, nn.Module] = {}

    def copied(part: nn.Module, path: str) -> nn.Module:
        if path in by:
            return by[path]
        if id(part) not in copies:
            copy = copies[id(part)] = bare(part, training=False)
            holders: tuple[dict[str, Any], ...] = (copy._parameters, copy._buffers)
            for held in holders:
                for name, value in held.items():
                    if value is not None:
                        held[name] = twins.setdefault(id(value), _twin(value))
            for name, child in part._modules.items():
                if child is not None:
                    copy._modules[name] = copied(child, f"{path}.{name}" if path else name)
            _prepare(copy, record)
        return copies[id(part)]

    return copied(module, "")


def _twin(tensor: Tensor) -> Tensor:
    """A tensor of the same shape without storage; in double precision, which code asks for to convert its input."""
    dtype = torch.double if tensor.is_floating_point() else tensor.dtype
    twin = torch.empty(tensor.shape, dtype=dtype, device="meta")
    return nn.Parameter(twin, requires_grad=False) if isinstance(tensor, nn.Parameter) else twin


def _prepare(part: nn.Module, record: Record) -> None:
    original = getattr(getattr(type(part), "forward", None), "__wrapped__", None)
    if is_norm(part):
        part.forward = _pass_norm(record, [p.numel() for p in part.parameters()])
    elif original is not None and any(w is not None and w.dim() == 3 for w in part._parameters.values()):
        part.forward = MethodType(original, part)  # its plain loop over experts, not a grouped kernel
    else:
        part.register_forward_hook(_note(record))


def _pass_norm(record: Record, widths: list[int]) -> Any:
    def forward(x: Any, *_args: Any, **_kwargs: Any) -> Any:
        record.normed.update(widths)
        return x

    return forward


def _note(record: Record) -> Any:
    def look(_module: nn.Module, _args: Any, output: Any) -> None:
        tensors = output if isinstance(output, tuple) else (output,)
        record.outputs.extend(t for t in tensors if isinstance(t, Tensor) and t.dim() == 2 and len(t) == TOKENS)

    return look


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a normalisation or a learned scale: a leaf that owns vectors only."""
    own = [parameter for parameter in module._parameters.values() if parameter is not None]
    vectors = bool(own) and all(p.dim() != 2 and p.numel() == max(p.shape, default=0) > 1 for p in own)
    if any(linear_map(part) is not None for part in module.modules()):
        return False
    return (vectors and not any(True for _ in module.children())) or type(module).__name__.endswith("Norm")
