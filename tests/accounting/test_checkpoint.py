"""Headers of safetensors files, and what they say of a checkpoint that differs from the model as built."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from positionwise.accounting import checkpoint, stored, targets
from positionwise.accounting.stored import Entry
from positionwise.errors import AccountError
from positionwise.transformer import TransformerForTranslation
from shared import config as translation

SMALL = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 40}
DECODER = {**SMALL, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
EXPERTS = {**DECODER, "num_experts_per_tok": 2}
PAIR = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "vocab_size": 40,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0, "decoder_start_token_id": 1,
}  # fmt: skip
T5 = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "vocab_size": 40}
IMAGES = {**SMALL, "image_size": 8, "patch_size": 4}
DEEPSEEK = {
    **EXPERTS, "n_routed_experts": 4, "moe_intermediate_size": 8, "n_group": 1, "topk_group": 1,
    "first_k_dense_replace": 1, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4,
    "v_head_dim": 4,
}  # fmt: skip
MODELS = {
    "LlamaForCausalLM": ("llama", DECODER),
    "GPT2LMHeadModel": ("gpt2", {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 40, "n_positions": 8}),
    "BertForPreTraining": ("bert", SMALL),
    "T5ForConditionalGeneration": ("t5", T5),
    "MixtralForCausalLM": ("mixtral", {**EXPERTS, "num_local_experts": 4}),
    "Qwen2MoeForCausalLM": ("qwen2_moe", {**EXPERTS, "num_experts": 4, "moe_intermediate_size": 8,
                                          "shared_expert_intermediate_size": 8}),
    "GptOssForCausalLM": ("gpt_oss", {**EXPERTS, "num_local_experts": 4, "head_dim": 8}),
    "DeepseekV3ForCausalLM": ("deepseek_v3", DEEPSEEK),
    "BartForConditionalGeneration": ("bart", {**PAIR, "max_position_embeddings": 8}),
    "WhisperForConditionalGeneration": ("whisper", {**PAIR, "max_source_positions": 8, "max_target_positions": 8,
                                                    "num_mel_bins": 4}),
    "CLIPModel": ("clip", {"text_config": {**SMALL, "max_position_embeddings": 8, "bos_token_id": 1, "eos_token_id": 2},
                           "vision_config": IMAGES}),
    "LlavaForConditionalGeneration": ("llava", {"text_config": {**DECODER, "model_type": "llama"},
                                                "vision_config": {**IMAGES, "model_type": "clip_vision_model"}}),
}  # fmt: skip


def configured(name):
    model_type, fields = MODELS[name]
    return transformers.CONFIG_MAPPING[model_type](**fields, architectures=[name])


@pytest.fixture
def built():
    """The model of a name on the meta device, and entries as ``save_pretrained`` would name the plain ones."""

    def make(name):
        model = targets.build(targets.from_config(configured(name)))
        return model, {key: Entry("F32", tuple(held.shape), "a") for key, held in distinct(model).items()}

    return make


def distinct(model):
    """Each of a model's tensors under its first name."""
    found = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if all(tensor is not other for other in found.values()):
            found[name] = tensor
    return found


@pytest.fixture
def write(tmp_path):
    """Writes a safetensors file by hand: a header, data of so many bytes, and whatever else is asked."""

    def make(header, data=0, name="model.safetensors", length=None):
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        count = len(text) if length is None else length
        (tmp_path / name).write_bytes(count.to_bytes(8, "little") + text + bytes(data))
        return tmp_path

    return make


def entry(dtype="F32", shape=(2, 3), start=0, stop=24):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shard", ["5GB", "4KB"], ids=["one file", "shards"])
def test_a_saved_model_and_the_model_of_its_configuration_agree(name, shard, tmp_path):
    model = getattr(transformers, name)(configured(name))
    model.save_pretrained(tmp_path, max_shard_size=shard)
    assert (tmp_path / "model.safetensors").is_file() == (shard == "5GB")
    target = targets.read(tmp_path)
    assert target.folder == tmp_path
    found = stored.headers(target.folder)
    assert sum(one.numbers for one in found.values()) == sum(held.numel() for held in distinct(model).values())
    assert checkpoint.differences(found, targets.build(target)) == ()


def test_our_own_model_agrees(tmp_path):
    TransformerForTranslation(translation()).save_pretrained(tmp_path)
    target = targets.read(tmp_path)
    assert target.model_class is TransformerForTranslation
    assert checkpoint.differences(stored.headers(tmp_path), targets.build(target)) == ()


def test_headers_are_those_of_the_library(tmp_path):
    tensors = {
        "a": torch.zeros(2, 3),
        "b": torch.zeros(4, dtype=torch.bfloat16),
        "c": torch.zeros((), dtype=torch.int64),
    }
    save_file(tensors, tmp_path / "other.safetensors", metadata={"format": "pt"})
    assert stored.headers(tmp_path) == {
        "a": Entry("F32", (2, 3), "other.safetensors"),
        "b": Entry("BF16", (4,), "other.safetensors"),
        "c": Entry("I64", (), "other.safetensors"),
    }
    assert {name: tuple(held.shape) for name, held in load_file(tmp_path / "other.safetensors").items()} == {
        name: one.shape for name, one in stored.headers(tmp_path).items()
    }


def test_a_folder_without_weights_has_no_headers(tmp_path):
    assert stored.headers(tmp_path) is None


def test_the_index_comes_before_model_safetensors_and_that_before_the_rest(write):
    for name in ("consolidated", "model"):
        folder = write({name: entry()}, 24, f"{name}.safetensors")
    assert list(stored.headers(folder)) == ["model"]
    write({"shard": entry()}, 24, "model-00001-of-00001.safetensors")
    (folder / stored.INDEX).write_text('{"weight_map": {"shard": "model-00001-of-00001.safetensors"}}')
    assert list(stored.headers(folder)) == ["shard"]


@pytest.mark.parametrize(
    ("header", "data", "length", "said"),
    [
        ({"a": entry()}, 23, None, "expected 24 bytes of data in .*; got 23"),
        ({"a": entry()}, 25, None, "expected 24 bytes of data in .*; got 25"),
        (b"", 0, None, "expected a header in JSON"),
        (b"{}", 0, 3, "expected a header of 3 bytes in .*; got a file of 10 bytes"),
        (b"{}", 0, 2**63, "expected a header of 9,223,372,036,854,775,808 bytes"),
        (b"{]", 0, None, "expected a header in JSON"),
        (b"\xff\xfe", 0, None, "expected a header in JSON"),
        (b"[" * 5000, 0, None, "expected a header in JSON"),
        (b"[]", 0, None, "to be a JSON object; got list"),
        ({"a": 5}, 0, None, "expected a dtype, a shape and offsets of a in .*; got 5"),
        ({"a": {"dtype": "F32"}}, 0, None, "expected a dtype, a shape and offsets of a"),
        ({"a": entry("F33")}, 24, None, "expected a dtype, a shape and offsets of a"),
        ({"a": entry(shape=(-2, -3))}, 24, None, "expected a dtype, a shape and offsets of a"),
        ({"a": entry(shape=(2, "3"))}, 24, None, "expected a dtype, a shape and offsets of a"),
        ({"a": entry(stop=20)}, 20, None, "expected 24 bytes of a in .*; got 20"),
        ({"a": entry(start=24, stop=0)}, 0, None, "expected 24 bytes of a in .*; got -24"),
        ({"a": entry(), "b": entry(start=12, stop=36)}, 36, None, "expected b in .* to begin at byte 24 .*; got 12"),
        ({"a": entry(), "b": entry(start=36, stop=60)}, 60, None, "expected b in .* to begin at byte 24 .*; got 36"),
        ({"a": entry(start=-24, stop=0)}, 0, None, "expected a in .* to begin at byte 0 .*; got -24"),
    ],
)
def test_a_damaged_file_is_one_line(write, header, data, length, said):
    with pytest.raises(AccountError, match=said) as caught:
        stored.headers(write(header, data, length=length))
    assert "model.safetensors" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_header_above_the_librarys_limit_is_not_read(tmp_path):
    file = tmp_path / "model.safetensors"
    length = stored.LARGEST_HEADER + 1
    file.write_bytes(length.to_bytes(8, "little"))
    with file.open("r+b") as opened:
        opened.truncate(8 + length)  # sparse
    with pytest.raises(AccountError, match="at most 100,000,000 bytes in .*; got 100,000,001"):
        stored.headers(tmp_path)


@pytest.mark.parametrize("size", [0, 1, 7])
def test_a_file_without_a_length(tmp_path, size):
    (tmp_path / "model.safetensors").write_bytes(bytes(size))
    with pytest.raises(AccountError, match=f"got a file of {size} bytes"):
        stored.headers(tmp_path)


def test_a_name_in_two_shards(write):
    write({"a": entry()}, 24, "one.safetensors")
    with pytest.raises(AccountError, match=r"expected a in one file; got it in one.safetensors and in two.safetensors"):
        stored.headers(write({"a": entry()}, 24, "two.safetensors"))


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ('{"weight_map": {"a": "gone.safetensors"}}', "expected the shard 'gone.safetensors' beside"),
        ('{"weight_map": {"a": "../elsewhere.safetensors"}}', "expected the shard '../elsewhere.safetensors' beside"),
        ('{"weight_map": {"a": 5}}', "expected weight_map in"),
        ('{"weight_map": ["a"]}', "expected weight_map in"),
        ("{}", "expected weight_map in .*; got None"),
        ("{", "expected an index in JSON"),
        ("", "expected an index in JSON"),
    ],
)
def test_a_damaged_index(tmp_path, index, said):
    (tmp_path / stored.INDEX).write_text(index)
    with pytest.raises(AccountError, match=said):
        stored.headers(tmp_path)


def test_extra_missing_and_other_shapes(built):
    model, entries = built("LlamaForCausalLM")
    del entries["model.norm.weight"]
    entries["model.layers.0.mlp.up_proj.weight"] = Entry("F32", (25, 16), "a")
    entries |= {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": Entry("F32", (4,), "a") for i in range(4)}
    entries["extra.weight"] = Entry("F32", (2, 3), "a")
    held = sum(parameter.numel() for parameter in model.parameters())
    totals, strange, known, missing, shape = checkpoint.differences(entries, model)
    assert f"stores {held - 16 + 16 + 16 + 6:,} numbers; the model as built has {held:,}" in totals
    assert "no place for: 1 tensor of 6 numbers (extra.weight)." in strange
    assert "leaves out on load: 4 tensors of 16 numbers (model.layers.0.self_attn.rotary_emb.inv_freq, " in known
    assert known.endswith(", …).")
    assert missing == "Not stored: 1 tensor of 16 numbers (model.norm.weight)."
    assert shape == "model.layers.0.mlp.up_proj.weight is stored as (25, 16); the model has (24, 16)."


def test_weights_that_the_library_ties_but_the_checkpoint_does_not():
    """google/t5-v1_1-small: 60,511,616 as built, 76,961,152 in its checkpoint."""
    config = transformers.T5Config(d_ff=1024, num_layers=8, num_heads=6, feed_forward_proj="gated-gelu",
                                   architectures=["T5ForConditionalGeneration"])  # fmt: skip
    model = targets.build(targets.from_config(config))
    entries = {key: Entry("F32", tuple(held.shape), "a") for key, held in distinct(model).items()}
    assert checkpoint.differences(entries, model) == ()
    entries["lm_head.weight"] = Entry("F32", (32128, 512), "a")
    totals, untied = checkpoint.differences(entries, model)
    assert "stores 76,961,152 numbers; the model as built has 60,511,616" in totals
    assert "tied by the library as built: 1 tensor of 16,449,536 numbers (lm_head.weight to shared.weight)" in untied


def test_a_tied_weight_stored_under_its_other_name_is_not_missing(built):
    model, entries = built("GPT2LMHeadModel")
    entries["lm_head.weight"] = entries.pop("transformer.wte.weight")
    assert checkpoint.differences(entries, model) == ()


@pytest.mark.parametrize("rename", [
    lambda name: name.removeprefix("bert."),
    lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"),
], ids=["base model's names", "legacy names"])  # fmt: skip
def test_names_are_mapped_as_on_load(built, rename):
    model, entries = built("BertForPreTraining")
    assert checkpoint.differences({rename(name): one for name, one in entries.items()}, model) == ()


def per_expert(entries, experts=4):
    """Mixtral's entries as they are published: a tensor of each expert, for each of three maps."""
    published = {}
    for name, one in entries.items():
        stem = name.replace(".mlp.", ".block_sparse_moe.")
        if name.endswith("gate_up_proj"):
            _, double, width = one.shape
            for e in range(experts):
                published[stem.replace("gate_up_proj", f"{e}.w1.weight")] = Entry("F32", (double // 2, width), "a")
                published[stem.replace("gate_up_proj", f"{e}.w3.weight")] = Entry("F32", (double // 2, width), "a")
        elif name.endswith("experts.down_proj"):
            for e in range(experts):
                published[stem.replace("down_proj", f"{e}.w2.weight")] = Entry("F32", one.shape[1:], "a")
        else:
            published[stem] = one
    return published


def test_experts_are_joined_as_on_load(built):
    model, entries = built("MixtralForCausalLM")
    assert checkpoint.differences(per_expert(entries), model) == ()
    _, shape = checkpoint.differences(per_expert(entries, experts=3), model)[:2]
    assert shape.startswith(
        "model.layers.0.mlp.experts.gate_up_proj is stored as (3, 48, 16); the model has (4, 48, 16)"
    )


def test_experts_that_do_not_fit_together(built):
    model, entries = built("MixtralForCausalLM")
    published = per_expert(entries)
    published["model.layers.0.block_sparse_moe.experts.2.w1.weight"] = Entry("F32", (5, 16), "a")
    _, line = checkpoint.differences(published, model)
    assert line.startswith("model.layers.0.mlp.experts.gate_up_proj is stored as 8 tensors that do not fit together")


def test_layers_that_predict_further_tokens(built):
    model, entries = built("DeepseekV3ForCausalLM")
    entries["model.layers.61.eh_proj.weight"] = Entry("F32", (16, 32), "a")
    assert "leaves out on load: 1 tensor of 512 numbers" in checkpoint.differences(entries, model)[1]


def gptq(entries):
    for name in [name for name in entries if name.endswith("proj.weight")]:
        (rows, columns), stem = entries.pop(name).shape, name.removesuffix("weight")
        entries[f"{stem}qweight"] = Entry("I32", (columns // 8, rows), "a")
        entries[f"{stem}qzeros"] = Entry("I32", (1, rows // 8), "a")
        entries[f"{stem}scales"] = Entry("F16", (1, rows), "a")
        entries[f"{stem}g_idx"] = Entry("I32", (columns,), "a")


def bitsandbytes(entries):
    for name in [name for name in entries if name.endswith("proj.weight")]:
        entries[name] = Entry("U8", (entries[name].numbers // 2, 1), "a")
        entries[f"{name}.absmax"] = Entry("F32", (6,), "a")
        entries[f"{name}.quant_map"] = Entry("F32", (16,), "a")
        entries[f"{name}.quant_state.bitsandbytes__nf4"] = Entry("U8", (80,), "a")


def compressed(entries):
    for name in [name for name in entries if name.endswith("proj.weight")]:
        (rows, columns), stem = entries.pop(name).shape, name.removesuffix("weight")
        entries[f"{stem}weight_packed"] = Entry("I32", (rows, columns // 8), "a")
        entries[f"{stem}weight_scale"] = Entry("BF16", (rows, 1), "a")
        entries[f"{stem}weight_shape"] = Entry("I64", (2,), "a")


def fp8(entries):
    for name in [name for name in entries if name.endswith("proj.weight")]:
        entries[name] = Entry("F8_E4M3", entries[name].shape, "a")
        entries[f"{name}_scale_inv"] = Entry("F32", (1, 1), "a")


@pytest.mark.parametrize(("pack", "method", "dtypes"), [
    (gptq, "gptq", "F16, F32, I32"), (bitsandbytes, "bitsandbytes", "F32, U8"),
    (compressed, "compressed-tensors", "BF16, F32, I32, I64"), (fp8, "fp8", "F32, F8_E4M3"),
], ids=["gptq", "bitsandbytes", "compressed", "fp8"])  # fmt: skip
@pytest.mark.parametrize("said", [True, False], ids=["configured", "seen"])
def test_quantised_weights_are_said_and_not_compared(built, pack, method, dtypes, said):
    model, entries = built("LlamaForCausalLM")
    pack(entries)
    model.config.quantization_config = {"quant_method": method} if said else None
    _, line = checkpoint.differences(entries, model)
    how = method if said else "by a method that is not named"
    assert line.startswith(f"Stored quantised ({how}; {dtypes}), so the numbers cannot be compared: ")


def test_quantised_weights_do_not_hide_what_else_differs(built):
    model, entries = built("LlamaForCausalLM")
    gptq(entries)
    del entries["model.norm.weight"]
    assert checkpoint.differences(entries, model)[2] == "Not stored: 1 tensor of 16 numbers (model.norm.weight)."


def test_blocks_and_scales_of_experts(built):
    model, entries = built("GptOssForCausalLM")
    for name in [name for name in entries if name.endswith(("gate_up_proj", "down_proj"))]:
        entries[f"{name}_blocks"] = Entry("U8", (4, 24, 1, 16), "a")
        entries[f"{name}_scales"] = Entry("U8", (4, 24, 1), "a")
        del entries[name]
    _, line = checkpoint.differences(entries, model)
    assert line.startswith("Stored quantised (by a method that is not named; F32, U8)")
    assert "8 tensors" in line


def test_packed_experts_of_a_model_that_has_them_in_one_tensor(built):
    model, entries = built("MixtralForCausalLM")
    published = per_expert(entries)
    for name in [name for name in published if ".experts." in name]:
        published[name.replace("weight", "qweight")] = Entry("I32", published.pop(name).shape, "a")
    assert len(checkpoint.differences(published, model)) == 2


def test_a_scale_that_is_a_weight_is_not_taken_for_quantisation(built):
    model, entries = built("LlamaForCausalLM")
    entries["logit_scale"] = Entry("F32", (), "a")
    entries["position_ids"] = Entry("I64", (1, 8), "a")
    _, strange, known = checkpoint.differences(entries, model)
    assert "no place for: 1 tensor of 1 number (logit_scale)" in strange
    assert "position_ids" in known


def test_the_model_is_left_as_it_was(built):
    model, entries = built("MixtralForCausalLM")
    before = {name: id(one) for name, one in model.named_parameters()}
    checkpoint.differences(per_expert(entries), model)
    assert {name: id(one) for name, one in model.named_parameters()} == before
