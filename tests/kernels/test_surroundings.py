"""Paths under whatever a program puts around them: defaults of PyTorch, checkpoints, hooks, forks, damaged caches."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from positionwise import FeedForward, explain
from positionwise.kernels import launch, product
from positionwise.kernels.answers import PRODUCTS

BACKENDS = ["lean", "sparse"]
every_backend = pytest.mark.parametrize("backend", BACKENDS)


def pair(backend, d_model=16, d_ff=64, **options):
    """A block and its reference."""
    ours = FeedForward(d_model, d_ff, **{"dropout": 0.0, **options}, backend=backend)
    reference = FeedForward(d_model, d_ff, **{"dropout": 0.0, **options}, backend="reference")
    reference.load_state_dict(ours.state_dict())
    return ours, reference


def gradients(block, x, wrap=lambda block, x: block(x)):
    y = wrap(block, x)
    return [y, *torch.autograd.grad(y.square().sum(), [x, *block.parameters()])]


def check(found, expected, tolerance=1e-4):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@every_backend
def test_a_checkpoint_computes_it_again(backend):
    ours, reference = pair(backend)
    x = torch.randn(5, 16, requires_grad=True)
    check(gradients(ours, x, lambda block, x: checkpoint(block, x, use_reentrant=False)), gradients(reference, x))


@every_backend
def test_each_saved_tensor_is_unpacked_once(backend):
    ours, _ = pair(backend)
    packed, unpacked = [], []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(1) or t, lambda t: unpacked.append(1) or t)
    with hooks:
        y = ours(torch.randn(5, 16))
    y.sum().backward()
    assert len(packed) == len(unpacked) > 0


def test_a_hook_that_rounds_floats_does_not_reach_indices():
    """The values are rounded in either case."""
    ours, reference = pair("sparse")
    x = torch.randn(70, 16, requires_grad=True)
    hooks = torch.autograd.graph.saved_tensors_hooks(
        lambda t: t.half() if t.is_floating_point() else t, lambda t: t.float() if t.is_floating_point() else t
    )
    with hooks:
        found = ours(x)
    torch.testing.assert_close(
        torch.autograd.grad(found.square().sum(), x), torch.autograd.grad(reference(x).square().sum(), x),
        rtol=0.05, atol=0.05,
    )  # fmt: skip


@every_backend
@pytest.mark.parametrize("tokens", [5, 70])
def test_the_default_dtype_is_not_the_blocks(backend, tokens):
    ours, reference = pair(backend)
    x = torch.randn(tokens, 16, requires_grad=True)
    expected = gradients(reference, x)
    torch.set_default_dtype(torch.float64)
    try:
        check(gradients(ours, x), expected)
        with torch.no_grad():
            given = (weight.contiguous() for weight in ours.parameters())
            check([ours(x), launch.network(x, *given)], expected[:1] * 2)
            check([launch.linear(x, ours.layer1.weight, None, False)], [x @ ours.layer1.weight.t()])
    finally:
        torch.set_default_dtype(torch.float32)


@every_backend
def test_the_default_device_is_not_the_blocks(backend):
    ours, reference = pair(backend, dropout=0.0)
    x = torch.randn(5, 16, requires_grad=True)
    expected = gradients(reference, x)
    with torch.device("meta"):
        check(gradients(ours, x), expected)
    torch.manual_seed(3)
    ours.dropout = 0.5
    dropped = ours(x)
    torch.manual_seed(3)
    with torch.device("meta"):
        torch.testing.assert_close(ours(x), dropped)


@every_backend
def test_tensors_that_are_negated_lazily(backend):
    ours, reference = pair(backend)
    x, dy = torch.randn(70, 16, requires_grad=True), torch.randn(70, 16, dtype=torch.complex64)
    found = []
    for block in (ours, reference):
        y = block(x)
        found.append(torch.autograd.grad(torch.complex(torch.zeros_like(y), y).conj(), x, dy))
    check(*found)
    negated = torch.randn(70, 16, dtype=torch.complex64).conj().imag
    assert negated.is_neg()
    weight = [torch.autograd.grad(block(negated).square().sum(), block.layer1.weight) for block in (ours, reference)]
    check(*weight)


@every_backend
@pytest.mark.parametrize("is_gated", [False, True])
def test_many_derivatives_at_once(backend, is_gated):
    ours, reference = pair(backend, is_gated=is_gated)
    x = torch.randn(3, 16)
    found = [torch.autograd.functional.jacobian(block, x, vectorize=True) for block in (ours, reference)]
    check(found[:1], found[1:])


@pytest.mark.parametrize("options", [{"backend": "lean"}, {"backend": "sparse"}, {"recompute": True}])
def test_dropout_compiles(options):
    torch._dynamo.reset()
    ffn = FeedForward(16, 32, 0.5, **options)
    compiled = torch.compile(ffn, fullgraph=True, backend="aot_eager")
    x = torch.randn(50, 16)
    first, second = compiled(x), compiled(x)
    assert not torch.equal(first, second)
    first.sum().backward()


def test_no_tokens_with_dropout_and_a_second_derivative():
    x = torch.randn(0, 8, requires_grad=True)
    (dx,) = torch.autograd.grad(FeedForward(8, 16, 0.3)(x).sum(), x, create_graph=True)
    assert dx.shape == (0, 8)


@pytest.mark.parametrize("is_gated", [False, True])
def test_zero_times_infinity_is_zero_where_a_unit_is_off(is_gated):
    ours, reference = pair("lean", activation="relu2", is_gated=is_gated)
    x, dy = torch.randn(9, 16), torch.randn(9, 16)
    dy[3, 2] = torch.inf
    found = [torch.autograd.grad(block(x), list(block.parameters()), dy) for block in (ours, reference)]
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.isnan(), other.isnan())


def test_a_bias_of_any_strides_goes_to_onednn():
    x, weight, bias = torch.randn(5, 8), torch.randn(4, 8), torch.randn(4, 2)[:, 0]
    expected = torch.nn.functional.linear(x, weight, bias)
    torch.testing.assert_close(product.run("onednn", x, weight, bias, False), expected)


def test_answers_of_another_sort_are_none(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(PRODUCTS, "held", None)
    PRODUCTS.file().parent.mkdir()
    PRODUCTS.file().write_text('{"1x2": 5, "3x4": "onednn"}', "utf-8")
    assert PRODUCTS.get((1, 2), lambda: "torch") == "torch"
    assert PRODUCTS.get((3, 4), pytest.fail) == "onednn"


def test_without_a_home_nothing_is_kept(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    monkeypatch.setattr(PRODUCTS, "held", None)
    assert PRODUCTS.get((1, 2), lambda: "torch") == "torch"


def run(code, **environment):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "OMP_NUM_THREADS": "1", **environment})  # fmt: skip


def test_a_damaged_cache_of_kernels_is_made_anew(tmp_path):
    code = (
        "import torch\n"
        "from positionwise.kernels import launch\n"
        "x, w = torch.randn(4, 16), torch.randn(8, 16)\n"
        "assert launch.is_usable(x, w)\n"
        "torch.testing.assert_close(launch.linear(x, w, None, False), x @ w.t())\n"
    )
    assert run(code, NUMBA_CACHE_DIR=str(tmp_path)).returncode == 0
    damaged = list(tmp_path.rglob("*.nbi"))
    assert damaged
    for path in damaged:
        path.write_bytes(b"")
    done = run(code, NUMBA_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "expected Numba's cache of kernels; got EOFError" in done.stderr


def test_a_forked_child_differentiates_what_its_parent_computed():
    code = (
        "import os, torch\n"
        "from positionwise import FeedForward\n"
        "ffn, x = FeedForward(16, 64, 0.0, backend='sparse'), torch.randn(70, 16, requires_grad=True)\n"
        "torch.set_num_threads(1)\n"
        "(expected,) = torch.autograd.grad(ffn(x).square().sum(), x)\n"
        "y = ffn(x).square().sum()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    (dx,) = torch.autograd.grad(y, x)\n"
        "    os._exit(0 if torch.allclose(dx, expected, atol=1e-4) else 3)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = run(code)
    assert done.stdout.strip() == "0", done.stderr


def test_what_is_saved_is_said_of_training_without_gradients_too(saved_bytes):
    ffn, x = FeedForward(16, 64, 0.0), torch.randn(7, 16)
    with torch.no_grad():
        said = explain(ffn, x)
    assert (said.path, said.saved_for_backward) == ("dense", saved_bytes(ffn, x.requires_grad_()))
