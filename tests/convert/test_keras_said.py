"""What Keras's descriptions say, what options say, and what is assumed."""

import pytest
from keras_arrays import datasets, dense_pair, model_of, stored, weights, write_keras

from positionwise.convert import from_keras
from positionwise.convert.keras import convert_keras
from positionwise.errors import ConvertError
from shared import shared_file


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


@pytest.mark.parametrize(
    "config",
    [{"layer_norm_epsilon": "x"}, {"layer_norm_epsilon": 10**400}, {"layer_norm_epsilon": float("nan")},
     {"layer_norm_epsilon": -1.0}, {"num_heads": "4"}, {"num_heads": True}, {"normalize_first": "false"},
     {"dropout": 1.5}, {"activation": 3}],
    ids=str,
)  # fmt: skip
def test_a_value_of_another_kind_is_refused(tmp_path, config):
    path = write_keras(tmp_path / "m.keras", model_of(("TransformerEncoder", config)), datasets("encoder"))
    with pytest.raises(ConvertError, match="^expected "):
        from_keras(path)


def pair_of(tmp_path, first, second, arrays):
    layers = model_of(("InputLayer", {}), ("Dense", {"name": "up", "activation": first}),
                      ("Dense", {"name": "down", "activation": second}))  # fmt: skip
    return write_keras(tmp_path / "m.keras", layers, stored(arrays))


@pytest.mark.parametrize(("theirs", "ours"), [("gelu", "gelu"), ("silu", "silu"), ("linear", "identity")])
def test_the_first_dense_layers_activation_is_the_networks(tmp_path, theirs, ours):
    made = convert_keras(pair_of(tmp_path, theirs, "linear", dense_pair()))
    assert (made.module.activation.name, made.assumed) == (ours, ())
    assert from_keras(pair_of(tmp_path, theirs, "linear", dense_pair()), activation=theirs).activation.name == ours
    with pytest.raises(ConvertError, match=f"expected one activation of the file and the options; got '{ours}' and 'r"):
        from_keras(pair_of(tmp_path, theirs, "linear", dense_pair()), activation="relu")


def test_the_second_dense_layer_is_linear(tmp_path):
    with pytest.raises(ConvertError, match="expected a linear 'down' after 'up'; got its activation 'relu'"):
        from_keras(pair_of(tmp_path, "relu", "relu", dense_pair()))
    backwards = dense_pair("dense_1", "dense")  # the second in the list is the first that fits
    assert from_keras(pair_of(tmp_path, "linear", "tanh", backwards)).activation.name == "tanh"


def test_kerashubs_dropout_is_of_attention_and_of_sublayers(tmp_path):
    layers = model_of(("TransformerEncoder", {"dropout": 0.25}))
    arrays = datasets("hub_encoder_postnorm")
    layer = from_keras(write_keras(tmp_path / "m.keras", layers, arrays))
    assert (layer.dropout.p, layer.self_attention.dropout, layer.feed_forward.dropout) == (0.25, 0.25, 0.0)
    second = {path.replace("encoder", "encoder_1"): value for path, value in arrays.items()}
    layers = model_of(("TransformerEncoder", {"dropout": 0}), ("TransformerEncoder", {"dropout": 0.0}))
    assert from_keras(write_keras(tmp_path / "m.keras", layers, arrays | second)).layers[1].dropout.p == 0.0


def test_layers_that_say_different_things_are_refused(tmp_path):
    layers = model_of(("TransformerEncoder", {"dropout": 0.1}), ("TransformerEncoder", {"dropout": 0.2}))
    with pytest.raises(ConvertError, match=r"expected one dropout .*; got 0\.1 and 0\.2"):
        from_keras(write_keras(tmp_path / "m.keras", layers, datasets("encoder")))


def test_what_is_assumed_is_said():
    epsilon, norm, activation = "(--epsilon)", "norm_first=False (--norm-first)", "activation=relu (--activation)"
    made = convert_keras(weights("encoder"))
    assert made.assumed == (f"epsilon=0.001 {epsilon}", norm, activation, "dropout=0.0")
    hub = datasets("hub_encoder_postnorm")
    assert convert_keras(hub).assumed[0] == f"epsilon=1e-05 {epsilon}"
    assert convert_keras(hub, epsilon=1e-4, norm_first=False, activation="relu").assumed == ("dropout=0.0",)
    assert convert_keras(weights("translation")).assumed[3:] == ("dropout=0.0", "output_dropout=0.5")
    assert convert_keras(dense_pair()).assumed == (activation,)
    assert convert_keras(dense_pair(), activation="relu").assumed == ()


def test_what_the_file_says_is_not_assumed():
    assert convert_keras(shared_file("fixtures/keras/hub_encoder_prenorm_gelu.keras")).assumed == ()
    book = convert_keras(shared_file("fixtures/keras/translation.keras"))
    assert [line.partition("=")[0] for line in book.assumed] == ["epsilon", "norm_first", "activation", "dropout"]
