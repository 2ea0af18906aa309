"""A search changes nothing of a model, whatever its weights and surroundings are, and they do not change its answer."""

from contextlib import ExitStack

import pytest
import torch
from plain_models import D, GluMlp, H, Layer, Mixer, Mixture, Mlp, Stack
from torch import nn
from torch.nn import functional as F

from positionwise.adapters import find

PLAIN = (D, H, "gelu", False, None)


def said(site):
    return site.d_model, site.d_ff, site.activation, site.is_gated, site.gate_half


def state(model):
    """Everything that a module holds: tensors by value and identity, hooks, flags, attributes."""
    parts = {}
    for path, part in model.named_modules(remove_duplicate=False):
        parts[path] = {
            name: (type(value), dict(value) if isinstance(value, dict) else value) for name, value in vars(part).items()
        }
    tensors = {
        name: (value, value.clone(), value.requires_grad) for name, value in model.state_dict(keep_vars=True).items()
    }
    return parts, tensors


def assert_unchanged(model, before):
    parts, tensors = before
    now_parts, now = state(model)
    assert now_parts.keys() == parts.keys()
    for path, held in parts.items():
        assert held.keys() == now_parts[path].keys()
        for name, (kind, value) in held.items():
            other = now_parts[path][name]
            assert kind is other[0]
            assert value is other[1] or (isinstance(value, dict) and same(value, other[1])) or value == other[1]
    for name, (tensor, value, gradient) in tensors.items():
        assert now[name][0] is tensor
        assert tensor.grad is None
        assert tensor.requires_grad == gradient
        assert torch.equal(tensor, value)


def same(one, two):
    return list(one) == list(two) and all(one[key] is two[key] for key in one)


def fails(*_):
    raise AssertionError("a hook of the model was called")


@pytest.fixture
def model():
    """Hooks that fail when called, parts in evaluation, frozen parameters, buffers, a cached attribute."""
    with torch.device("cpu"):  # whatever the default is
        built = Stack(Layer(Mlp(norm=nn.LayerNorm)), Layer(GluMlp(gate_last=True)), Mixer(), Layer(Mixture()))
    built.layers[0].parts[0].register_forward_hook(fails)
    built.layers[0].parts[0].fc1.register_forward_pre_hook(fails)
    built.layers[1].register_full_backward_hook(fails)
    built.layers[1].eval()
    built.layers[0].parts[0].fc1.weight.requires_grad_(False)
    built.layers[2].seen = {"calls": 0}
    return built


SURROUNDINGS = {
    "plain": [],
    "no_grad": [torch.no_grad],
    "inference_mode": [torch.inference_mode],
    "meta as default": [lambda: torch.device("meta")],
    "float64 as default": [],
    "deterministic": [],
}


@pytest.fixture
def surroundings(request):
    with ExitStack() as stack:
        for make in SURROUNDINGS[request.param]:
            stack.enter_context(make())
        if request.param == "float64 as default":
            torch.set_default_dtype(torch.float64)
        if request.param == "deterministic":
            torch.use_deterministic_algorithms(True)
        yield request.param
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("surroundings", SURROUNDINGS, indirect=True)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_nothing_is_changed_and_the_answer_is_that_without_weights(dtype, surroundings, model, monkeypatch):
    expected = [
        ("layers.0.parts.0", PLAIN), ("layers.1.parts.0", (D, H, "silu", True, "second")),
        ("layers.2.tokens", (9, 24, "gelu", False, None)), ("layers.2.channels", PLAIN), ("layers.3.parts.0", PLAIN),
    ]  # fmt: skip
    model = model.to(dtype)
    before, drawn, default = state(model), torch.get_rng_state(), torch.get_default_dtype()
    device, grad = torch.get_default_device(), torch.is_grad_enabled()
    found = find(model)
    assert [(site.path, said(site)) for site in found] == expected
    assert {site.evidence for site in found} == {"numbers"}
    assert found.unplaced == ()
    assert_unchanged(model, before)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert (torch.get_default_dtype(), torch.get_default_device()) == (default, device)
    assert torch.is_grad_enabled() == grad
    on_meta = find(model.to("meta"))
    assert [(site.path, said(site), site.components) for site in on_meta] == [
        (site.path, said(site), site.components) for site in found
    ]


def test_a_search_twice_says_the_same(model):
    assert find(model) == find(model)


class Careless(nn.Module):
    """A network whose code counts, keeps, draws, and writes to its own weights and buffers."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.kept, self.stats = nn.Linear(D, H), nn.Linear(H, D), [], {"calls": 0}
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        torch.manual_seed(3)
        self.calls.add_(1)
        self.stats["calls"] += 1
        self.kept.append(x)
        self.fc1.weight.data.mul_(0)
        self.fc2.bias.data.zero_()
        with torch.no_grad():
            self.fc2.weight.copy_(torch.zeros(D, H))
        return self.fc2(F.dropout(F.gelu(self.fc1(x)), 0.5))  # in training by default


def test_careless_code_changes_nothing_either():
    model = Stack(Layer(Careless()))
    before, drawn = state(model), torch.get_rng_state()
    (site,) = find(model)
    assert (said(site), site.evidence) == (PLAIN, "numbers")
    assert_unchanged(model, before)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert (model.layers[0].parts[0].kept, model.layers[0].parts[0].stats) == ([], {"calls": 0})
