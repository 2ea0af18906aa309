"""TransformerConfig: what it refuses, what it derives, and the file it writes."""

import json

import pytest

from positionwise.errors import SpecError
from positionwise.transformer import PRESETS, TransformerConfig, preset, variant_fields
from reference import VARIANTS
from shared import SEPARATE, SIZES, config


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"d_modle": 32}, ["fields of TransformerConfig", "d_modle"]),
        ({"d_modle": 32, "beam": 4}, ["beam, d_modle"]),
        ({"d_model": 18}, ["multiple of num_heads", "18 and 4"]),
        ({"d_model": 0}, ["d_model", "at least 1", "0"]),
        ({"d_ff": -1}, ["d_ff", "-1"]),
        ({"num_heads": 0}, ["num_heads", "at least 1", "0"]),
        ({"num_heads": 4.0}, ["num_heads", "4.0"]),
        ({"vocab_size": 1}, ["vocab_size", "at least 2"]),
        ({"encoder_layers": -1}, ["encoder_layers", "-1"]),
        ({"decoder_layers": -1}, ["decoder_layers", "-1"]),
        ({"max_positions": 0}, ["max_positions", "0"]),
        ({"target_spaces": -1}, ["target_spaces", "-1"]),
        ({"dropout": -0.1}, ["dropout", "-0.1"]),
        ({"embedding_dropout": 1.0}, ["embedding_dropout", "below 1", "1.0"]),
        ({"attention_dropout": -0.1}, ["attention_dropout"]),
        ({"hidden_dropout": -0.1}, ["dropout", "-0.1"]),
        ({"output_dropout": 1.5}, ["output_dropout", "1.5"]),
        ({"dropout": float("nan")}, ["dropout", "nan"]),
        ({"label_smoothing": 1.0}, ["label_smoothing", "below 1"]),
        ({"label_smoothing": -0.1}, ["label_smoothing", "-0.1"]),
        ({"activation": "mish"}, ["activation", "relu", "gelu", "silu", "'mish'"]),
        ({"positions": "rotary"}, ["positions", "learned, none, sinusoidal", "'rotary'"]),
        ({"init": "normal"}, ["init", "pytorch, xavier_uniform", "'normal'"]),
        ({"output_bias": True}, ["output_bias=True"]),
        ({"target_vocab_size": 19}, ["one vocabulary size", "23 and 19", "share_embeddings=False"]),
        ({"is_gated": "yes"}, ["is_gated", "'yes'"]),
        ({"key_dim": 0}, ["key_dim", "0"]),
        ({"key_dim": -4}, ["key_dim", "-4"]),
        ({"value_dim": 0}, ["value_dim", "0"]),
        ({"ffn_layer": "conv_relu"}, ["ffn_layer", "conv_hidden_relu", "parameter_attention", "none", "'conv_relu'"]),
        ({"ffn_layer": "parameter_attention", "parameter_key_dim": 0}, ["parameter_key_dim", "0"]),
        ({"ffn_layer": "parameter_attention", "parameter_value_dim": 1.5}, ["parameter_value_dim", "1.5"]),
        ({"ffn_layer": "parameter_attention", "d_ff": 0}, ["d_ff", "0"]),
        ({"parameter_key_dim": 4}, ["a use for", "'conv_hidden_relu'", "parameter_key_dim"]),
        (
            {"ffn_layer": "none", "is_gated": True, "activation": "silu"},
            ["a use for", "'none'", "activation, is_gated"],
        ),
        ({"ffn_layer": "parameter_attention", "bias1": False}, ["a use for", "'parameter_attention'", "bias1"]),
        ({"ffn_layer": "parameter_attention", "hidden_dropout": 0.1}, ["a use for", "hidden_dropout"]),
        ({"key_dim": 2.5}, ["key_dim", "2.5"]),
        ({"share_embeddings": False, "target_vocab_size": 0}, ["target_vocab_size", "0"]),
        ({"target_spaces": 2, "target_space_id": 2}, ["target_space_id", "2"]),
        ({"dropout": "a lot"}, ["dropout", "a lot"]),
        ({"layer_norm_eps": -1.0}, ["layer_norm_eps", "-1.0"]),
    ],
    ids=str,
)
def test_what_no_model_can_be_built_from_is_refused(fields, words):
    with pytest.raises(SpecError, match="expected") as caught:
        config(**fields)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [{"d_model": 18, "key_dim": 5}, SEPARATE, {"tie_word_embeddings": False, "output_bias": True},
     {"encoder_layers": 0}, {"share_embeddings": False}, {"target_vocab_size": 23}, {"hidden_dropout": 1.0}],
    ids=str,
)  # fmt: skip
def test_what_can_be_built_is_not_refused(fields):
    built = config(**fields)
    assert all(getattr(built, name) == value for name, value in fields.items())


def test_the_defaults_are_transformer_base():
    base = TransformerConfig()
    fields = ("vocab_size", "d_model", "d_ff", "num_heads", "encoder_layers", "decoder_layers", "dropout",
              "label_smoothing", "layer_norm_eps", "positions", "activation", "norm_first")  # fmt: skip
    assert [getattr(base, name) for name in fields] == [
        37_000, 512, 2048, 8, 6, 6, 0.1, 0.1, 1e-6, "sinusoidal", "relu", False
    ]  # fmt: skip
    assert (base.attention_dropout, base.hidden_dropout, base.is_gated) == (0.0, 0.0, False)


def test_what_is_derived():
    assert (config().head_dim, config(key_dim=7).head_dim) == (4, 7)
    assert (config().target_size, config(**SEPARATE).target_size) == (23, 19)
    names = {"hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 2}
    assert {name: getattr(config(), name) for name in names} == names


def test_the_feed_forward_spec_has_the_configurations_fields():
    fields = {"activation": "silu", "is_gated": True, "bias1": False, "bias2": False, "bias_gate": False}
    spec = config(**fields, hidden_dropout=0.2, init="pytorch").feed_forward_spec()
    assert (spec.d_model, spec.d_ff, spec.dropout, spec.init) == (16, 24, 0.2, "pytorch")
    assert {name: getattr(spec, name) for name in fields} == fields


@pytest.mark.parametrize(
    "fields",
    [{}, {**SEPARATE, "tie_word_embeddings": False, "output_bias": True},
     {"key_dim": 5, "norm_first": True, "positions": "learned", "max_positions": 9, "target_spaces": 3,
      "target_space_id": 2, "label_smoothing": 0.2, "activation": "gelu_tanh", "is_gated": True, "bias_gate": False},
     {"pad_token_id": 3, "eos_token_id": 4, "decoder_start_token_id": 5, "bos_token_id": 6}],
    ids=str,
)  # fmt: skip
def test_the_file_gives_the_same_configuration(fields, tmp_path):
    written = config(**fields)
    written.save_pretrained(tmp_path)
    read = TransformerConfig.from_pretrained(tmp_path)
    assert read.to_dict() == written.to_dict()
    assert all(getattr(read, name) == value for name, value in {**SIZES, **fields}.items())
    assert type(read.key_dim) is type(written.key_dim)


def test_a_file_with_a_field_that_is_not_known_is_refused(tmp_path):
    config().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | {"moe_experts": 8}), "utf-8")
    with pytest.raises(SpecError, match="moe_experts"):
        TransformerConfig.from_pretrained(tmp_path)


def test_the_presets():
    base, book = preset("transformer-base"), preset("keras-translation")
    assert (base.vocab_size, base.target_spaces, base.d_model) == (37_000, 32, 512)
    assert (book.vocab_size, book.target_size, book.d_model, book.d_ff) == (15_000, 15_000, 256, 2048)
    assert (book.positions, book.max_positions, book.layer_norm_eps, book.label_smoothing) == ("learned", 20, 1e-3, 0)
    assert (book.dropout, book.output_dropout, book.embedding_scale, book.output_bias) == (0.0, 0.5, False, True)
    assert preset("transformer-base", 40_960).vocab_size == 40_960
    assert preset("transformer-base").vocab_size == 37_000  # the table is not changed by a call


def test_an_unknown_preset_is_an_error_that_lists_the_names():
    with pytest.raises(SpecError, match="'transformer-bas'.*did you mean 'transformer-base'") as caught:
        preset("transformer-bas")
    assert all(name in str(caught.value) for name in PRESETS)


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_the_fields_of_a_variant(name):
    fields = variant_fields(name, 16, 24)
    assert (fields["activation"], fields["is_gated"]) == VARIANTS[name]
    assert config(**fields).feed_forward_spec().d_ff == 24
    matched = config(**variant_fields(name, 16, 24, match_parameters=True))
    assert matched.d_ff == (16 if VARIANTS[name][1] else 24)
    assert matched.d_model == 16


def test_an_unknown_variant_is_refused():
    with pytest.raises(SpecError, match="expected variant to be one of .*swiglu.*'swigloo'"):
        variant_fields("swigloo", 16, 24)
