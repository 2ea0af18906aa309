"""Dropout: the distribution is nn.Dropout's, whatever way the mask is drawn."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from positionwise.transformer.dropout import Dropout, keep_mask
from positionwise.transformer.layers import FeedForwardBlock
from positionwise.transformer.models import TransformerForTranslation
from shared import config

COUNT = 200_000
RATES = [0.05, 0.1, 0.3, 0.5, 0.9]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def far(share, expected, count=COUNT):
    """How many standard deviations a share of ``count`` draws lies from its expectation."""
    return abs(share - expected) / math.sqrt(expected * (1 - expected) / count)


@pytest.mark.parametrize("p", RATES)
@pytest.mark.parametrize("parity", [0, 1])
def test_the_rate_of_both_halves_of_a_draw(p, parity):
    dropped = (keep_mask(torch.Size([COUNT]), p, torch.float32) == 0)[parity::2]
    assert far(dropped.double().mean().item(), p, COUNT // 2) < 4.5


@pytest.mark.parametrize("p", RATES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_kept_is_divided_by_one_less_p(p, dtype):
    x = torch.full((500,), 3.0, dtype=dtype)
    y = Dropout(p)(x)
    assert (y.dtype, y.shape) == (dtype, x.shape)
    kept = y[y != 0].double()
    assert 0 < len(kept) < 500
    torch.testing.assert_close(kept, torch.full_like(kept, 3 / (1 - p)), rtol=2 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("step", [1, 2, 3, 64, 1024])
def test_positions_are_independent(p, step):
    dropped = keep_mask(torch.Size([COUNT]), p, torch.float32) == 0
    both = (dropped[:-step] & dropped[step:]).double().mean().item()
    assert far(both, p * p) < 4.5


def test_two_calls_draw_anew_and_a_seed_draws_the_same():
    x, layer = torch.ones(1000), Dropout(0.5)
    first, second = layer(x), layer(x)
    assert not torch.equal(first, second)
    both = ((first == 0) & (second == 0)).double().mean().item()
    assert far(both, 0.25, 1000) < 4.5
    torch.manual_seed(0)
    assert torch.equal(layer(x), first)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (0,), (2, 0, 3), (3, 5, 7), (2, 2)], ids=str)
def test_every_shape_is_drawn_for(shape):
    x = torch.ones(shape)
    y = Dropout(0.5)(x)
    assert y.shape == x.shape
    assert set(y.flatten().tolist()) <= {0.0, 2.0}


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_in_evaluation_nothing_is_dropped(p):
    x = torch.randn(4, 5)
    assert torch.equal(Dropout(p).eval()(x), x)


def test_rate_zero_is_the_identity_and_rate_one_gives_zeros():
    x = torch.randn(4, 5)
    assert torch.equal(Dropout(0.0)(x), x)
    assert torch.equal(Dropout(1.0)(x), torch.zeros(4, 5))


@pytest.mark.parametrize("p", [1e-12, 1 - 1e-12])
def test_rates_next_to_zero_and_one(p):
    kept = Dropout(p)(torch.ones(1000, dtype=torch.float64)) != 0
    assert kept.all() if p < 0.5 else not kept.any()


def test_gradients_flow_only_through_what_is_kept():
    x = torch.randn(300, dtype=torch.float64, requires_grad=True)
    y = Dropout(0.4)(x)
    (grad,) = torch.autograd.grad(y.sum(), x)
    scale = (y != 0).double() / 0.6
    torch.testing.assert_close(grad, scale, rtol=1e-15, atol=0)
    torch.testing.assert_close(y, x * scale, rtol=1e-15, atol=0)
    assert 0 < (grad == 0).sum() < 300


def test_other_devices_take_pytorchs_own():
    y = Dropout(0.5)(torch.ones(3, 4, device="meta"))
    assert (y.device.type, y.shape) == ("meta", (3, 4))


def test_compiled_code_takes_pytorchs_own():
    torch._dynamo.reset()
    x, layer = torch.ones(64), Dropout(0.5)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    torch.manual_seed(3)
    y = compiled(x)
    torch.manual_seed(3)
    assert torch.equal(y, F.dropout(x, 0.5))
    torch._dynamo.reset()


def test_the_models_dropouts_have_the_configurations_rates():
    built = TransformerForTranslation(config(dropout=0.3, embedding_dropout=0.2, output_dropout=0.4, hidden_dropout=0.5,
                                             attention_dropout=0.6))  # fmt: skip
    rates = {name: part.p for name, part in built.named_modules() if isinstance(part, Dropout)}
    layers = {f"{stack}.layers.{i}.dropout": 0.3 for stack in ("encoder", "decoder") for i in (0, 1)}
    assert rates == {"embedding_dropout": 0.2, "output_dropout": 0.4, **layers}
    layer = built.decoder.layers[0]
    assert (layer.feed_forward.dropout, layer.cross_attention.dropout, layer.self_attention.dropout) == (0.5, 0.6, 0.6)


@pytest.mark.parametrize("norm_first", [False, True])
def test_dropout_is_of_the_sublayers_output_and_not_of_the_residual(norm_first):
    block = FeedForwardBlock(config(dropout=0.5, norm_first=norm_first)).double()
    block.feed_forward_norm = nn.Identity()
    x = torch.randn(2, 50, 16, dtype=torch.float64)
    change, whole = block(x) - x, block.eval()(x) - x
    kept = change.abs() > 1e-12
    torch.testing.assert_close(change[kept], 2 * whole[kept], rtol=1e-9, atol=1e-12)
    assert far(kept.double().mean().item(), 0.5, kept.numel()) < 4.5
