"""What safetensors files say that they store, from their headers alone.

A header is eight bytes of length, and that much JSON with each tensor's name, dtype, shape and place.
Source of the format: https://github.com/huggingface/safetensors, "Format".
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
