"""Parameter attention against its formula in NumPy float64, its initialisation, its dropout and its costs."""

import numpy as np
import pytest
import torch
import translation_reference as ref
from torch.utils.flop_counter import FlopCounterMode

from positionwise.errors import SpecError
from positionwise.transformer import ParameterAttention
from positionwise.transformer.parameter_attention import ParameterAttentionSpec
from reference import array

SIZES = [(16, 24, 4), (16, 24, 4, 3, 5), (16, 1, 1), (6, 7, 3, 1, 1)]


def network(*sizes, **options):
    built = ParameterAttention(*sizes, **options).double()
    for parameter in built.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return built


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("leading", [(), (5,), (2, 5), (2, 3, 4), (0,)], ids=str)
def test_the_formula(sizes, leading):
    built, x = network(*sizes), torch.randn(*leading, sizes[0], dtype=torch.float64)
    expected = ref.parameter_attention(ref.weights(built), "", array(x), sizes[0])
    np.testing.assert_allclose(array(built(x)), expected, rtol=1e-10, atol=1e-12)
    assert built(x).shape == x.shape


def test_gradients_are_those_of_finite_differences():
    built, x = network(6, 5, 2), torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    leaves = dict(built.named_parameters())

    def call(x, *values):
        return torch.func.functional_call(built, dict(zip(leaves, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(call, (x, *leaves.values()))


def test_dropout_drops_whole_values_the_same_for_every_position():
    built, x = network(16, 400, 4, dropout=0.25).train(), torch.randn(2, 5, 16, dtype=torch.float64)
    torch.manual_seed(1)
    first = built(x)
    torch.manual_seed(1)
    assert torch.equal(built(x.flip(0)).flip(0), first)  # no position has a mask of its own
    torch.manual_seed(1)
    kept = torch.nn.functional.dropout(torch.ones(4, 400, 1, dtype=torch.float64), 0.25)
    assert set(kept.unique().tolist()) == {0.0, 1 / 0.75}
    assert 0.2 < (kept == 0).double().mean() < 0.3
    with torch.no_grad():
        built.values.mul_(kept)
    torch.testing.assert_close(built.eval()(x), first)


def test_with_all_values_dropped_the_bias_is_left():
    built = network(16, 4, 4, dropout=1.0).train()
    assert torch.equal(built(torch.randn(2, 16, dtype=torch.float64)), built.output.bias.expand(2, 16))


def test_weights_are_drawn_as_published():
    torch.manual_seed(0)
    built = ParameterAttention(512, 1536, 8)
    for table in (built.keys, built.values):
        assert table.shape == (8, 1536, 64)
        assert abs(table.std().item() - 512**-0.5) < 2e-4
    for layer in (built.query, built.output):
        limit = (6 / 1024) ** 0.5
        assert 0.999 * limit < layer.weight.abs().max().item() <= limit
        assert not layer.bias.any()


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_account_of_the_spec(sizes):
    built = ParameterAttention(*sizes)
    assert built.spec.parameters == sum(p.numel() for p in built.parameters())
    for part in built.spec.components:
        assert eval(part.calculation.replace("×", "*").replace(",", "")) == part.parameters
    with FlopCounterMode(display=False) as counter:
        built(torch.randn(7, sizes[0]))
    assert built.spec.flops(7) == counter.get_total_flops()


@pytest.mark.parametrize(
    ("sizes", "message"),
    [((0, 1, 1), "d_model"), ((4, 0, 1), "d_ff"), ((4, 1, 0), "num_heads"), ((4, 1, 3), "multiple of num_heads"),
     ((4, 1, 2, 0), "key_dim"), ((4, 1, 2, 1, True), "value_dim"), ((4, 1, 2, 1, 1, 1.5), "dropout"),
     ((4.0, 1, 2), "d_model")],
)  # fmt: skip
def test_sizes_that_no_network_has(sizes, message):
    with pytest.raises(SpecError, match=message):
        ParameterAttention(*sizes)
    with pytest.raises(SpecError, match=message):
        ParameterAttentionSpec(*sizes)
