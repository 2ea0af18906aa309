"""``account``: one entry for everything that can be counted."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from positionwise.accounting.enumeration import (
    feed_forward_groups,
    packed_sizes,
    parameter_sizes,
    tied_names,
)
from positionwise.accounting.ledger import Account, FeedForwardAccount, Group
from positionwise.errors import AccountError, MissingGroupError, SpecError
from positionwise.feedforward import FeedForward, Network, SeparableLinear
from positionwise.kernels import is_plain
from positionwise.spec import Component, FFNSpec

if TYPE_CHECKING:
    from positionwise.transformer import TransformerConfig

CONVENTION = "FLOPs: a multiply-add counts as two; products only, without biases, norms, softmax and activations."


def account(
    target: Any, *, vocab_size: int | None = None, batch: int | None = None, sequence: int | None = None
) -> Account:
    """Count a model's parameters exactly, and its feed-forward networks among them.

    Args:
        target: an `FFNSpec`; a module; a `TransformerConfig`; or the name of a preset.
        vocab_size: of a preset, instead of its own.
        batch: sequences, and
        sequence: positions of each, to give FLOPs and bytes as well.

    Returns:
        The account: ``.total``, ``.feed_forward.total``, ``.to_dict()``; it prints as a table.

    Raises:
        AccountError: for a target that cannot be counted, or when the count from the configuration and the count of
            the parameters differ; the message names the rows.
    """
    tokens = _tokens(batch, sequence)
    if vocab_size is not None and not isinstance(target, str):
        raise AccountError(f"expected vocab_size with a preset only; got it with {type(target).__name__}")
    if isinstance(target, str):
        return _preset(target, vocab_size, batch, sequence)
    if isinstance(target, FFNSpec):
        block = FeedForward.from_spec(replace(target, device="meta"))
        return _module(block, _spec_name(target), tokens)
    if _is_config(target):
        return _configuration(target, type(target).__name__, batch, sequence)
    if isinstance(target, nn.Module) and _is_config(getattr(target, "config", None)):
        return _configuration(cast(Any, target.config), type(target).__name__, batch, sequence, target)
    if isinstance(target, nn.Module):
        return _module(target, type(target).__name__, tokens)
    raise AccountError(f"expected a spec, a module, a configuration or a preset's name; got {type(target).__name__}")


def _tokens(batch: int | None, sequence: int | None) -> int | None:
    if (batch is None) != (sequence is None):
        raise AccountError(f"expected both batch and sequence or neither; got {batch} and {sequence}")
    if batch is None or sequence is None:
        return None
    if not all(isinstance(size, int) and size >= 1 for size in (batch, sequence)):
        raise AccountError(f"expected batch and sequence to be integers of at least 1; got {batch!r} and {sequence!r}")
    return batch * sequence


def _spec_name(spec: FFNSpec) -> str:
    return f"FeedForward({spec.d_model}, {spec.d_ff})"


def _is_config(target: Any) -> bool:
    if not any(part.__module__.startswith("positionwise.transformer") for part in type(target).__mro__):
        return False
    from positionwise.transformer import TransformerConfig

    return isinstance(target, TransformerConfig)


def _preset(name: str, vocab_size: int | None, batch: int | None, sequence: int | None) -> Account:
    try:
        from positionwise.transformer import preset
    except ModuleNotFoundError as error:
        raise MissingGroupError(f"a preset needs {error.name}: pip install 'positionwise[models]'") from None
    try:
        config = preset(name, vocab_size)
    except SpecError as error:
        raise AccountError(str(error)) from None
    return _configuration(config, name, batch, sequence)


def _configuration(
    config: TransformerConfig, name: str, batch: int | None, sequence: int | None, model: nn.Module | None = None
) -> Account:
    """The configuration's closed form, held against the parameters of the model (on the meta device)."""
    from positionwise.accounting import transformers
    from positionwise.transformer import TransformerForTranslation

    if model is None:
        with torch.device("meta"):
            model = TransformerForTranslation(config)
    counted: dict[str, int] = defaultdict(int)
    for parameter, _, size in parameter_sizes(model):
        counted[transformers.place(parameter, config)] += size
    rows = transformers.closed_form(config)
    compare({row.name: row.parameters for row in rows}, counted)
    groups = feed_forward_groups(model, transformers.POSITIONS, _tokens(batch, sequence))
    notes = ["The output map is the target's embedding, counted once."] if config.tie_word_embeddings else []
    flops = None
    if batch is not None and sequence is not None:
        flops = transformers.forward_flops(config, batch, sequence)
        notes.append(CONVENTION)
    return _account(name, rows, groups, sum(group.total for group in groups), model, notes, flops)


def _module(module: nn.Module, name: str, tokens: int | None) -> Account:
    """A module's parameters, its feed-forward networks each held against their closed form."""
    groups = feed_forward_groups(module, tokens=tokens)
    blocks = [(path, part) for path, part in module.named_modules() if isinstance(part, Network)]
    inside = {id(parameter) for _, block in blocks for parameter in block.parameters()}
    rest: dict[str, int] = defaultdict(int)
    distinct = 0
    for path, parameter, size in parameter_sizes(module):
        if id(parameter) in inside:
            distinct += size
        else:
            rest[path] += size
    for path, size in packed_sizes(module):
        if any(path.startswith(f"{block}." if block else "") for block, _ in blocks):
            distinct += size
        else:
            rest[path] += size
    added = sum(_beyond_spec(path, block) for path, block in blocks)
    shared = sum(group.total for group in groups) + added - distinct
    rows = [row for group in groups for row in _rows(group, len(groups) == 1)]
    rows += [Component("Added inside the networks", "", added)] if added else []
    rows += [Component("Shared between networks, counted once", "", -shared)] if shared else []
    rows += [Component(path, "", size) for path, size in rest.items()]
    return _account(name, rows, groups, distinct, module, [] if tokens is None else [CONVENTION], None)


def _rows(group: Group, alone: bool) -> tuple[Component, ...]:
    """A group's components over all its instances."""
    if alone and group.instances == 1:
        return group.components
    return tuple(
        Component(
            f"{group.path}: {row.name}", f"{group.instances} × ({row.calculation})", group.instances * row.parameters
        )
        for row in group.components
    )


def _beyond_spec(path: str, block: Network) -> int:
    """How many parameters a block has beyond its spec: none, unless a layer was wrapped or replaced."""
    counted = sum(size for _, _, size in parameter_sizes(block)) + sum(size for _, size in packed_sizes(block))
    plain = all(
        is_plain(layer) or isinstance(layer, SeparableLinear)
        for layer in block.children()
        if layer is not block.activation
    )
    expected: int = block.spec.parameters
    if plain or counted < expected:
        name = path or type(block).__name__
        compare({name: expected}, {name: counted})
    return counted - expected


def _account(
    name: str,
    rows: list[Component],
    groups: list[Group],
    part: int,
    module: nn.Module,
    notes: list[str],
    flops: int | None,
) -> Account:
    total = sum(row.parameters for row in rows)
    return Account(
        name=name,
        feed_forward=FeedForwardAccount(tuple(groups), part, part / total if total else 0.0),
        components=tuple(rows),
        frozen=sum(size for _, parameter, size in parameter_sizes(module) if not parameter.requires_grad),
        buffers=sum(buffer.numel() for buffer in module.buffers()),
        tied=tied_names(module),
        flops=flops,
        notes=tuple(notes),
    )


def compare(closed: dict[str, int], counted: dict[str, int]) -> None:
    """Hold two counts against each other, row by row.

    Raises:
        AccountError: naming every row that differs.
    """
    differing = [name for name in {**closed, **counted} if closed.get(name, 0) != counted.get(name, 0)]
    if differing:
        rows = "; ".join(f"{name}: {closed.get(name, 0):,} and {counted.get(name, 0):,}" for name in differing)
        raise AccountError(f"expected the closed form and the parameters to agree; got {rows}")
