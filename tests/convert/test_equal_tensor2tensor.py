"""tensor2tensor's numbers: every fixture, in float32 and in float64, and the paths between them."""

import numpy as np
import pytest
import tensor2tensor_cases
import torch
from tensor2tensor_cases import CASES, archive, load, measure

from positionwise import kernels
from positionwise.convert import from_tensor2tensor
from positionwise.errors import InputError
from shared import shared_file

TOLERANCE = 2e-6
# The norm's fourth row is x·100 + 1000, of which PyTorch's float32 backward loses more than TensorFlow's did.
ILL_CONDITIONED = {("layer_norm_d8", torch.float32): 5e-5}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_every_number_is_the_originals(name, dtype):
    errors = measure(name, dtype)
    limit = ILL_CONDITIONED.get((name, dtype), TOLERANCE)
    assert {key: error for key, error in errors.items() if not error <= limit} == {}


def test_every_fixture_is_held():
    names = {path.stem for path in shared_file("fixtures/tensor2tensor").glob("*.npz")}
    # These are common_layers functions that transformer.py does not call; the density's has its own test.
    beside = {"common_layers_residual_fn_layer", "common_layers_residual_fn_noam", "common_layers_residual_fn_none",
              "noam_norm_d8", "relu_density_logit"}  # fmt: skip
    assert names - beside == set(CASES)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case is tensor2tensor_cases.feed_forward])
def test_our_paths_agree_in_float64(name):
    arrays = archive(name)
    padding = next((each for each in ("same", "left") if each in name), None)
    x, cotangent = (torch.from_numpy(arrays[key]).double() for key in ("in/x", "R"))
    found = []
    for hooked in (False, True):
        ffn = load(arrays, torch.float64, padding=padding)
        if hooked:
            ffn.layer1.register_forward_hook(lambda module, inputs, output: None)
        assert kernels.choose(ffn, x).name == ("layers" if hooked or padding else "lean")
        given = x.clone().requires_grad_()
        y = ffn(given)
        (y * cotangent).sum().backward()
        found.append([y.detach(), given.grad, *(p.grad for p in ffn.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def separable(taps, width, channels=4, hidden=6):
    """Variables of a separable layer with a wide first kernel and a plain second map."""
    rng = np.random.default_rng(0)
    return {
        "conv_hidden_relu/conv1_single/depthwise_kernel": rng.standard_normal((taps, width, channels, 1)),
        "conv_hidden_relu/conv1_single/pointwise_kernel": rng.standard_normal((1, 1, channels, hidden)),
        "conv_hidden_relu/conv1_single/bias": rng.standard_normal(hidden),
        "conv_hidden_relu/conv2_single/kernel": rng.standard_normal((1, 1, hidden, channels)),
        "conv_hidden_relu/conv2_single/bias": rng.standard_normal(channels),
    }


@pytest.mark.parametrize("padding", ["same", "left", "valid"])
def test_axis_one_is_convolved_whatever_the_rank(padding):
    ffn = from_tensor2tensor(separable(3, 1), padding=padding)
    x = torch.randn(2, 7, 5, 4, dtype=torch.float64)
    columns = [ffn(x[:, :, i]) for i in range(5)]
    torch.testing.assert_close(ffn(x), torch.stack(columns, 2), rtol=1e-12, atol=1e-12)
    assert ffn(x).shape == (2, 5 if padding == "valid" else 7, 5, 4)


@pytest.mark.parametrize("shape", [(7, 4), (2, 2, 7, 1, 4)], ids=str)
def test_other_ranks_are_refused_as_there(shape):
    ffn = from_tensor2tensor(separable(3, 1), padding="left")
    with pytest.raises(InputError, match="3 or 4 axes"):
        ffn(torch.zeros(shape, dtype=torch.float64))


def test_a_kernel_wider_than_the_axis_that_is_not_there_is_refused_as_there():
    ffn = from_tensor2tensor(separable(3, 3), padding="left")
    with pytest.raises(InputError, match="4 axes"):
        ffn(torch.zeros(2, 7, 4, dtype=torch.float64))
    with pytest.raises(InputError, match="at least 3 positions"):
        from_tensor2tensor(separable(3, 3), padding="valid")(torch.zeros(2, 7, 4, dtype=torch.float64))
    same = from_tensor2tensor(separable(3, 3), padding="same")
    x = torch.randn(2, 7, 4, dtype=torch.float64)
    assert torch.equal(same(x), same(x.unsqueeze(2)).squeeze(2))


def test_a_kernel_of_one_weight_is_a_factor_of_its_map():
    """The original makes one when the size is a list: [1, 1] is not its (1, 1)."""
    arrays = separable(1, 1)
    ffn = from_tensor2tensor(arrays)
    x = torch.randn(2, 7, 4, dtype=torch.float64)
    scaled = x * torch.from_numpy(arrays["conv_hidden_relu/conv1_single/depthwise_kernel"]).flatten()
    first = torch.from_numpy(arrays["conv_hidden_relu/conv1_single/pointwise_kernel"][0, 0])
    second = torch.from_numpy(arrays["conv_hidden_relu/conv2_single/kernel"][0, 0])
    hidden = (scaled @ first + torch.from_numpy(arrays["conv_hidden_relu/conv1_single/bias"])).relu()
    torch.testing.assert_close(ffn(x), hidden @ second + torch.from_numpy(arrays["conv_hidden_relu/conv2_single/bias"]))


def test_an_output_of_another_width():
    arrays = separable(1, 1) | {
        "conv_hidden_relu/conv2_single/kernel": np.ones((1, 1, 6, 9)),
        "conv_hidden_relu/conv2_single/bias": np.zeros(9),
    }
    ffn = from_tensor2tensor(arrays)
    assert ffn.spec.d_out == 9
    assert ffn(torch.zeros(2, 7, 4, dtype=torch.float64)).shape == (2, 7, 9)
