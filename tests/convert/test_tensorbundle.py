"""TensorFlow's checkpoints: what real ones hold, every dtype and shard, and an error for everything that is broken."""

import os
import random
import sys

import bundle_writer
import numpy as np
import pytest
import torch
from bundle_writer import write_bundle
from hypothesis import example, given
from hypothesis import strategies as st

from positionwise.convert.leveldb import MAX_NAME
from positionwise.convert.tensorbundle import BFLOAT16, DTYPES, read_bundle
from positionwise.errors import ConvertError, MissingGroupError
from shared import shared_file

REAL = "fixtures/tensor2tensor/checkpoint_v37_shared"
SEVEN = (1, (7,), 0, 0, 28)  # an entry's dtype, shape, shard, offset, size


def write_index(prefix, records):
    """An index over 28 bytes of data."""
    prefix.with_name(f"{prefix.name}.index").write_bytes(bundle_writer.table(records))
    prefix.with_name(f"{prefix.name}.data-00000-of-00001").write_bytes(np.arange(7, dtype="<f4").tobytes())


def seven(slices=b"", **fields):
    """An entry for those 28 bytes, with some of its fields set wrong."""
    values = dict(zip(("dtype", "shape", "shard", "offset", "size"), SEVEN, strict=True)) | fields
    crc = bundle_writer.masked(np.arange(7, dtype="<f4").tobytes() if values["size"] else b"")
    return bundle_writer.entry(**values, crc=crc, slices=slices)


def same(left, right):
    """Whether two bundles hold the same names in the same order, and the same bits."""
    return list(left) == list(right) and all(
        (left[name].dtype, left[name].shape, left[name].tobytes())
        == (right[name].dtype, right[name].shape, right[name].tobytes())
        for name in left
    )


def test_a_real_checkpoint_holds_the_model_s_variables_adam_s_slots_and_the_step():
    arrays = np.load(shared_file("fixtures/tensor2tensor/transformer_full_d16_v37_shared.npz"))
    variables = {name.removeprefix("var/"): arrays[name] for name in arrays.files if name.startswith("var/")}
    bundle = read_bundle(shared_file(REAL))
    slots = {f"{name}/{slot}" for name in variables for slot in ("Adam", "Adam_1")}
    assert len(variables) == 81
    assert set(bundle) == set(variables) | slots | {"global_step"}
    assert list(bundle) == sorted(bundle)
    assert same({name: bundle[name] for name in variables}, variables)
    assert bundle["global_step"] == 1234
    assert bundle["global_step"].shape == ()
    assert bundle["global_step"].dtype == np.int64


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_shards_and_blocks_of_the_index_are_put_together(tmp_path, shards):
    tensors = {f"layer_{n}/kernel": np.full((n % 3, 2), n, np.float32) for n in range(40)} | {"größe": np.float64(0.1)}
    write_bundle(tmp_path / "model.ckpt-7", tensors, shards)
    assert len(list(tmp_path.glob("*.data-*"))) == shards
    wanted = {name: np.asarray(tensors[name]) for name in sorted(tensors)}
    assert same(read_bundle(tmp_path / "model.ckpt-7"), wanted)


@pytest.mark.parametrize("dtype", sorted(set(bundle_writer.DTYPES) - {"bfloat16"}))
@pytest.mark.parametrize("shape", [(), (3,), (2, 1, 3), (0, 4)])
def test_every_dtype_comes_back_as_it_was(tmp_path, dtype, shape):
    values = np.random.default_rng(0).integers(0, 100, shape) * (0.25 if np.dtype(dtype).kind in "fc" else 1)
    array = np.asarray(values).astype(dtype)
    write_bundle(tmp_path / "b", {"x": array})
    read = read_bundle(tmp_path / "b")["x"]
    assert same({"x": read}, {"x": array})
    read[...] = 1  # an array of its own, not a view of the file's bytes
    assert (read == 1).all()


def test_the_reader_knows_the_dtypes_that_the_writer_knows():
    assert sorted(DTYPES) == sorted(bundle_writer.DTYPES.values())
    assert bundle_writer.DTYPES["bfloat16"] == BFLOAT16


def test_bfloat16_is_widened_exactly(tmp_path):
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    write_bundle(tmp_path / "b", {"all": every.reshape(256, 256), "one": torch.tensor(-1.375).bfloat16()})
    bundle = read_bundle(tmp_path / "b")
    assert bundle["all"].dtype == np.float32
    assert bundle["all"].tobytes() == every.float().numpy().tobytes()  # infinities, NaNs and signed zeros too
    assert bundle["all"].shape == (256, 256)
    assert bundle["one"] == np.float32(-1.375)
    assert bundle["one"].shape == ()


def test_strings_are_left_out(tmp_path):
    write_bundle(tmp_path / "b", {"_CHECKPOINTABLE_OBJECT_GRAPH": b"\x0a\x00" * 90, "x": np.float32(1)})
    assert list(read_bundle(tmp_path / "b")) == ["x"]


def test_a_bundle_without_tensors_is_empty(tmp_path):
    write_bundle(tmp_path / "b", {})
    assert read_bundle(tmp_path / "b") == {}


def test_a_missing_shard_is_named(tmp_path):
    write_bundle(tmp_path / "b", {"x": np.ones(3), "y": np.ones(3)}, shards=2)
    (tmp_path / "b.data-00001-of-00002").unlink()
    with pytest.raises(ConvertError, match=r"data-00001-of-00002, tensor 'y': expected a readable file; got No such"):
        read_bundle(tmp_path / "b")


@pytest.mark.parametrize("length", [0, 1, 24, 47])
def test_data_that_is_cut_short_is_refused(tmp_path, length):
    write_bundle(tmp_path / "b", {"x": np.ones(3), "y": np.ones(3)})
    data = tmp_path / "b.data-00000-of-00001"
    data.write_bytes(data.read_bytes()[:length])
    name, end = ("x", 24) if length < 24 else ("y", 48)
    message = rf"b\.data-00000-of-00001, tensor '{name}': expected bytes up to {end}; got a file of {length}$"
    with pytest.raises(ConvertError, match=message):
        read_bundle(tmp_path / "b")


def test_a_changed_byte_of_data_is_found_and_its_tensor_named(tmp_path):
    write_bundle(tmp_path / "b", {"x": np.ones(3), "y": torch.ones(3).bfloat16()})
    path = tmp_path / "b.data-00000-of-00001"
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :])
        name = "x" if position < 24 else "y"
        with pytest.raises(ConvertError, match=rf"tensor '{name}': expected the checksum 0x[0-9a-f]{{8}}; got 0x"):
            read_bundle(tmp_path / "b")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dtype": 11}, r"'x': expected bfloat16 or a dtype of NumPy's; got TensorFlow's dtype 11"),
        ({"dtype": 0}, "got TensorFlow's dtype 0"),
        ({"dtype": 2}, r"'x': expected 56 bytes for the shape \(7,\); got 28"),
        ({"shape": (2, 3)}, r"expected 24 bytes for the shape \(2, 3\); got 28"),
        ({"shape": (-7, -1)}, r"expected .* bytes for the shape \(18446744073709551609, 1844\d*\); got 28"),
        ({"shape": (0, 2**62), "size": 0}, r"'x': expected an array's shape; got \(0, 4611686018427387904\)"),
        ({"shape": (0, -1), "size": 0}, "expected an array's shape"),
        ({"shape": (1,) * 64 + (7,)}, "'x': expected at most 64 dimensions; got 65"),
        ({"shape": (2**40,), "size": 2**42}, r"'x': expected bytes up to 4,398,046,511,104; got a file of 28"),
        ({"offset": 1}, "'x': expected bytes up to 29; got a file of 28"),
        ({"offset": -1}, "'x': expected bytes up to 18,446,744,073,709,551,643; got a file of 28"),
        ({"offset": 29, "size": 0, "shape": (0,)}, "'x': expected bytes up to 29; got a file of 28"),
        ({"shard": 1}, r"b\.data-00001-of-00001, tensor 'x': expected a readable file"),
        ({"shard": -1}, r"data-18446744073709551615-of-00001, tensor 'x': expected a readable file"),
        ({"slices": bundle_writer.field(7, b"") * 2}, "'x': expected a tensor in one piece; got one part.* into 2"),
        ({"slices": b"\x0b"}, "'x': expected the wire types 0, 1, 2 and 5; got 3"),
        ({"slices": b"\x3a\xff\xff\xff\xff\x0f"}, "'x': expected 4,294,967,295 more bytes; got 0"),
        ({"slices": b"\x08" + b"\xff" * 10}, "'x': expected an integer of at most 10 bytes; got a longer one"),
    ],
)  # fmt: skip
def test_an_entry_that_does_not_fit_is_refused(tmp_path, fields, message):
    write_index(tmp_path / "b", {b"": bundle_writer.header(), b"x": seven(**fields)})
    with pytest.raises(ConvertError, match=message):
        read_bundle(tmp_path / "b")


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ({b"x": seven()}, r"b\.index: expected a header under the empty name; got a table without it"),
        ({b"": bundle_writer.header(endianness=1)}, r"b\.index: expected little-endian tensors; got endianness 1"),
        ({b"": bundle_writer.header(min_consumer=2)}, "expected a bundle for readers of version 1; got 2"),
        ({b"": bundle_writer.header(), b"y": b"", b"x": b""}, "expected names in order; got b'x' after b'y'"),
        ({b"": bundle_writer.header(), b"\xff": seven()}, r"expected a name in UTF-8; got b'\\xff'"),
        # A partitioned tensor's parts come first, under names that are not text; the error still names the tensor.
        ({b"": bundle_writer.header(), b"\0x\0\1\xff": seven(), b"x": seven(bundle_writer.field(7, b""))},
         "'x': expected a tensor in one piece"),
        ({b"": bundle_writer.header(), b"x": seven(), b"y": seven()}, "side by side; got b'x' and b'y' on the same"),
        ({b"": bundle_writer.header(), b"a": b"", b"a" * MAX_NAME: b"", b"a" * MAX_NAME + b"b": b""},
         "bytes of the name before and 4,096 in all; got 0 and 4,097"),
    ],
)  # fmt: skip
def test_an_index_of_wrong_records_is_refused(tmp_path, records, message):
    write_index(tmp_path / "b", records)
    with pytest.raises(ConvertError, match=message):
        read_bundle(tmp_path / "b")


@pytest.mark.parametrize(
    ("compression", "got"), [(1, "Snappy's compression"), (2, "compression 2")], ids=["snappy", "another"]
)
def test_a_compressed_index_is_refused(tmp_path, compression, got):
    block = bundle_writer.block([(b"", bundle_writer.header())])
    (tmp_path / "b.index").write_bytes(bundle_writer.assemble([(b"", block)], compression))
    with pytest.raises(ConvertError, match=rf"b\.index, block at 0: expected no compression; got {got}"):
        read_bundle(tmp_path / "b")


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 47, b"garbage" * 100, b"\xff" * 40 + bundle_writer.MAGIC.to_bytes(8, "little")]
)
def test_a_file_that_is_no_table_is_refused(tmp_path, content):
    (tmp_path / "b.index").write_bytes(content)
    with pytest.raises(ConvertError, match=r"b\.index: expected "):
        read_bundle(tmp_path / "b")


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (b"", "expected 0 restart points; got 0 bytes"),
        (b"\x07\0\0\0", "expected 7 restart points; got 4 bytes"),
        (b"\x05\x01\x00a" + bytes(8), "at most 0 bytes of the name before and 4,096 in all; got 5 and 6"),
        (b"\x00\x09\x00a" + bytes(8), "expected 9 more bytes; got 5"),
    ],
)
def test_a_garbled_block_is_refused(tmp_path, block, message):
    (tmp_path / "b.index").write_bytes(bundle_writer.assemble([(b"", block)]))
    with pytest.raises(ConvertError, match=rf"b\.index, block at 0: expected .*{message.removeprefix('expected ')}"):
        read_bundle(tmp_path / "b")


def test_a_block_beyond_the_file_is_refused(tmp_path):
    handles = b"".join(bundle_writer.varint(number) for number in (0, 0, 10**12, 5))
    (tmp_path / "b.index").write_bytes(handles.ljust(40, b"\0") + bundle_writer.MAGIC.to_bytes(8, "little"))
    with pytest.raises(ConvertError, match=r"block at 1,000,000,000,000: expected 10 bytes; got a file of 48"):
        read_bundle(tmp_path / "b")


def outcome(source):
    """The tensors, or None where they are refused; any other exception fails the test."""
    try:
        return read_bundle(source)
    except ConvertError:
        return None


@pytest.fixture
def real_index(tmp_path):
    """A copy of a real checkpoint's index, beside the real data."""
    folder = shared_file(REAL)
    (tmp_path / "b.data-00000-of-00001").symlink_to(folder / "model.ckpt-1234.data-00000-of-00001")
    index = tmp_path / "b.index"
    index.write_bytes((folder / "model.ckpt-1234.index").read_bytes())
    return index


def test_every_changed_byte_of_a_real_index_is_found_or_changes_nothing(real_index):
    whole, wanted, chance, passed = real_index.read_bytes(), read_bundle(real_index), random.Random(0), []
    with real_index.open("r+b", buffering=0) as file:
        for position, byte in enumerate(whole):
            os.pwrite(file.fileno(), bytes([byte ^ chance.randrange(1, 256)]), position)
            bundle = outcome(real_index)
            if bundle is not None:
                passed.append(position)
                assert same(bundle, wanted), f"byte {position}"
            os.pwrite(file.fileno(), bytes([byte]), position)
    # What may change unseen is never read: the metaindex block, which is empty, and the footer's padding.
    index_block = whole.rindex(bundle_writer.sealed(bundle_writer.block([]))) + 8 + 5
    assert passed
    assert min(passed) >= index_block - 8 - 5
    assert not set(passed) & set(range(index_block, len(whole) - 48))


def test_a_real_index_that_is_cut_short_anywhere_is_refused(real_index):
    for length in range(real_index.stat().st_size - 1, -1, -1):
        os.truncate(real_index, length)
        assert outcome(real_index) is None, f"{length} bytes"


def test_garbage_under_a_right_checksum_is_refused_or_read(tmp_path):
    write_bundle(tmp_path / "b", {"x": np.ones((2, 3)), "x/Adam": np.float32(2), "y": torch.ones(3).bfloat16()})
    whole = (tmp_path / "b.index").read_bytes()
    block = whole[: whole.index(bundle_writer.sealed(bundle_writer.block([]))) - 5]
    assert whole.startswith(bundle_writer.sealed(block))
    read = 0
    for position in range(len(block)):
        for byte in {0, 0x7F, 0xFF} | {block[position] ^ 1 << bit for bit in range(8)}:
            changed = block[:position] + bytes([byte]) + block[position + 1 :]
            (tmp_path / "b.index").write_bytes(bundle_writer.assemble([(b"y", changed)]))
            read += outcome(tmp_path / "b") is not None
        (tmp_path / "b.index").write_bytes(bundle_writer.assemble([(b"y", block[:position])]))
        outcome(tmp_path / "b")
    assert read > 0


@given(st.dictionaries(st.binary(max_size=3), st.binary(max_size=12), max_size=4))
@example({b"": b"\x08\x01", b"x": b"\x12\x02\x12\x00"})
def test_any_records_are_refused_or_read(tmp_path_factory, records):
    prefix = tmp_path_factory.getbasetemp() / "any"
    write_index(prefix, {b"": bundle_writer.header(), **records})
    outcome(prefix)


def test_without_the_checksum_s_package_the_error_names_the_group(tmp_path, monkeypatch):
    write_bundle(tmp_path / "b", {})
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    with pytest.raises(MissingGroupError, match=r"needs google_crc32c: pip install 'positionwise\[convert\]'"):
        read_bundle(tmp_path / "b")
