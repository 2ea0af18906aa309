"""LevelDB's table format, which TensorFlow's checkpoints have as their index: names and values in order.

Every block carries a checksum and is held against it.

Source: LevelDB's doc/table_format.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from positionwise.errors import ConvertError, MissingGroupError

MAGIC = 0xDB4775248B80FB57
FOOTER = 48
TRAILER = 5
MAX_NAME = 4_096
"""Longer than any tensor's name: names share prefixes, so that a small file could ask for endless ones."""


def checksum_of(data: bytes) -> int:
    """CRC-32C, rotated and shifted as LevelDB stores it."""
    try:
        import google_crc32c
    except ModuleNotFoundError as error:
        message = f"a TensorFlow checkpoint needs {error.name}: pip install 'positionwise[convert]'"
        raise MissingGroupError(message, name=error.name) from None
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


class Cursor:
    """Bytes read from front to back, false at their end; to read past it is an error that says where they lie."""

    def __init__(self, data: bytes, where: str) -> None:
        self.data, self.where, self.position = data, where, 0

    def __bool__(self) -> bool:
        return self.position < len(self.data)

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        left = len(self.data) - self.position
        if count > left:
            raise ConvertError(f"{self.where}: expected {count:,} more bytes; got {left:,}")
        self.position += count
        return self.data[self.position - count : self.position]

    def varint(self) -> int:
        """Seven bits a byte, the lowest first; the top bit says that another byte follows."""
        value = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & 0xFFFFFFFFFFFFFFFF
        raise ConvertError(f"{self.where}: expected an integer of at most 10 bytes; got a longer one")


def read_table(data: bytes, path: Path) -> dict[bytes, bytes]:
    """All records of a LevelDB table, in order."""
    footer = Cursor(data[-FOOTER:], str(path))
    magic = int.from_bytes(data[-8:], "little")
    if len(data) < FOOTER or magic != MAGIC:
        raise ConvertError(f"{path}: expected a table that ends in {MAGIC:#x}; got {magic:#x} and {len(data):,} bytes")
    _ = footer.varint(), footer.varint()  # the metaindex, which a bundle leaves empty
    records: dict[bytes, bytes] = {}
    last: bytes | None = None
    for _, handle in _block(data, footer, path):
        for key, value in _block(data, Cursor(handle, str(path)), path):
            if last is not None and key <= last:
                raise ConvertError(f"{path}: expected names in order; got {key!r} after {last!r}")
            records[key] = value
            last = key
    return records


def _block(data: bytes, handle: Cursor, path: Path) -> Iterator[tuple[bytes, bytes]]:
    offset, size = handle.varint(), handle.varint()
    where = f"{path}, block at {offset:,}"
    end = offset + size
    if end + TRAILER > len(data):
        raise ConvertError(f"{where}: expected {size + TRAILER:,} bytes; got a file of {len(data):,}")
    stored, computed = int.from_bytes(data[end + 1 : end + TRAILER], "little"), checksum_of(data[offset : end + 1])
    if stored != computed:
        raise ConvertError(f"{where}: expected the checksum {stored:#010x}; got {computed:#010x}")
    if data[end]:
        kind = "Snappy's compression" if data[end] == 1 else f"compression {data[end]}"
        raise ConvertError(f"{where}: expected no compression; got {kind}")
    return _records(data[offset:end], where)


def _records(block: bytes, where: str) -> Iterator[tuple[bytes, bytes]]:
    """A block's keys and values; its end lists the keys that are written whole, which only a search needs."""
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 * (restarts + 1)
    if end < 0:
        raise ConvertError(f"{where}: expected {restarts:,} restart points; got {len(block):,} bytes")
    cursor = Cursor(block[:end], where)
    key = b""
    while cursor:
        shared, rest, size = cursor.varint(), cursor.varint(), cursor.varint()
        if shared > len(key) or shared + rest > MAX_NAME:
            bounds = f"at most {len(key):,} bytes of the name before and {MAX_NAME:,} in all"
            raise ConvertError(f"{where}: expected {bounds}; got {shared:,} and {shared + rest:,}")
        key = key[:shared] + cursor.take(rest)
        yield key, cursor.take(size)
