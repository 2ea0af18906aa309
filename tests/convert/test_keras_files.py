"""Keras's files: damaged, foreign or not there, each is an error that names it."""

import json

import h5py
import pytest
from keras_arrays import dense_pair, model_of, stored, write_keras

from positionwise.convert import from_keras
from positionwise.errors import ConvertError
from shared import shared_file


def test_a_layer_that_we_do_not_know_is_not_executed(tmp_path):
    path = write_keras(tmp_path / "model.keras", model_of(("Lambda", {"function": "anything"})), {})
    with pytest.raises(ConvertError, match="known classes in .*model.keras; got 'Lambda'"):
        from_keras(path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("[]", "a list of layers"),
        ("null", "a list of layers"),
        ('{"config": []}', "a list of layers"),
        ('{"config": {"layers": 5}}', "a list of layers in .*m.keras; got 5"),
        ('{"config": {"layers": {"a": 1}}}', "a list of layers"),
        ('{"config": {"layers": []}}', "a list of layers"),
        ('{"config": {"layers": [5]}}', "known classes in .*; got 5"),
        ('{"config": {"layers": [{"class_name": ["Dense"], "config": {}}]}}', "known classes in .*; got .'Dense'"),
        ('{"config": {"layers": [{"class_name": {"a": 1}, "config": {}}]}}', "known classes"),
        ('{"config": {"layers": [{"class_name": "Dense"}]}}', "a Dense with its config in .*m.keras; got None"),
        ('{"config": {"layers": [{"class_name": "Dense", "config": [1]}]}}', "a Dense with its config"),
        ("[" * 100_000, "a .keras archive at .*m.keras; got .*recursion"),
        ('{"config": ' + "9" * 10_000 + "}", "a .keras archive at .*m.keras; got "),
        (json.dumps(model_of(("Dense", {"activation": 5}), ("Dense", {}))), "activation to be of type str; got 5"),
        (json.dumps(model_of(("Dense", {"activation": "elu"}), ("Dense", {}))), "expected activation to be one of"),
        (json.dumps(model_of(("TransformerEncoder", {"activation": {"a": 1}}))), "activation to be of type str"),
    ],
)
def test_a_configuration_of_another_form_is_refused(tmp_path, config, message):
    path = write_keras(tmp_path / "m.keras", config, stored(dense_pair()))
    with pytest.raises(ConvertError, match=message):
        from_keras(path)


@pytest.mark.parametrize("name", ["encoder.keras", "encoder.weights.h5"])
@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.95])
def test_a_truncated_file_is_an_error(tmp_path, name, share):
    data = shared_file(f"fixtures/keras/{name}").read_bytes()
    (tmp_path / name).write_bytes(data[: int(share * len(data))])
    with pytest.raises(ConvertError, match=name):
        from_keras(tmp_path / name)


@pytest.mark.parametrize(("name", "step"), [("encoder.weights.h5", 397), ("encoder.keras", 797)])
def test_a_damaged_file_is_an_error_or_the_same(tmp_path, name, step):
    data = shared_file(f"fixtures/keras/{name}").read_bytes()
    path = tmp_path / f"damaged.{name.partition('.')[2]}"
    first = from_keras(shared_file(f"fixtures/keras/{name}")).state_dict()
    for position in range(0, len(data), step):
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
