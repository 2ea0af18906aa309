"""Bytes that networks of other libraries save for backward, against what autograd keeps of them."""

import pytest
import torch
import transformers
from torch import nn
from transformers.models.bloom.modeling_bloom import BloomMLP
from transformers.models.glm.modeling_glm import GlmMLP
from transformers.models.gpt2.modeling_gpt2 import GPT2MLP
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.models.phi3.modeling_phi3 import Phi3MLP
from transformers.models.t5.modeling_t5 import T5DenseActDense, T5DenseGatedActDense

from positionwise import account, find
from positionwise.adapters import saved_bytes as counted

D, F = 16, 24
WIDTHS = {"hidden_size": D, "intermediate_size": F, "num_attention_heads": 2}
T5 = transformers.T5Config(d_model=D, d_ff=F, dropout_rate=0.1)
GATED = transformers.T5Config(d_model=D, d_ff=F, dropout_rate=0.1, feed_forward_proj="gated-gelu")
# A block, and the elements per token that it saves, input and mask included.
BLOCKS = {
    "llama": (lambda: LlamaMLP(transformers.LlamaConfig(**WIDTHS)), D + 4 * F),
    "t5": (lambda: T5DenseActDense(T5), D + 3 * F),
    "t5, no dropout": (lambda: T5DenseActDense(transformers.T5Config(d_model=D, d_ff=F, dropout_rate=0.0)), D + F),
    "t5, gated": (lambda: T5DenseGatedActDense(GATED), D + 8 * F),
    "gpt2": (lambda: GPT2MLP(F, transformers.GPT2Config(n_embd=D, resid_pdrop=0.1)), None),
    "bloom": (lambda: BloomMLP(transformers.BloomConfig(hidden_size=D, hidden_dropout=0.0)), None),
    "glm, fused": (lambda: GlmMLP(transformers.GlmConfig(**WIDTHS)), D + 4 * F),
    "phi3, fused": (lambda: Phi3MLP(transformers.Phi3Config(**WIDTHS)), D + 4 * F),
    "sequential": (lambda: nn.Sequential(nn.Linear(D, F), nn.GELU(), nn.Dropout(0.2), nn.Linear(F, D)), D + 3 * F),
}  # fmt: skip
SIZES = {"num_hidden_layers": 1, "vocab_size": 9}
INLINE = {
    "BertModel": ({**WIDTHS, **SIZES}, "BertLayer", D + 2 * F),
    "ViTModel": ({**WIDTHS, **SIZES, "image_size": 8, "patch_size": 4}, "ViTLayer", None),
    "OPTModel": ({"hidden_size": D, "ffn_dim": F, "num_attention_heads": 2, **SIZES, "word_embed_proj_dim": D},
                 "OPTDecoderLayer", D + F),
    "BartModel": (
        {"d_model": D, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "vocab_size": 9,
         "decoder_attention_heads": 2, "encoder_ffn_dim": F, "decoder_ffn_dim": F, "activation_dropout": 0.1,
         "forced_eos_token_id": None}, "BartEncoderLayer", D + 3 * F,
    ),
}  # fmt: skip


class Residual(nn.Module):
    """Gives a block the residual that its forward asks for."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return self.block(x, x)


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_blocks_bytes_are_those_that_autograd_keeps(name, dtype, saved_bytes):
    make, elements = BLOCKS[name]
    block = make().to(dtype).train()
    x = torch.randn(3, 5, D, dtype=dtype, requires_grad=True)
    (site,) = find(block)
    called = Residual(block) if name == "bloom" else block
    assert counted(site, 3, 5) == saved_bytes(called, x)
    if elements is not None:
        assert counted(site, 3, 5) == 3 * 5 * elements * x.element_size()
    (group,) = account(block, batch=3, sequence=5).feed_forward.groups
    assert group.saved_for_backward == group.to_dict()["saved_for_backward"] == saved_bytes(called, x)


def between(layer, first, second, x):
    """Bytes that autograd keeps in a layer from the first map's input up to the second's."""
    kept, recording = {}, []
    own = {p.untyped_storage().data_ptr() for p in layer.parameters()}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if recording and storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    first.register_forward_pre_hook(lambda *_: recording.append(True))
    second.register_forward_hook(lambda *_: recording.clear())
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        layer(x, None)
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("name", INLINE)
def test_a_network_inline_in_a_layer_counts_between_its_maps(name):
    fields, kind, elements = INLINE[name]
    model_class = getattr(transformers, name)
    model = model_class._from_config(model_class.config_class(**fields), attn_implementation="eager").train()
    layer = next(part for part in model.modules() if type(part).__name__ == kind)
    (site,) = [site for site in find(model) if site.module in set(layer.modules())]
    expected = counted(site, 3, 5)
    assert expected is not None
    if elements is not None:
        assert expected == 3 * 5 * elements * 4
    x = torch.randn(3, 5, D, requires_grad=True)
    assert expected == between(layer, site.first[0].module, site.second.module, x)


def test_frozen_weights_keep_no_input(saved_bytes):
    block = LlamaMLP(transformers.LlamaConfig(**WIDTHS)).requires_grad_(False)
    (site,) = find(block)
    assert counted(site, 3, 5) == saved_bytes(block, torch.randn(3, 5, D, requires_grad=True)) == 3 * 5 * 3 * F * 4


class Asks(nn.Module):
    """A network whose code looks at its numbers."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.activation = nn.Linear(D, F), nn.Linear(F, D), nn.ReLU()

    def forward(self, x):
        if x.abs().max() > 1e9:
            raise ValueError("too large")
        return self.second(self.activation(self.first(x)))


def test_code_that_does_not_run_on_shapes_has_no_figure():
    (group,) = account(Asks(), batch=3, sequence=5).feed_forward.groups
    assert group.saved_for_backward is None
    assert any("its code does not run by itself" in note for note in group.notes)
    assert group.flops == 2 * 15 * 2 * D * F


def test_layers_that_save_differently_are_summed_each_as_it_is(saved_bytes):
    blocks = nn.ModuleList([BLOCKS["t5"][0](), BLOCKS["t5, no dropout"][0](), BLOCKS["t5"][0]().double()])
    (group,) = account(blocks, batch=3, sequence=5).feed_forward.groups
    assert group.saved_for_backward == sum(
        saved_bytes(block, torch.randn(3, 5, D, dtype=block.wi.weight.dtype, requires_grad=True)) for block in blocks
    )
