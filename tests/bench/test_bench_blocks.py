"""Every contender computes the same function, of the density asked for; and the rounds change its weights."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from positionwise.bench import absent
from positionwise.bench.blocks import Timed, build, prepare
from positionwise.bench.cases import ENGINES, OURS, Case, Job
from positionwise.bench.worker import LEAST, round_of

RELU = Case("forward", "forward", 8, 16, 5)
SWIGLU = replace(RELU, activation="silu", is_gated=True)
FUNCTIONS = {"relu": torch.relu, "gelu": F.gelu, "silu": F.silu}


def exact(case):
    """The case's output in float64, from its formula."""
    module, x = build(case, "eager")
    weights, x = {name: weight.double() for name, weight in module.state_dict().items()}, x.double()
    if case.between:
        x = F.layer_norm(x, (8,), weights["0.weight"], weights["0.bias"])
    at = "1." if case.between else ""

    def linear(name, x):
        return x @ weights[f"{at}{name}.weight"].T + weights[f"{at}{name}.bias"]

    h = FUNCTIONS[case.activation](linear("layer1", x))
    y = linear("layer2", h * linear("linear_v", x) if case.is_gated else h)
    return y @ weights["2.weight"].T + weights["2.bias"] if case.between else y


@pytest.mark.filterwarnings("ignore")  # of exporting
@pytest.mark.parametrize("case", [RELU, replace(RELU, activation="gelu"), SWIGLU, replace(SWIGLU, between=True)])
def test_contenders_compute_the_same_function(case):
    here = [name for name in ENGINES if name not in absent([replace(case, contenders=ENGINES)])]
    for library in ["eager", OURS, *here]:
        y = prepare(Job(case, library, 1, 0.0)).run()
        y = y if isinstance(y, torch.Tensor) else torch.as_tensor(list(y.values())[0] if hasattr(y, "values") else y[0])
        assert torch.allclose(y.double(), exact(case), rtol=1e-5, atol=1e-6), library


@pytest.mark.parametrize("library", ["eager", OURS])
@pytest.mark.parametrize("case", [replace(RELU, mode="train"), replace(SWIGLU, mode="train", recompute=True)])
def test_training_gives_the_output_and_every_gradient(case, library):
    y, dx, *gradients = prepare(Job(case, library, 1, 0.0)).run()
    module, _ = build(case, library)
    assert torch.allclose(y.double(), exact(case), rtol=1e-5, atol=1e-6)
    assert dx.shape == y.shape
    assert [gradient.shape for gradient in gradients] == [weight.shape for weight in module.parameters()]


@pytest.mark.parametrize("density", [0.5, 0.1, 0.03])
def test_the_bias_sets_the_density(density):
    module, x = build(Case("sparse", "train", 256, 1024, 512, density=density), "eager")
    assert (module.layer1(x) > 0).float().mean().item() == pytest.approx(density, rel=0.1)


def test_options_reach_the_block():
    case = replace(RELU, backend="sparse", recompute=False, dtype="bfloat16")
    module, x = build(case, OURS)
    assert (module.spec.backend, module.layer1.weight.dtype, x.dtype) == ("sparse", torch.bfloat16, torch.bfloat16)
    assert build(replace(RELU, recompute=True), OURS)[0].spec.recompute


def test_a_round_changes_the_weights_before_it_is_timed():
    weight, seen = torch.ones(2), []
    assert round_of(Timed(lambda: seen.append(weight[0].item()), [weight]), 0.0) >= 0
    assert seen == [pytest.approx(0.999)] * (1 + LEAST)
    round_of(Timed(lambda: seen.append(weight[0].item()), [weight]), 0.0)
    assert seen[-1] == pytest.approx(0.999**2)
