"""TensorFlow's checkpoints (tensor bundles, the V2 format), read without TensorFlow.

A bundle is ``PREFIX.index``, a table in LevelDB's format that says of each tensor where it lies, and one
``PREFIX.data-00000-of-0000N`` per shard, which holds the tensors' bytes. The table's values are protobuf messages.
Every tensor carries a checksum and is held against it.

Sources: tensorflow/core/protobuf/tensor_bundle.proto and tensorflow/core/util/tensor_bundle; the protobuf encoding
guide.
"""

from __future__ import annotations

import math
import os
import re
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from positionwise.convert.leveldb import Cursor, checksum_of, read_table
from positionwise.errors import ConvertError

MAX_DIMENSIONS = 64
STRING, BFLOAT16 = 7, 14
DTYPES = {
    1: "<f4", 2: "<f8", 3: "<i4", 4: "|u1", 5: "<i2", 6: "|i1", 8: "<c8", 9: "<i8", 10: "|b1", BFLOAT16: "<u2",
    17: "<u2", 18: "<c16", 19: "<f2", 22: "<u4", 23: "<u8",
}  # fmt: skip
"""TensorFlow's DataType to NumPy's; NumPy has no bfloat16, so its bits are read first."""


class Entry(NamedTuple):
    """What the index says of a tensor: BundleEntryProto. Offset and size count bytes of the shard's file."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int


def read_bundle(source: Path | str) -> dict[str, npt.NDArray[Any]]:
    """Read all tensors of a checkpoint, in the order of their names.

    Tensors of strings (an object-based checkpoint keeps its object graph in one) are left out; bfloat16 is widened to
    float32, which is exact; every other tensor keeps its dtype.

    Args:
        source: the checkpoint's prefix, one of its files (``.index``, ``.data-…``, ``.meta``), or the ``checkpoint``
            file that names the prefix, or that file's folder.

    Raises:
        ConvertError: for a file that is missing, cut short, compressed, big-endian or garbled, and for a tensor that
            does not pass its checksum, is partitioned, or is of an unknown dtype; the message names file and tensor.
        MissingGroupError: without google-crc32c.
    """
    index = _index_of(Path(source))
    records = read_table(_read(index), index)
    shards = _shards(records.pop(b"", None), index)
    entries = {key: _entry(key, value, index) for key, value in records.items()}
    _refuse_overlap(entries, index)
    tensors = {}
    for key, entry in entries.items():
        if entry.dtype != STRING:
            name = _decode(key, index)
            path = Path(f"{str(index).removesuffix('.index')}.data-{entry.shard:05d}-of-{shards:05d}")
            tensors[name] = _tensor(entry, path, f"{path}, tensor {name!r}")
    return tensors


def _index_of(source: Path) -> Path:
    if source.is_dir() and (source / "checkpoint").is_file():
        return _named_by(source / "checkpoint")
    own = Path(f"{source}.index")
    if own.is_file():
        return own
    if source.name == "checkpoint" and source.is_file():
        return _named_by(source)
    index = Path(re.sub(r"\.(index|meta|data-\d+-of-\d+)$", "", str(source)) + ".index")
    if index.is_file():
        return index
    raise ConvertError("expected a TensorFlow checkpoint (its folder, prefix or .index file) or an .npz file at "
                       f"{source}; got {_kind(source)}")  # fmt: skip


def _kind(source: Path) -> str:
    if source.is_dir():
        return "a folder without a checkpoint file"
    return "a file without an .index beside it" if source.is_file() else "no file of that name"


def _named_by(path: Path) -> Path:
    """The index that a ``checkpoint`` file names: relative to it, or where a folder that was moved has it now."""
    # Protobuf's text format: bytes that are not printable ASCII may stand in it as octal escapes.
    quoted = rb'"((?:[^"\\\n]|\\.)+)"|\'((?:[^\'\\\n]|\\.)+)\''
    line = re.search(rb"^\s*model_checkpoint_path\s*:\s*(?:" + quoted + rb")", _read(path), re.MULTILINE)
    if line is None:
        raise ConvertError(f'{path}: expected a line model_checkpoint_path: "…"; got none')
    prefix = os.fsdecode(re.sub(rb"\\([0-3]?[0-7]{1,2}|.)", _unescaped, line[1] or line[2]))
    index, beside = path.parent / f"{prefix}.index", path.parent / f"{Path(prefix).name}.index"
    return beside if Path(prefix).is_absolute() and not index.is_file() and beside.is_file() else index


def _unescaped(escape: re.Match[bytes]) -> bytes:
    return bytes([int(escape[1], 8)]) if escape[1][0] in b"01234567" else escape[1]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
        raise ConvertError(f"expected a readable file at {path}; got {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


class Message(NamedTuple):
    """A protobuf message by field number: the last number of each field, and all its byte strings."""

    numbers: dict[int, int]
    parts: dict[int, list[bytes]]


def _message(data: bytes, where: str) -> Message:
    message = Message({}, {})
    cursor = Cursor(data, where)
    while cursor:
        field, wire = divmod(cursor.varint(), 8)
        if wire == 0:
            message.numbers[field] = cursor.varint()
        elif wire in (1, 5):
            message.numbers[field] = int.from_bytes(cursor.take(8 if wire == 1 else 4), "little")
        elif wire == 2:
            message.parts.setdefault(field, []).append(cursor.take(cursor.varint()))
        else:
            raise ConvertError(f"{where}: expected the wire types 0, 1, 2 and 5; got {wire}")
    return message


def _shards(header: bytes | None, index: Path) -> int:
    """How many files the tensors lie in: BundleHeaderProto, which stands under the empty name."""
    if header is None:
        raise ConvertError(f"{index}: expected a header under the empty name; got a table without it")
    message = _message(header, f"{index}, header")
    if message.numbers.get(2, 0) != 0:
        raise ConvertError(f"{index}: expected little-endian tensors; got endianness {message.numbers[2]}")
    reader = _message(b"".join(message.parts.get(3, [])), f"{index}, version").numbers.get(2, 0)
    if reader > 1:
        raise ConvertError(f"{index}: expected a bundle for readers of version 1; got {reader}")
    return message.numbers.get(1, 0)


def _entry(key: bytes, value: bytes, index: Path) -> Entry:
    where = f"{index}, tensor {key.decode(errors='backslashreplace')!r}"
    numbers, parts = _message(value, where)
    if 7 in parts:
        raise ConvertError(f"{where}: expected a tensor in one piece; got one partitioned into {len(parts[7])}")
    sizes = _message(b"".join(parts.get(2, [])), where).parts.get(2, [])
    if len(sizes) > MAX_DIMENSIONS:
        raise ConvertError(f"{where}: expected at most {MAX_DIMENSIONS} dimensions; got {len(sizes):,}")
    shape = tuple(_message(size, where).numbers.get(1, 0) for size in sizes)
    return Entry(numbers.get(1, 0), shape, *(numbers.get(field, 0) for field in (3, 4, 5, 6)))


def _refuse_overlap(entries: dict[bytes, Entry], index: Path) -> None:
    """No byte belongs to two tensors, so that they never fill more memory than the files' bytes call for."""
    ordered = sorted((entry.shard, entry.offset, entry.size, key) for key, entry in entries.items())
    for (shard, offset, size, key), (other, start, _, name) in pairwise(ordered):
        if shard == other and start < offset + size:
            raise ConvertError(f"{index}: expected tensors side by side; got {key!r} and {name!r} on the same bytes")


def _decode(key: bytes, index: Path) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise ConvertError(f"{index}: expected a name in UTF-8; got {key!r}") from None


def _tensor(entry: Entry, path: Path, where: str) -> npt.NDArray[Any]:
    """A tensor's numbers, in an array of their own."""
    if entry.dtype not in DTYPES:
        raise ConvertError(f"{where}: expected bfloat16 or a dtype of NumPy's; got TensorFlow's dtype {entry.dtype}")
    dtype = np.dtype(DTYPES[entry.dtype])
    size = math.prod(entry.shape) * dtype.itemsize
    if entry.size != size:
        raise ConvertError(f"{where}: expected {size:,} bytes for the shape {entry.shape}; got {entry.size:,}")
    data = _span(path, entry.offset, entry.size, where)
    checksum = checksum_of(data)
    if checksum != entry.checksum:
        raise ConvertError(f"{where}: expected the checksum {entry.checksum:#010x}; got {checksum:#010x}")
    values: npt.NDArray[Any] = np.frombuffer(data, dtype).copy()
    if entry.dtype == BFLOAT16:  # the upper half of a float32
        values = (values.astype("<u4") << 16).view("<f4")
    try:
        return values.reshape(entry.shape)
    except ValueError as error:  # without elements a shape may have sizes beyond any array's
        raise ConvertError(f"{where}: expected an array's shape; got {entry.shape} ({error})") from None


def _span(path: Path, offset: int, size: int, where: str) -> bytes:
    """A stretch of a file; nothing is read, and no memory taken, unless the file is long enough."""
    try:
        with path.open("rb") as file:
            length = file.seek(0, os.SEEK_END)
            if offset + size <= length:
                file.seek(offset)
                return file.read(size)
    except OSError as error:
        raise ConvertError(f"{where}: expected a readable file; got {_reason(error)}") from None
    raise ConvertError(f"{where}: expected bytes up to {offset + size:,}; got a file of {length:,}")
