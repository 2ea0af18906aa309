"""Two accounts side by side."""

import dataclasses
import json

import pytest
from transformers import BartConfig, BertConfig, GPT2Config, LlamaConfig, MixtralConfig, Qwen3MoeConfig, T5Config

from positionwise import FFNSpec, account
from positionwise.accounting import Difference, difference

SIZES = {"num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64}


def llama(**options):
    return LlamaConfig(**{"hidden_size": 16, "intermediate_size": 40, **SIZES, **options})


def mixtral(**options):
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_local_experts": 4, "num_key_value_heads": 2}
    return MixtralConfig(**{**sizes, **SIZES, **options})


def bert():
    return BertConfig(hidden_size=16, intermediate_size=40, **SIZES)


def bart():
    return BartConfig(d_model=16, encoder_ffn_dim=24, decoder_ffn_dim=40, encoder_layers=1, decoder_layers=2,
                      encoder_attention_heads=2, decoder_attention_heads=2, vocab_size=64)  # fmt: skip


def t5():
    return T5Config(d_model=16, d_ff=32, d_kv=8, num_layers=1, num_heads=2, vocab_size=64)


def of(a, b, **options) -> Difference:
    return difference(account(a, **options), account(b, **options))


def figures(pair):
    return {row.name: (row.a, row.b, row.difference) for row in pair.rows}


def test_what_differs_is_told_row_by_row():
    found = of(FFNSpec(8, 32), FFNSpec(8, 24, bias2=False, activation="silu", is_gated=True))
    (pair,) = found.feed_forward
    assert figures(pair) == {
        "d_model": (8, 8, 0),
        "d_ff": (32, 24, -8),
        "Activation": ("relu", "silu", None),
        "Gate": ("none", "a map of its own", None),
        "Biases": ("in and out", "in", None),
        "Position-wise": (True, True, None),
        "Instances": (1, 1, 0),
        "Applications": (1, 1, 0),
        "Per-instance total": (8 * 32 + 32 + 32 * 8 + 8, 3 * 8 * 24 + 48, 72),
        "Total": (552, 624, 72),
    }
    totals = {row.name: row.difference for row in found.totals}
    assert (totals["Total"], totals["Bytes in float32"], totals["Bytes in int4"]) == (72, 288, 36)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("transformer-base", "transformer-big"),
        (llama(), mixtral()),
        (t5(), "transformer-tiny"),
        (bert(), FFNSpec(8, 32)),
    ],
)
def test_components_add_up_to_the_totals(a, b):
    one, two = account(a), account(b)
    found = difference(one, two)
    assert sum(row.a or 0 for row in found.rows) == one.total
    assert sum(row.b or 0 for row in found.rows) == two.total
    assert sum(row.difference or 0 for row in found.rows) == two.total - one.total
    names = [row.name for row in found.rows]
    assert len(names) == len(set(names))
    pairs = found.feed_forward
    assert [pair.a for pair in pairs if pair.a] == list(one.feed_forward.groups)
    assert sorted(pair.b.path for pair in pairs if pair.b) == sorted(group.path for group in two.feed_forward.groups)


@pytest.mark.parametrize(
    ("a", "b", "paths"),
    [
        (llama(), mixtral(), [("layers.*.mlp", "layers.*.mlp")]),
        (llama(), bert(), [("layers.*.mlp", "encoder.layer.*")]),
        (GPT2Config(n_embd=16, n_layer=1, n_head=2), llama(), [("h.*.mlp", "layers.*.mlp")]),
        (
            t5(), bart(),
            [("encoder.block.*.layer.*.DenseReluDense", "encoder.layers.*"),
             ("decoder.block.*.layer.*.DenseReluDense", "decoder.layers.*")],
        ),
        (
            bart(), llama(),
            [("encoder.layers.*", None), ("decoder.layers.*", None), (None, "layers.*.mlp")],
        ),
    ],
)  # fmt: skip
def test_networks_are_matched_by_path_or_by_stack(a, b, paths):
    found = of(a, b)
    assert [(pair.a and pair.a.path, pair.b and pair.b.path) for pair in found.feed_forward] == paths


def test_of_one_path_the_same_kind_is_matched_first():
    dense = {"mlp_only_layers": [0], "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    mixed = Qwen3MoeConfig(hidden_size=16, intermediate_size=40, num_key_value_heads=2, **dense, **SIZES)
    plain, mixture = of(mixed, mixtral()).feed_forward
    assert (plain.a.experts, plain.b) == (None, None)
    assert (mixture.a.experts, mixture.b.experts) == ((4, 2), (4, 2))
    plain, mixture = of(mixed, llama()).feed_forward
    assert (plain.b.path, mixture.b) == ("layers.*.mlp", None)


def test_what_only_one_has_is_said_so():
    found = of(bart(), llama())
    only = found.feed_forward[0]
    assert only.name == "encoder.layers.* (only in a)"
    assert figures(only)["d_ff"] == (24, None, None)
    assert figures(only)["Total"] == (only.a.total, None, -only.a.total)
    assert found.feed_forward[-1].name == "layers.*.mlp (only in b)"
    lines = str(found).splitlines()
    assert [line.split()[1:] for line in lines if line.startswith("norm.weight")] == [["absent", "16", "+16"]]
    assert any(line.split() == ["d_ff", "24", "absent", "only", "in", "a"] for line in lines)


def test_a_mixture_shows_its_experts_and_what_is_active():
    (pair,) = of(mixtral(), mixtral(num_experts_per_tok=1)).feed_forward
    rows = figures(pair)
    assert rows["Experts for one token"] == ("2 of 4", "1 of 4", None)
    assert rows["Active per instance"][2] == -3 * 16 * 24
    assert rows["Per-instance total"][2] == 0


@pytest.mark.parametrize("target", ["transformer-base", mixtral(), FFNSpec(8, 32)])
def test_equal_accounts_say_that_nothing_differs(target):
    one = account(target)
    found = difference(one, dataclasses.replace(one, name="another"))
    assert found.same
    assert str(found).startswith(f"Nothing differs between a ({one.name}) and b (another).")
    assert {row["difference"] for row in found.to_dict()["rows"]} == {0}


@pytest.mark.parametrize("other", [llama(hidden_act="gelu"), llama(rms_norm_eps=1e-5)])
def test_a_kind_alone_makes_a_difference(other):
    found = of(llama(), other)
    assert found.same is (other.hidden_act == "silu")
    assert ("≠" in str(found)) is not found.same


def test_the_batch_is_held_against_the_batch():
    found = of("transformer-base", "transformer-big", batch=2, sequence=8)
    one, two = (account(name, batch=2, sequence=8) for name in ("transformer-base", "transformer-big"))
    assert {row.name: row.difference for row in found.totals}["FLOPs, forward"] == two.flops - one.flops
    group = one.feed_forward.groups[0]
    assert figures(found.feed_forward[0])["FLOPs, forward"][0] == group.flops


def test_it_is_json():
    entry = of(llama(), mixtral()).to_dict()
    assert json.loads(json.dumps(entry)) == entry
    assert (entry["a"], entry["b"], entry["same"]) == ("llama", "mixtral", False)
    assert set(entry["rows"][0]) == {"name", "a", "b", "difference"}
    assert entry["feed_forward"][0]["a"] == entry["feed_forward"][0]["b"] == "layers.*.mlp"


def test_notes_say_whose_they_are():
    one, two = account(FFNSpec(8, 32)), account(FFNSpec(8, 24))
    found = difference(dataclasses.replace(one, notes=("first",)), dataclasses.replace(two, unplaced=("x: why",)))
    assert found.notes == ("a: first", "b: not counted: x: why")
    assert str(found).endswith("a: first\nb: not counted: x: why")
