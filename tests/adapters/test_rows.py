"""Every row of the published table of families: what find and account say of it, on the meta device."""

import json
import re

import pytest
import transformers
from quiet import quietly

from positionwise import account
from positionwise.accounting import modules
from positionwise.accounting.placed import pattern
from shared import shared_file

FAMILIES = """
    gpt2 gpt_neox codegen gpt_bigcode bloom falcon llama mistral qwen2 qwen2_moe qwen3_moe gemma2 gemma3_text phi phimoe
    olmo olmoe gpt_oss dbrx granite glm glm4_moe deepseek_v2 stablelm cohere persimmon lfm2 jetmoe zamba2 xglm ctrl bert
    distilbert albert deberta_v2 modernbert mobilebert funnel nomic_bert esm canine t5 t5_v1_1 mt5 switch bart pegasus
    m2m_100 nllb_moe blenderbot prophetnet t5gemma deit swin dinov2 dinov3_vit siglip detr yolos pvt_v2 sam mobilevit
    wav2vec2 hubert wav2vec2_conformer ast moonshine speech_to_text fastspeech2_conformer vits dia blip_2 paligemma
""".split()
# CTRL's network is a Sequential: the table gives the lines of PyTorch's container, the account those of the layer.
CTRL = "transformers/models/ctrl/modeling_ctrl.py"


@pytest.fixture(scope="module")
def table():
    rows = json.loads(shared_file("fixtures/transformers/ffn_table.json").read_text())["rows"]
    assert sorted(row["family"] for row in rows) == sorted(FAMILIES)
    return {row["family"]: row for row in rows}


@pytest.fixture
def searches(monkeypatch):
    """What find gave to the accounts, so that each model is built and searched once."""
    calls = []

    def spy(model, original=modules.find):
        calls.append(original(model))
        return calls[-1]

    monkeypatch.setattr(modules, "find", spy)
    return calls


def config_of(row):
    fields = dict(row["config_overrides"])
    if row["family"] == "detr":  # its default backbone is timm's
        backbone = transformers.ResNetConfig(out_features=["stage4"])
        fields = {"use_timm_backbone": False, "backbone_config": backbone}
    config = getattr(transformers, row["config_class"])(**fields)
    config.architectures = [row["model_class"]]
    return config


def fused_half(row, group):
    """The half of a fused map that the row's words name; where a row was checked on numbers, the two agree."""
    words = group["which_half_is_gate"]
    if words is None or words.startswith("separate"):
        return None
    half = re.search(r"even(?= columns gate)|(first|second)(?= half)", words, re.IGNORECASE)[0].lower()
    assert row.get("gate_half_numeric_check", {}).get("activated_half", half) == half
    return half


def activation_of(words):
    """The table's word without its remark: ``gelu (hard-coded)``, and gpt-oss's formula without signs for products."""
    return re.sub(r"[ ·*()σ]|sigmoid", "", words if words.startswith("clamped") else words.partition(" (")[0])


def published(row, group):
    file, (first, last) = group["source"]["file"], map(int, group["source"]["lines"].split("-"))
    parts = [(p["component"], p["calculation"].replace(" x ", " × "), p["parameters"]) for p in group["derivation"]]
    return {
        "path": group["instance_path"], "instances": group["instances"], "d_model": group["d_model"],
        "applications": group["applications_per_forward"], "d_ff": group["d_ff"], "gated": group["gated"],
        "activation": activation_of(group["activation"]), "gate_half": fused_half(row, group),
        "biases": group["has_bias"], "derivation": parts, "per_instance": group["params_per_instance"],
        "total": group["params_all_instances"], "active": group.get("active_params_per_token_per_instance"),
        "source": CTRL if row["family"] == "ctrl" else (file.removeprefix("src/"), first, last),
        "position-wise": "k=3" not in group["layout"] and row["family"] != "pvt_v2",
    }  # fmt: skip


def counted(group, found):
    (site, *_) = [s for s in found if (pattern(s.path), s.components) == (group.path, group.components)]
    place = (group.source.file, *group.source.lines)
    return {
        "path": group.path, "instances": group.instances, "d_model": group.d_model,
        "applications": group.applications, "d_ff": group.d_ff, "gated": group.gated,
        "activation": activation_of(group.activation), "gate_half": group.gate_half,
        "biases": any(site.biases) or any(part.name == "Output bias" for part in group.components),
        "derivation": [(part.name, part.calculation, part.parameters) for part in group.components],
        "per_instance": group.per_instance, "total": group.total, "active": group.active_per_instance,
        "source": CTRL if CTRL in place else place, "position-wise": group.position_wise,
    }  # fmt: skip


def in_order(groups):
    return sorted(groups, key=lambda group: (group["path"], group["d_model"], group["per_instance"]))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row(family, table, searches):
    row = table[family]
    with quietly():
        whole = account(config_of(row))
    part, (found,) = whole.feed_forward, searches
    assert (whole.total, whole.trainable) == (row["total_params"], row["trainable_params"])
    assert whole.tied_excess == row["tied_double_count_excess"]
    assert (part.total, part.instances) == (row["ffn_params_total"], row["ffn_instances"])
    assert (part.applications, round(part.share, 4)) == (row["ffn_applications"], row["ffn_share"])
    assert whole.active == row.get("model_active_params")
    expected = in_order(published(row, group) for group in row["ffn_groups"])
    assert in_order(counted(group, found) for group in part.groups) == expected
