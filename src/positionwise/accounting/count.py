"""``account``: one entry for everything that can be counted."""

from __future__ import annotations

import os
import re
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from positionwise.accounting.enumeration import feed_forward_groups, parameter_sizes
from positionwise.accounting.ledger import Account
from positionwise.accounting.modules import CONVENTION, account_from, account_of_module, compare
from positionwise.errors import AccountError, MissingGroupError, SpecError
from positionwise.feedforward import FeedForward
from positionwise.spec import FFNSpec

if TYPE_CHECKING:
    from positionwise.accounting.targets import Target
    from positionwise.transformer import TransformerConfig

MOST_POSITIONS = 10**9
"""Beyond it the sizes of attention's products pass what a tensor's size can be."""


def account(
    target: Any, *, vocab_size: int | None = None, batch: int | None = None, sequence: int | None = None
) -> Account:
    """Count a model's parameters exactly, and its feed-forward networks among them.

    Args:
        target: an `FFNSpec`; any module, transformers models among them; a configuration; a folder with a
            ``config.json``, or such a file (as a path); or the name of a preset. A configuration's model is built on
            the meta device, without weights: the class that ``architectures[0]`` names, else the base model.
        vocab_size: of a preset, instead of its own.
        batch: sequences, and
        sequence: positions of each, to give FLOPs and bytes as well.

    Returns:
        The account: ``.total``, ``.feed_forward.total``, ``.to_dict()``; it prints as a table.

    Raises:
        AccountError: for a target that cannot be counted, or when the count from the configuration and the count of
            the parameters differ; the message names the rows.
    """
    sizes = _sizes(batch, sequence)
    if vocab_size is not None and not (isinstance(target, str) and not _is_place(target)):
        raise AccountError(f"expected vocab_size with a preset only; got it with {_told(target)}")
    if isinstance(target, os.PathLike) or (isinstance(target, str) and _is_place(target)):
        return _place(Path(target), batch, sequence)
    if isinstance(target, str):
        return _preset(target, vocab_size, batch, sequence)
    if isinstance(target, FFNSpec):
        block = FeedForward.from_spec(replace(target, device="meta"))
        return account_of_module(block, f"FeedForward({target.d_model}, {target.d_ff})", sizes)
    if _is_own_config(target):
        return _configuration(target, type(target).__name__, batch, sequence)
    if isinstance(target, nn.Module) and _is_own_config(getattr(target, "config", None)):
        return _configuration(cast(Any, target.config), type(target).__name__, batch, sequence, target)
    if isinstance(target, nn.Module):
        config = getattr(target, "config", None)
        return account_of_module(target, type(target).__name__, sizes, _as_it_stands(target, config), config)
    if _is_library_config(target):
        from positionwise.accounting import targets

        return _target(targets.from_config(target), batch, sequence)
    raise AccountError(
        f"expected a spec, a module, a configuration, a path or a preset's name; got {type(target).__name__}"
    )


def _as_it_stands(model: nn.Module, config: Any) -> tuple[str, ...]:
    if not _is_library_config(config):
        return ()
    return (
        f"Counted as it stands: {type(model).__name__}, with transformers {sys.modules['transformers'].__version__}.",
    )


def _told(target: Any) -> str:
    return f"the path {target}" if isinstance(target, str | os.PathLike) else type(target).__name__


def _sizes(batch: int | None, sequence: int | None) -> tuple[int, int] | None:
    if (batch is None) != (sequence is None):
        raise AccountError(f"expected both batch and sequence or neither; got {batch} and {sequence}")
    if batch is None or sequence is None:
        return None
    if not all(isinstance(size, int) and size >= 1 for size in (batch, sequence)):
        raise AccountError(f"expected batch and sequence to be integers of at least 1; got {batch!r} and {sequence!r}")
    if batch * sequence > MOST_POSITIONS:
        raise AccountError(f"expected batch × sequence of at most {MOST_POSITIONS:,}; got {batch:,} × {sequence:,}")
    return batch, sequence


def _is_place(name: str) -> bool:
    """Whether a string is a path: it looks like one, or something of that name is there and no preset is."""
    if os.sep in name or name.startswith(".") or name.endswith(".json"):
        return True
    try:
        return bool(name) and Path(name).exists() and not _is_preset(name)
    except OSError:  # such as a name that is too long
        return False


def _is_preset(name: str) -> bool:
    try:
        from positionwise.transformer import preset

        preset(name)
    except (SpecError, ModuleNotFoundError):
        return False
    return True


def _is_own_config(target: Any) -> bool:
    if not any(part.__module__.startswith("positionwise.transformer") for part in type(target).__mro__):
        return False
    from positionwise.transformer import TransformerConfig

    return isinstance(target, TransformerConfig)


def _is_library_config(target: Any) -> bool:
    library = sys.modules.get("transformers")
    return library is not None and isinstance(target, library.PreTrainedConfig)


def _place(path: Path, batch: int | None, sequence: int | None) -> Account:
    from positionwise.accounting import targets

    return _target(targets.read(path), batch, sequence)


def _target(target: Target, batch: int | None, sequence: int | None) -> Account:
    """A configuration's model, built without weights, and its folder's weights as a witness."""
    from positionwise.accounting import checkpoint, stored, targets

    if _is_own_config(target.config):
        counted = _configuration(cast(Any, target.config), target.name, batch, sequence)
        return replace(counted, notes=(*target.notes, *counted.notes))
    model = targets.build(target)
    entries = None if target.folder is None else stored.headers(target.folder)
    notes = target.notes + (() if entries is None else checkpoint.differences(entries, model))
    return account_of_module(model, target.name, _sizes(batch, sequence), notes, target.config)


def _preset(name: str, vocab_size: int | None, batch: int | None, sequence: int | None) -> Account:
    try:
        from positionwise.transformer import preset
    except ModuleNotFoundError as error:
        raise MissingGroupError(f"a preset needs {error.name}: pip install 'positionwise[models]'") from None
    try:
        config = preset(name, vocab_size)
    except SpecError as error:
        if "expected preset" not in str(error):
            raise AccountError(str(error)) from None
        near = re.search(r"\(did you mean .*\)$", str(error))
        names = str(error).partition("one of ")[2].partition("; got")[0]
        raise AccountError(
            "expected a preset, or a folder or a file with a model's configuration (nothing is downloaded); got "
            f"{name[:200]!r} {near[0] if near else f'(presets: {names})'}"
        ) from None
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
    sizes = _sizes(batch, sequence)
    groups = feed_forward_groups(model, transformers.POSITIONS, None if sizes is None else sizes[0] * sizes[1])
    notes = ("The output map is the target's embedding, counted once.",) if config.tie_word_embeddings else ()
    flops = None
    if sizes is not None:
        flops = transformers.forward_flops(config, *sizes)
        notes = (*notes, CONVENTION)
    return account_from(name, rows, groups, sum(group.total for group in groups), model, notes, flops)
