"""Hidden units that are at work: tensor2tensor's logit, counts over calls, and hooks that leave nothing behind."""

import gc
import math

import numpy as np
import pytest
import torch
from torch import nn

import shared
from positionwise import FeedForward, density, explain
from positionwise.errors import InputError, SpecError
from positionwise.hidden_density import hidden_density_logit
from reference import ACTIVATIONS, VARIANTS, array

FLOAT32 = {"rtol": 3e-7, "atol": 1e-6}  # logs of size up to 10 in float32
PLAIN = ["ffn_k1_d8_ff32", "ffn_k1_d16_ff64_4d_w1", "ffn_k1_dropout04_train"]
WIDE = ["ffn_sep_k3_k31_left", "ffn_sep_k3_k3_left", "ffn_sep_k3_k3_same", "ffn_sep_k3x3_left_4d"]


def published(name):
    return np.load(shared.shared_file("fixtures/tensor2tensor") / f"{name}.npz")


def by_hand(hidden):
    """The logit of NumPy float64 hidden units, (..., channels)."""
    above = (hidden > 0).mean(tuple(range(hidden.ndim - 1)), dtype=np.float64)
    return np.log(above + np.exp(-10)) - np.log(1 - above + np.exp(-10))


def hidden_units(ffn, x, name):
    """What enters the second map of a width-1 block without dropout, in float64."""
    maps = [layer for layer in (ffn.layer1, ffn.linear_v) if layer is not None]
    first, *gate = (array(x) @ array(layer.weight).T + array(layer.bias) for layer in maps)
    return math.prod(gate, start=ACTIVATIONS[VARIANTS[name][0]](first))


def double(name="relu", **options):
    ffn = FeedForward.variant(name, 6, 10, **{"dropout": 0.0, "dtype": torch.float64, **options})
    for key, parameter in ffn.named_parameters():
        if key.endswith("bias"):
            nn.init.normal_(parameter)
    return ffn


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def hooks(model):
    """How many hooks a model holds."""
    kinds = [name for name in vars(model) if name.endswith("_hooks")]
    return sum(len(getattr(part, kind)) for part in model.modules() for kind in kinds)


CASES = ["all_zero", "all_pos", "all_neg", "mixed", "mixed_relu", "tiny_pos", "half", "nan_inf"]


@pytest.mark.parametrize("case", CASES)
def test_the_logit_is_tensor2tensors(case):
    file = published("relu_density_logit")
    assert {f"in/{case}" for case in CASES} == {key for key in file if key.startswith("in/")}
    logit = hidden_density_logit(torch.from_numpy(file[f"in/{case}"]))
    assert logit.dtype == torch.float32
    np.testing.assert_allclose(array(logit), file[f"out/{case}"], **FLOAT32)


@pytest.mark.parametrize("name", [*PLAIN, *WIDE])
def test_the_logit_of_published_hidden_units_is_the_published_one(name):
    file = published(name)
    hidden = file["mid/h_dropped" if "mid/h_dropped" in file else "mid/h_relu"]
    logit = hidden_density_logit(torch.from_numpy(hidden))
    np.testing.assert_allclose(array(logit), file["mid/hidden_density_logit"], **FLOAT32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_logit_is_at_least_float32(dtype):
    hidden = torch.randn(7, 3, 5).to(dtype)
    logit = hidden_density_logit(hidden)
    assert logit.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    exact = {"rtol": 1e-12} if dtype == torch.float64 else FLOAT32
    np.testing.assert_allclose(array(logit), by_hand(array(hidden)), **exact)


def test_nearly_full_channels_keep_float32s_precision():
    hidden = torch.ones(100_000, 2)
    hidden[0, 0] = 0  # 1 − f = 1e-5 beside e⁻¹⁰ = 4.5e-5: 1 − f by subtraction would err by 4e-4
    np.testing.assert_allclose(array(hidden_density_logit(hidden)), by_hand(array(hidden)), **FLOAT32)


def test_the_logit_of_few_axes_and_of_no_position():
    limit = math.log(1 + math.exp(-10)) + 10
    assert hidden_density_logit(torch.tensor([-1.0, 0.0, 2.0])).tolist() == pytest.approx([-limit, -limit, limit])
    assert hidden_density_logit(torch.zeros(3, 0, 4)).isnan().all()
    with pytest.raises(InputError, match=r"expected hidden units of shape \(\.\.\., channels\); got \(\)"):
        hidden_density_logit(torch.tensor(1.0))


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_a_block_is_measured_over_all_its_calls(name):
    ffn, calls = double(name), [draw(4, 5, 6), draw(3, 6), draw(6), draw(0, 6)]
    with density(ffn) as measured:
        for x in calls:
            ffn(x)
    hidden = np.concatenate([hidden_units(ffn, x, name).reshape(-1, 10) for x in calls])
    assert list(measured) == [""]
    assert measured[""].hidden_units == hidden.size == 240
    assert measured[""].density == np.count_nonzero(hidden) / 240
    assert measured[""].logit.dtype == torch.float64
    np.testing.assert_allclose(array(measured[""].logit), by_hand(hidden), rtol=1e-12)


def test_units_below_zero_are_at_work_but_not_above():
    ffn = double("bilinear")
    with density(ffn) as measured:
        ffn(draw(50, 6))
    assert measured[""].density == 1
    assert (measured[""].logit < 3).all()


def test_dropout_counts_in_training_only():
    ffn, x = double("gelu", dropout=0.4), draw(100, 6)
    with density(ffn) as trained:
        ffn(x)
    with density(ffn.eval()) as evaluated:
        ffn(x)
    assert evaluated[""].density == 1
    assert trained[""].density == pytest.approx(0.6, abs=6 * (0.4 * 0.6 / 1000) ** 0.5)  # six standard deviations


@pytest.mark.parametrize("name", PLAIN[:2])
def test_a_published_block_has_the_published_density(name):
    file = published(name)
    kernels = [torch.from_numpy(file[f"var/conv_hidden_relu/conv{n}_single/kernel"]) for n in (1, 2)]
    ffn = FeedForward(*kernels[0].shape[-2:], dropout=0.0)
    with torch.no_grad():
        for number, (layer, kernel) in enumerate(zip((ffn.layer1, ffn.layer2), kernels, strict=True), 1):
            layer.weight.copy_(kernel[0, 0].T)
            layer.bias.copy_(torch.from_numpy(file[f"var/conv_hidden_relu/conv{number}_single/bias"]))
    with density(ffn) as measured:
        ffn(torch.from_numpy(file["in/x"]))
    np.testing.assert_allclose(array(measured[""].logit), file["mid/hidden_density_logit"], **FLOAT32)
    assert measured[""].density == np.count_nonzero(file["mid/h_relu"]) / file["mid/h_relu"].size


@pytest.mark.parametrize(
    "options",
    [{"kernel_size": 3}, {"kernel_size": (3, 3), "second_kernel_size": (1, 3)},
     {"kernel_size": 3, "second_kernel_size": 3, "padding": "valid"}],
)  # fmt: skip
def test_wide_kernels_over_four_axes(options):
    """What enters the second map has not been convolved by it yet."""
    ffn, x = double("reglu", **options), draw(2, 5, 7, 6)
    hidden = torch.relu(ffn.layer1(x)) * ffn.linear_v(x)
    with density(ffn) as measured:
        ffn(x)
    assert measured[""].hidden_units == hidden.numel()
    assert measured[""].density == int(hidden.count_nonzero()) / hidden.numel()
    np.testing.assert_allclose(array(measured[""].logit), by_hand(array(hidden)), rtol=1e-12)


@pytest.mark.parametrize("training", [True, False])
def test_a_model_computes_what_it_always_computes(training):
    model = shared.model(dropout=0.2, hidden_dropout=0.3).train(training)
    batch = {"input_ids": shared.sentences(5, 3), "decoder_input_ids": shared.sentences(4, 4)}

    def gradients():
        torch.manual_seed(1)
        loss = model(**batch).logits.square().sum()
        return [loss, *torch.autograd.grad(loss, list(model.parameters()))]

    expected = gradients()
    with density(model) as measured:
        got = gradients()
    assert all(map(torch.equal, got, expected))
    sides = {"encoder": 2 * 5, "decoder": 2 * 4}
    assert {path: network.hidden_units for path, network in measured.items()} == {
        f"{side}.layers.{layer}.feed_forward": 24 * tokens for side, tokens in sides.items() for layer in range(2)
    }
    assert len({network.density for network in measured.values()}) > 1


def test_generation_and_every_mode_of_autograd_count():
    ffn, x = FeedForward(6, 10), torch.randn(3, 6)
    with density(ffn) as measured:
        with torch.inference_mode():
            ffn(x)
        ffn(x).sum().backward()
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            ffn(x)
    assert measured[""].hidden_units == 90
    assert 0 < measured[""].density < 1


def test_the_hooks_are_there_only_while_the_context_is_open():
    ffn, x = FeedForward(6, 10), torch.randn(3, 6)
    with density(ffn) as outer, density(ffn) as inner:
        assert explain(ffn, x).path == "layers"
        ffn(x)
    assert hooks(ffn) == 0
    assert explain(ffn, x).path == "lean"
    ffn(x)
    assert outer[""].hidden_units == inner[""].hidden_units == 30


def test_an_exception_leaves_the_counts_and_no_hook():
    model, other = nn.Sequential(FeedForward(6, 10), FeedForward(6, 10)), []
    model[0].layer2.register_forward_pre_hook(lambda *call: other.append(call))
    with pytest.raises(InputError), density(model) as measured:  # noqa: PT012
        model(torch.randn(3, 6))
        model(torch.randn(3, 7))
    assert measured["0"].hidden_units == measured["1"].hidden_units == 30
    assert hooks(model) == 1
    assert len(other) == 1


def test_no_tensor_of_a_call_is_kept():
    ffn, x = FeedForward(6, 10), torch.randn(1000, 6)
    with density(ffn) as measured:
        for _ in range(3):
            ffn(x)
        gc.collect()
        kept = [value for value in gc.get_objects() if type(value) is torch.Tensor and value.shape[-1:] == (10,)]
        assert [tuple(value.shape) for value in kept] == [(10,)]
    assert measured[""].hidden_units == 30_000


def test_a_block_of_two_names_and_a_shared_second_map_are_measured_once():
    block, tied = FeedForward(6, 10), FeedForward(6, 10)
    tied.layer2 = block.layer2
    model = nn.ModuleDict({"a": block, "b": block, "c": tied})
    with density(model) as measured:
        model["b"](torch.randn(3, 6))
        model["c"](torch.randn(2, 6))
    assert {path: network.hidden_units for path, network in measured.items()} == {"a": 50}


def test_a_block_that_saw_nothing_has_no_density():
    model = nn.ModuleList([FeedForward(6, 10), FeedForward(6, 10)])
    with density(model) as measured:
        model[1](torch.zeros(0, 6))
    assert [(part.density, part.logit, part.hidden_units) for part in measured.values()] == [(None, None, 0)] * 2


@pytest.mark.parametrize(("model", "got"), [(nn.Linear(2, 2), "Linear"), (nn.Sequential(), "Sequential")])
def test_a_model_without_a_block_is_refused(model, got):
    with pytest.raises(SpecError, match=f"expected a model with FeedForward blocks to measure; got {got}, with none"):
        density(model).__enter__()


def test_the_table():
    blocks = {"encoder": FeedForward(2, 4, activation=torch.cos), "decoder": FeedForward(2, 4)}
    model = nn.ModuleDict(blocks).eval()
    with density(model) as measured:
        model["encoder"](torch.randn(500, 2))
    assert str(measured).splitlines() == [
        "network  hidden units  nonzero",
        "encoder         2,000  100.0 %",
        "decoder             0        -",
    ]
    with density(FeedForward(2, 4)) as measured:
        assert str(measured).splitlines()[1] == "(the model)             0        -"
