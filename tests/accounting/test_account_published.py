"""Published models, number by number: tensor2tensor's own variables and the Keras book's."""

import csv
import json
import re
from collections import Counter

import pytest
import torch

import shared
from positionwise import account
from positionwise.transformer import PRESETS, TransformerConfig, TransformerForTranslation, preset
from shared import shared_file

# Our rows, by tensor2tensor's category.
CATEGORIES = {
    "Source and target embedding": "embedding/softmax",
    "Target-space embedding": "target_space_embedding",
    "Encoder self-attention": "attention",
    "Decoder self-attention": "attention",
    "Cross-attention": "attention",
    "Layer norms": "layer_norm",
    "Encoder feed-forward networks": "ffn",
    "Decoder feed-forward networks": "ffn",
}
SETS = [("base", 37_000), ("base", 40_960), *((name, 37_000) for name in
        ("big", "ff1024", "hs256", "l2", "parameter_attention_a", "parsing_big", "tiny"))]  # fmt: skip
every_set = pytest.mark.parametrize(("name", "vocabulary"), SETS)


def test_a_missing_folder_is_a_skip_and_where_ci_is_set_a_failure(monkeypatch, tmp_path):
    assert fixture("variable_counts.json").is_file()
    monkeypatch.setattr(shared, "FOLDER", tmp_path / "none")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="shared"):
        fixture("variable_counts.json")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="shared"):
        fixture("variable_counts.json")


def fixture(name):
    return shared_file(f"fixtures/tensor2tensor/{name}")


def variables(name, vocabulary):
    with open(fixture(f"variables_transformer_{name}_v{vocabulary}.csv"), newline="") as file:
        return [row for row in csv.DictReader(file) if row["name"] != "TOTAL"]


def config_of(name, vocabulary):
    sets = json.loads(fixture("hparams_transformer_sets.json").read_text("utf-8"))
    sizes = {**sets["transformer_base"], **sets[f"transformer_{name}"]}
    assert sizes["shared_embedding_and_softmax_weights"] == 1
    return TransformerConfig(
        vocab_size=vocabulary, d_model=sizes["hidden_size"], d_ff=sizes["filter_size"], num_heads=sizes["num_heads"],
        encoder_layers=sizes["num_hidden_layers"], decoder_layers=sizes["num_hidden_layers"], target_spaces=32,
        ffn_layer=sizes["ffn_layer"],
    )  # fmt: skip


def test_transformer_base():
    base = account("transformer-base")
    encoder, decoder = base.feed_forward.groups
    assert (encoder.path, decoder.path) == ("encoder.layers.*.feed_forward", "decoder.layers.*.feed_forward")
    assert [(g.per_instance, g.instances, g.applications, g.total) for g in (encoder, decoder)] == [
        (2_099_712, 6, 6, 12_598_272)
    ] * 2
    assert (base.feed_forward.total, base.total, base.trainable) == (25_196_544, 63_098_880, 63_098_880)
    assert [part.parameters for part in encoder.components] == [1_050_624, 1_049_088]
    assert {row.name: row.parameters for row in base.components} == {
        "Source and target embedding": 18_944_000, "Target-space embedding": 16_384,
        "Encoder self-attention": 6_303_744, "Decoder self-attention": 6_303_744, "Cross-attention": 6_303_744,
        "Layer norms": 30_720, "Encoder feed-forward networks": 12_598_272,
        "Decoder feed-forward networks": 12_598_272,
    }  # fmt: skip


@pytest.mark.parametrize(("vocabulary", "total", "share"), [(None, 63_098_880, 0.3993), (37_000, 63_098_880, 0.3993),
                                                            (40_960, 65_126_400, 0.3869)])  # fmt: skip
def test_transformer_base_at_a_vocabulary(vocabulary, total, share):
    base = account("transformer-base", vocab_size=vocabulary).to_dict()
    assert (base["total"], base["feed_forward"]["share"]) == (total, share)
    assert base["feed_forward"]["total"] == 25_196_544


def test_keras_translation():
    book = account("keras-translation")
    assert book.total == 14_439_064
    rows = {row.name: row.parameters for row in book.components}
    assert rows["Output map"] == 3_855_000
    assert rows["Source positions"] == rows["Target positions"] == 20 * 256
    without = TransformerConfig(**{**PRESETS["keras-translation"], "positions": "none"})
    assert account(without).total == 14_428_824
    printed = preset("keras-translation")
    printed.d_ff = 2056  # as the book's listing has it
    assert account(printed).total == 14_447_272


def test_the_layers_of_keras_translation():
    with torch.device("meta"):
        book = TransformerForTranslation(preset("keras-translation"))
    assert account(book.encoder.layers[0]).total == 1_315_072
    assert account(book.decoder.layers[0]).total == 1_578_752
    assert account(book.output).total == 3_855_000
    assert account(book).total == 14_439_064


@every_set
def test_every_category_of_tensor2tensors_variables(name, vocabulary):
    theirs = Counter()
    for row in variables(name, vocabulary):
        theirs[row["category"]] += int(row["count"])
    counted = account(config_of(name, vocabulary))
    ours = Counter()
    for row in counted.components:
        ours[CATEGORIES[row.name]] += row.parameters
    assert ours == theirs
    assert counted.total == sum(theirs.values())
    assert counted.feed_forward.total == theirs["ffn"]


@every_set
def test_the_published_totals(name, vocabulary):
    held = json.loads(fixture("variable_counts.json").read_text("utf-8"))
    entry = held[f"transformer_{name}" + (f":{vocabulary}" if vocabulary != 37_000 else "")]
    counted = account(config_of(name, vocabulary))
    assert counted.total == entry["total"]
    assert counted.feed_forward.instances == entry["n_ffn_layers"]
    assert {group.per_instance for group in counted.feed_forward.groups} == set(entry["ffn_per_layer"])
    assert round(100 * counted.feed_forward.share, 2) == entry["ffn_pct"]


@every_set
def test_every_variable_stands_in_the_layer_where_tensor2tensor_has_it(name, vocabulary):
    kinds = {"encoder_self_attention": "self", "decoder_self_attention": "self", "encdec_attention": "cross",
             "conv_hidden_relu": "ffn", "parameter_attention": "ffn", "self_attention": "self",
             "cross_attention": "cross", "feed_forward": "ffn"}  # fmt: skip

    def place(path):
        found = re.search(r"(encoder|decoder)[./]layer(?:s\.|_)(\d+)[./](\w+)", path)
        return (*found.groups()[:2], kinds.get(found[3], "norm")) if found else "outside"

    theirs, ours = Counter(), Counter()
    for row in variables(name, vocabulary):
        theirs[place(row["name"])] += int(row["count"])
    with torch.device("meta"):
        built = TransformerForTranslation(config_of(name, vocabulary))
    for path, parameter in built.named_parameters():
        ours[place(path)] += parameter.numel()
    assert ours == theirs
    assert len(ours) == 1 + 7 * built.config.encoder_layers


def fields_of(name):
    """What a set's hyperparameters are in our fields, read from the originals' own values."""
    sets = json.loads(fixture("hparams_transformer_sets.json").read_text("utf-8"))
    values = {**sets["transformer_base"], **sets[name]}
    shared, heads = bool(values["shared_embedding_and_softmax_weights"]), values["num_heads"]
    head = lambda total: (total or values["hidden_size"]) // heads  # noqa: E731
    return {
        "vocab_size": 37_000, "d_model": values["hidden_size"], "d_ff": values["filter_size"], "num_heads": heads,
        "head_dim": head(values["attention_key_channels"]), "head_value_dim": head(values["attention_value_channels"]),
        "encoder_layers": values["num_hidden_layers"], "decoder_layers": values["num_hidden_layers"],
        "ffn_layer": values["ffn_layer"], "dropout": values["residual_dropout"],
        "embedding_dropout": values["residual_dropout"], "attention_dropout": values["attention_dropout"],
        "hidden_dropout": values["relu_dropout"], "label_smoothing": values["label_smoothing"],
        "share_embeddings": shared, "tie_word_embeddings": shared, "layer_norm_eps": values["layer_norm_epsilon"],
        "positions": {"timing": "sinusoidal"}[values["pos"]], "target_spaces": 32, "output_bias": False,
        "embedding_scale": values["multiply_embedding_mode"] == "sqrt_depth",
    }  # fmt: skip


def test_every_set_is_a_preset():
    sets = json.loads(fixture("hparams_transformer_sets.json").read_text("utf-8"))
    ours = {name for name in PRESETS if name.startswith("transformer-")}
    assert ours == {name.replace("_", "-") for name in sets} - {"transformer-alt"}
    for name in ours:
        made = preset(name)
        expected = fields_of(name.replace("-", "_"))
        assert {field: getattr(made, field) for field in expected} == expected, name


def test_parameter_attention_of_other_widths():
    sets = json.loads(fixture("hparams_transformer_sets.json").read_text("utf-8"))
    values, made = sets["transformer_parameter_attention_b"], preset("transformer-parameter-attention-b")
    channels = values["parameter_attention_key_channels"], values["parameter_attention_value_channels"]
    assert made.feed_forward_spec().head_dims == tuple(total // values["num_heads"] for total in channels)


@pytest.mark.parametrize("kind", ["conv_hidden_relu", "conv_hidden_relu_with_sepconv", "parameter_attention", "none"])
def test_every_kind_of_network_is_counted(kind):
    held = json.loads(fixture("variable_counts.json").read_text("utf-8"))
    name = {"conv_hidden_relu": "transformer_base", "parameter_attention": "transformer_parameter_attention_a"}
    entry = held[name.get(kind, f"transformer_base:37000:ffn_layer={kind}")]
    width = {"d_ff": 1536} if kind == "parameter_attention" else {}
    counted = account(TransformerConfig(**{**PRESETS["transformer-base"], "ffn_layer": kind, **width}))
    assert (counted.total, counted.feed_forward.total) == (entry["total"], entry["by"].get("ffn", 0))
    assert {group.per_instance for group in counted.feed_forward.groups} == set(entry["ffn_per_layer"])
    assert round(100 * counted.feed_forward.share, 2) == entry.get("ffn_pct", 0)
    for group in counted.feed_forward.groups:
        assert sum(part.parameters for part in group.components) == group.per_instance
        assert group.activation == ("softmax" if kind == "parameter_attention" else "relu")
    text = str(counted)
    assert ("parameter_attention.py" in text) == (kind == "parameter_attention")
