"""What a folder's checkpoint says of its weights, held against the model that was built: a third witness."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from positionwise.accounting.stored import Entry

_PACKED = re.compile(
    r"[._](qweight|qzeros|scales?|g_idx|absmax|quant_map|nested_absmax|nested_quant_map|quant_state\.\w+|SCB|CB"
    r"|weight_(packed|scale|scale_2|scale_inv|shape|zero_point|g_idx|format|global_scale)|scale_inv|blocks|zeros"
    r"|(input|output|k|v|q|activation)_(scale|scale_inv|zero_point|global_scale))$"
)
"""How quantised weights end: bitsandbytes, GPTQ, AWQ, compressed-tensors, FP8 and MXFP4. Looked for only among the
entries that the model has no place for, since ``logit_scale`` and the like are weights."""
_SMALL = re.compile(r"[UI](8|16|32)|F[468]\w*")
"""Dtypes of quantised weights; 64-bit integers are positions and the like."""


def differences(entries: Mapping[str, Entry], model: nn.Module) -> tuple[str, ...]:
    """How a checkpoint differs from the model that its configuration describes; nothing where they agree.

    The names are brought to the model's by transformers' own rules of loading (renamed, joined and split weights, a
    base model's prefix), on tensors without storage.

    Args:
        entries: what `headers` gives.
        model: a transformers model, on any device; it is not changed.

    Returns:
        One line for each kind of difference, with counts of numbers; where there is any, the totals first.
    """
    state: dict[str, Tensor] = model.state_dict()
    found = _Placed(entries, cast(Any, model), state)
    lines = [*_quantised(found, entries, model), *_untied(found, model, state)]
    ignored = re.compile("|".join(f"({rule})" for rule in found.rules("unexpected")) or r"(?!)")
    for known, what in ((False, "that the model has no place for"), (True, "that the library leaves out on load")):
        extra = [name for name in found.unplaced if bool(ignored.search(found.unplaced[name])) is known]
        if extra:
            lines.append(f"Stored, {what}: {_listed(extra, sum(entries[name].numbers for name in extra))}.")
    if found.missing:
        lines.append(f"Not stored: {_listed(found.missing, sum(state[name].numel() for name in found.missing))}.")
    lines += [f"{name} is stored as {came}; the model has {tuple(state[name].shape)}." for name, came in found.shapes]
    if not lines:
        return ()
    held = sum(
        tensor.numel() for tensor in {id(one): one for one in model.state_dict(keep_vars=True).values()}.values()
    )
    stored = sum(entry.numbers for entry in entries.values())
    return (f"The checkpoint stores {stored:,} numbers; the model as built has {held:,}, buffers included.", *lines)


class _Placed:
    """Which of a model's tensors each entry of a checkpoint goes to.

    Source: transformers 5.24.0, ``core_model_loading.convert_and_load_state_dict_in_model``.
    """

    def __init__(self, entries: Mapping[str, Entry], model: Any, state: Mapping[str, Tensor]) -> None:
        self.model, self.state = model, state
        self.unplaced: dict[str, str] = {}
        """Entries without a place, and the names that they would have in the model."""
        self.shapes: list[tuple[str, str]] = []
        """Tensors of the model, and the other shape that they are stored in."""
        self.placed: set[str] = set()
        for place, (converter, names) in self._places(entries).items():
            self._put(place, converter, names, entries)
        missing = [name for name in state if name not in self.placed]
        tied = model.all_tied_weights_keys
        partners: dict[str, set[str]] = defaultdict(set)
        for target, source in tied.items():
            partners[source] |= {source, target}
        known = re.compile("|".join(f"({rule})" for rule in self.rules("missing")) or r"(?!)")
        self.missing = [
            name
            for name in missing
            if not partners[tied.get(name, name)] & self.placed and not known.search(name)
        ]  # fmt: skip

    def rules(self, kind: str) -> Iterable[str]:
        """The patterns of names that the library does not mind to be ``missing`` or ``unexpected``."""
        rules: set[str] = set(getattr(self.model, f"_keys_to_ignore_on_load_{kind}") or ())
        if kind == "unexpected":  # buffers that older versions stored, which the library knows without a rule
            rules |= {r"rotary_emb\.inv_freq$", r"(^|\.)position_ids$"}
        return sorted(rules)

    def _places(self, entries: Mapping[str, Entry]) -> dict[str, tuple[Any, dict[str, list[str]]]]:
        """The entries that go to each place, by the pattern that they matched, with what joins or splits them."""
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

        rules = get_model_conversion_mapping(self.model)
        renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
        converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
        by_pattern = {pattern: rule for rule in converters for pattern in rule.source_patterns}
        prefix = self.model.base_model_prefix
        places: dict[str, tuple[Any, dict[str, list[str]]]] = {}
        for name in sorted(entries, key=dot_natural_key):
            place, pattern = rename_source_key(name, renamings, converters, prefix, cast("dict[str, Any]", self.state))
            if place not in self.state and name in self.state:
                place, pattern = name, None
            if place not in self.state:
                self.unplaced[name] = place
                continue
            _, names = places.setdefault(place, (by_pattern.get(pattern or ""), defaultdict(list)))
            names[pattern or name].append(name)
        return places

    def _put(self, place: str, converter: Any, names: Mapping[str, list[str]], entries: Mapping[str, Entry]) -> None:
        """Note the tensors that entries become, and the shapes that are not the model's."""
        shapes = [entries[name].shape for group in names.values() for name in group]
        became = {place: shapes[0]}
        if converter is not None:
            for pattern, group in names.items():
                for name in group:
                    converter.add_tensor(place, name, pattern, torch.empty(entries[name].shape, device="meta"))
            try:
                made = converter.convert(place, model=self.model, config=self.model.config)
                became = {name: tuple((one[0] if isinstance(one, list) else one).shape) for name, one in made.items()}
            except Exception as error:  # any operation of the library's, on shapes that it was not made for
                self.shapes.append((place, f"{len(shapes)} tensors that do not fit together ({_line(error)})"))
                self.placed.add(place)
                return
        for name, shape in became.items():
            self.placed.add(name)
            if name in self.state and shape != tuple(self.state[name].shape):
                self.shapes.append((name, str(shape)))


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:100]


def _quantised(found: _Placed, entries: Mapping[str, Entry], model: nn.Module) -> list[str]:
    """Say what is packed, and take it out of what is compared: its numbers are not those of the weights."""
    settings = getattr(cast(Any, model).config, "quantization_config", None)
    dtypes = sorted({entry.dtype for entry in entries.values()})
    packed = [name for name in found.unplaced if _PACKED.search(name)]
    if not packed or not (settings or any(_SMALL.fullmatch(dtype) for dtype in dtypes)):
        return []
    stems = {_PACKED.sub("", one) for name in packed for one in (name, found.unplaced[name])}
    stems |= {re.sub(r"\.\d+\.\w+$", "", stem) for stem in stems}  # experts that the model has in one tensor
    found.missing = [name for name in found.missing if not stems & {name, name.rpartition(".")[0]}]
    found.shapes = [(name, came) for name, came in found.shapes if not stems & {name, name.rpartition(".")[0]}]
    for name in packed:
        del found.unplaced[name]
    method = settings.get("quant_method") if isinstance(settings, dict) else getattr(settings, "quant_method", None)
    listed = _listed(packed, sum(entries[name].numbers for name in packed))
    how = f"{method or 'by a method that is not named'}; {', '.join(dtypes)}"
    return [
        f"Stored quantised ({how}), so the numbers cannot be compared: {listed} are packed weights or their scales."
    ]


def _untied(found: _Placed, model: nn.Module, state: Mapping[str, Tensor]) -> list[str]:
    """Weights that are stored beside those that the library ties them to."""
    tied = cast(Any, model).all_tied_weights_keys
    names = [name for name in tied if {name, tied[name]} <= found.placed]
    if not names:
        return []
    listed = _listed([f"{name} to {tied[name]}" for name in names], sum(state[name].numel() for name in names))
    return [f"Stored on its own, but tied by the library as built: {listed}."]


def _listed(names: list[str], numbers: int) -> str:
    """``3 tensors of 12 numbers (a, b, …)``."""
    shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    counted = [
        f"{count:,} {what}{'' if count == 1 else 's'}" for count, what in ((len(names), "tensor"), (numbers, "number"))
    ]
    return f"{' of '.join(counted)} ({shown})"
