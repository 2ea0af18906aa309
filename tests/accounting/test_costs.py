"""FLOPs of models that people have against what PyTorch counts in real passes of small ones, computed eagerly."""

import pytest
import torch
import transformers
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from positionwise import account

TEXT = {"vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SMALL = {**TEXT, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = {**SMALL, "num_key_value_heads": 2}
EXPERTS = {**GROUPED, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LATENT = {
    **EXPERTS, "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 8,
    "kv_lora_rank": 6, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 5, "num_hidden_layers": 3,
    "num_key_value_heads": 4,
}  # fmt: skip
T5 = {**TEXT, "d_model": 16, "d_kv": 5, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4,
      "decoder_start_token_id": 0}  # fmt: skip
BART = {
    **TEXT, "d_model": 16, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_start_token_id": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 20,
    "forced_eos_token_id": None,
}  # fmt: skip
DENSE = {
    "LlamaForCausalLM": GROUPED, "GPT2LMHeadModel": {**TEXT, "n_embd": 16, "n_layer": 2, "n_head": 4},
    "GPTNeoXForCausalLM": SMALL, "OPTForCausalLM": {**TEXT, "hidden_size": 16, "ffn_dim": 24, "num_hidden_layers": 2,
                                                    "num_attention_heads": 4, "word_embed_proj_dim": 8},
    "BertModel": SMALL, "BertForMaskedLM": SMALL, "BertForSequenceClassification": SMALL,
    "T5ForConditionalGeneration": T5, "MT5ForConditionalGeneration": {**T5, "feed_forward_proj": "gated-gelu"},
    "BartForConditionalGeneration": BART, "Gemma2ForCausalLM": {**GROUPED, "head_dim": 6, "sliding_window": 3},
    "FalconForCausalLM": {**SMALL, "multi_query": True, "new_decoder_architecture": False},
    "BloomForCausalLM": {**TEXT, "hidden_size": 16, "n_layer": 2, "n_head": 4},
    "Phi3ForCausalLM": GROUPED, "AlbertModel": {**SMALL, "embedding_size": 8, "num_hidden_layers": 12},
    "DistilBertForMaskedLM": {**TEXT, "dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 4},
    "ModernBertForMaskedLM": {**SMALL, "global_attn_every_n_layers": 2, "local_attention": 4, "cls_token_id": 1,
                              "sep_token_id": 2},
    "DebertaV2Model": {**SMALL, "relative_attention": True, "pos_att_type": ["p2c", "c2p"],
                       "max_relative_positions": 8},
    "FunnelModel": {**TEXT, "block_sizes": [1, 2], "d_model": 16, "n_head": 4, "d_head": 4, "d_inner": 24},
    "XLNetLMHeadModel": {**TEXT, "d_model": 16, "n_layer": 2, "n_head": 4, "d_inner": 24},
}  # fmt: skip
MIXTURES = {
    "MixtralForCausalLM": {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "Qwen2MoeForCausalLM": {**EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 20},
    "GptOssForCausalLM": {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 4},
    "DeepseekV3ForCausalLM": LATENT,
}
WITHOUT = {
    "MambaForCausalLM": (
        {**TEXT, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4},
        "no product mixes the positions in",
    ),
    "ViTModel": ({**SMALL, "image_size": 8, "patch_size": 4}, "no transformers model that reads token ids"),
    "EsmForMaskedLM": ({**SMALL, "mask_token_id": 4}, "does not meet esm.contact_head.regression"),
}


def built(name, fields):
    kind = getattr(transformers, name)
    config = kind.config_class(**fields)
    config._experts_implementation = "eager"  # a loop over experts, whose products the counter sees
    return kind._from_config(config, attn_implementation="eager").eval()


def measured(model, batch, sequence):
    """(forward, backward) FLOPs of a real pass, without what parts without parameters compute: rotary tables."""
    given = {"input_ids": torch.randint(3, 50, (batch, sequence))}
    if model.config.is_encoder_decoder:
        given["decoder_input_ids"] = given["input_ids"]
    with FlopCounterMode(display=False) as counter:
        out = model(**given, use_cache=False) if "use_cache" in model.forward.__code__.co_varnames else model(**given)
        forward = sum(counter.get_flop_counts()["Global"].values())
        tables = sum(
            sum(counter.get_flop_counts().get(f"{type(model).__name__}.{path}", {}).values())
            for path, part in model.named_modules() if path and not any(True for _ in part.parameters())
        )  # fmt: skip
        ends = [value for value in out.values() if isinstance(value, torch.Tensor) and value.requires_grad]
        if ends:
            sum(end.sum() for end in ends).backward()
    return forward - tables, counter.get_total_flops() - forward


@pytest.mark.parametrize("name", [*DENSE, *MIXTURES])
@pytest.mark.parametrize(("batch", "sequence"), [(2, 8), (1, 5)])
def test_flops_are_those_of_a_real_pass(name, batch, sequence):
    model = built(name, {**DENSE, **MIXTURES}[name])
    counted = account(model, batch=batch, sequence=sequence)
    assert (counted.flops, counted.flops_backward) == measured(model, batch, sequence)
    entry = counted.to_dict()
    assert (entry["flops"], entry["flops_backward"]) == (counted.flops, counted.flops_backward)
    assert any("over all pairs of positions" in note for note in counted.notes)


@pytest.mark.parametrize("name", MIXTURES)
def test_a_mixtures_flops_are_those_of_what_a_token_meets(name):
    model = built(name, MIXTURES[name])
    groups = account(model, batch=2, sequence=8).feed_forward.groups
    for group in (group for group in groups if group.experts is not None):
        layers = [layer.mlp for layer in model.model.layers if hasattr(layer.mlp, "experts")]
        x = torch.randn(2, 8, 16, requires_grad=True)
        with FlopCounterMode(display=False) as counter:
            outs = [layer(x) for layer in layers]
            forward = counter.get_total_flops()
            sum((out[0] if isinstance(out, tuple) else out).sum() for out in outs).backward()
        assert (group.flops, group.flops_per_token * 16 * len(layers)) == (forward, forward)
        assert group.flops_backward == 2 * forward
        assert group.saved_for_backward is None
        assert any("which experts are chosen" in note for note in group.notes)


@pytest.mark.parametrize("what", ["embeddings and attention", "everything but norms", "everything"])
def test_what_is_frozen_needs_no_gradient(what):
    model = built("LlamaForCausalLM", GROUPED)
    for name, parameter in model.named_parameters():
        kept = {"embeddings and attention": "mlp" in name, "everything but norms": "norm" in name}
        parameter.requires_grad_(kept.get(what, False))
    counted = account(model, batch=2, sequence=8)
    assert (counted.flops, counted.flops_backward) == measured(model, 2, 8)
    (group,) = counted.feed_forward.groups
    assert group.flops_backward == group.flops * {"embeddings and attention": 2, "everything but norms": 1}.get(what, 0)


def test_large_models_by_hand():
    d, f, layers, words, s = 4096, 11008, 32, 32000, 2048
    counted = account(transformers.LlamaConfig(architectures=["LlamaForCausalLM"]), batch=3, sequence=s)
    per_token = layers * (4 * d * d + 3 * d * f + 2 * s * d) + d * words
    assert counted.flops == 2 * 3 * s * per_token
    d, heads, s = 7168, 128, 4096
    attention = d * 1536 + 1536 * heads * 192 + d * 576 + 512 * heads * 256 + heads * 128 * d + s * heads * (192 + 128)
    experts = d * 256 + (8 + 1) * 3 * d * 2048
    per_token = 61 * attention + 3 * 3 * d * 18432 + 58 * experts + d * 129280
    counted = account(transformers.DeepseekV3Config(architectures=["DeepseekV3ForCausalLM"]), batch=1, sequence=s)
    assert counted.flops == 2 * s * per_token


def test_any_attention_counts_as_eager_code_computes_it():
    config = transformers.LlamaConfig(**GROUPED)
    model = transformers.LlamaForCausalLM._from_config(config, attn_implementation="sdpa")
    assert account(model, batch=2, sequence=8).flops == measured(built("LlamaForCausalLM", GROUPED), 2, 8)[0]
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("name", WITHOUT)
def test_what_has_no_count_is_said(name):
    fields, words = WITHOUT[name]
    counted = account(built(name, fields), batch=2, sequence=8)
    assert (counted.flops, counted.flops_backward) == (None, None)
    assert "flops" not in counted.to_dict()
    (note,) = [note for note in counted.notes if "FLOPs of the whole model are not counted" in note]
    assert words in note


def test_a_layer_without_a_product_of_positions_has_no_count():
    model = built("LlamaForCausalLM", GROUPED)
    model.model.layers[1].self_attn = Scan(16)
    counted = account(model, batch=2, sequence=8)
    assert counted.flops is None
    assert "no product mixes the positions in model.layers.1." in counted.notes[-1]


class Scan(nn.Module):
    """Mixes positions without a product."""

    def __init__(self, width):
        super().__init__()
        self.into, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, hidden_states, **_):
        return self.out(self.into(hidden_states).cumsum(1)), None


class Table(nn.Module):
    """Rotary angles as an outer product, as many versions of the library write it."""

    def forward(self, x, position_ids):
        frequencies = torch.ones(len(position_ids), 2, 1, device=position_ids.device)
        angles = (frequencies @ position_ids[:, None].float()).mT.repeat(1, 1, 2)
        return angles.cos(), angles.sin()


def test_products_of_rotary_tables_are_left_out():
    model = built("LlamaForCausalLM", GROUPED)
    expected = account(model, batch=2, sequence=8).flops
    model.model.rotary_emb = Table()
    assert account(model, batch=2, sequence=8).flops == measured(model, 2, 8)[0] == expected


def test_counting_costs_changes_nothing():
    model = built("LlamaForCausalLM", GROUPED)
    before, state = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
    forwards = [part.forward for part in model.modules()]
    account(model, batch=2, sequence=8)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert forwards == [part.forward for part in model.modules()]
    assert all(not part._forward_hooks and not part._forward_pre_hooks for part in model.modules())


def test_without_sizes_only_a_tokens_flops_are_told():
    entry = account(built("LlamaForCausalLM", GROUPED)).to_dict()
    (group,) = entry["feed_forward"]["groups"]
    assert group["flops_per_token"] == 2 * 3 * 16 * 24
    assert not {"flops", "flops_backward", "saved_for_backward"} & {*entry, *group}
