"""Counting what a module really holds: every parameter once, packed storage by what it stands for."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from torch import nn

from positionwise.accounting.ledger import Axes, Group, Signal, Source
from positionwise.errors import AccountError, SpecError
from positionwise.feedforward import FeedForward, Network


def parameter_sizes(module: nn.Module) -> Iterator[tuple[str, nn.Parameter, int]]:
    """Every stored parameter once, under its first name, with the count of numbers that it stands for."""
    owners = dict(module.named_modules(remove_duplicate=False))
    for name, parameter in module.named_parameters():
        path, _, leaf = name.rpartition(".")
        yield name, parameter, logical_size(owners[path], leaf, parameter)


def logical_size(owner: nn.Module, leaf: str, parameter: nn.Parameter) -> int:
    """The numbers a parameter stands for: a weight packed into fewer integers counts as the map that it is."""
    shape = (getattr(owner, "in_features", None), getattr(owner, "out_features", None))
    if (
        leaf == "weight"
        and not parameter.is_floating_point()
        and isinstance(shape[0], int)
        and isinstance(shape[1], int)
    ):
        return shape[0] * shape[1]
    if nn.parameter.is_lazy(parameter):
        raise AccountError(
            f"expected parameters with a shape; got {type(owner).__name__}, which has none before its first call"
        )
    return parameter.numel()


def packed_sizes(module: nn.Module) -> Iterator[tuple[str, int]]:
    """Linear maps that hold no parameter at all, such as PyTorch's dynamically quantised ones."""
    for name, part in module.named_modules():
        features = getattr(part, "in_features", None), getattr(part, "out_features", None)
        weight = inspect.getattr_static(part, "weight", None)  # a computed one may change as it is asked for
        if isinstance(features[0], int) and isinstance(features[1], int) and callable(weight):
            bias = part.bias() if callable(part.bias) else part.bias
            yield name, features[0] * features[1] + (0 if bias is None else bias.numel())


def tied_names(module: nn.Module) -> tuple[tuple[str, ...], ...]:
    """Groups of names that stand for one stored parameter."""
    names: dict[int, list[str]] = defaultdict(list)
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    return tuple(tuple(group) for group in names.values() if len(group) > 1)


def feed_forward_groups(
    module: nn.Module, positions: Mapping[str, Axes] | None = None, tokens: int | None = None
) -> list[Group]:
    """The feed-forward networks of a module, those of one kind and one place in their layers together.

    Args:
        module: anything that holds blocks, or a block itself.
        positions: the axes before d_model by the first part of the path; (…) without it.
        tokens: positions that each application sees, for FLOPs and bytes.
    """
    first: dict[int, str] = {}
    places: dict[tuple[str, Any], list[Network]] = defaultdict(list)
    for path, part in module.named_modules(remove_duplicate=False):
        if isinstance(part, Network):
            home = first.setdefault(id(part), path)
            places[re.sub(r"(?:^|(?<=\.))\d+(?=\.|$)", "*", home), _kind(part)].append(part)
    return [_group(path, blocks, positions or {}, tokens) for (path, _), blocks in places.items()]


def _kind(block: Network) -> tuple[Any, ...]:
    return block.spec.components, _activation(block)


def _activation(block: Network) -> str:
    given = block.activation
    return given if isinstance(given, str) else str(getattr(given, "name", type(given).__name__))


def _group(path: str, blocks: list[Network], positions: Mapping[str, Axes], tokens: int | None) -> Group:
    spec = blocks[0].spec
    axes = positions.get(path.partition(".")[0], (("…", "positions"),))
    out = (f"{spec.output_width}", "d_model" if spec.d_out is None else "d_out")
    return Group(
        path=path or type(blocks[0]).__name__,
        instances=len({id(block) for block in blocks}),
        applications=len(blocks),
        d_model=spec.d_model,
        d_ff=spec.d_ff,
        activation=_activation(blocks[0]),
        gated=spec.is_gated,
        gate_half=None,
        layout="nn.Linear (out, in)",
        input=Signal("x", (*axes, (f"{spec.d_model}", "d_model"))),
        output=Signal("Δ" if path else "y", (*axes, out)),
        components=spec.components,
        equation=spec.equation,
        source=source_of(type(blocks[0])),
        position_wise=not getattr(spec, "convolved_axes", 0),
        gate="separate: layer1 activated, linear_v linear" if spec.is_gated else None,
        biases=(getattr(spec, "bias1", False), getattr(spec, "bias2", False)),
        parameters=tuple((name, tuple(parameter.shape)) for name, parameter in blocks[0].named_parameters()),
        flops_per_token=spec.flops(1),
        flops=None if tokens is None else sum(block.spec.flops(tokens) for block in blocks),
        saved_for_backward=None if tokens is None else _saved(blocks, tokens),
    )


def _saved(blocks: list[Network], tokens: int) -> int | None:
    """Bytes of all applications in the dtype of each block's parameters; None where they are not known."""
    known = [block for block in blocks if isinstance(block, FeedForward)]
    if len(known) < len(blocks):
        return None
    try:
        return sum(
            replace(block.spec, dtype=next(block.parameters()).dtype).saved_for_backward(tokens) for block in known
        )
    except SpecError:
        return None


def source_of(thing: Any) -> Source | None:
    """Where a class or function is defined: in an installed package or a file of the user's own; None without one."""
    package = thing.__module__.partition(".")[0]
    try:
        lines, first = inspect.getsourcelines(thing)
        file = Path(inspect.getfile(thing)).as_posix()
    except (OSError, TypeError):
        return None
    inside = f"/{package}/"
    relative = file[file.rindex(inside) + 1 :] if inside in file else file.rpartition("/")[2]
    return Source(package, _version(package), None, relative, (first, first + len(lines) - 1))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
