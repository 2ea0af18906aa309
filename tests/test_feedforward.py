"""The module against NumPy in float64: every variant, every option, any shape; and what makes it position-wise."""

import copy
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.autograd import gradcheck
from torch.nn import functional as F

import reference
from positionwise import FeedForward
from positionwise.errors import DtypeError, InputError
from positionwise.spec import BACKENDS
from reference import ACTIVATIONS, VARIANTS, array

ROUNDING = {"rtol": 1e-10, "atol": 1e-12}  # float64: sums of at most 100 terms of size 1, each within 2e-16
NAMES = sorted(VARIANTS)
BIASES = [
    {"bias1": bias1, "bias2": bias2, "bias_gate": bias_gate}
    for bias1, bias2, bias_gate in itertools.product([True, False], repeat=3)
]
WIDE = [
    {"kernel_size": 3}, {"second_kernel_size": 5}, {"kernel_size": 3, "second_kernel_size": 3, "dilation": 2},
    {"kernel_size": (3, 1), "second_kernel_size": (5, 1)}, {"kernel_size": (3, 3), "dilation": (1, 2)},
    {"kernel_size": (1, 3), "second_kernel_size": 3}, {"kernel_size": 5, "second_kernel_size": (1, 3)},
    {"kernel_size": (3, 3), "dilation": 2},
]  # fmt: skip
PADDINGS = ["same", "left", "valid"]


def double(name="relu", d_model=6, d_ff=10, **options):
    """A float64 block whose biases are not zero."""
    ffn = FeedForward.variant(name, d_model, d_ff, **{"dropout": 0.0, "dtype": torch.float64, **options})
    for key, parameter in ffn.named_parameters():
        if key.endswith("bias"):
            nn.init.normal_(parameter)
    return ffn


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def check(ffn, x, name):
    y = ffn(x)
    expected = reference.block(ffn, x, VARIANTS[name][0])
    assert y.shape == expected.shape
    np.testing.assert_allclose(array(y), expected, **ROUNDING)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("biases", BIASES, ids=lambda biases: "".join(str(int(flag)) for flag in biases.values()))
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_variant_is_the_formula(name, biases, backend):
    check(double(name, backend=backend, d_out=4, **biases), draw(2, 5, 6), name)


@pytest.mark.parametrize("name", ["gelu", "swiglu"])
@pytest.mark.parametrize("options", WIDE, ids=str)
@pytest.mark.parametrize("padding", PADDINGS)
def test_wide_kernels_are_the_formula(name, options, padding):
    check(double(name, padding=padding, **options), draw(2, 11, 9, 6), name)


@pytest.mark.parametrize(
    ("options", "positions", "left"),
    [({"kernel_size": 5, "second_kernel_size": (1, 3)}, (3, 9), (3, 3)), ({"kernel_size": (3, 1)}, (3, 1), (1, 1)),
     ({"kernel_size": 3, "second_kernel_size": 3, "dilation": 2}, (9,), (1,)),
     ({"kernel_size": (1, 3)}, (2, 4), (2, 2))],
    ids=str,
)  # fmt: skip
def test_valid_takes_the_shortest_input_and_refuses_a_shorter_one(options, positions, left):
    ffn = double(padding="valid", **options)
    assert ffn(draw(2, *positions, 6)).shape == (2, *left, 6)
    axis = positions.index(max(positions))
    needed, got = positions[axis] - left[axis] + 1, positions[axis] - left[axis]
    shorter = [*positions[:axis], got, *positions[axis + 1 :]]
    with pytest.raises(InputError, match=f"expected at least {needed} positions.*got {got}"):
        ffn(draw(2, *shorter, 6))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_rounding_is_no_worse_than_that_of_the_layers_in_eager_mode(name, dtype, backend):
    ffn = FeedForward.variant(name, 64, 128, dropout=0.0, dtype=dtype, backend=backend)
    x = torch.randn(32, 64).to(dtype)
    functions = {"relu2": lambda z: F.relu(z).square(), "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
                 "identity": lambda z: z}  # fmt: skip
    activation = VARIANTS[name][0]
    hidden = functions.get(activation, getattr(F, activation, None))(ffn.layer1(x))
    eager = ffn.layer2(hidden if ffn.linear_v is None else hidden * ffn.linear_v(x))
    exact = reference.block(ffn, x, activation)
    assert ffn(x).dtype == dtype
    assert abs(array(ffn(x)) - exact).max() <= abs(array(eager) - exact).max()


def differentiable(ffn, x):
    """The block as a function of its input and its parameters, with example values."""
    names, values = zip(*ffn.named_parameters(), strict=True)
    function = lambda x, *values: torch.func.functional_call(ffn, dict(zip(names, values, strict=True)), (x,))  # noqa: E731
    return function, (x.requires_grad_(), *values)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_every_variant(name, backend):
    assert gradcheck(*differentiable(double(name, 3, 4, backend=backend), draw(2, 3)))


@pytest.mark.parametrize("options", WIDE[:5], ids=str)
@pytest.mark.parametrize("padding", PADDINGS)
def test_gradients_of_wide_kernels(options, padding):
    assert gradcheck(*differentiable(double("swiglu", 2, 2, padding=padding, **options), draw(1, 7, 9, 2)))


widths = st.integers(1, 9)
layouts = st.sampled_from(["contiguous", "transposed", "strided", "expanded"])


@given(
    st.sampled_from(NAMES), st.lists(st.integers(0, 4), max_size=3), widths, widths, widths, layouts,
    st.sampled_from(BIASES),
)  # fmt: skip
def test_any_shape_and_layout(name, leading, d_model, d_ff, d_out, layout, biases):
    ffn = double(name, d_model, d_ff, d_out=d_out, **biases)
    x = {
        "contiguous": lambda: draw(*leading, d_model),
        "transposed": lambda: draw(d_model, *reversed(leading)).permute(*range(len(leading), -1, -1)),
        "strided": lambda: draw(*leading, 2 * d_model)[..., ::2],
        "expanded": lambda: draw(d_model).expand(*leading, d_model),
    }[layout]().requires_grad_()
    check(ffn, x, name)
    ffn(x).sum().backward()
    assert x.grad.shape == x.shape
    if 0 in leading:
        assert all(parameter.grad.count_nonzero() == 0 for parameter in ffn.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_a_position_changes_only_its_own_output(name):
    ffn, x = double(name), draw(2, 7, 6)
    before = ffn(x)
    for position in range(7):
        changed = x.clone()
        changed[1, position] += 1
        differs = (ffn(changed) - before).abs().amax(-1) > 1e-12  # a product may be summed in another order
        assert differs.nonzero().tolist() == [[1, position]]


@pytest.mark.parametrize("name", NAMES)
def test_permuted_positions_are_permuted_outputs(name):
    ffn, x, order = double(name), draw(2, 7, 6), torch.randperm(7)
    torch.testing.assert_close(ffn(x[:, order]), ffn(x)[:, order], rtol=0, atol=1e-12)
    torch.testing.assert_close(ffn(x.flatten(0, 1)), ffn(x).flatten(0, 1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_a_call_leaves_no_trace(name):
    ffn, x = double(name), draw(2, 7, 6)
    state, copy_of_x, first = copy.deepcopy(ffn.state_dict()), x.clone(), ffn(x)
    ffn(draw(3, 6))
    assert torch.equal(ffn(x), first)
    assert torch.equal(x, copy_of_x)
    assert all(torch.equal(value, state[key]) for key, value in ffn.state_dict().items())


@pytest.mark.parametrize("padding", ["left", "same"])
@pytest.mark.parametrize("options", WIDE[:5], ids=str)
def test_only_left_padding_is_causal(padding, options):
    ffn, x = double("swiglu", padding=padding, **options), draw(1, 11, 9, 6)
    before, sees_ahead = ffn(x), False
    axes = (1, 2) if isinstance(options.get("kernel_size"), tuple) else (2,)
    for axis, t in [(1, t) for t in range(11) if 1 in axes] + [(2, t) for t in range(9)]:
        changed = x.clone()
        changed.select(axis, t).add_(1.0)
        sees_ahead |= bool((ffn(changed) - before).narrow(axis, 0, t).abs().sum() > 1e-12)
    assert sees_ahead == (padding == "same")


@pytest.mark.parametrize("name", ["relu", "gelu", "swiglu", "reglu"])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_is_on_the_hidden_units_only(name, p):
    ffn, x, seen = double(name, 6, 64, dropout=p), draw(500, 6), []
    ffn.layer2.register_forward_pre_hook(lambda layer, args: seen.append(args[0].detach()))
    y = ffn(x)
    torch.testing.assert_close(y, F.linear(seen[0], ffn.layer2.weight, ffn.layer2.bias))  # nothing after the second map
    ffn.eval()(x)
    dropped, whole = seen
    live = whole != 0
    keep = dropped[live] != 0
    # 16,000 draws or more: five standard errors are at most 0.02
    assert 1 - keep.double().mean().item() == pytest.approx(p, abs=0.02)
    torch.testing.assert_close(dropped[live][keep], whole[live][keep] / (1 - p), rtol=1e-12, atol=0)
    assert dropped[~live].count_nonzero() == 0


@pytest.mark.parametrize("name", NAMES)
def test_dropout_rests_in_eval_mode_and_draws_anew_in_training(name):
    ffn, x = double(name, dropout=0.5), draw(20, 6)
    assert not torch.equal(ffn(x), ffn(x))
    assert torch.equal(ffn.eval()(x), ffn(x))
    check(ffn, x, name)


@pytest.mark.parametrize("options", WIDE, ids=str)
def test_dropping_everything_leaves_b2_with_wide_kernels_too(options):
    ffn = double("geglu", dropout=1.0, **options)
    b2 = getattr(ffn.layer2, "pointwise", ffn.layer2).bias
    assert torch.equal(ffn(draw(2, 11, 9, 6)), b2.expand(2, 11, 9, 6))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64], ids=str)
@pytest.mark.parametrize("options", [{}, {"kernel_size": 3}], ids=str)
def test_numbers_that_are_not_real_are_refused(dtype, options):
    with pytest.raises(DtypeError, match=f"expected a floating-point input; got {dtype}") as caught:
        FeedForward(6, 10, **options)(torch.ones(2, 5, 6, dtype=dtype))
    assert isinstance(caught.value, TypeError)


def test_what_is_no_tensor_is_refused():
    with pytest.raises(DtypeError, match="expected a tensor; got ndarray"):
        FeedForward(6, 8)(np.zeros((2, 6), dtype=np.float32))


@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 7), (6, 2), (2, 0), (0,)])
@pytest.mark.parametrize("options", [{}, {"kernel_size": 3}, {"second_kernel_size": (3, 3)}], ids=str)
def test_a_wrong_last_axis_is_refused_with_both_shapes(shape, options):
    with pytest.raises(InputError) as caught:
        FeedForward(6, 10, **options)(torch.ones(shape))
    assert all(part in str(caught.value) for part in ["(..., 6)", f"got {shape}"])
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(("kernel", "shapes"), [(3, [(6,)]), ((3, 3), [(6,), (4, 6)]), ((3, 1), [(4, 6)])])
@pytest.mark.parametrize("which", ["kernel_size", "second_kernel_size"])
def test_too_few_axes_for_a_wide_kernel_are_refused(kernel, shapes, which):
    axes = 1 if isinstance(kernel, int) else 2
    for shape in shapes:
        with pytest.raises(InputError, match=f"expected {axes} ax.*got") as caught:
            FeedForward(6, 10, **{which: kernel})(torch.ones(shape))
        assert str(shape) in str(caught.value)


@pytest.mark.parametrize("padding", ["same", "left"])
@pytest.mark.parametrize("shape", [(2, 0, 6), (0, 5, 6), (0, 0, 6), (0, 6)])
def test_zero_tokens_pass_wide_kernels(padding, shape):
    ffn = FeedForward(6, 10, kernel_size=3, second_kernel_size=5, padding=padding)
    x = torch.zeros(shape, requires_grad=True)
    ffn(x).sum().backward()
    assert x.grad.shape == ffn(x).shape == shape
    assert all(parameter.grad.count_nonzero() == 0 for parameter in ffn.parameters())


def testpublished_initialisation():
    ffn = FeedForward.variant("swiglu", 512, 2048)
    for layer in (ffn.layer1, ffn.layer2, ffn.linear_v):
        assert 0.0484 < layer.weight.abs().max() <= 0.04841229183  # √(6 / 2560)
        assert layer.weight.std().item() == pytest.approx(0.0279508, rel=0.005)  # the limit / √3; a million draws
        assert layer.bias.count_nonzero() == 0


@pytest.mark.parametrize(("kernel", "taps"), [((3, 1), 3), (31, 31), ((3, 5), 15)])
def testpublished_initialisation_of_depthwise_kernels(kernel, taps):
    ffn = FeedForward(512, 2048, kernel_size=kernel, second_kernel_size=kernel)
    for layer, channels in ((ffn.layer1, 512), (ffn.layer2, 2048)):
        limit = (6 / (taps * channels + taps)) ** 0.5  # fan_in: taps × channels; fan_out: taps × 1
        assert 0.99 * limit < layer.depthwise.abs().max() <= limit
        assert 0.0484 < layer.pointwise.weight.abs().max() <= 0.04841229183
        assert layer.pointwise.bias.count_nonzero() == 0


@pytest.mark.parametrize("bias", [True, False])
def test_pytorch_initialisation_is_that_of_linear(bias):
    torch.manual_seed(7)
    ffn = FeedForward(16, 64, is_gated=True, bias1=bias, bias2=bias, bias_gate=bias, init="pytorch")
    torch.manual_seed(7)
    ffn.reset_parameters()
    torch.manual_seed(7)
    for layer, (wide_in, wide_out) in zip(ffn.children(), [(16, 64), (64, 16), (16, 64)], strict=True):
        expected = nn.Linear(wide_in, wide_out, bias)
        assert torch.equal(layer.weight, expected.weight)
        assert (layer.bias is None) if not bias else torch.equal(layer.bias, expected.bias)


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_labml_calls_are_taken_positionally(activation):
    ffn, x = FeedForward(6, 10, 0.0, activation, True, False, True, False).double(), draw(3, 6)
    assert (ffn.layer1.bias, ffn.linear_v.bias, ffn.layer2.bias.shape) == (None, None, (6,))
    np.testing.assert_allclose(array(ffn(x)), reference.block(ffn, x, activation), **ROUNDING)


def test_what_is_printed_shows_the_options_that_differ():
    assert FeedForward(6, 10).extra_repr() == "6, 10"
    assert FeedForward(6, 10, is_gated=True, padding="left").extra_repr() == "6, 10, is_gated=True, padding='left'"
