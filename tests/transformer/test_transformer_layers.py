"""Encoder and decoder layers against the formulas in NumPy float64."""

import numpy as np
import pytest
import torch
import translation_reference as ref

from positionwise import FeedForward
from positionwise.transformer import DecoderLayer, EncoderLayer, FeedForwardBlock
from positionwise.transformer.layers import attention
from reference import array
from shared import config, shared_file

CLOSE = {"rtol": 1e-9, "atol": 1e-11}
KINDS = [
    {}, {"norm_first": True}, {"key_dim": 7}, {"layer_norm_eps": 1e-3}, {"activation": "silu", "is_gated": True},
    {"norm_first": True, "activation": "gelu", "bias1": False, "bias2": False},
    {"activation": "relu", "is_gated": True, "bias_gate": False}, {"key_dim": 3, "value_dim": 6},
    {"ffn_layer": "conv_hidden_relu_with_sepconv"}, {"ffn_layer": "none"}, {"ffn_layer": "parameter_attention"},
    {"ffn_layer": "parameter_attention", "parameter_key_dim": 3, "parameter_value_dim": 5, "norm_first": True},
    {"ffn_layer": "conv_hidden_relu_with_sepconv", "activation": "silu", "is_gated": True, "norm_first": True},
]  # fmt: skip
every_kind = pytest.mark.parametrize("fields", KINDS, ids=str)


def layer(kind, dtype=torch.float64, **fields):
    built = kind(config(**fields)).to(dtype).eval()
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.3 + (1 if name.endswith("norm.weight") else 0))
    return built


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@every_kind
@pytest.mark.parametrize("shape", [(2, 5, 16), (1, 1, 16), (2, 40, 16)], ids=str)
def test_the_feed_forward_block(fields, shape):
    block, x = layer(FeedForwardBlock, **fields), draw(*shape)
    expected = ref.feed_forward_block(ref.weights(block), "", array(x), config(**fields))
    np.testing.assert_allclose(array(block(x)), expected, **CLOSE)


@every_kind
@pytest.mark.parametrize("rank", [None, 2, 3])
def test_the_encoder_layer(fields, rank):
    built, x = layer(EncoderLayer, **fields), draw(2, 5, 16)
    mask = None if rank is None else torch.rand((2, 5) if rank == 2 else (2, 5, 5)) < 0.5
    if rank is not None:
        mask[..., 1] = True
    keep = None if rank is None else mask[:, None].numpy() if rank == 2 else mask.numpy()
    y = built(x, mask)
    assert isinstance(y, torch.Tensor)
    expected = ref.encoder_layer(ref.weights(built), "", array(x), config(**fields), keep)
    np.testing.assert_allclose(array(y), expected, **CLOSE)


@every_kind
@pytest.mark.parametrize("rank", [None, 2, 3])
@pytest.mark.parametrize("memory_rank", [None, 2, 3])
def test_the_decoder_layer(fields, rank, memory_rank):
    built, x, memory = layer(DecoderLayer, **fields), draw(2, 5, 16), draw(2, 7, 16)
    mask = {None: None, 2: torch.rand(2, 5) < 0.5, 3: torch.rand(2, 5, 5) < 0.5}[rank]
    other = {None: None, 2: torch.rand(2, 7) < 0.5, 3: torch.rand(2, 5, 7) < 0.5}[memory_rank]
    for given in (mask, other):
        if given is not None:
            given[..., 0] = True
    keep, memory_keep = (
        None if given is None else given.numpy() if given.dim() == 3 else given[:, None].numpy()
        for given in (mask, other)
    )  # fmt: skip
    y = built(x, memory, mask, other)
    assert isinstance(y, torch.Tensor)
    expected = ref.decoder_layer(
        ref.weights(built), "", array(x), array(memory), config(**fields), keep, memory_keep
    )  # fmt: skip
    np.testing.assert_allclose(array(y), expected, **CLOSE)


@pytest.mark.parametrize("of", [torch.int64, torch.uint8, torch.float64], ids=str)
@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("kind", [EncoderLayer, DecoderLayer])
def test_a_mask_of_zeros_and_ones_means_what_a_boolean_one_means(kind, rank, of):
    built, x = layer(kind), draw(2, 5, 16)
    mask = torch.tensor([[1, 1, 0, 1, 0], [1, 0, 0, 1, 1]], dtype=torch.bool)
    mask = mask if rank == 2 else mask[:, None].expand(2, 5, 5)
    more = () if kind is EncoderLayer else (draw(2, 3, 16),)
    assert torch.equal(built(x, *more, mask.to(of)), built(x, *more, mask))


def test_the_mask_is_of_the_keys():
    built, x = layer(EncoderLayer), draw(1, 4, 16)
    mask, changed = torch.tensor([[True, True, False, True]]), x.clone()
    changed[0, 2] += 1
    same, other = built(x, mask)[0], built(changed, mask)[0]
    assert torch.equal(same[[0, 1, 3]], other[[0, 1, 3]])
    assert not torch.equal(same[2], other[2])  # a masked position still asks


@pytest.mark.parametrize("norm_first", [False, True])
def test_gradients_reach_everything_and_are_right(norm_first):
    built = layer(DecoderLayer, norm_first=norm_first, d_model=4, d_ff=3, num_heads=2, activation="silu")
    x, memory = (draw(1, length, 4).requires_grad_() for length in (3, 2))
    assert torch.autograd.gradcheck(lambda *inputs: built(*inputs), (x, memory))
    built(x, memory).square().sum().backward()
    without = [name for name, parameter in built.named_parameters() if parameter.grad is None]
    assert without == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("norm_first", [False, True])
def test_narrower_dtypes_stay_near_float64(dtype, norm_first):
    built = layer(EncoderLayer, dtype, norm_first=norm_first)
    x, mask = draw(2, 5, 16).to(dtype), torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    y = built(x, mask)
    assert y.dtype == dtype
    exact = built.double()(x.double(), mask)
    error = (y.double() - exact).abs().max() / exact.abs().max()
    assert error < 8 * torch.finfo(dtype).eps


def test_the_parts_of_a_layer():
    built = EncoderLayer(config(norm_first=True))
    assert isinstance(built, FeedForwardBlock)
    assert isinstance(built.feed_forward, FeedForward)
    assert {name.partition(".")[0] for name in built.state_dict()} == {
        "feed_forward", "feed_forward_norm", "self_attention", "self_attention_norm"
    }  # fmt: skip
    assert set(dict(DecoderLayer(config()).named_children())) - set(dict(built.named_children())) == {
        "cross_attention", "cross_attention_norm"
    }  # fmt: skip
    assert attention(config(key_dim=7), 3).layer == 3


def test_the_encoder_layer_of_tensor2tensor():
    data = np.load(shared_file("fixtures/tensor2tensor/encoder_layer_d16.npz"))
    built = layer(EncoderLayer, d_ff=32)
    at = "var/encoder/layer_0/"
    attend, hidden = f"{at}encoder_self_attention/", f"{at}conv_hidden_relu/"
    state = {}
    for part, numbers in (("weight", "kernel"), ("bias", "bias")):
        maps = np.split(np.squeeze(data[f"{attend}qkv_transform_single/{numbers}"]), 3, -1)
        maps.append(np.squeeze(data[f"{attend}output_transform_single/{numbers}"]))
        for name, value in zip(("query", "key", "value", "output"), maps, strict=True):
            state[f"self_attention.{name}.{part}"] = value.T
        for i in (1, 2):
            state[f"feed_forward.layer{i}.{part}"] = np.squeeze(data[f"{hidden}conv{i}_single/{numbers}"]).T
    for ours, theirs in (("self_attention_norm", "layer_norm"), ("feed_forward_norm", "layer_norm_1")):
        state[f"{ours}.weight"] = data[f"{at}{theirs}/layer_norm_scale"]
        state[f"{ours}.bias"] = data[f"{at}{theirs}/layer_norm_bias"]
    built.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in state.items()}, strict=True)
    x = torch.from_numpy(data["mid/encoder_input"]).double()
    y = built(x, torch.from_numpy(data["mid/padding"]) == 0)
    np.testing.assert_allclose(array(y), data["out/y"], rtol=0, atol=5e-6)
