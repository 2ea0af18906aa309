"""What recorded numbers prove of the function between two maps, and which name it gets."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from positionwise.adapters.evidence import link
from positionwise.adapters.names import held, name_of
from positionwise.adapters.numbers import GRID

ROWS, WIDTH = 16, 24
HALVES = {
    "first": lambda out: out.chunk(2, -1),
    "second": lambda out: out.chunk(2, -1)[::-1],
    "even": lambda out: (out[:, ::2], out[:, 1::2]),
    "odd": lambda out: (out[:, 1::2], out[:, ::2]),
}
PLAIN = {
    "relu": F.relu, "gelu": F.gelu, "silu": F.silu, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "relu6": F.relu6,
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"), "quick_gelu": lambda z: z * torch.sigmoid(1.702 * z),
    "relu2": lambda z: F.relu(z) ** 2, "elu": F.elu, "mish": F.mish, "leaky_relu": F.leaky_relu,
    "softplus": F.softplus, "selu": F.selu, "hardswish": F.hardswish,
}  # fmt: skip


def drawn(width, scale=1.0):
    """What a map gives: values of the grid, scaled so that two maps' are told apart."""
    return torch.tensor(GRID, dtype=torch.float64)[torch.randint(len(GRID), (ROWS, width))] * scale


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_one_map_and_a_function(name, dtype):
    out = drawn(WIDTH).to(dtype)
    found = link([out], PLAIN[name](out))
    assert (found.is_gated, found.gate_half, found.is_linear) == (False, None, False)
    assert sorted(found.z.tolist()) == pytest.approx(sorted(GRID))
    torch.testing.assert_close(found.g, PLAIN[name](found.z), rtol=1e-5, atol=1e-5)
    assert name_of(found, nn.Identity()) == name


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", ["relu", "gelu", "silu", "sigmoid", "gelu_tanh"])
def test_a_fused_map_and_the_half_that_is_activated(half, name):
    out = drawn(2 * WIDTH)
    gate, up = HALVES[half](out)
    found = link([out], PLAIN[name](gate) * up)
    assert (found.is_gated, found.gate_half, found.offset, found.limit) == (True, half, 0, None)
    torch.testing.assert_close(found.g, PLAIN[name](found.z), rtol=1e-5, atol=1e-5)
    assert name_of(found, nn.Identity()) == name


@pytest.mark.parametrize("activated", [0, 1])
def test_two_maps_and_the_one_that_is_activated(activated):
    outs = [drawn(WIDTH), drawn(WIDTH, 1.01)]
    found = link(outs, F.gelu(outs[activated]) * outs[1 - activated])
    assert (found.is_gated, found.gate_half, found.activated) == (True, None, activated)
    assert name_of(found, nn.Identity()) == "gelu"


@pytest.mark.parametrize("half", HALVES)
def test_clamped_gates_and_an_offset(half):
    out = drawn(2 * WIDTH)
    gate, up = HALVES[half](out)
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    found = link([out], (up + 1) * gate * torch.sigmoid(1.702 * gate))
    assert (found.gate_half, found.offset, found.limit) == (half, 1, 7)
    assert name_of(found, nn.Identity()) == "clamped swiglu: (up + 1) · gate · σ(1.702 · gate), limit 7"


def test_an_offset_without_a_clamp():
    out = drawn(2 * WIDTH)
    found = link([out], F.silu(out[:, :WIDTH]) * (out[:, WIDTH:] + 0.5))
    assert (found.gate_half, found.offset, found.limit) == ("first", 0.5, None)
    assert name_of(found, nn.Identity()) == "silu, up + 0.5"


def test_a_bilinear_gate_has_no_activated_half():
    out = drawn(2 * WIDTH)
    found = link([out], out[:, :WIDTH] * out[:, WIDTH:])
    assert (found.is_gated, found.gate_half) == (True, None)
    assert found.is_identity


@pytest.mark.parametrize("factor", [1.0, -0.5, 3.0])
def test_nothing_or_a_number_between_two_maps(factor):
    out = drawn(WIDTH)
    found = link([out], factor * out)
    assert found.is_linear
    assert found.is_identity == (factor == 1)
    assert not found.is_gated


@pytest.mark.parametrize(
    "between",
    [
        lambda out: out.softmax(-1),
        lambda out: out.cumsum(-1),
        lambda out: out.roll(1, -1).relu(),
        lambda out: out.relu() @ torch.randn(WIDTH, WIDTH, dtype=out.dtype),
        lambda out: out.relu() * torch.rand(ROWS, WIDTH, dtype=out.dtype),
        lambda out: out[: ROWS - 1].relu(),
    ],
)
def test_what_is_not_elementwise_is_no_link(between):
    assert link([out := drawn(WIDTH)], between(out)) is None


@pytest.mark.parametrize(
    "between",
    [
        lambda gate, up: gate.relu() + up,
        lambda gate, up: gate.relu() * up.roll(1, -1),
        lambda gate, up: gate.roll(1, -1).relu() * gate,
    ],
)
def test_what_is_no_gate_is_no_link(between):
    out = drawn(2 * WIDTH)
    assert link([out], between(out[:, :WIDTH], out[:, WIDTH:])) is None


@pytest.mark.parametrize("width", [WIDTH - 1, WIDTH + 1, 3 * WIDTH])
def test_widths_that_do_not_fit_are_no_link(width):
    assert link([drawn(width)], drawn(WIDTH)) is None
    assert link([drawn(WIDTH), drawn(width)], drawn(WIDTH)) is None


class Holder(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.activation = activation


def library(name):
    from transformers.activations import ACT2FN

    return ACT2FN[name]


@pytest.mark.parametrize(
    ("activation", "called", "name"),
    [
        (nn.GELU(), F.gelu, "gelu"),
        (nn.GELU("tanh"), PLAIN["gelu_tanh"], "gelu_tanh"),
        (F.gelu, F.gelu, "gelu"),
        (torch.relu, F.relu, "relu"),
        (nn.ReLU(), F.relu, "relu"),
        (nn.ReLU6(), F.relu6, "relu6"),
        (nn.SiLU(), F.silu, "silu"),
        (nn.Dropout(), F.gelu, "gelu"),  # nothing is held that is known
        (nn.ReLU(), F.gelu, "gelu"),  # what is held is not what is called
        (nn.ReLU(), lambda z: z.sin(), None),
    ],
)
def test_the_name_is_the_held_ones_where_it_fits(activation, called, name):
    out = drawn(WIDTH)
    assert name_of(link([out], called(out)), Holder(activation)) == name


@pytest.mark.parametrize("word", ["gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "gelu_fast", "relu2", "silu"])
def test_a_librarys_own_word_for_a_function(word):
    activation = library(word)
    out = drawn(WIDTH)
    found = link([out], activation(out))
    assert {name for name, _ in held(Holder(activation))} == {word}
    assert name_of(found, Holder(activation)) == word
