"""The block inside PyTorch's machinery: compile, export, autocast, torch.func, copies, devices and dtypes."""

import copy
import pickle
import shutil

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jacrev, vmap

from positionwise import FeedForward
from reference import VARIANTS

NAMES = sorted(VARIANTS)
ROUNDING = {"rtol": 1e-12, "atol": 1e-12}  # the same float64 operations, possibly in another order
STATE = ["layer1.weight", "layer1.bias", "layer2.weight", "layer2.bias", "linear_v.weight", "linear_v.bias"]
compiler = pytest.mark.skipif(not shutil.which("g++") and not shutil.which("clang++"), reason="no C++ compiler")


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()


def block(name="swiglu", **options):
    return FeedForward.variant(name, 6, 10, **{"dropout": 0.0, "dtype": torch.float64, **options})


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def outcome(ffn, function, x):
    """The output and every gradient."""
    x = x.clone().requires_grad_()
    y = function(x)
    return [y, *torch.autograd.grad(y.square().sum(), [x, *ffn.parameters()])]


@pytest.mark.parametrize(
    ("name", "backend"),
    [*((name, "aot_eager") for name in ("relu", "gelu_tanh", "relu2", "glu", "bilinear", "swiglu")),
     *(pytest.param(name, "inductor", marks=compiler) for name in ("relu", "swiglu"))],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # Inductor's own imports
def test_compile_gives_the_same_numbers_in_one_graph(name, backend):
    ffn = block(name)
    compiled, x = torch.compile(ffn, fullgraph=True, backend=backend), draw(2, 5, 6)
    torch.testing.assert_close(outcome(ffn, compiled, x), outcome(ffn, ffn, x), **ROUNDING)


def test_compile_takes_another_shape():
    ffn = block()
    compiled = torch.compile(ffn, fullgraph=True, backend="aot_eager")
    for shape in [(2, 5, 6), (3, 6), (6,), (2, 9, 6), (0, 6)]:
        x = draw(*shape)
        torch.testing.assert_close(outcome(ffn, compiled, x), outcome(ffn, ffn, x), **ROUNDING)


@pytest.mark.parametrize("options", [{"kernel_size": 3}, {"kernel_size": (3, 1), "padding": "left"}], ids=str)
def test_compile_takes_wide_kernels(options):
    ffn, x = block(**options), draw(2, 5, 4, 6)
    compiled = torch.compile(ffn, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(outcome(ffn, compiled, x), outcome(ffn, ffn, x), **ROUNDING)


def test_compile_draws_dropout_anew():
    ffn, x = block(dropout=0.5), draw(50, 6)
    compiled = torch.compile(ffn, fullgraph=True, backend="aot_eager")
    assert not torch.equal(compiled(x), compiled(x))
    ffn.eval()
    torch.testing.assert_close(compiled(x), ffn(x), **ROUNDING)


def test_compile_keeps_the_hooks_of_a_layer():
    ffn, x = block(), draw(3, 6)
    before = ffn(x)
    ffn.layer1.register_forward_hook(lambda layer, args, output: 2 * output)
    compiled = torch.compile(ffn, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), ffn(x), **ROUNDING)
    assert not torch.allclose(before, compiled(x))


@pytest.mark.parametrize("name", ["relu", "gelu_tanh", "swiglu", "reglu2"])
def test_export_with_any_number_of_tokens(name):
    ffn = block(name).eval()
    tokens = torch.export.Dim("tokens", min=2, max=1024)
    program = torch.export.export(ffn, (draw(5, 6),), dynamic_shapes=({0: tokens},))
    for count in (2, 7):
        x = draw(count, 6)
        torch.testing.assert_close(program.module()(x), ffn(x), **ROUNDING)


@pytest.mark.parametrize("name", NAMES)
def test_autocast_runs_the_products_in_bfloat16(name):
    ffn = block(name, dtype=torch.float32)
    x, low = torch.randn(5, 6), copy.deepcopy(ffn).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        y = ffn(x)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in ffn.parameters())
    # three roundings to 8 bits of numbers of size one
    torch.testing.assert_close(y.float(), low(x.bfloat16()).float(), rtol=0, atol=3 * 2**-8)


@pytest.mark.parametrize("name", NAMES)
def test_vmap_over_a_batch(name):
    ffn, x = block(name), draw(3, 5, 6)
    torch.testing.assert_close(vmap(ffn)(x), ffn(x), **ROUNDING)
    torch.testing.assert_close(vmap(ffn, in_dims=1, out_dims=1)(x), ffn(x), **ROUNDING)


def test_vmap_draws_a_dropout_mask_of_its_own_for_each_sample():
    ffn, x = block(dropout=0.5), draw(6).expand(4, 6)
    y = vmap(ffn, randomness="different")(x)
    assert not torch.equal(y[0], y[1])


@pytest.mark.parametrize("name", NAMES)
def test_functional_call_and_grad_use_the_given_weights(name):
    ffn, x = block(name), draw(3, 6)
    doubled = {key: 2 * value.detach() for key, value in ffn.named_parameters()}
    other = block(name)
    other.load_state_dict(doubled)
    torch.testing.assert_close(functional_call(ffn, doubled, (x,)), other(x), **ROUNDING)
    gradients = grad(lambda parameters: functional_call(ffn, parameters, (x,)).square().sum())(doubled)
    other(x).square().sum().backward()
    for key, parameter in other.named_parameters():
        torch.testing.assert_close(gradients[key], parameter.grad, **ROUNDING)


@pytest.mark.parametrize("name", NAMES)
def test_per_sample_gradients(name):
    ffn, x = block(name), draw(3, 6)
    parameters = {key: value.detach() for key, value in ffn.named_parameters()}
    each = vmap(grad(lambda p, x: functional_call(ffn, p, (x,)).sum()), in_dims=(None, 0))(parameters, x)
    ffn(x).sum().backward()
    for key, parameter in ffn.named_parameters():
        torch.testing.assert_close(each[key].sum(0), parameter.grad, **ROUNDING)


@pytest.mark.parametrize("name", NAMES)
def test_jacobians(name):
    ffn, x = block(name, d_out=4), draw(3, 6)
    expected = torch.autograd.functional.jacobian(ffn, x)
    torch.testing.assert_close(jacrev(ffn)(x), expected, **ROUNDING)
    assert expected[0, :, 1].count_nonzero() == 0  # no position sees another


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda ffn: pickle.loads(pickle.dumps(ffn))}


@pytest.mark.parametrize("make", sorted(COPIES))
@pytest.mark.parametrize("options", [{}, {"kernel_size": 3, "padding": "left"}], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_copy_computes_the_same_and_shares_nothing(name, options, make):
    ffn, x = block(name, **options), draw(2, 5, 6)
    twin = COPIES[make](ffn)
    assert torch.equal(twin(x), ffn(x))
    assert (twin.spec, type(twin), twin.training) == (ffn.spec, FeedForward, ffn.training)
    for parameter in twin.parameters():
        nn.init.zeros_(parameter)
    assert ffn(x).count_nonzero()


@pytest.mark.parametrize("name", NAMES)
def test_the_state_dict_has_exactly_the_published_names(name):
    gated = VARIANTS[name][1]
    ffn = block(name)
    assert [*ffn.state_dict()] == (STATE if gated else STATE[:4])
    assert [key for key, _ in ffn.named_children()] == ["layer1", "layer2", "linear_v"][: 3 if gated else 2]
    assert all(type(layer) is nn.Linear for layer in ffn.children())
    bare = block(name, bias1=False, bias2=False, bias_gate=False)
    assert [*bare.state_dict()] == [key for key in ffn.state_dict() if key.endswith("weight")]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", [{}, {"kernel_size": (3, 1), "second_kernel_size": 3}], ids=str)
def test_a_state_dict_goes_round(name, options):
    ffn, other, x = block(name, **options), block(name, **options), draw(2, 5, 4, 6)
    assert not torch.equal(ffn(x), other(x))
    other.load_state_dict(ffn.state_dict(), strict=True)
    assert torch.equal(ffn(x), other(x))
    with pytest.raises(RuntimeError, match=r"Missing key.*layer2"):
        other.load_state_dict({key: v for key, v in ffn.state_dict().items() if not key.startswith("layer2")})


@pytest.mark.parametrize("options", [{}, {"kernel_size": 3}], ids=str)
@pytest.mark.parametrize("init", ["xavier_uniform", "pytorch"])
def test_a_block_can_be_built_without_memory_and_filled_later(options, init):
    expected = block(init=init, **options)
    torch.manual_seed(3)
    expected.reset_parameters()
    ffn = block(init=init, device="meta", **options)
    assert all(p.is_meta for p in ffn.parameters())
    assert ffn(torch.empty(2, 5, 6, dtype=torch.float64, device="meta")).shape == (2, 5, 6)
    ffn.to_empty(device="cpu")
    torch.manual_seed(3)
    ffn.reset_parameters()
    assert all(torch.equal(value, expected.state_dict()[key]) for key, value in ffn.state_dict().items())


def test_a_learned_activation_is_filled_later_too():
    ffn = FeedForward(4, 8, activation=nn.PReLU(device="meta"), device="meta")
    ffn.to_empty(device="cpu")
    for parameter in ffn.parameters():
        nn.init.constant_(parameter, 9.0)  # what memory may hold
    ffn.reset_parameters()
    assert ffn.activation.weight.item() == nn.PReLU().weight.item()


@pytest.mark.parametrize("options", [{}, {"kernel_size": 3}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_dtypes_by_argument_and_by_move(dtype, options):
    moved, built = block(**options).to(dtype), block(dtype=dtype, **options)
    built.load_state_dict(moved.state_dict())
    x = draw(2, 5, 6).to(dtype)
    assert {p.dtype for ffn in (moved, built) for p in ffn.parameters()} == {dtype}
    assert moved(x).dtype == built(x).dtype == dtype
    assert torch.equal(moved(x), built(x))
    moved(x).sum().backward()
    assert all(p.grad.dtype == dtype and p.grad.isfinite().all() for p in moved.parameters())


def test_a_block_learns():
    ffn, x = FeedForward(4, 32, dropout=0.0), torch.randn(256, 4)
    y, optimizer = x.square(), torch.optim.Adam(ffn.parameters(), 0.01)
    losses = []
    for _ in range(200):
        optimizer.zero_grad()
        loss = (ffn(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.05 * losses[0]
