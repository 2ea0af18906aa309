"""What an account looks like: its dictionary, its table and its arithmetic."""

import json
from pathlib import Path

import pytest
from torch import nn

from positionwise import FeedForward, FFNSpec, account, feedforward
from shared import SEPARATE, config

CONTRACT = """
{"name": "...", "total": 63098880, "trainable": 63098880, "active": null, "tied": [], "buffers": 0,
 "feed_forward": {"total": 25196544, "share": 0.3993, "instances": 12, "applications": 12, "groups": [
   {"path": "encoder.layers.*.feed_forward", "instances": 6, "applications": 6, "d_model": 512, "d_ff": 2048,
    "activation": "relu", "gated": false,
    "gate_half": null, "layout": "...", "input": {"symbol": "x", "axes": [["B", "batch"], ["S", "source positions"],
    ["512", "d_model"]]}, "output": {},
    "components": [{"name": "First linear map", "calculation": "512 × 2,048 + 2,048", "parameters": 1050624}],
    "per_instance": 2099712, "total": 12598272, "equation": "...",
    "source": {"package": "...", "version": "...", "revision": null, "file": "...", "lines": [1, 2]}}]},
 "components": [{"name": "...", "parameters": 0}], "notes": []}
"""
BESIDE = {"frozen", "tied_excess", "dtypes", "weights", "unplaced"}
BESIDE_IN_A_GROUP = {"position_wise", "layers", "gate", "biases", "parameters", "evidence", "notes", "flops_per_token"}
TARGETS = {
    "base": lambda: "transformer-base",
    "keras": lambda: "keras-translation",
    "spec": lambda: FFNSpec(8, 12),
    "gated spec": lambda: FFNSpec(8, 12, activation="silu", is_gated=True, bias1=False, bias_gate=False, bias2=False),
    "wide spec": lambda: FFNSpec(8, 1200, kernel_size=(3, 1), second_kernel_size=31, padding="left", d_out=5),
    "prelu spec": lambda: FFNSpec(8, 12, activation=nn.PReLU(12)),
    "block": lambda: FeedForward(8, 12),
    "blocks": lambda: nn.ModuleList([FeedForward(8, 12), FeedForward(8, 12), FeedForward(8, 16)]),
    "no block": lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)),
    "nothing": nn.ReLU,
    "config": lambda: config(**SEPARATE, tie_word_embeddings=False, output_bias=True, norm_first=True, key_dim=5),
}
every_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)


def evaluate(calculation):
    return eval(calculation.replace(",", "").replace("×", "*"), {"__builtins__": {}})


def shape(value):
    """The keys of a dictionary, and those below; a list has its first entry's."""
    if isinstance(value, dict):
        return {key: shape(below) for key, below in value.items()}
    return [shape(value[0])] if isinstance(value, list) and value and isinstance(value[0], dict) else None


def test_the_dictionary_has_the_contracts_keys():
    entry, contract = account("transformer-base").to_dict(), json.loads(CONTRACT)
    expected = shape(contract)
    group = expected["feed_forward"]["groups"][0]
    group["output"] = group["input"]
    expected["components"] = group["components"]
    for found in entry["feed_forward"]["groups"]:
        assert {key for key in BESIDE_IN_A_GROUP if found.pop(key, "absent") != "absent"} == BESIDE_IN_A_GROUP
    assert {key for key in BESIDE if entry.pop(key, "absent") != "absent"} == BESIDE
    assert shape(entry) == expected
    assert list(entry) == list(contract)
    assert list(entry["feed_forward"]["groups"][0]) == list(contract["feed_forward"]["groups"][0])
    stated = {key: value for key, value in contract.items() if isinstance(value, int)}
    assert {key: entry[key] for key in stated} == stated


def test_the_dictionary_of_transformer_bases_encoder_group():
    entry = account("transformer-base").to_dict()["feed_forward"]["groups"][0]
    contract = json.loads(CONTRACT)["feed_forward"]["groups"][0]
    told = ("path", "instances", "applications", "d_model", "d_ff", "activation", "gated", "gate_half", "input",
            "per_instance", "total")  # fmt: skip
    assert {key: entry[key] for key in told} == {key: contract[key] for key in told}
    assert entry["components"][0] == contract["components"][0]
    assert entry["components"][1] == {
        "name": "Second linear map", "calculation": "2,048 × 512 + 512", "parameters": 1_049_088
    }  # fmt: skip
    assert entry["output"] == {"symbol": "Δ", "axes": entry["input"]["axes"]}
    assert entry["equation"] == FFNSpec(512, 2048).equation
    decoder = account("transformer-base").to_dict()["feed_forward"]["groups"][1]
    assert decoder["input"]["axes"] == [["B", "batch"], ["T", "target positions"], ["512", "d_model"]]


def test_the_source_of_a_group_is_the_class_itself():
    source = account(FFNSpec(8, 12)).to_dict()["feed_forward"]["groups"][0]["source"]
    assert (source["package"], source["file"]) == ("positionwise", "positionwise/feedforward.py")
    lines = Path(feedforward.__file__).read_text("utf-8").splitlines()
    first, last = source["lines"]
    assert lines[first - 1] == "class FeedForward(Network):"
    assert lines[last - 1].startswith("        return")


@every_target
def test_the_dictionary_is_json(target):
    entry = account(target()).to_dict()
    assert json.loads(json.dumps(entry)) == entry


@every_target
def test_everything_sums_up(target):
    entry = account(target()).to_dict()
    part = entry["feed_forward"]
    for group in part["groups"]:
        assert sum(row["parameters"] * row.get("count", 1) for row in group["components"]) == group["per_instance"]
        assert group["per_instance"] * group["instances"] == group["total"]
    assert sum(group["total"] for group in part["groups"]) == part["total"]
    assert sum(group["instances"] for group in part["groups"]) == part["instances"]
    assert sum(group["applications"] for group in part["groups"]) == part["applications"]
    assert sum(row["parameters"] for row in entry["components"]) == entry["total"] == entry["trainable"]
    assert part["share"] == (round(part["total"] / entry["total"], 4) if entry["total"] else 0)


@every_target
def test_every_calculation_gives_its_number(target):
    entry = account(target()).to_dict()
    rows = [*entry["components"], *(row for group in entry["feed_forward"]["groups"] for row in group["components"])]
    told = [row for row in rows if row["calculation"]]
    assert [evaluate(row["calculation"]) for row in told] == [row["parameters"] for row in told]


@pytest.mark.parametrize(
    ("numbers", "target"),
    [(["63,098,880", "25,196,544", "39.93 %", "12,598,272", "2,099,712", "2,099,712 × 6", "512 × 2,048 + 2,048",
       "1,050,624", "18,944,000", "37,000 × 512", "6 independent instances"], "transformer-base"),
     (["14,439,064", "526,336", "1,050,880", "3,855,000", "256 × 15,000 + 15,000"], "keras-translation"),
     (["FeedForward(8, 1200)", "8 × 1,200 + 1,200", "10,800"], FFNSpec(8, 1200))],
    ids=["base", "keras", "spec"],
)  # fmt: skip
def test_the_table_shows_the_numbers(numbers, target):
    text = str(account(target))
    assert [number for number in numbers if number not in text] == []


def test_the_table_shows_the_costs_that_are_asked_for():
    counted = account(FFNSpec(8, 1200), batch=3, sequence=50)
    group = counted.feed_forward.groups[0]
    text = str(counted)
    assert f"{group.flops:,}" in text
    assert f"{group.saved_for_backward:,}" in text


@every_target
def test_names_say_what_was_counted(target):
    made = target()
    name = account(made).name
    assert name == (made if isinstance(made, str) else f"FeedForward({made.d_model}, {made.d_ff})"
                    if isinstance(made, FFNSpec) else type(made).__name__)  # fmt: skip


def test_tied_output_is_said():
    assert any("output map" in note and "once" in note for note in account(config()).notes)
    assert account(config(tie_word_embeddings=False)).notes == ()
