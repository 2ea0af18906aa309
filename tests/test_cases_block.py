"""Cases 1–13 and 17–19 of shared/cases: faults that users met in some library, each with its whole kind.

Scalars: d_model = d_ff = 1, unit weights and zero biases unless stated.
"""

import copy
import io
import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import gradgradcheck
from torch.nn import functional as F

import reference
from positionwise import FeedForward, FFNSpec
from positionwise.errors import SpecError
from positionwise.variants import llama_width, variant
from reference import VARIANTS, array

GATED = sorted(name for name, (_, gated) in VARIANTS.items() if gated)
BELOW_ZERO = {"gelu": -0.158655, "gelu_tanh": -0.158808, "silu": -0.268941, "relu": 0.0, "relu2": 0.0,
              "sigmoid": 0.268941, "tanh": -0.761594, "identity": -1.0}  # fmt: skip


def scalar(activation="relu", is_gated=False, gate=1.0, value=1.0, b1=0.0, c=0.0, b2=0.0, **options):
    """The scalar block: W₁ = gate, V = value, W₂ = 1."""
    options = {"dropout": 0.0, "dtype": torch.float64, **options}
    ffn = FeedForward(1, 1, activation=activation, is_gated=is_gated, **options)
    numbers = {"layer1.weight": gate, "layer1.bias": b1, "linear_v.weight": value, "linear_v.bias": c,
               "layer2.weight": 1.0, "layer2.bias": b2}  # fmt: skip
    with torch.no_grad():
        for name, parameter in ffn.named_parameters():
            parameter.fill_(numbers[name])
    return ffn


def call(ffn, x=1.0):
    return ffn(torch.tensor([[x]], dtype=torch.float64)).item()


@pytest.mark.parametrize(("name", "y"), [("geglu", 1.682689), ("swiglu", 1.462117)])
def test_case_01_activation_on_the_gate_branch(name, y):
    assert call(scalar(*VARIANTS[name], gate=1.0, value=2.0)) == pytest.approx(y, abs=5e-7)


@pytest.mark.parametrize("name", GATED)
@pytest.mark.parametrize(("gate", "value"), [(1.0, 2.0), (-0.7, 3.0), (0.3, -1.5)])
def test_case_01_for_every_gated_block(name, gate, value):
    f = reference.ACTIVATIONS[VARIANTS[name][0]]
    assert call(scalar(*VARIANTS[name], gate=gate, value=value)) == pytest.approx(f(gate) * value, rel=1e-14)


def test_case_02_silu_of_the_gate_not_of_the_product():
    assert call(scalar("silu", True, gate=1.0, value=-1.0)) == pytest.approx(-0.731059, abs=5e-7)


@pytest.mark.parametrize("name", GATED)
def test_case_02_every_gated_block_is_linear_in_its_value(name):
    once, minus_three_times = (call(scalar(*VARIANTS[name], gate=0.8, value=value)) for value in (1.0, -3.0))
    assert once != 0
    assert minus_three_times == pytest.approx(-3 * once, rel=1e-14)


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize(("name", "y"), [("gelu", 0.841344746), ("gelu_tanh", 0.841191990608)])
def test_case_03_exact_and_tanh_gelu_are_told_apart(name, y, is_gated):
    assert call(scalar(name, is_gated)) == pytest.approx(y, abs=1e-9)  # the case's own tanh value is 1.4e-9 off
    assert abs(call(scalar("gelu", is_gated)) - call(scalar("gelu_tanh", is_gated))) > 1e-6


ROUND_TRIPS = {
    "fresh": lambda ffn: ffn,
    "pickle": lambda ffn: pickle.loads(pickle.dumps(ffn)),
    "deepcopy": copy.deepcopy,
    "torch.save": lambda ffn: saved(ffn),
    "load_state_dict": lambda ffn: loaded(ffn),
    "from_spec": lambda ffn: loaded(ffn, FeedForward.from_spec(ffn.spec)),
    "to_empty": lambda ffn: loaded(ffn, copy.deepcopy(ffn).to("meta").to_empty(device="cpu")),
}


def saved(ffn):
    file = io.BytesIO()
    torch.save(ffn, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def loaded(ffn, other=None):
    other = scalar(ffn.spec.activation, ffn.spec.is_gated, gate=9.0) if other is None else other
    other.load_state_dict(ffn.state_dict(), strict=True)
    return other


@pytest.mark.parametrize("trip", sorted(ROUND_TRIPS))
@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize(
    ("activation", "y"),
    [*BELOW_ZERO.items(), (F.gelu, -0.158655), (nn.GELU(), -0.158655), (nn.GELU(approximate="tanh"), -0.158808),
     (nn.SiLU(), -0.268941), (nn.LeakyReLU(0.1), -0.1), (torch.sin, -math.sin(1))],
    ids=str,
)  # fmt: skip
def test_case_04_the_activation_is_the_one_asked_for(activation, y, is_gated, trip):
    ffn = ROUND_TRIPS[trip](scalar(activation, is_gated))
    x = torch.tensor([[-1.0]], dtype=torch.float64)
    assert ffn(x).item() == pytest.approx(-y if is_gated else y, abs=5e-7)  # the gate's value is x = −1


@pytest.mark.parametrize("name", ["mish", "GEGLU", "swiglu2", "gated-gelu", "", "relu "])
@pytest.mark.parametrize("build", [FeedForward.variant, variant])
def test_case_05_an_unknown_variant_is_an_error_that_lists_the_names(name, build):
    with pytest.raises(SpecError, match="expected variant") as caught:
        build(name, 4, 8)
    assert all(known in str(caught.value) for known in [*VARIANTS, repr(name)])


def test_case_06_reglu_keeps_its_biases():
    assert call(scalar("relu", True, b1=1.0, c=2.0, b2=3.0), x=0.0) == 5.0


@pytest.mark.parametrize("name", sorted(VARIANTS))
@pytest.mark.parametrize("bias1", [False, True])
@pytest.mark.parametrize("bias2", [False, True])
@pytest.mark.parametrize("bias_gate", [False, True])
def test_case_06_each_bias_of_every_block(name, bias1, bias2, bias_gate):
    activation, is_gated = VARIANTS[name]
    ffn = scalar(activation, is_gated, b1=1.0, c=2.0, b2=3.0, bias1=bias1, bias2=bias2, bias_gate=bias_gate)
    gate = (2.0 if bias_gate else 0.0) if is_gated else 1.0
    hidden = reference.ACTIVATIONS[activation](np.float64(bias1)) * gate
    assert call(ffn, x=0.0) == pytest.approx(hidden + (3.0 if bias2 else 0.0), rel=1e-14)


@pytest.mark.parametrize("name", sorted(VARIANTS))
@pytest.mark.parametrize("options", [{}, {"d_out": 3}, {"match_parameters": True}], ids=str)
def test_case_07_d_ff_is_the_width_that_enters_the_second_map(name, options):
    ffn = FeedForward.variant(name, 8, 24, **options)
    d_ff, seen = ffn.spec.d_ff, []
    ffn.layer2.register_forward_pre_hook(lambda layer, args: seen.append(args[0].shape[-1]))
    ffn(torch.randn(2, 8))
    assert d_ff == (24 if "match_parameters" not in options or name not in GATED else 16)
    assert seen == [d_ff]
    assert ffn.layer1.weight.shape == (d_ff, 8)
    assert ffn.layer2.weight.shape == (options.get("d_out", 8), d_ff)
    assert ffn.linear_v is None if name not in GATED else ffn.linear_v.weight.shape == (d_ff, 8)


@pytest.mark.parametrize(("d_model", "d_ff"), [(4096, 11_008), (5120, 13_824)])
def test_case_08_llama_widths_are_rounded_up(d_model, d_ff):
    assert llama_width(d_model) == d_ff
    assert FeedForward.variant("swiglu", d_model, d_ff, device="meta").layer1.weight.shape == (d_ff, d_model)
    assert FeedForward.variant("swiglu", 8, 2000, device="meta").spec.d_ff == 2000  # what is stated is never rounded


@pytest.mark.parametrize("name", sorted(VARIANTS))
@pytest.mark.parametrize("shape", [(6,), (1, 6), (5, 6), (2, 3, 6), (2, 1, 3, 6)])
@pytest.mark.parametrize("bias2", [True, False])
def test_case_09_dropping_everything_leaves_exactly_b2(name, shape, bias2):
    ffn = FeedForward.variant(name, 6, 10, dropout=1.0, bias2=bias2, d_out=4)
    b2 = torch.zeros(4) if ffn.layer2.bias is None else nn.init.normal_(ffn.layer2.bias).detach()
    assert torch.equal(ffn(torch.randn(shape)), b2.expand(*shape[:-1], 4))
    assert not torch.equal(ffn.eval()(torch.randn(shape)), b2.expand(*shape[:-1], 4))


def test_case_10_blocks_with_defaults_share_no_activation_and_no_storage():
    blocks = [FeedForward(4, 8), FeedForward(4, 8), FeedForward.variant("relu", 4, 8)]
    modules = [module for block in blocks for module in block.modules()]
    storages = [p.untyped_storage().data_ptr() for block in blocks for p in block.parameters()]
    assert len(set(map(id, modules))) == len(modules) == 9
    assert len(set(storages)) == len(storages) == 12
    assert not any(isinstance(vars(block).get("activation"), nn.Module) for block in blocks)


def test_case_10_a_block_from_a_blocks_spec_shares_no_storage():
    first = FeedForward(4, 8, activation=nn.PReLU())
    second = FeedForward.from_spec(first.spec)
    storages = [p.untyped_storage().data_ptr() for block in (first, second) for p in block.parameters()]
    assert len(set(storages)) == len(storages) == 10


@pytest.mark.parametrize("name", ["relu", "gelu", "gelu_tanh", "silu", "glu"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("x", [256.0, -256.0])
def test_case_11_half_precision_gradients_are_finite(name, dtype, x):
    ffn = scalar(*VARIANTS[name], dtype=dtype)
    x = torch.tensor([[x]], dtype=dtype, requires_grad=True)
    ffn(x).backward()
    (exact,) = torch.autograd.grad(ffn.double()(y := x.detach().double().requires_grad_()), y)
    assert torch.equal(x.grad, exact.to(dtype))  # every value at ±256 is 0, 1 or a saturated σ's


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_case_12_zero_one_odd_and_strided_tokens(name):
    ffn = FeedForward.variant(name, 7, 13, dropout=0.0, dtype=torch.float64)
    strided = torch.randn(7, 5, 3, dtype=torch.float64).permute(2, 1, 0)
    shapes = [(0, 7), (2, 0, 7), (7,), (1, 7), (3, 5, 7)]
    for x in (*(torch.randn(shape) for shape in shapes), strided):
        x = x.double().requires_grad_()
        ffn.zero_grad()
        y = ffn(x)
        y.sum().backward()
        np.testing.assert_allclose(array(y), reference.block(ffn, x, VARIANTS[name][0]), rtol=1e-10, atol=1e-12)
        assert x.grad.shape == x.shape
        if x.numel() == 0:
            assert all(p.grad.count_nonzero() == 0 for p in ffn.parameters())


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_case_13_a_second_backward_adds_the_same_gradients(name):
    ffn = FeedForward.variant(name, 5, 9, dropout=0.3, dtype=torch.float64)
    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    loss = ffn(x).square().sum()
    loss.backward(retain_graph=True)
    leaves = [x, *ffn.parameters()]
    first = [leaf.grad.clone() for leaf in leaves]
    loss.backward()
    assert all(torch.equal(leaf.grad, 2 * grad) for leaf, grad in zip(leaves, first, strict=True))


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_case_13_a_double_backward_is_right(name):
    ffn = FeedForward.variant(name, 2, 3, dropout=0.0, dtype=torch.float64)
    names, values = zip(*ffn.named_parameters(), strict=True)

    def function(x, *values):
        return torch.func.functional_call(ffn, dict(zip(names, values, strict=True)), (x,))

    assert gradgradcheck(function, (torch.randn(2, 2, dtype=torch.float64, requires_grad=True), *values))


def test_case_17_frozen_parameters_are_part_of_the_count():
    ffn = FeedForward(4, 8).requires_grad_(False)
    assert ffn.spec.parameters == sum(p.numel() for p in ffn.parameters()) == 76


def test_case_18_large_totals_are_exact_integers():
    spec = FFNSpec(16_777_217, 16_777_219)  # 2²⁴ + 1 and 2²⁴ + 3: no float32 holds them
    expected = 2 * 16_777_217 * 16_777_219 + 16_777_217 + 16_777_219
    for count, value in [(spec.parameters, expected), (spec.flops(3), 12 * 16_777_217 * 16_777_219)]:
        assert isinstance(count, int)
        assert count == value


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_case_19_narrow_storage_does_not_change_the_count(dtype):
    assert FFNSpec(512, 2048, dtype=dtype).parameters == 2_099_712
    assert FFNSpec(512, 2048, dtype=dtype).components == FFNSpec(512, 2048).components
