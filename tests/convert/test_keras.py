"""Keras's names: what is read, and what is made of it."""

import json

import h5py
import numpy as np
import pytest
import torch
from keras_arrays import datasets, dense_pair, weights
from keras_cases import archive

from positionwise import FeedForward
from positionwise.convert import from_keras
from positionwise.convert.keras import convert_keras
from positionwise.convert.tensors import Tensors
from positionwise.errors import ConvertError
from positionwise.transformer import DecoderLayer, EncoderLayer, TransformerForTranslation
from positionwise.transformer.models import Encoder
from shared import shared_file


def same(one, other):
    assert type(one) is type(other)
    theirs = other.state_dict()
    return all(torch.equal(value, theirs[key]) for key, value in one.state_dict().items())


def backwards(arrays):
    return dict(reversed(arrays.items()))


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
        assert same(first, from_keras(backwards(form)))


OPTIMIZERS = [
    "optimizer/vars/0", "adam/iteration", "adamw/learning_rate", "sgd_2/iteration", "nadam/_u_product",
    "adam/transformer_encoder_dense_kernel_momentum", "loss_scale_optimizer/step_counter", "lion/vars/3",
]  # fmt: skip
SEEDS = [
    "seed_generator_3/seed_generator_state", "layers/dropout/seed_generator/vars/0",
    "transformer_encoder/dropout/seed_generator_12/seed_generator_state",
]  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS + SEEDS)
def test_what_is_no_weight_is_set_aside(name):
    assert convert_keras(weights("encoder") | {name: np.zeros((), np.int64)}).set_aside == (name,)


def test_an_optimizers_variables_are_set_aside_and_its_namesakes_are_not():
    made = convert_keras(shared_file("fixtures/keras/translation.keras"))
    assert (len(made.rows), len(made.set_aside)) == (48, 98)
    assert all(name.startswith("optimizer/vars/") for name in made.set_aside)
    with pytest.raises(ConvertError, match="'my_adam/vars/2'"):
        convert_keras(weights("encoder") | {"my_adam/vars/2": np.zeros(2, np.float32)})


def test_two_dense_layers_are_a_feed_forward_network():
    arrays = dense_pair("first", "second")
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


@pytest.mark.parametrize("square", [(4, 4), (4, 6)])
@pytest.mark.parametrize("names", [("dense", "dense_1"), ("dense_9", "dense_10"), ("up_1", "down_2")])
def test_numbers_say_which_dense_layer_is_the_first(names, square):
    arrays = dense_pair(*names, shapes=(square, square[::-1]))
    for form in (arrays, backwards(arrays)):
        assert torch.equal(from_keras(form).layer1.weight, torch.from_numpy(arrays[f"{names[0]}/kernel"]).T)


def test_dense_layers_whose_numbers_do_not_fit_are_taken_as_they_fit():
    arrays = dense_pair("dense_1", "dense")
    assert torch.equal(from_keras(arrays).layer1.weight, torch.from_numpy(arrays["dense_1/kernel"]).T)
    neither = dense_pair(shapes=((4, 6), (7, 5)))
    with pytest.raises(ConvertError, match=r"expected 'dense_1/kernel' of shape \(6, 5\); got \(7, 5\)"):
        from_keras(neither)


def test_dense_layers_without_numbers_stand_in_the_sources_order():
    arrays = dense_pair("up", "down", shapes=((4, 6), (6, 4)))
    assert from_keras(arrays).spec.d_ff == 6
    assert from_keras(backwards(arrays)).spec.d_ff == 4


def stack(count):
    """Encoder layers, the numbers of layer i being i larger, from the last to the first."""
    made = {}
    for i in reversed(range(count)):
        layer = "transformer_encoder" + (f"_{i}" if i else "")
        made |= {path.replace("transformer_encoder", layer): value + i for path, value in datasets("encoder").items()}
    return made


def test_layers_and_models(tmp_path):
    assert type(from_keras(weights("encoder"))) is EncoderLayer
    assert type(from_keras(weights("decoder"))) is DecoderLayer
    with h5py.File(tmp_path / "stack.weights.h5", "w") as file:
        for path, value in stack(11).items():  # a file lists transformer_encoder_10 before _2
            file[path] = value
    for source in (tmp_path / "stack.weights.h5", stack(11)):
        encoder = from_keras(source)
        assert type(encoder) is Encoder
        first = encoder.layers[0].self_attention.query.weight.detach()
        found = [(layer.self_attention.query.weight.detach() - first).mean().item() for layer in encoder.layers]
        assert [round(each) for each in found] == [*range(11)]


def test_several_pre_norm_layers_are_refused_and_one_is_not():
    assert from_keras(stack(1), norm_first=True).norm_first
    with pytest.raises(ConvertError, match="our pre-norm Encoder ends in a norm, which these weights do not have"):
        from_keras(stack(2), norm_first=True)
    with pytest.raises(ConvertError, match="our pre-norm Encoder ends in a norm, which these weights do not have"):
        from_keras(datasets("translation"), norm_first=True)


def test_a_model_without_positions():
    plain = {}
    for path, value in datasets("translation").items():
        if "position_embeddings" not in path:
            plain[path.replace("positional_embedding", "embedding").replace("/token_embeddings", "")] = value
    model = from_keras(plain)
    assert type(model) is TransformerForTranslation
    assert model.config.positions == "none"
    assert model.num_parameters() == 7149 - 2 * 8 * 16
    assert same(model, from_keras(backwards(plain)))


def bfloat16(value):
    """The upper halves of float32 numbers, as NumPy holds bfloat16."""
    return (value.view(np.uint32) >> 16).astype(np.uint16).view("V2")


@pytest.mark.parametrize("form", [lambda a: a.astype(">f4"), lambda a: a.astype(">f8"), bfloat16,
                                  lambda a: a[..., ::-1].copy()[..., ::-1]])  # fmt: skip
def test_arrays_of_every_layout_are_read(form):
    arrays = {name: np.float32(value) for name, value in weights("encoder").items()}
    if form is bfloat16:  # numbers that it holds exactly
        arrays = {name: (a.view(np.uint32) & 0xFFFF0000).view(np.float32) for name, a in arrays.items()}
    assert same(from_keras({name: form(value) for name, value in arrays.items()}).float(), from_keras(arrays))


def test_a_single_bfloat16_is_widened_and_a_long_double_is_not_narrowed():
    one = Tensors({"a": np.array(0x3F80, np.uint16).view("V2")}).take("a", "")
    assert (one.dtype, one.shape, float(one)) == (torch.float32, (), 1.0)
    with pytest.raises(ConvertError, match="expected numbers in 'a'"):
        Tensors({"a": np.ones(2, np.longdouble)})
