"""The lean and the recompute path: the reference's numbers in every case, and what they promise beside them."""

import threading
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from positionwise import FeedForward, explain
from positionwise.kernels import choice, operators
from positionwise.kernels.elementwise import TABLE

WAYS = [{"backend": "lean"}, {"recompute": True, "chunk_size": 3}, {"recompute": True}]
BIASES = [(True, True, True), (False, False, False), (True, False, False), (False, True, True)]
every_way = pytest.mark.parametrize("way", WAYS, ids=str)
every_activation = pytest.mark.parametrize("activation", TABLE)
every_gate = pytest.mark.parametrize("is_gated", [False, True], ids=["ungated", "gated"])
EXACT = {"rtol": 1e-10, "atol": 1e-12}


@contextmanager
def poison():
    """Memory is NaN until it is written, and the lean path takes three tokens at a time."""
    dense, was = operators.dense, torch.are_deterministic_algorithms_enabled()
    with pytest.MonkeyPatch.context() as patch:
        scratch = dense.scratch
        patch.setattr(dense, "scratch", lambda *given: [buffer.fill_(torch.nan) for buffer in scratch(*given)])
        patch.setattr(choice, "CHUNK", 3)
        torch.use_deterministic_algorithms(True)  # so that PyTorch fills new memory with NaN
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(was)


@pytest.fixture
def poisoned():
    with poison():
        yield


def pair(way, dtype=torch.float64, sizes=(6, 10), **options):
    """A block on a path, and the same block on the reference path."""
    options = {"dropout": 0.0, **options}
    ours, reference = FeedForward(*sizes, **options, **way), FeedForward(*sizes, **options, backend="reference")
    for parameter in ours.parameters():
        nn.init.normal_(parameter, std=0.5)
    reference.load_state_dict(ours.state_dict())
    return ours.to(dtype), reference.to(dtype)


def run(ffn, x, cotangent=None):
    """The output, and the gradients by x and by every parameter."""
    x = x.detach().requires_grad_()
    y = ffn(x)
    torch.manual_seed(3)
    dy = torch.randn(y.shape, dtype=torch.float64).to(y.dtype) if cotangent is None else cotangent
    return [y, *torch.autograd.grad(y, [x, *ffn.parameters()], dy)]


@every_way
@every_activation
@every_gate
@pytest.mark.parametrize("biases", BIASES, ids=str)
@pytest.mark.usefixtures("poisoned")
def test_the_numbers_are_the_references(way, activation, is_gated, biases):
    names = dict(zip(("bias1", "bias2", "bias_gate"), biases, strict=True))
    ours, reference = pair(way, activation=activation, is_gated=is_gated, d_out=5, **names)
    x = torch.randn(2, 4, 6, dtype=torch.float64)
    assert explain(ours, x).path == ("recompute" if "recompute" in way else "lean")
    for one, other in zip(run(ours, x), run(reference, x), strict=True):
        torch.testing.assert_close(one, other, **EXACT)


@every_way
@every_gate
@pytest.mark.parametrize("shape", [(6,), (1, 6), (0, 6), (2, 0, 6), (17, 6), (2, 3, 5, 6)], ids=str)
@pytest.mark.usefixtures("poisoned")
def test_every_number_of_tokens(way, is_gated, shape):
    ours, reference = pair(way, is_gated=is_gated, activation="gelu")
    x = torch.randn(shape, dtype=torch.float64)
    for one, other in zip(run(ours, x), run(reference, x), strict=True):
        torch.testing.assert_close(one, other, **EXACT)


LAYOUTS = {
    "strided": lambda: torch.randn(8, 12, dtype=torch.float64)[::2, ::2],
    "transposed": lambda: torch.randn(6, 7, dtype=torch.float64).t(),
    "broadcast": lambda: torch.randn(1, 6, dtype=torch.float64).expand(5, 6),
    "permuted": lambda: torch.randn(3, 6, 4, dtype=torch.float64).permute(0, 2, 1),
    "one number": lambda: torch.randn(1, 1, dtype=torch.float64).expand(4, 6),
}


@every_way
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(way, layout):
    ours, reference = pair(way, is_gated=True, activation="silu")
    x = LAYOUTS[layout]()
    for one, other in zip(run(ours, x), run(reference, x), strict=True):
        torch.testing.assert_close(one, other, **EXACT)
    y = ours(x)
    for weight in (torch.ones(1, 1, dtype=torch.float64).expand(y.shape), torch.ones_like(y).t().contiguous().t()
                   if y.dim() == 2 else torch.ones_like(y)):  # fmt: skip
        for one, other in zip(run(ours, x, weight), run(reference, x, weight), strict=True):
            torch.testing.assert_close(one, other, **EXACT)


@every_way
@every_activation
@every_gate
def test_what_is_no_number_comes_out_as_the_references(way, activation, is_gated):
    ours, reference = pair(way, torch.float32, activation=activation, is_gated=is_gated)
    x = torch.randn(7, 6)
    x[1, 2], x[3, 0], x[4, 5], x[5] = float("nan"), float("inf"), -float("inf"), 1e30
    for one, other in zip(run(ours, x), run(reference, x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4, equal_nan=True)


@every_way
@every_activation
@every_gate
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_errors_are_no_larger_than_eagers(way, activation, is_gated, dtype):
    ours, reference = pair(way, dtype, (64, 96), activation=activation, is_gated=is_gated)
    exact = FeedForward(64, 96, 0.0, activation, is_gated, dtype=torch.float64, backend="reference")
    exact.load_state_dict(ours.state_dict())
    x = torch.randn(50, 64).to(dtype)
    ratios = []
    for our, eager, true in zip(run(ours, x), run(reference, x), run(exact, x.double()), strict=True):
        ours_off, eager_off = ((each.double() - true).norm().item() for each in (our, eager))
        ratios.append(ours_off / max(eager_off, 1e-30))
    assert max(ratios) <= 2
    assert sorted(ratios)[len(ratios) // 2] <= 1 + 1e-12


@every_way
@every_gate
@every_activation
def test_only_what_is_promised_is_saved(way, is_gated, activation, saved_bytes):
    for dropout in (0.0, 0.3):
        ffn = FeedForward(16, 24, dropout, activation, is_gated, **way)
        x, tokens = torch.randn(5, 16), 5
        hidden = 0 if "recompute" in way else 2 if is_gated else 1
        expected = 4 * tokens * (16 + hidden * 24) + (8 if dropout else 0)
        assert (
            saved_bytes(ffn, x) == expected == ffn.spec.saved_for_backward(tokens) == explain(ffn, x).saved_for_backward
        )


@every_way
@every_gate
def test_a_second_backward_is_right(way, is_gated):
    ours, _ = pair(way, is_gated=is_gated, activation="silu")
    x = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    y, leaves = ours(x).sum(), [x, *ours.parameters()]
    first = torch.autograd.grad(y, leaves, retain_graph=True)
    second = torch.autograd.grad(y, leaves)
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y, leaves)


@every_way
@every_gate
@pytest.mark.parametrize("activation", ["gelu", "silu", "tanh", "relu2"])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_a_double_backward_is_right(way, is_gated, activation, dropout):
    ours, _ = pair(way, sizes=(3, 4), is_gated=is_gated, activation=activation, dropout=dropout)
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)

    def seeded(x, *values):
        torch.manual_seed(1)
        return torch.func.functional_call(ours, dict(zip(names, values, strict=True)), (x,))

    names, leaves = zip(*ours.named_parameters(), strict=True)
    assert torch.autograd.gradcheck(seeded, (x, *leaves), fast_mode=True)
    assert torch.autograd.gradgradcheck(seeded, (x, *leaves), fast_mode=True)


@every_way
def test_a_change_of_what_is_saved_is_caught(way):
    ours, _ = pair(way)
    for change in ("x", "weight"):
        x = torch.randn(5, 6, dtype=torch.float64)
        y = ours(x).sum()
        with torch.no_grad():
            (x if change == "x" else ours.layer1.weight).add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


@every_way
@every_gate
def test_only_the_gradients_that_are_asked_for(way, is_gated):
    ours, reference = pair(way, is_gated=is_gated)
    x = torch.randn(5, 6, dtype=torch.float64)
    names = [name for name, _ in ours.named_parameters()]
    for frozen in (names[::2], names[1::2], names[:-1], names[1:]):
        found = []
        for block in (ours, reference):
            for name, parameter in block.named_parameters():
                parameter.grad = None
                parameter.requires_grad_(name not in frozen)
            block(x).sum().backward()
            found.append({name: parameter.grad for name, parameter in block.named_parameters()})
        for name in names:
            torch.testing.assert_close(found[0][name], found[1][name], **EXACT)


@every_way
@every_gate
def test_each_weight_is_accumulated_into_once(way, is_gated):
    ours, _ = pair(way, is_gated=is_gated)
    fired = []
    for name, parameter in ours.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: fired.append(name))
    ours(torch.randn(11, 6, dtype=torch.float64)).sum().backward()
    assert sorted(fired) == sorted(name for name, _ in ours.named_parameters())


@every_way
@every_gate
@pytest.mark.parametrize("activation", ["relu", "identity", "gelu"])
def test_dropout_drops_its_share_and_scales_the_rest(way, is_gated, activation):
    ffn = FeedForward(4, 400, 0.3, activation, is_gated, dtype=torch.float64, **way)
    with torch.no_grad():
        ffn.layer1.bias.add_(1)
        if is_gated:
            ffn.linear_v.bias.add_(1)
    ffn.layer2 = nn.Linear(400, 400, False, dtype=torch.float64)
    nn.init.eye_(ffn.layer2.weight)
    x = torch.zeros(50, 4, dtype=torch.float64)  # so that the output is dropout of one row of hidden units
    whole = ffn.eval()(x[:1]).detach()
    y = ffn.train()(x)
    kept = y != 0
    live = whole[0] != 0
    share = (~kept[:, live]).double().mean().item()
    assert abs(share - 0.3) < 0.02
    torch.testing.assert_close(y[kept], (whole / 0.7).expand_as(y)[kept])
    assert not torch.equal(kept[0], kept[1])
    torch.manual_seed(7)
    one = ffn(x)
    torch.manual_seed(7)
    assert torch.equal(ffn(x), one)
    assert not torch.equal(ffn(x), one)


@every_way
def test_everything_dropped_leaves_the_bias(way):
    for is_gated in (False, True):
        ours, _ = pair(way, dropout=1.0, is_gated=is_gated)
        y, dx, *rest = run(ours, torch.randn(5, 6, dtype=torch.float64))
        assert torch.equal(y, ours.layer2.bias.expand_as(y))
        assert not dx.any()
        assert all(gradient.isfinite().all() for gradient in rest)


@every_activation
@every_gate
@pytest.mark.parametrize("save", [True, False], ids=["lean", "recompute"])
def test_the_operators_are_as_they_are_registered(activation, is_gated, save):
    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

    gate = (draw(10, 6), draw(10)) if is_gated else (None, None)
    arguments = (draw(7, 6), draw(10, 6), draw(10), draw(5, 10), draw(5), *gate, activation, 0.25, torch.tensor(3))
    torch.library.opcheck(operators.feed_forward, (*arguments, save, 3))


@every_way
@every_gate
def test_compile_and_export_keep_the_path(way, is_gated):
    ours, reference = pair(way, is_gated=is_gated, activation="gelu")
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    torch._dynamo.reset()
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    for one, other in zip(run(compiled, x), run(reference, x), strict=True):
        torch.testing.assert_close(one, other, **EXACT)
    program = torch.export.export(ours, (x,))
    torch.testing.assert_close(program.module()(x), reference(x), **EXACT)


@every_way
def test_threads_do_not_disturb_each_other(way):
    ours, _ = pair(way, is_gated=True, activation="silu")
    inputs = [torch.randn(30, 6, dtype=torch.float64) for _ in range(4)]
    ones, found = torch.ones(30, 6, dtype=torch.float64), [None] * len(inputs)

    def work(i):
        for _ in range(20):
            found[i] = run(ours, inputs[i], ones)

    expected = [run(ours, x, ones) for x in inputs]
    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(found, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # PyTorch's own, in torch.func.jvp
@every_way
def test_transforms_take_the_plain_network(way):
    ours, reference = pair(way, activation="gelu")
    x, direction = torch.randn(5, 6, dtype=torch.float64), torch.randn(5, 6, dtype=torch.float64)
    for call in (
        lambda ffn: torch.func.jvp(ffn, (x,), (direction,))[1],
        lambda ffn: torch.func.grad(lambda x: ffn(x).sum())(x),
        lambda ffn: torch.func.vmap(ffn)(x),
        lambda ffn: torch.func.jacrev(ffn)(x[0]),
        lambda ffn: torch.func.hessian(lambda x: ffn(x).sum())(x[0]),
    ):
        torch.testing.assert_close(call(ours), call(reference), **EXACT)


@every_way
def test_autocast_gives_what_the_reference_gives(way):
    ours, reference = pair(way, torch.float32)
    x = torch.randn(5, 6)
    found = []
    for ffn in (ours, reference):
        with torch.autocast("cpu", torch.bfloat16):
            y = ffn(x)
            assert y.dtype == torch.bfloat16
        y.float().sum().backward()
        found.append([y, *(p.grad for p in ffn.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
