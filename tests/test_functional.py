"""The reference maths against NumPy in float64, its precision in narrower types, and the depthwise kernels."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck
from torch.nn import functional as F

import reference
from positionwise.errors import SpecError
from positionwise.functional import depthwise, feed_forward, glorot_uniform_
from reference import ACTIVATIONS, array

ROUNDING = {"rtol": 1e-10, "atol": 1e-12}  # float64: sums of at most 100 terms of size 1, each within 2e-16
BIASES = ["bias1", "bias2", "bias_gate"]
PADDINGS = ["same", "left", "valid"]
PLAIN_EAGER = {
    "relu": F.relu, "relu2": lambda z: F.relu(z).square(), "gelu": F.gelu, "silu": F.silu, "sigmoid": F.sigmoid,
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"), "tanh": F.tanh, "identity": lambda z: z,
}  # fmt: skip


def tensors(dtype=torch.float64, d_model=24, d_ff=40, d_out=16, tokens=(3, 7)):
    """x, W₁, b₁, W₂, b₂, V and c of size about one after each map."""

    def draw(*shape, scale=1.0):
        return (scale * torch.randn(*shape, dtype=torch.float64)).to(dtype)

    return {
        "x": draw(*tokens, d_model), "weight1": draw(d_ff, d_model, scale=d_model**-0.5), "bias1": draw(d_ff),
        "weight2": draw(d_out, d_ff, scale=d_ff**-0.5), "bias2": draw(d_out),
        "weight_v": draw(d_ff, d_model, scale=d_model**-0.5), "bias_gate": draw(d_ff),
    }  # fmt: skip


def expected(activation, x, weight1, weight2, bias1=None, bias2=None, weight_v=None, bias_gate=None, keep=None, p=0.0):
    x, w1, w2, b1, b2, v, c = (None if t is None else array(t) for t in
                               (x, weight1, weight2, bias1, bias2, weight_v, bias_gate))  # fmt: skip
    gate = None if v is None else lambda x: reference.linear(x, v, c)
    first, second = (lambda x: reference.linear(x, w1, b1)), (lambda h: reference.linear(h, w2, b2))
    return reference.feed_forward(x, first, second, gate, activation, keep, p)


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("without", [(), ("bias1",), ("bias2",), ("bias_gate",), tuple(BIASES)], ids=str)
def test_the_function_is_the_formula(activation, gated, without):
    given_ = tensors()
    for name in {*without, *(() if gated else ("weight_v", "bias_gate"))}:
        del given_[name]
    y = feed_forward(**given_, activation=activation)
    np.testing.assert_allclose(array(y), expected(activation, **given_), **ROUNDING)


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_rounding_is_no_worse_than_that_of_plain_eager(activation, gated, dtype):
    given_ = tensors(dtype, d_model=64, d_ff=128, d_out=64, tokens=(32,))
    if not gated:
        del given_["weight_v"], given_["bias_gate"]
    hidden = PLAIN_EAGER[activation](F.linear(given_["x"], given_["weight1"], given_["bias1"]))
    if gated:
        hidden = hidden * F.linear(given_["x"], given_["weight_v"], given_["bias_gate"])
    eager = F.linear(hidden, given_["weight2"], given_["bias2"])
    ours = feed_forward(**given_, activation=activation)
    exact = expected(activation, **given_)
    assert ours.dtype == dtype
    for norm in (np.max, lambda error: np.sqrt(np.mean(error**2))):
        assert norm(abs(array(ours) - exact)) <= norm(abs(array(eager) - exact))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("p", [0.25, 0.5])
def test_dropout_is_an_inverted_mask_on_the_hidden_units(gated, p):
    given_ = tensors() | {"bias2": None}
    given_ |= {} if gated else {"weight_v": None, "bias_gate": None}
    given_["weight2"] = torch.eye(40, dtype=torch.float64)  # the output is the hidden units
    y = feed_forward(**given_, activation="tanh", dropout=p, training=True)
    keep = array(y) != 0  # tanh of random numbers is nowhere 0
    assert 1 - keep.mean() == pytest.approx(p, abs=0.07)  # 840 units: four standard errors
    np.testing.assert_allclose(array(y), expected("tanh", **given_, keep=keep, p=p), **ROUNDING)


@pytest.mark.parametrize(("dropout", "training"), [(0.5, False), (0.0, True)])
def test_dropout_rests_outside_training_and_at_zero(dropout, training):
    given_ = tensors()
    assert torch.equal(feed_forward(**given_, dropout=dropout, training=training), feed_forward(**given_))


def test_the_activation_may_be_a_function_and_must_be_known_by_name():
    given_ = tensors()
    assert torch.equal(feed_forward(**given_, activation=F.silu), feed_forward(**given_, activation="silu"))
    with pytest.raises(SpecError, match="expected activation to be one of"):
        feed_forward(**given_, activation="swiglu")


@st.composite
def convolutions(draw):
    """Shape of x, of the kernel, padding and dilation, where ``valid`` leaves at least one position."""
    axes = draw(st.integers(1, 2))
    padding = draw(st.sampled_from(PADDINGS))
    odd_only = st.sampled_from([1, 3, 5])
    taps = [draw(odd_only if padding == "left" else st.integers(1, 5)) for _ in range(axes)]
    dilation = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    spans = [(k - 1) * step for k, step in zip(taps, dilation, strict=False)]
    lengths = [draw(st.integers(1 + (span if padding == "valid" else 0), 15)) for span in spans]
    leading = draw(st.lists(st.integers(0, 3), max_size=2))
    return (*leading, *lengths), draw(st.integers(1, 4)), taps, padding, dilation


@given(convolutions())
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")  # see the test on warnings below
def test_depthwise_kernels_are_the_formula(convolution):
    positions, channels, taps, padding, dilation = convolution
    x = torch.randn(*positions, channels, dtype=torch.float64)
    kernel = torch.randn(channels, 1, *taps, dtype=torch.float64)
    y = array(depthwise(x, kernel, padding, dilation))
    np.testing.assert_allclose(y, reference.depthwise(array(x), array(kernel)[:, 0], padding, dilation), **ROUNDING)


@pytest.mark.parametrize("padding", ["same", "left"])
@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 0, 3), (0, 5, 3), (0, 3), (2, 3, 0, 3)])
def test_no_positions_are_no_output(padding, shape):
    x = torch.zeros(shape, requires_grad=True)
    kernel = torch.randn(3, 1, 3, requires_grad=True)
    y = depthwise(x, kernel, padding, (1, 1))
    y.sum().backward()
    assert y.shape == shape
    assert kernel.grad.count_nonzero() == 0


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize(("taps", "dilation"), [((3,), (1, 1)), ((5,), (2, 1)), ((3, 1), (1, 1)), ((3, 5), (2, 1))])
def test_lengths(padding, taps, dilation):
    shape = (2, *(14, 11)[: len(taps)], 3)
    y = depthwise(torch.randn(shape), torch.randn(3, 1, *taps), padding, dilation)
    shorter = [(k - 1) * step if padding == "valid" else 0 for k, step in zip(taps, dilation, strict=False)]
    assert y.shape == (2, *(n - less for n, less in zip(shape[1:-1], shorter, strict=True)), 3)


@pytest.mark.parametrize(("taps", "dilation"), [((3,), (1, 1)), ((5,), (2, 1)), ((3, 3), (1, 2)), ((31, 1), (1, 1))])
def test_left_padding_never_looks_ahead(taps, dilation):
    x = torch.randn(2, *(9, 8)[: len(taps)], 3, dtype=torch.float64)
    kernel = torch.randn(3, 1, *taps, dtype=torch.float64)
    before = depthwise(x, kernel, "left", dilation)
    for axis in range(1, len(taps) + 1):
        for t in range(x.shape[axis]):
            changed = x.clone()
            changed.select(axis, t).add_(1.0)
            difference = (depthwise(changed, kernel, "left", dilation) - before).abs()
            assert difference.narrow(axis, 0, t).sum() == 0
            assert difference.select(axis, t).min() > 0  # the position itself is seen


def test_same_padding_puts_the_odd_one_after():
    x = torch.tensor([1.0, 10.0, 100.0])[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = depthwise(x, torch.ones(1, 1, 2), "same", (1, 1))
    assert y[:, 0].tolist() == [11.0, 110.0, 100.0]


@pytest.mark.parametrize("taps", [(2,), (4,), (2, 4)])
def test_even_kernels_do_not_warn(taps):
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # otherwise PyTorch warns once in the life of the process
    try:
        assert depthwise(torch.randn(1, 6, 6, 3), torch.randn(3, 1, *taps), "same", (1, 1)).shape == (1, 6, 6, 3)
    finally:
        torch.set_warn_always(always)


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("taps", [(3,), (3, 1), (3, 5)])
def test_gradients_of_depthwise_kernels(padding, taps):
    x = torch.randn(2, *(6, 5)[: len(taps)], 2, dtype=torch.float64, requires_grad=True)
    kernel = torch.randn(2, 1, *taps, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x, kernel: depthwise(x, kernel, padding, (1, 1)), (x, kernel))


@pytest.mark.parametrize(("fan_in", "fan_out"), [(512, 2048), (3, 5)])
def test_glorot_limits(fan_in, fan_out):
    weight = glorot_uniform_(torch.empty(400, 400), fan_in, fan_out)
    limit = (6 / (fan_in + fan_out)) ** 0.5
    assert 0.999 * limit < weight.abs().max() <= limit
    # 160,000 draws: the mean is within 4 standard errors of 0, the deviation (limit / √3) within 1 %
    assert abs(weight.mean()) < 4 * limit / 3**0.5 / 400
    assert weight.std().item() == pytest.approx(limit / 3**0.5, rel=0.01)
