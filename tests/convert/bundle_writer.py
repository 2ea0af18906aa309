"""Writes TensorFlow's checkpoints (tensor bundles) without TensorFlow, whole and broken ones, for tests to read."""

import google_crc32c
import numpy as np
import torch

DTYPES = {
    "float32": 1, "float64": 2, "int32": 3, "uint8": 4, "int16": 5, "int8": 6, "complex64": 8, "int64": 9, "bool": 10,
    "bfloat16": 14, "uint16": 17, "complex128": 18, "float16": 19, "uint32": 22, "uint64": 23,
}  # fmt: skip
STRING = 7
MAGIC = 0xDB4775248B80FB57
RECORDS, RESTART = 8, 3  # records of a block, and from one whole key to the next: small, so that tests have several


def write_bundle(prefix, tensors, shards=1):
    """Write the tensors by name, dealt to the shards in turn.

    A tensor is a NumPy array or a number; or a PyTorch tensor, which may be bfloat16; or bytes, a string's scalar.
    """
    files = [b""] * shards
    records = {b"": header(shards)}
    for number, name in enumerate(sorted(tensors)):
        shard = number % shards
        dtype, shape, data, crc = encode(tensors[name])
        records[name.encode()] = entry(dtype, shape, shard, len(files[shard]), len(data), crc)
        files[shard] += data
    for shard, data in enumerate(files):
        prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{shards:05d}").write_bytes(data)
    prefix.with_name(f"{prefix.name}.index").write_bytes(table(records))


def encode(tensor):
    """A tensor's (dtype, shape, bytes, masked checksum)."""
    if isinstance(tensor, bytes):  # the checksum of a string counts its length in four bytes, which are not in the file
        length = len(tensor).to_bytes(4, "little")
        check = masked(length)
        return STRING, (), varint(len(tensor)) + check + tensor, masked(length + check + tensor)
    if isinstance(tensor, torch.Tensor) and tensor.dtype == torch.bfloat16:
        dtype, array = DTYPES["bfloat16"], tensor.view(torch.int16).numpy()
    else:
        array = np.asarray(tensor)
        dtype = DTYPES[array.dtype.name]
    data = array.astype(array.dtype.newbyteorder("<")).tobytes()
    return dtype, array.shape, data, masked(data)


def header(shards=1, endianness=0, min_consumer=0):
    """BundleHeaderProto, the record of the empty name."""
    return field(1, shards) + field(2, endianness) + field(3, field(1, 1) + field(2, min_consumer))


def entry(dtype, shape, shard, offset, size, crc, slices=b""):
    """BundleEntryProto."""
    dimensions = b"".join(field(2, field(1, length)) for length in shape)
    numbers = b"".join(field(number, value) for number, value in zip((3, 4, 5), (shard, offset, size), strict=True))
    return field(1, dtype) + field(2, dimensions) + numbers + varint(6 * 8 + 5) + crc + slices


def field(number, value):
    """A protobuf field: an integer, or bytes with their length."""
    if isinstance(value, int):
        return varint(number * 8) + varint(value) if value else b""
    return varint(number * 8 + 2) + varint(len(value)) + value


def table(records):
    """A LevelDB table of the records, in their order."""
    items = list(records.items())
    groups = [items[start : start + RECORDS] for start in range(0, len(items), RECORDS)]
    return assemble([(group[-1][0], block(group)) for group in groups])


def assemble(blocks, compression=0):
    """A table's file from blocks and the last key of each."""
    file, handles = b"", []
    for last, content in blocks:
        handles.append((last, varint(len(file)) + varint(len(content))))
        file += sealed(content, compression)
    meta, file = varint(len(file)) + varint(len(block([]))), file + sealed(block([]))
    index, file = varint(len(file)) + varint(len(block(handles))), file + sealed(block(handles))
    return file + (meta + index).ljust(40, b"\0") + MAGIC.to_bytes(8, "little")


def block(items):
    """A block's bytes: each key without what it shares with the one before, then where the whole keys begin."""
    content, starts, last = b"", [], b""
    for number, (key, value) in enumerate(items):
        shared = 0
        if number % RESTART == 0:
            starts.append(len(content))
        else:
            while shared < min(len(key), len(last)) and key[shared] == last[shared]:
                shared += 1
        content += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    starts = starts or [0]
    return content + b"".join(start.to_bytes(4, "little") for start in [*starts, len(starts)])


def sealed(content, compression=0):
    """A block as it stands in the file: with its compression and its checksum."""
    content += bytes([compression])
    return content + masked(content)


def masked(data):
    """CRC-32C as LevelDB stores it, in four bytes."""
    crc = google_crc32c.value(data)
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def varint(value):
    """Seven bits a byte, the lowest first."""
    value &= 0xFFFFFFFFFFFFFFFF
    data = b""
    while value >= 0x80:
        data += bytes([value & 0x7F | 0x80])
        value >>= 7
    return data + bytes([value])
