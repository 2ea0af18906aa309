"""Keras's files and names: what is read, what is made of it, and what is refused."""

import io
import json
import zipfile

import h5py
import numpy as np
import pytest
import torch
from keras_cases import archive

from positionwise import FeedForward
from positionwise.convert import from_keras
from positionwise.convert.keras import convert_keras
from positionwise.errors import ConvertError
from positionwise.transformer import DecoderLayer, EncoderLayer, TransformerForTranslation
from positionwise.transformer.models import Encoder
from shared import shared_file


def weights(name):
    """The variables by their own paths."""
    return {key[2:]: value for key, value in archive(name).items() if key.startswith("w:")}


def datasets(name):
    """The variables by their paths in the weights file."""
    with h5py.File(shared_file(f"fixtures/keras/{name}.weights.h5")) as file:
        found = {}
        file.visititems(lambda path, each: found.update({path: each[()]}) if isinstance(each, h5py.Dataset) else None)
    return found


def same(one, other):
    assert type(one) is type(other)
    theirs = other.state_dict()
    return all(torch.equal(value, theirs[key]) for key, value in one.state_dict().items())


@pytest.mark.parametrize("name", ["encoder", "decoder", "translation"])
def test_every_form_of_the_names_is_read(name):
    arrays = archive(name)
    attributes = json.loads(str(arrays["names"]))
    by_attribute = {attributes[path]: value for path, value in weights(name).items()}
    prefixed = {f"model/{path}" if name != "translation" else path: value for path, value in weights(name).items()}
    renumbered = {path.replace("dense_1", "dense_19").replace("dense/", "dense_7/"): value
                  for path, value in weights(name).items()}  # fmt: skip
    first = from_keras(weights(name))
    for form in (by_attribute, prefixed, datasets(name), renumbered if name == "encoder" else by_attribute):
        assert same(first, from_keras(form))


def test_an_optimizers_variables_are_set_aside():
    made = convert_keras(shared_file("fixtures/keras/translation.keras"))
    assert (len(made.rows), len(made.set_aside)) == (48, 98)
    assert all(name.startswith("optimizer/vars/") for name in made.set_aside)
    with_state = datasets("encoder") | {"layers/dropout/seed_generator/vars/0": np.zeros(2, np.uint32)}
    assert convert_keras(with_state).set_aside == ("layers/dropout/seed_generator/vars/0",)


def test_two_dense_layers_are_a_feed_forward_network():
    rng = np.random.default_rng(0)
    shapes = {"first/kernel": (4, 6), "first/bias": (6,), "second/kernel": (6, 5), "second/bias": (5,)}
    arrays = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    ffn = from_keras(arrays, activation="gelu")
    assert type(ffn) is FeedForward
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    hidden = torch.nn.functional.gelu(
        x @ torch.from_numpy(arrays["first/kernel"]) + torch.from_numpy(arrays["first/bias"])
    )
    expected = hidden @ torch.from_numpy(arrays["second/kernel"]) + torch.from_numpy(arrays["second/bias"])
    torch.testing.assert_close(ffn(x), expected, rtol=1e-12, atol=1e-12)
    inside = {path: value for path, value in datasets("encoder").items() if "feed_forward_1" in path or "_2" in path}
    assert type(from_keras(inside)) is FeedForward


def test_layers_and_models():
    assert type(from_keras(weights("encoder"))) is EncoderLayer
    assert type(from_keras(weights("decoder"))) is DecoderLayer
    stack = {}
    for i in reversed(range(11)):  # a file lists transformer_encoder_10 before _2
        layer = "transformer_encoder" + (f"_{i}" if i else "")
        stack |= {path.replace("transformer_encoder", layer): value + i for path, value in datasets("encoder").items()}
    target = io.BytesIO()
    with h5py.File(target, "w") as file:
        for path, value in stack.items():
            file[path] = value
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pathlib.Path.is_file", lambda path: True)
        patch.setattr("h5py.File", lambda path, mode, real=h5py.File: real(target, mode))
        encoder = from_keras("stack.weights.h5")
    assert type(encoder) is Encoder
    first = encoder.layers[0].self_attention.query.weight.detach()
    found = [(layer.self_attention.query.weight.detach() - first).mean().item() for layer in encoder.layers]
    assert [round(each) for each in found] == [*range(11)]


def test_a_model_without_positions():
    arrays = {path: value for path, value in datasets("translation").items() if "optimizer" not in path}
    plain = {}
    for path, value in arrays.items():
        if "position_embeddings" not in path:
            plain[path.replace("positional_embedding", "embedding").replace("/token_embeddings", "")] = value
    model = from_keras(plain)
    assert type(model) is TransformerForTranslation
    assert model.config.positions == "none"
    assert model.num_parameters() == 7149 - 2 * 8 * 16


def test_the_targets_table_has_the_outputs_words():
    arrays = weights("translation")
    swapped = {path: value for path, value in arrays.items() if "target_embedding" in path} | arrays
    assert list(swapped) != list(arrays)
    assert same(from_keras(swapped), from_keras(arrays))


def archive_of(config, data=b""):
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as file:
        file.writestr("config.json", json.dumps(config))
        file.writestr("model.weights.h5", data)
    return target.getvalue()


def test_a_layer_that_we_do_not_know_is_not_executed(tmp_path):
    layers = [{"class_name": "Lambda", "config": {"function": "anything"}}]
    (tmp_path / "model.keras").write_bytes(archive_of({"config": {"layers": layers}}))
    with pytest.raises(ConvertError, match="known classes in .*model.keras; got 'Lambda'"):
        from_keras(tmp_path / "model.keras")


@pytest.mark.parametrize("name", ["encoder.keras", "encoder.weights.h5"])
@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.95])
def test_a_truncated_file_is_an_error(tmp_path, name, share):
    data = shared_file(f"fixtures/keras/{name}").read_bytes()
    (tmp_path / name).write_bytes(data[: int(share * len(data))])
    with pytest.raises(ConvertError, match=name):
        from_keras(tmp_path / name)


def test_a_damaged_file_is_an_error_or_the_same(tmp_path):
    data = shared_file("fixtures/keras/encoder.weights.h5").read_bytes()
    path = tmp_path / "damaged.weights.h5"
    first = from_keras(shared_file("fixtures/keras/encoder.weights.h5")).state_dict()
    for position in range(0, len(data), 397):
        path.write_bytes(data[:position] + bytes([data[position] ^ 0xFF]) + data[position + 1 :])
        try:
            made = from_keras(path)
        except ConvertError:
            continue
        # HDF5 keeps no checksum of numbers: a weight may have changed, but everything has its place.
        assert {key: value.shape for key, value in made.state_dict().items()} == {k: v.shape for k, v in first.items()}


def test_a_file_that_is_not_there_or_of_another_kind(tmp_path):
    for name in ("none.keras", "none.weights.h5"):
        with pytest.raises(ConvertError, match=f"expected a file at .*{name}"):
            from_keras(tmp_path / name)
    with pytest.raises(ConvertError, match="expected a .keras, .weights.h5 or .npz file; got .*model.pkl"):
        from_keras(tmp_path / "model.pkl")


def test_a_dataset_in_another_file_is_refused(tmp_path):
    (tmp_path / "raw").write_bytes(bytes(4 * 64))
    with h5py.File(tmp_path / "m.weights.h5", "w") as file:
        file.create_dataset("layers/dense/vars/0", (8, 8), "<f4", external=[(str(tmp_path / "raw"), 0, 256)])
    with pytest.raises(ConvertError, match="'layers/dense/vars/0' inside .*another file"):
        from_keras(tmp_path / "m.weights.h5")


FIRST = "transformer_encoder/"


def zeros(*shape):
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop(f"{FIRST}dense/bias"), "bias of layer1 in 'transformer_encoder'"),
        (lambda w: w.pop(f"{FIRST}multi_head_attention/key/kernel"), "kernel of self_attention.key"),
        (lambda w: w.pop(f"{FIRST}layer_normalization_1/gamma"), "feed_forward_norm"),
        (lambda w: w.update({f"{FIRST}gate/kernel": zeros(4, 4)}), "gate"),
        (lambda w: w.update({f"{FIRST}dense/scale": zeros(4)}), "'transformer_encoder/dense/scale'"),
        (lambda w: w.update({f"{FIRST}dense/bias": zeros(63)}), f"{FIRST}dense/bias"),
        (lambda w: w.update({f"{FIRST}dense/bias": np.full(64, np.inf, np.float32)}), f"{FIRST}dense/bias"),
        (lambda w: w.update({f"{FIRST}dense/kernel": zeros(64)}), f"{FIRST}dense/kernel"),
        (lambda w: w.update({f"{FIRST}multi_head_attention/query/kernel": zeros(16, 16)}), "query/kernel"),
        (lambda w: w.update({f"{FIRST}multi_head_attention/query/kernel": zeros(16, 2, 8)}), "attention/key/kernel"),
        (lambda w: w.update({f"{FIRST}dense_2/kernel": zeros(4, 4)}), "dense_2/kernel"),
    ],
    ids=["bias missing", "kernel missing", "norm missing", "extra map", "extra leaf", "shape", "infinite",
         "flat kernel", "flat query", "other heads", "third dense"],
)  # fmt: skip
def test_what_is_wrong_is_named(change, message):
    arrays = weights("encoder")
    change(arrays)
    with pytest.raises(ConvertError) as error:
        from_keras(arrays)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"num_heads": 8}, "num_heads"), ({"epsilon": 1e-3}, "epsilon"), ({"norm_first": True}, "norm_first"),
     ({"activation": "gelu"}, "activation")],
)  # fmt: skip
def test_an_option_that_contradicts_the_file_is_refused(options, message):
    with pytest.raises(ConvertError, match=f"expected one {message} of the file and the options"):
        from_keras(shared_file("fixtures/keras/hub_encoder_postnorm.keras"), **options)
    if "num_heads" in options:
        with pytest.raises(ConvertError, match="expected 4 heads as in 'transformer_encoder'; got num_heads=8"):
            from_keras(weights("encoder"), **options)
