"""Which files a path of a TensorFlow checkpoint stands for."""

import numpy as np
import pytest
from bundle_writer import write_bundle

from positionwise.convert import from_tensor2tensor
from positionwise.convert.tensorbundle import read_bundle
from positionwise.errors import ConvertError
from shared import shared_file

REAL = "fixtures/tensor2tensor/checkpoint_v37_shared"


@pytest.mark.parametrize("name", ["", "checkpoint", "model.ckpt-1234", "model.ckpt-1234.index",
                                  "model.ckpt-1234.data-00000-of-00001", "model.ckpt-1234.meta"])  # fmt: skip
def test_the_folder_the_prefix_and_each_file_are_one_source(name):
    folder = shared_file(REAL)
    bundle, wanted = read_bundle(folder / name), read_bundle(folder)
    assert len(wanted) == 244
    assert list(bundle) == list(wanted)
    assert all(np.array_equal(bundle[key], wanted[key]) for key in wanted)


@pytest.mark.parametrize("name", ["a.meta", "a.data-00000-of-00001", "checkpoint"])
def test_a_prefix_may_look_like_a_file(tmp_path, name):
    write_bundle(tmp_path / name, {"x": np.float32(3)})
    assert read_bundle(tmp_path / name)["x"] == 3


def test_a_folder_that_was_moved_is_read_where_it_is(tmp_path):
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "/nowhere/at all/model.ckpt-7"')
    write_bundle(tmp_path / "model.ckpt-7", {"x": np.float32(3)})
    assert read_bundle(tmp_path)["x"] == 3
    write_bundle(tmp_path / "sub", {"x": np.float32(4)})
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "other/sub"')  # relative: it never named this one
    with pytest.raises(ConvertError, match=r"other/sub\.index; got No such file"):
        read_bundle(tmp_path)


def test_an_absolute_path_that_is_there_is_the_one_that_is_read(tmp_path):
    (tmp_path / "away").mkdir()
    for folder, value in ((tmp_path, 3), (tmp_path / "away", 4)):
        write_bundle(folder / "model.ckpt-7", {"x": np.float32(value)})
    (tmp_path / "checkpoint").write_text(f'model_checkpoint_path: "{tmp_path}/away/model.ckpt-7"')
    assert read_bundle(tmp_path)["x"] == 4


@pytest.mark.parametrize(
    ("name", "got"),
    [
        ("nowhere", "no file of that name"),
        ("notes.txt", r"a file without an \.index beside it"),
        ("cut.data-00000-of-00001", r"a file without an \.index beside it"),
        (".", "a folder without a checkpoint file"),
    ],
)  # fmt: skip
def test_a_path_that_is_no_checkpoint_says_what_one_is(tmp_path, name, got):
    for file in ("notes.txt", "cut.data-00000-of-00001"):
        (tmp_path / file).write_bytes(b"words")
    what = r"a TensorFlow checkpoint \(its folder, prefix or \.index file\) or an \.npz file"
    with pytest.raises(ConvertError, match=f"expected {what} at .*; got {got}"):
        from_tensor2tensor(tmp_path / name)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (r'model_checkpoint_path: "model.ckpt-7"', "model.ckpt-7"),
        (r'all_model_checkpoint_paths: "b"' + "\n" + r'  model_checkpoint_path:"a"', "a"),
        ("model_checkpoint_path: 'it'", "it"),
        (r"model_checkpoint_path : 'a\'b'", "a'b"),
        (r'model_checkpoint_path: "gr\303\266\303\237e \"7\" \\303"', 'größe "7" \\303'),
        ('model_checkpoint_path: "größe"', "größe"),
    ],
)
def test_the_checkpoint_file_names_the_prefix(tmp_path, line, name):
    (tmp_path / "checkpoint").write_text(f"{line}\n", encoding="utf-8")
    write_bundle(tmp_path / name, {"x": np.float32(3)})
    assert read_bundle(tmp_path)["x"] == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"expected a TensorFlow checkpoint \(its folder, .*; got a folder without a checkpoint file"),
        ("", r"checkpoint: expected a line model_checkpoint_path: \"…\"; got none"),
        ('all_model_checkpoint_paths: "b"', "got none"),
        ('model_checkpoint_path: ""', "got none"),
        ("model_checkpoint_path: __import__('os')", "got none"),
        ('model_checkpoint_path: "gone"', r"expected a readable file at .*gone\.index; got No such file"),
        (r'model_checkpoint_path: "a\000b"', "expected a readable file at .*; got embedded null byte"),
        (r'model_checkpoint_path: "/"', r"expected a readable file at /\.index; got No such file"),
    ],
)
def test_a_folder_without_a_checkpoint_is_refused(tmp_path, text, message):
    if text is not None:
        (tmp_path / "checkpoint").write_text(text, encoding="utf-8")
    with pytest.raises(ConvertError, match=message):
        read_bundle(tmp_path)
