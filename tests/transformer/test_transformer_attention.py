"""Attention and its masks against NumPy float64."""

import numpy as np
import pytest
import torch
import translation_reference as ref

from positionwise.errors import InputError
from positionwise.transformer.attention import MultiHeadAttention, additive_mask, causal_mask
from reference import array
from shared import shared_file

CLOSE = {"rtol": 1e-10, "atol": 1e-12}
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def attention(key_dim=4, value_dim=None, dropout=0.0, dtype=torch.float64):
    built = MultiHeadAttention(16, 4, key_dim, value_dim or key_dim, dropout).to(dtype).eval()
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return built


def draw(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=torch.float64).to(dtype)


def masks(kind, batch, queries, keys):
    """A mask that keeps at least one key of each query."""
    keep = torch.rand(batch, keys) < 0.6 if kind == "keys" else torch.rand(batch, queries, keys) < 0.6
    keep[..., 0] = True
    keep[..., -1] = False
    return None if kind == "none" else keep


@pytest.mark.parametrize("widths", [(4, 4), (1, 1), (7, 7), (2, 5), (5, 2)], ids=str)
@pytest.mark.parametrize("cross", [False, True], ids=["self", "cross"])
@pytest.mark.parametrize("kind", ["none", "keys", "pairs"])
def test_attention_is_the_formula(widths, cross, kind):
    layer, x = attention(*widths), draw(3, 5, 16)
    memory = draw(3, 8, 16) if cross else x
    keep = masks(kind, 3, 5, memory.shape[1])
    y = layer(x, memory if cross else None, additive_mask(keep, x.dtype))
    kept = None if keep is None else keep.numpy() if kind == "pairs" else keep.numpy()[:, None]
    np.testing.assert_allclose(array(y), ref.attention(ref.weights(layer), "", array(x), array(memory), 4, kept),
                               **CLOSE)  # fmt: skip
    assert [layer.query.out_features, layer.output.in_features] == [4 * widths[0], 4 * widths[1]]


@pytest.mark.parametrize("kind", ["keys", "pairs"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_masked_key_counts_for_nothing(kind, dtype):
    layer, x = attention(dtype=dtype), draw(2, 5, 16, dtype=dtype)
    keep = torch.ones(2, 5, dtype=torch.bool)
    keep[0, 3] = False
    mask = additive_mask(keep if kind == "keys" else keep[:, None].expand(2, 5, 5), dtype)
    memory = x.clone()
    before = layer(x, memory, mask)
    memory[0, 3] = 7.0
    assert torch.equal(layer(x, memory, mask), before)
    assert not torch.equal(layer(x, memory), layer(x, x))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["keys", "pairs"])
def test_a_row_of_which_nothing_is_kept_attends_evenly(kind, dtype):
    layer, x = attention(dtype=dtype), draw(2, 5, 16, dtype=dtype)
    keep = torch.ones((2, 5) if kind == "keys" else (2, 5, 5), dtype=torch.bool)
    keep[0] = False
    y = layer(x, mask=additive_mask(keep, dtype))
    exact = layer.double().output(layer.value(x.double()).mean(1))[0]
    assert not y.isnan().any()
    if dtype == torch.float16:
        return  # it has no number low enough to lose a score in: such a row attends as if nothing were masked
    allowed = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.05}[dtype]
    torch.testing.assert_close(y[0].double(), exact.expand(5, 16), rtol=0, atol=allowed)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("of", [torch.bool, torch.int64, torch.uint8], ids=str)
def test_an_additive_mask_is_finite_and_zero_where_it_keeps(dtype, of):
    keep = torch.tensor([[1, 0, 1], [1, 1, 1]]).to(of)
    added = additive_mask(keep, dtype)
    assert (added.dtype, added.shape) == (dtype, (2, 1, 1, 3))
    assert added.isfinite().all()
    assert torch.equal(added == 0, keep.bool()[:, None, None])
    assert added.min() < -3e4  # exp of it is 0 in every dtype
    assert additive_mask(keep[:, None].expand(2, 3, 3), dtype).shape == (2, 1, 3, 3)
    assert additive_mask(None, dtype) is None
    assert additive_mask(added, dtype) is added


@pytest.mark.parametrize("shape", [(3,), (2, 1, 1, 3)], ids=str)
def test_a_mask_of_another_rank_is_refused(shape):
    with pytest.raises(InputError, match=r"\(B, S\) or \(B, S, S\); got \("):
        additive_mask(torch.ones(shape, dtype=torch.bool), torch.float32)


@pytest.mark.parametrize("of", [torch.bool, torch.int64], ids=str)
@pytest.mark.parametrize("kind", ["keys", "pairs"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_attention_alone_takes_the_layers_masks(kind, dtype, of):
    layer, x, memory = attention(dtype=dtype), draw(3, 5, 16, dtype=dtype), draw(3, 8, 16, dtype=dtype)
    keep = masks(kind, 3, 5, 8)
    y = layer(x, memory, keep.to(of))
    assert torch.equal(y, layer(x, memory, additive_mask(keep, dtype)))
    assert not torch.equal(y, layer(x, memory))


def test_attention_alone_refuses_other_masks():
    layer, x = attention(), draw(2, 5, 16)
    for mask in (torch.zeros(2, 5), torch.zeros(2, 5, 5), torch.ones(5, dtype=torch.bool),
                 torch.ones(2, 1, 5, 5, dtype=torch.bool)):  # fmt: skip
        with pytest.raises(InputError, match=r"\(B, S\) or \(B, S, S\)"):
            layer(x, mask=mask)  # an additive mask of fewer axes would be read as what to keep


@pytest.mark.parametrize(("queries", "keys"), [(4, 4), (2, 5), (1, 6), (1, 1)])
def test_the_causal_mask_joins_the_last_query_to_the_last_key(queries, keys):
    mask = causal_mask(queries, keys, torch.device("cpu"))
    expected = [[[key - (keys - queries) <= query for key in range(keys)] for query in range(queries)]]
    assert mask.tolist() == expected


def test_attention_dropout_is_of_the_weights_and_only_in_training():
    layer, x = attention(dropout=0.5), draw(1, 6, 16)
    assert torch.equal(layer(x), layer(x))
    layer.train()
    with torch.no_grad():
        layer.output.weight.copy_(torch.eye(16))
        layer.output.bias.zero_()
        layer.value.weight.zero_()
        layer.value.bias.fill_(1.0)
        layer.query.weight.zero_()
        layer.query.bias.zero_()
    heads = layer(x)[0].view(6, 4, 4)  # the weights that are left, of six equal ones, each divided by 1 − p
    assert torch.equal(heads, heads[..., :1].expand(6, 4, 4))
    assert {round(value, 6) for value in heads.flatten().tolist()} <= {round(n / 3, 6) for n in range(7)}
    assert heads.unique().numel() > 2


@pytest.mark.parametrize("name", ["mha_self_pad", "mha_encdec"])
def test_attention_of_tensor2tensor(name):
    data = np.load(shared_file(f"fixtures/tensor2tensor/{name}.npz"))
    cross = name == "mha_encdec"
    at = "encdec_attention" if cross else "self_attention"
    kernels = ["q_transform_single", "kv_transform_single"] if cross else ["qkv_transform_single"]
    layer, heads = attention(), 4
    for part, numbers in (("weight", "kernel"), ("bias", "bias")):
        joined = np.concatenate([np.squeeze(data[f"var/{at}/{kernel}/{numbers}"]) for kernel in kernels], -1)
        pieces = [*np.split(joined, 3, -1), np.squeeze(data[f"var/{at}/output_transform_single/{numbers}"])]
        with torch.no_grad():
            for piece, map_ in zip(pieces, (layer.query, layer.key, layer.value, layer.output), strict=True):
                getattr(map_, part).copy_(torch.from_numpy(piece.T.copy()))
    keep = torch.from_numpy(data["mid/bias"][:, 0, 0] == 0)
    assert not keep.all()
    x = torch.from_numpy(data["in/x"]).double()
    memory = torch.from_numpy(data["in/m"]).double() if cross else None
    y = layer(x, memory, additive_mask(keep, x.dtype))
    assert layer.num_heads == heads
    np.testing.assert_allclose(array(y), data["out/y"], rtol=0, atol=3e-6)
