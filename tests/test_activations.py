"""The table of activations: values, derivatives, zeros, and what a name, a function or a module resolves to."""

import functools
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import gradcheck
from torch.nn import functional as F

from positionwise import activations
from positionwise.activations import ACTIVATIONS, get, resolve
from positionwise.errors import PositionwiseError, SpecError
from reference import ACTIVATIONS as FORMULAS
from reference import array

NAMES = sorted(FORMULAS)


def points():
    return torch.arange(-120, 121, dtype=torch.float64) / 20  # both tails and 0 itself


def test_the_table_has_the_activations_of_the_literature_under_their_own_names():
    assert sorted(ACTIVATIONS) == NAMES
    assert all(name == row.name for name, row in ACTIVATIONS.items())


@pytest.mark.parametrize("name", NAMES)
def test_values_are_those_of_the_formula(name):
    z = points()
    # a few float64 roundings of numbers up to 36
    np.testing.assert_allclose(array(get(name)(z)), FORMULAS[name](array(z)), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("name", NAMES)
def test_the_derivative_is_that_of_the_function(name):
    z = points().requires_grad_()
    (expected,) = torch.autograd.grad(get(name)(z).sum(), z)
    torch.testing.assert_close(get(name).derivative(z.detach()), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", NAMES)
def test_the_derivative_matches_finite_differences(name):
    z = (points() + 0.01).requires_grad_()  # no point within 0.01 of the kink at 0; differences step 1e-6
    assert gradcheck(get(name), z)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_shape_and_dtype_are_kept(name, dtype):
    z = torch.randn(2, 3, dtype=dtype)
    for function in (get(name), get(name).derivative):
        assert (function(z).shape, function(z).dtype) == (z.shape, dtype)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_derivative_is_finite_far_out(name, dtype):
    z = torch.tensor([-1e4, -1000, -256, 256, 1000, 1e4], dtype=dtype)  # 256² is more than float16 holds
    exact = get(name).derivative(z.double())
    torch.testing.assert_close(get(name).derivative(z), exact.to(dtype), rtol=2**-6, atol=2**-6)


@pytest.mark.parametrize("name", NAMES)
def test_exact_zeros_occur_where_the_table_says(name):
    share = (get(name)(torch.randn(1000)) == 0).float().mean()
    assert get(name).exact_zeros == (share > 0.3)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_names_its_source_and_its_equation(name):
    row = get(name)
    assert "arXiv" in row.source
    assert "{z}" in row.equation


@pytest.mark.parametrize("name", NAMES)
def test_saved_tensors_are_the_ones_autograd_keeps(name):
    z = torch.randn(5, 7, dtype=torch.float64, requires_grad=True) * 1
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = get(name)(z)
    known = {"z": z, "f(z)": y, "max(0, z)": z.relu()}
    expected = [known[tensor] for tensor in get(name).saved]
    assert len({t.untyped_storage().data_ptr() for t in kept}) == len(expected)
    assert all(any(torch.equal(t, e) for e in expected) for t in kept)


def test_swish_is_an_alias_of_silu():
    assert get("swish") is get("silu")


@pytest.mark.parametrize("name", ["ReLU", "gelu_new", "glu", "swiglu", "", "none"])
def test_an_unknown_name_is_an_error_that_lists_the_names(name):
    with pytest.raises(SpecError, match="expected activation to be one of") as caught:
        resolve(name)
    assert all(known in str(caught.value) for known in [*NAMES, "swish", repr(name)])
    assert isinstance(caught.value, PositionwiseError)
    assert isinstance(caught.value, ValueError)


def test_the_nearest_name_is_proposed():
    with pytest.raises(SpecError, match=r"did you mean 'gelu'\?"):
        get("gellu")


@pytest.mark.parametrize(
    ("activation", "name"),
    [
        ("silu", "silu"), (F.relu, "relu"), (torch.relu, "relu"), (F.gelu, "gelu"), (F.silu, "silu"),
        (torch.sigmoid, "sigmoid"), (F.sigmoid, "sigmoid"), (torch.tanh, "tanh"), (F.tanh, "tanh"),
        (activations.relu2, "relu2"), (activations.gelu_tanh, "gelu_tanh"), (activations.identity, "identity"),
        (nn.ReLU(), "relu"), (nn.ReLU(inplace=True), "relu"), (nn.GELU(), "gelu"),
        (nn.GELU(approximate="tanh"), "gelu_tanh"), (nn.SiLU(), "silu"), (nn.Sigmoid(), "sigmoid"),
        (nn.Tanh(), "tanh"), (nn.Identity(), "identity"),
    ],
)  # fmt: skip
def test_functions_and_modules_of_pytorch_are_recognised(activation, name):
    assert resolve(activation) is get(name)
    z = torch.randn(100, dtype=torch.float64)
    if not isinstance(activation, str):
        torch.testing.assert_close(resolve(activation)(z), activation(z.clone()), rtol=1e-15, atol=1e-15)


class Doubled(nn.ReLU):
    def forward(self, x):
        return 2 * super().forward(x)


def hooked_relu():
    module = nn.ReLU()
    module.register_forward_hook(lambda module, args, output: 2 * output)
    return module


def own_forward():
    module = nn.ReLU()
    module.forward = lambda x: 2 * F.relu(x)
    return module


@pytest.mark.parametrize(
    "activation",
    [Doubled(), hooked_relu(), own_forward(), lambda z: 2 * F.relu(z)],
    ids=["subclass", "hook", "own forward", "function"],
)
def test_what_only_looks_like_a_known_activation_keeps_its_own_values(activation):
    row = resolve(activation)
    z = points()
    assert torch.equal(row(z), 2 * z.relu())
    assert (row.derivative, row.saved, row.exact_zeros) == (None, None, False)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_a_partial_function_keeps_its_arguments(approximate):
    row = resolve(functools.partial(F.gelu, approximate=approximate))
    assert torch.equal(row(points()), F.gelu(points(), approximate=approximate))


@pytest.mark.parametrize("activation", [None, 3, nn.ReLU, ["relu"]], ids=repr)
def test_what_cannot_be_called_is_an_error_that_says_what_came(activation):
    with pytest.raises(SpecError, match="expected activation to be a name, a function or a module") as caught:
        resolve(activation)
    assert repr(activation) in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_survives_pickle(name):
    assert pickle.loads(pickle.dumps(get(name))) == get(name)
