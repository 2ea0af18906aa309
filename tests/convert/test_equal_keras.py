"""Keras's numbers: every fixture, in float32 and in float64, from every form of its files."""

import keras_cases
import pytest
import torch
from keras_cases import CASES, measure

from positionwise import account
from positionwise.convert import from_keras
from positionwise.transformer import TransformerConfig, preset
from shared import shared_file

TOLERANCE = 2e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_every_number_is_the_originals(name, dtype):
    limits = {"weights after three steps, absolute": 5e-6}  # Adam divides small gradients by themselves
    errors = measure(name, dtype)
    assert {key: error for key, error in errors.items() if not error <= limits.get(key, TOLERANCE)} == {}


def test_every_fixture_is_held():
    names = {path.stem for path in shared_file("fixtures/keras").glob("*.npz")}
    assert {name for name in names if not name.startswith("textvec")} == set(CASES)


def test_pytorchs_epsilon_alone_is_another_optimizer():
    """What the recipe of `keras_cases.adam_steps` is for."""
    arrays = keras_cases.archive("translation")
    model = keras_cases.convert(arrays, torch.float64).module
    sources, targets = (torch.from_numpy(arrays[side]).long() for side in ("english", "spanish"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keras_cases.math, "sqrt", lambda value: 1.0 if value < 0.1 else value**0.5)
        errors = keras_cases.adam_steps(arrays, model, sources, targets)
    assert errors["weights after three steps, absolute"] > 1e-4


@pytest.mark.parametrize("name", CASES)
def test_all_forms_of_a_file_give_the_same_module(name):
    options = keras_cases.options(name, keras_cases.archive(name))
    modules = [
        from_keras(shared_file(f"fixtures/keras/{name}{suffix}"), **options)
        for suffix in (".npz", ".keras", ".weights.h5")
    ]
    first = modules[0].state_dict()
    for module in modules[1:]:
        assert type(module) is type(modules[0])
        assert module.state_dict().keys() == first.keys()
        assert all(torch.equal(value, first[key]) for key, value in module.state_dict().items())
        assert str(module) == str(modules[0])  # ε, activation and sizes too


def test_the_archive_says_what_the_weights_do_not():
    layer = from_keras(shared_file("fixtures/keras/hub_encoder_prenorm_gelu.keras"))
    assert (layer.norm_first, layer.feed_forward.activation.name, layer.feed_forward_norm.eps) == (True, "gelu", 1e-5)
    bare = from_keras(shared_file("fixtures/keras/hub_encoder_prenorm_gelu.weights.h5"))
    assert (bare.norm_first, bare.feed_forward.activation.name, bare.feed_forward_norm.eps) == (False, "relu", 1e-5)
    book = from_keras(shared_file("fixtures/keras/encoder.weights.h5"))
    assert book.feed_forward_norm.eps == 1e-3
    assert from_keras(shared_file("fixtures/keras/encoder.weights.h5"), epsilon=1e-4).feed_forward_norm.eps == 1e-4


def test_the_books_model_has_the_books_counts():
    assert account("keras-translation").total == 14_439_064
    fields = {**preset("keras-translation").to_diff_dict(), "positions": "none"}
    fields = {name: value for name, value in fields.items() if name in TransformerConfig.__annotations__}
    assert account(TransformerConfig(**fields)).total == 14_428_824
    assert account(TransformerConfig(**{**fields, "positions": "learned", "d_ff": 2056})).total == 14_447_272
