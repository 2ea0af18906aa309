"""What a folder's safetensors files say of their weights, held against the model that was built: a third witness.

Only the headers are read: eight bytes of length, and that much JSON with each tensor's name, dtype, shape and place.
Source of the format: https://github.com/huggingface/safetensors, "Format".
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from positionwise.errors import AccountError

LARGEST_HEADER = 100_000_000
"""Bytes; the library's own limit."""
INDEX = "model.safetensors.index.json"
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
"""Bits of one number in each of the format's dtypes."""
_PACKED = re.compile(
    r"[._](qweight|qzeros|scales?|g_idx|absmax|quant_map|nested_absmax|nested_quant_map|quant_state\.\w+|SCB|CB"
    r"|weight_(packed|scale|scale_2|scale_inv|shape|zero_point|g_idx|format|global_scale)|scale_inv|blocks|zeros"
    r"|(input|output|k|v|q|activation)_(scale|scale_inv|zero_point|global_scale))$"
)
"""How quantised weights end: bitsandbytes, GPTQ, AWQ, compressed-tensors, FP8 and MXFP4. Looked for only among the
entries that the model has no place for, since ``logit_scale`` and the like are weights."""
_SMALL = re.compile(r"[UI](8|16|32)|F[468]\w*")
"""Dtypes of quantised weights; 64-bit integers are positions and the like."""


@dataclass(frozen=True)
class Entry:
    """One stored tensor."""

    dtype: str
    """By the format's names: ``F32``, ``BF16``, ``I8`` and so on."""
    shape: tuple[int, ...]
    file: str

    @property
    def numbers(self) -> int:
        """How many numbers are stored."""
        return math.prod(self.shape)


def headers(folder: Path) -> dict[str, Entry] | None:
    """Every stored tensor by its name; None where the folder has no safetensors file.

    The files are those of ``model.safetensors.index.json``; else ``model.safetensors``; else all that there are.

    Raises:
        AccountError: for a file that is missing, cut off or damaged, or a name that is stored twice; it names the file.
    """
    if (folder / INDEX).is_file():
        files = _indexed(folder / INDEX)
    elif (folder / "model.safetensors").is_file():
        files = [folder / "model.safetensors"]
    else:
        files = sorted(file for file in folder.glob("*.safetensors") if file.is_file())
    found: dict[str, Entry] = {}
    for file in files:
        for name, entry in _header(file).items():
            if name in found:
                raise AccountError(f"expected {name} in one file; got it in {found[name].file} and in {file.name}")
            found[name] = entry
    return found if files else None


def _indexed(index: Path) -> list[Path]:
    """The shards that an index names, each of which must be there, in the folder itself."""
    try:
        size = index.stat().st_size
        if size > LARGEST_HEADER:
            raise AccountError(f"expected at most {LARGEST_HEADER:,} bytes in {index}; got {size:,}")
        data = _json(index, index.read_bytes(), "an index")
    except OSError as error:
        raise AccountError(f"expected an index at {index}; got {error.strerror}") from None
    shards = data.get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):
        raise AccountError(f"expected weight_map in {index} to say which file each tensor is in; got {shards!r:.60}")
    for shard in sorted(set(shards.values())):
        if Path(shard).name != shard or not (index.parent / shard).is_file():
            raise AccountError(f"expected the shard {shard!r} beside {index}; got no such file")
    return [index.parent / shard for shard in sorted(set(shards.values()))]


def _header(file: Path) -> dict[str, Entry]:
    """One file's tensors, whose places must cover its data from end to end."""
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if size < 8 or length > size - 8:
                raise AccountError(f"expected a header of {length:,} bytes in {file}; got a file of {size:,} bytes")
            if length > LARGEST_HEADER:
                raise AccountError(f"expected a header of at most {LARGEST_HEADER:,} bytes in {file}; got {length:,}")
            data = _json(file, opened.read(length), "a header")
    except OSError as error:
        raise AccountError(f"expected a safetensors file at {file}; got {error.strerror}") from None
    found = {name: _entry(file, name, fields) for name, fields in data.items() if name != "__metadata__"}
    end = 0
    for start, stop, name in sorted((*fields["data_offsets"], name) for name, fields in data.items() if name in found):
        if start != end:
            raise AccountError(f"expected {name} in {file} to begin at byte {end:,} of the data; got {start:,}")
        end = stop
    if size - 8 - length != end:
        raise AccountError(f"expected {end:,} bytes of data in {file}; got {size - 8 - length:,}")
    return found


def _json(file: Path, text: bytes, kind: str) -> dict[str, Any]:
    try:
        data = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise AccountError(f"expected {kind} in JSON in {file}; got {' '.join(str(error).split())[:100]}") from None
    if not isinstance(data, dict):
        raise AccountError(f"expected {kind} in {file} to be a JSON object; got {type(data).__name__}")
    return data


def _entry(file: Path, name: str, fields: Any) -> Entry:
    """One tensor of a header; its bytes are those of its shape and dtype."""
    match fields:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(start), int(stop)]} if (
            dtype in _BITS and all(type(size) is int and size >= 0 for size in shape)
        ):
            bits = math.prod(shape) * _BITS[dtype]
            if (stop - start) * 8 != bits:
                raise AccountError(f"expected {bits // 8:,} bytes of {name} in {file}; got {stop - start:,}")
            return Entry(dtype, tuple(shape), file.name)
    raise AccountError(f"expected a dtype, a shape and offsets of {name} in {file}; got {fields!r:.80}")


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
