"""Keras's shapes: each variable there, and of exactly the shape that the layer's sizes say, or named."""

import numpy as np
import pytest
from keras_arrays import datasets, dense_pair, stored, weights

from positionwise.convert import from_keras
from positionwise.errors import ConvertError

FIRST = "transformer_encoder/"
ATTENTION = f"{FIRST}multi_head_attention/"


def zeros(*shape):
    return np.zeros(shape, np.float32)


def message(arrays):
    with pytest.raises(ConvertError) as error:
        from_keras(arrays)
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        (f"{FIRST}dense/bias", (63,), "(64,)"),
        (f"{FIRST}dense/bias", (8, 8), "(64,)"),
        (f"{FIRST}dense/bias", (1, 64), "(64,)"),
        (f"{FIRST}dense/bias", (), "(64,)"),
        (f"{FIRST}dense/kernel", (64,), "(16, 64)"),
        (f"{FIRST}dense/kernel", (4, 4, 64), "(16, 64)"),
        (f"{FIRST}dense/kernel", (17, 64), "(16, 64)"),
        (f"{FIRST}dense_1/kernel", (64, 17), "(64, 16)"),
        (f"{FIRST}layer_normalization/gamma", (), "(16,)"),
        (f"{FIRST}layer_normalization/gamma", (17,), "(16,)"),
        (f"{FIRST}layer_normalization/beta", (1, 16), "(16,)"),
        (f"{ATTENTION}query/kernel", (16, 16), "(16, 4, 4)"),
        (f"{ATTENTION}query/kernel", (16, 2, 8), "(16, 4, 4)"),
        (f"{ATTENTION}query/kernel", (15, 4, 4), "(16, 4, 4)"),
        (f"{ATTENTION}query/bias", (16,), "(4, 4)"),
        (f"{ATTENTION}value/bias", (2, 8), "(4, 4)"),
        (f"{ATTENTION}attention_output/kernel", (16, 16), "(4, 4, 16)"),
        (f"{ATTENTION}attention_output/kernel", (2, 8, 16), "(4, 4, 16)"),
        (f"{ATTENTION}attention_output/bias", (4, 4), "(16,)"),
    ],
)
def test_a_variable_of_another_shape_is_blamed_itself(name, shape, expected):
    got = message(weights("encoder") | {name: zeros(*shape)})
    assert got == f"expected {name!r} of shape {expected}; got {shape}"


@pytest.mark.parametrize(("heads", "key_dim"), [(2, 8), (8, 2), (2, 4)])
def test_every_layer_has_the_firsts_heads(heads, key_dim):
    first, second = datasets("encoder"), {}
    for path, value in first.items():
        shape = tuple({4: heads}.get(n, n) if i == 0 else n for i, n in enumerate(value.shape))
        if "/self_attention/" in path and "output_dense/vars/1" not in path:
            shape = {3: (16, heads, key_dim), 2: (heads, key_dim)}[value.ndim]
            shape = (heads, key_dim, 16) if "output_dense" in path else shape
        second[path.replace("transformer_encoder", "transformer_encoder_1")] = zeros(*shape)
    name = "layers/transformer_encoder_1/self_attention/query_dense/vars/0"
    assert message(first | second) == f"expected {name!r} of shape (16, 4, 4); got (16, {heads}, {key_dim})"
    third = {path.replace("encoder_1", "encoder_2"): value for path, value in second.items()}
    assert repr(name) in message(first | second | third)  # however many differ from it


def test_attention_to_the_source_has_the_heads_of_attention_to_itself():
    arrays = datasets("decoder")
    heads = {"query_dense": (16, 2, 8), "key_dense": (16, 2, 8), "value_dense": (16, 2, 8), "output_dense": (2, 8, 16)}
    for part, shape in heads.items():
        arrays[f"layers/transformer_decoder/cross_attention/{part}/vars/0"] = zeros(*shape)
        if part != "output_dense":
            arrays[f"layers/transformer_decoder/cross_attention/{part}/vars/1"] = zeros(2, 8)
    assert "cross_attention/query_dense/vars/0' of shape (16, 4, 4); got (16, 2, 8)" in message(arrays)


def test_the_networks_of_all_layers_have_one_width():
    first = datasets("encoder")
    second = {path.replace("encoder", "encoder_1"): value for path, value in first.items()}
    start = "layers/transformer_encoder_1/feed_forward_"
    second |= {f"{start}1/vars/0": zeros(16, 40), f"{start}1/vars/1": zeros(40), f"{start}2/vars/0": zeros(40, 16)}
    assert message(first | second) == f"expected {start + '1/vars/0'!r} of shape (16, 64); got (16, 40)"


@pytest.mark.parametrize(("name", "shape"), [("dense/kernel", (24,)), ("dense_1/kernel", ()), ("dense/bias", (2, 3))])
def test_dense_layers_of_another_rank_are_named(name, shape):
    assert f"{name!r} of shape " in message(dense_pair() | {name: zeros(*shape)})


@pytest.mark.parametrize(
    ("source", "gone", "expected"),
    [
        (weights, ["dense/bias"], "transformer_encoder/dense/bias"),
        (weights, ["attention/key/kernel", "attention/key/bias"], f"{ATTENTION}key/kernel"),
        (weights, ["attention_output"], f"{ATTENTION}attention_output/kernel"),
        (weights, ["layer_normalization_1/gamma"], "transformer_encoder/layer_normalization_1/gamma"),
        (weights, ["layer_normalization/"], "transformer_encoder/layer_normalization_*/gamma"),
        (datasets, ["self_attention_layernorm"], "layers/transformer_encoder/self_attention_layernorm/vars/0"),
        (datasets, ["key_dense/vars/1"], "layers/transformer_encoder/self_attention/key_dense/vars/1"),
        (datasets, ["output_dense"], "layers/transformer_encoder/self_attention/output_dense/vars/0"),
        (datasets, ["feed_forward_2"], "layers/transformer_encoder/feed_forward_2/vars/0"),
    ],
)
def test_a_missing_variable_is_named_as_the_source_would(source, gone, expected):
    arrays = {path: a for path, a in source("encoder").items() if not any(part in path for part in gone)}
    assert message(arrays) == f"expected a variable {expected!r}; got none of that name"
    if source is weights:
        return
    dotted = {path.removeprefix("layers/").replace("/", "."): a for path, a in arrays.items()}
    assert repr(expected.removeprefix("layers/").replace("/", ".")) in message(dotted)


def test_what_kerashub_calls_a_missing_variable():
    arrays = datasets("hub_encoder_postnorm")
    for gone in ("_feedforward_output_dense", "_self_attention_layer_norm"):
        left = {path: value for path, value in arrays.items() if f"/{gone}/" not in path}
        assert f"'layers/transformer_encoder/{gone}/vars/0'" in message(left)


def test_a_dense_layer_without_a_bias_is_named():
    both = stored(dense_pair())
    assert "'layers/dense_1/vars/1'" in message({path: a for path, a in both.items() if path[-8:] != "1/vars/1"})
    assert "'layers/dense/vars/1'" in message({path: a for path, a in both.items() if path[-1] == "0"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (f"{FIRST}gate/kernel", zeros(4, 4)),
        (f"{FIRST}dense/scale", zeros(4)),
        (f"{FIRST}dense_2/kernel", zeros(4, 4)),
        (f"{FIRST}dense/bias", np.full(64, np.inf, np.float32)),
    ],
    ids=["extra map", "extra leaf", "third dense", "infinite"],
)
def test_what_is_unknown_or_infinite_is_named(name, value):
    assert name.rpartition("/")[0] in message(weights("encoder") | {name: value})
