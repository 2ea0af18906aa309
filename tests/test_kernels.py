"""The choice of path: what calls the layers, what `explain` says, and that nothing of a layer's own is skipped."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.utils import parametrizations, prune
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from positionwise import FeedForward, explain
from positionwise.errors import DtypeError, InputError
from positionwise.functional import feed_forward
from positionwise.spec import BACKENDS
from reference import VARIANTS

LAYERS = ["layer1", "layer2", "linear_v"]


class Counting(nn.Linear):
    """A custom layer: it says that it was called, and doubles what nn.Linear gives."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return 2 * super().forward(x)


class LowRank(nn.Module):
    """A LoRA-like wrapper: base(x) + B·A·x."""

    def __init__(self, base):
        super().__init__()
        self.base, self.calls = base, 0
        self.a, self.b = nn.Linear(base.in_features, 2, bias=False), nn.Linear(2, base.out_features, bias=False)

    def forward(self, x):
        self.calls += 1
        return self.base(x) + self.b(self.a(x))


def plain(ffn, x):
    """The composition by the layers' own calls."""
    return ffn.layer2(F.silu(ffn.layer1(x)) * ffn.linear_v(x))


def swiglu(**options):
    return FeedForward.variant("swiglu", 6, 10, **{"dropout": 0.0, **options})


@pytest.mark.parametrize("name", sorted(VARIANTS))
@pytest.mark.parametrize("backend", BACKENDS)
def test_plain_layers_take_the_lean_path_where_there_are_gradients(name, backend):
    ffn, x = FeedForward.variant(name, 6, 10, backend=backend), torch.randn(3, 6)
    skips = backend == "sparse" and name in ("relu", "relu2", "reglu", "reglu2")
    own = "reference" if backend == "reference" else "sparse" if skips else None
    assert explain(ffn.eval(), x).path == (own or "lean")
    assert (f"backend='{backend}'" if own else "plain") in explain(ffn, x).reason
    with torch.no_grad():
        without = own or "dense"
        assert explain(ffn, x).path == explain(ffn, x.clone().requires_grad_()).path == without
    assert explain(ffn.requires_grad_(False), x.detach()).path == without
    recomputing = FeedForward.variant(name, 6, 10, backend=backend, recompute=True)
    assert explain(recomputing, x).path == "recompute"


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_plain_paths_do_not_call_the_layers(monkeypatch, backend):
    ffn, x = swiglu(backend=backend), torch.randn(3, 6)
    monkeypatch.setattr(nn.Linear, "forward", lambda *_: pytest.fail("a layer was called"))
    weights = {"weight_v": ffn.linear_v.weight, "bias_gate": ffn.linear_v.bias}
    expected = feed_forward(x, ffn.layer1.weight, ffn.layer2.weight, bias1=ffn.layer1.bias, bias2=ffn.layer2.bias,
                            activation="silu", **weights)  # fmt: skip
    assert torch.equal(ffn(x), expected)


def with_counting(ffn, name):
    layer = getattr(ffn, name)
    setattr(ffn, name, Counting(layer.in_features, layer.out_features))


def with_low_rank(ffn, name):
    setattr(ffn, name, LowRank(getattr(ffn, name)))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("change", [with_counting, with_low_rank])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_replaced_layer_is_called(name, change, backend):
    ffn, x = swiglu(backend=backend), torch.randn(3, 6)
    before = ffn(x)
    change(ffn, name)
    y = ffn(x)
    assert getattr(ffn, name).calls == 1
    assert torch.equal(y, plain(ffn, x))
    assert not torch.equal(y, before)
    assert explain(ffn, x).path == "layers"
    assert "each layer is called" in explain(ffn, x).reason


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_with_a_forward_of_its_own_is_called(name):
    ffn, x = swiglu(), torch.randn(3, 6)
    layer = getattr(ffn, name)
    layer.forward = lambda x: 3 * F.linear(x, layer.weight, layer.bias)
    assert explain(ffn, x).path == "layers"
    assert torch.equal(ffn(x), plain(ffn, x))


REGISTER = {
    "forward": lambda layer, fired: layer.register_forward_hook(lambda *_: fired.append(1)),
    "forward with keywords": lambda layer, fired: layer.register_forward_hook(
        lambda *_: fired.append(1), with_kwargs=True
    ),
    "forward, always": lambda layer, fired: layer.register_forward_hook(lambda *_: fired.append(1), always_call=True),
    "before forward": lambda layer, fired: layer.register_forward_pre_hook(lambda *_: fired.append(1)),
    "backward": lambda layer, fired: layer.register_full_backward_hook(lambda *_: fired.append(1)),
    "before backward": lambda layer, fired: layer.register_full_backward_pre_hook(lambda *_: fired.append(1)),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("kind", sorted(REGISTER))
def test_hooks_of_a_layer_fire_once(name, kind):
    ffn, x, fired = swiglu(), torch.randn(3, 6, requires_grad=True), []
    handle = REGISTER[kind](getattr(ffn, name), fired)
    assert explain(ffn, x).path == "layers"
    assert fired == []
    ffn(x).sum().backward()
    assert fired == [1]
    handle.remove()
    assert explain(ffn, x).path == "lean"
    ffn(x).sum().backward()
    assert fired == [1]


@pytest.mark.parametrize("register", [register_module_forward_hook, register_module_forward_pre_hook])
def test_global_hooks_see_every_layer(register):
    ffn, x, seen = swiglu(), torch.randn(3, 6), []
    handle = register(lambda module, *_: seen.append(module))
    try:
        assert explain(ffn, x).path == "layers"
        ffn(x)
    finally:
        handle.remove()
    assert {id(module) for module in seen} == {id(module) for module in (ffn, ffn.layer1, ffn.layer2, ffn.linear_v)}
    assert explain(ffn, x).path == "lean"


def test_a_hook_may_change_the_output():
    ffn, x = swiglu(), torch.randn(3, 6)
    ffn.layer1.register_forward_hook(lambda layer, args, output: output + 1)
    assert torch.equal(ffn(x), plain(ffn, x))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("parametrise", [parametrizations.weight_norm, parametrizations.orthogonal,
                                         lambda layer: prune.random_unstructured(layer, "weight", amount=0.5)],
                         ids=["weight_norm", "orthogonal", "prune"])  # fmt: skip
def test_parametrised_layers_are_called_and_learn(name, parametrise):
    ffn, x = swiglu(), torch.randn(3, 6)
    parametrise(getattr(ffn, name))
    assert explain(ffn, x).path == "layers"
    for _ in range(2):
        y = ffn(x)
        assert torch.equal(y, plain(ffn, x))
        y.sum().backward()
        assert all(p.grad.count_nonzero() for p in ffn.parameters())
        torch.optim.SGD(ffn.parameters(), 0.1).step()  # what is derived from the weights must not outlive the step


@pytest.mark.parametrize("change", ["in place", "data", "new parameter", "load_state_dict"])
def test_a_change_of_the_weights_is_seen_by_the_next_call(change):
    ffn, x = swiglu(), torch.randn(3, 6)
    ffn(x)
    doubled = {key: 2 * value for key, value in ffn.state_dict().items()}
    if change == "load_state_dict":
        ffn.load_state_dict(doubled)
    for layer in (ffn.layer1, ffn.layer2, ffn.linear_v):
        with torch.no_grad():
            if change == "in place":
                layer.weight.mul_(2), layer.bias.mul_(2)
            elif change == "data":
                layer.weight.data, layer.bias.data = 2 * layer.weight.data, 2 * layer.bias.data
            elif change == "new parameter":
                layer.weight, layer.bias = nn.Parameter(2 * layer.weight), nn.Parameter(2 * layer.bias)
    fresh = swiglu()
    fresh.load_state_dict(doubled)
    assert torch.equal(ffn(x), fresh(x))


class Refusing(TorchDispatchMode):
    """No operation may run."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        raise AssertionError(f"expected nothing to be computed; got {func}")


@pytest.mark.parametrize("options", [{}, {"kernel_size": 3}], ids=str)
def test_explain_computes_nothing(options):
    ffn, x = swiglu(**options), torch.randn(3, 6)
    ffn.layer1.register_forward_hook(lambda *_: pytest.fail("the layer was called"))
    with Refusing():
        explanation = explain(ffn, x)
    assert explanation.path == "layers"
    assert explain(ffn.to("meta"), x.to("meta")).flops == explanation.flops


@pytest.mark.parametrize(
    ("ffn", "training", "saved"),
    [
        # relu, per token: x, f(z) and, with dropout, the mask and what it leaves
        (FeedForward(16, 24, backend="reference"), True, 4 * 14 * (16 + 3 * 24)),
        (FeedForward(16, 24, backend="reference"), False, 4 * 14 * (16 + 24)),
        # swiglu: x, z, f(z), v and their product or, with dropout, the mask and what it leaves
        (FeedForward.variant("swiglu", 16, 24, backend="reference"), True, 4 * 14 * (16 + 5 * 24)),
        (FeedForward.variant("swiglu", 16, 24, dtype=torch.bfloat16, backend="reference"), False, 2 * 14 * (16 + 96)),
        # lean: x and one hidden-sized tensor, two with a gate; with dropout its seed
        (FeedForward(16, 24), True, 4 * 14 * (16 + 24) + 8),
        (FeedForward(16, 24), False, 4 * 14 * (16 + 24)),
        (FeedForward.variant("swiglu", 16, 24), True, 4 * 14 * (16 + 2 * 24) + 8),
        (FeedForward.variant("swiglu", 16, 24, dtype=torch.bfloat16), False, 2 * 14 * (16 + 2 * 24)),
        # recompute: x alone
        (FeedForward(16, 24, recompute=True), True, 4 * 14 * 16 + 8),
        (FeedForward.variant("swiglu", 16, 24, recompute=True, chunk_size=5), False, 4 * 14 * 16),
        (FeedForward(16, 24, activation=torch.sin), True, None),
    ],
)
def test_explain_states_flops_and_bytes(ffn, training, saved):
    explanation = explain(ffn.train(training), torch.randn(2, 7, 16, dtype=ffn.layer1.weight.dtype))
    assert explanation.flops == 2 * 14 * (3 if ffn.spec.is_gated else 2) * 16 * 24
    assert explanation.saved_for_backward == saved
    for part in (explanation.path, explanation.reason, f"{explanation.flops:,}", explanation.equation,
                 "not known" if saved is None else f"{saved:,} bytes"):  # fmt: skip
        assert part in str(explanation)


@pytest.mark.parametrize("options", [{}, {"kernel_size": 3}, {"kernel_size": 3, "padding": "valid"}], ids=str)
def test_explain_counts_the_flops_that_pytorch_counts(options):
    ffn, x = swiglu(**options), torch.randn(2, 9, 6)
    with FlopCounterMode(display=False) as counter:
        ffn(x)
    assert explain(ffn, x).flops == counter.get_total_flops()


@pytest.mark.parametrize("change", [with_counting, with_low_rank])
def test_explain_does_not_state_bytes_that_it_does_not_know(saved_bytes, change):
    ffn, x = swiglu(), torch.randn(3, 6)
    change(ffn, "layer1")
    assert explain(ffn, x).saved_for_backward in (None, saved_bytes(ffn, x))


def test_explain_knows_the_bytes_of_autocast_or_says_so(saved_bytes):
    ffn, x = swiglu(), torch.randn(3, 6)
    with torch.autocast("cpu", torch.bfloat16):
        assert explain(ffn, x).saved_for_backward in (None, saved_bytes(ffn, x))


@pytest.mark.parametrize(
    ("x", "error"),
    [(torch.ones(2, 7), InputError), (torch.ones(()), InputError), (torch.ones(2, 6, dtype=torch.int64), DtypeError)],
)
def test_explain_refuses_what_the_block_refuses(x, error):
    with pytest.raises(error, match="expected"):
        explain(FeedForward(6, 10), x)


def test_a_dropout_that_replaces_pytorchs_is_called(monkeypatch):
    mask = torch.tensor([0.0, 2.0] * 5)
    for options in ({}, {"backend": "lean"}, {"recompute": True}, {"kernel_size": 3}):
        ffn, x = swiglu(dropout=0.5, **options), torch.randn(4, 6)
        before = explain(ffn, x).path
        with monkeypatch.context() as patch:
            patch.setattr(F, "dropout", lambda hidden, p, training=True: hidden * mask)
            hidden = F.silu(ffn.layer1(x)) * ffn.linear_v(x) * mask
            assert torch.equal(ffn(x), ffn.layer2(hidden))
        assert explain(ffn, x).path == before
