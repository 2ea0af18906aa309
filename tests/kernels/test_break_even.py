"""Zeros are skipped where the call's own density is below the machine's break-even point, and nowhere else."""

import pytest
import torch

from positionwise import FeedForward, explain
from positionwise.kernels import break_even, launch, sparse
from positionwise.kernels.answers import BREAK_EVEN
from positionwise.kernels.dense import Weights


@pytest.fixture(autouse=True)
def answers(tmp_path, monkeypatch):
    """Small blocks count, and their break-even point is a fifth."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(BREAK_EVEN, "held", None)
    monkeypatch.setattr(break_even, "WORK", 1)
    monkeypatch.setattr(break_even, "ROWS", 1000)  # all: of narrow blocks, a few would leave much to chance
    monkeypatch.setattr(break_even, "_measure", lambda *sizes, **flags: 0.2)


def block(density, d_model=16, d_ff=64, **options):
    ffn = FeedForward.variant(options.pop("variant", "relu"), d_model, d_ff, **{"dropout": 0.0, **options})
    with torch.no_grad():
        ffn.layer1.weight.normal_(0, d_model**-0.5)
        ffn.layer1.bias.fill_(torch.special.ndtri(torch.tensor(density)))
    return ffn


def is_sparse(ffn, x, monkeypatch):
    """Whether a call runs a sparse product."""
    ran = []
    with monkeypatch.context() as patch:
        patch.setattr(sparse, "add_", lambda *given, add_=sparse.add_: ran.append(1) or add_(*given))
        ffn(x)
    return bool(ran)


@pytest.mark.parametrize("variant", ["relu", "relu2", "reglu", "reglu2"])
@pytest.mark.parametrize("training", [True, False], ids=["gradients", "no gradients"])
@pytest.mark.parametrize(("density", "expected"), [(0.1, True), (0.3, False), (0.5, False)])
def test_the_density_decides(variant, training, density, expected, monkeypatch):
    ffn, x = block(density, variant=variant), torch.randn(2, 100, 16)
    with torch.set_grad_enabled(training):
        assert is_sparse(ffn, x, monkeypatch) == expected
        explanation = explain(ffn, x)
    assert explanation.path == ("sparse" if expected else "lean" if training else "dense")
    said = {
        0.1: ", below this machine's break-even point of 0.20",
        0.3: "not below this machine's break-even point of 0.20",
        0.5: "at which skipping zeros does not pay",
    }
    assert said[density] in explanation.reason


def test_a_block_computes_what_it_says(saved_bytes):
    ffn, x = block(0.1), torch.randn(1300, 16, requires_grad=True)
    reference = FeedForward(16, 64, 0.0, backend="reference")
    reference.load_state_dict(ffn.state_dict())
    assert explain(ffn, x).saved_for_backward == saved_bytes(ffn, x)
    found, dy = [], torch.randn(1300, 16)
    for each in (ffn, reference):
        found.append([each(x), *torch.autograd.grad(each(x), [x, *each.parameters()], dy)])
        with torch.no_grad():
            found[-1].append(each(x))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_equal_calls_give_equal_bits_whatever_came_between():
    ffn, other = block(0.1), block(0.5)
    x = torch.randn(200, 16)
    first = ffn(x)
    for each in (other, ffn):
        each(torch.randn(300, 16))
    assert torch.equal(ffn(x), first)


@pytest.mark.parametrize(
    ("options", "tokens"),
    [({"variant": "gelu"}, 200), ({"dtype": torch.float64}, 200), ({}, break_even.LEAST - 1),
     ({"backend": "lean"}, 200), ({"recompute": True}, 200)],
)  # fmt: skip
def test_other_calls_are_not_looked_at(options, tokens, monkeypatch):
    monkeypatch.setattr(break_even, "density", pytest.fail)
    monkeypatch.setattr(break_even, "_positive", pytest.fail)
    ffn, x = block(0.1, **options), torch.randn(tokens, 16, dtype=options.get("dtype"))
    ffn(x)
    assert explain(ffn, x).path in ("lean", "recompute")


def test_the_look_is_at_a_few_rows(monkeypatch):
    monkeypatch.undo()
    assert len(break_even.sample(torch.empty(1024, 4))) == 8
    assert len(break_even.sample(torch.empty(130, 4))) == 9
    z = torch.full((1024, 10), -1.0)
    z[::128, :3] = 1.0
    assert break_even.density(z) == 0.3


def test_small_calls_are_not_looked_at(monkeypatch):
    ffn, x = block(0.1), torch.randn(200, 16)
    monkeypatch.setattr(break_even, "WORK", 200 * 16 * 64)
    assert explain(ffn, x).path == "sparse"
    monkeypatch.setattr(break_even, "WORK", 200 * 16 * 64 + 1)
    assert explain(ffn, x).path == "lean"


def test_no_break_even_point_is_measured_for_a_dense_network(monkeypatch):
    monkeypatch.setattr(break_even, "_measure", pytest.fail)
    monkeypatch.setattr(launch, "_kernels", pytest.fail)
    ffn, x = block(0.5), torch.randn(200, 16)
    ffn(x).sum().backward()
    assert explain(ffn, x).path == "lean"


def test_without_kernels_nothing_is_skipped(monkeypatch):
    monkeypatch.setitem(launch._state, "failed", True)
    assert explain(block(0.1), torch.randn(200, 16)).path == "lean"


@pytest.mark.parametrize(
    ("times", "expected"),
    [([4.0, 2.0, 5.0], 0.05 + 2 * 0.15 / 3), ([1.0, 2.0, 5.0], 0.0), ([9.0, 2.0, 3.0], break_even.MOST),
     ([3.0, 2.0, 2.0], break_even.MOST)],
)  # fmt: skip
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("is_gated", [True, False])
def test_the_point_is_where_two_lines_meet(monkeypatch, times, expected, training, is_gated):
    """The dense path's time, and the sparse one's at two densities."""
    monkeypatch.undo()

    def timed(ways):
        assert len(ways) == 3
        for way in ways:
            way()
        return times

    monkeypatch.setattr(break_even, "_times", timed)
    found = break_even._measure(40, 16, 64, 24, is_gated=is_gated, training=training)
    assert found == pytest.approx(expected)


def test_what_is_timed_has_the_densities_it_should(monkeypatch):
    monkeypatch.undo()
    seen = []
    compress = sparse.compress
    monkeypatch.setattr(
        sparse, "compress", lambda z, *rest: seen.append((z > 0).float().mean().item()) or compress(z, *rest)
    )
    break_even._measure(128, 64, 512, 64, is_gated=False, training=True)
    assert sorted({round(share, 2) for share in seen}) == pytest.approx(break_even.TRIED, abs=0.02)


def test_each_kind_of_call_has_its_own_point(monkeypatch):
    asked = []
    monkeypatch.setattr(break_even, "_measure", lambda *sizes, **flags: asked.append((sizes, flags)) or 0.2)
    w = Weights(torch.randn(64, 16), None, torch.randn(24, 64), None, None, None)
    for tokens in (200, 256, 1000, 5000):
        break_even.point(tokens, w, training=True)
    break_even.point(200, w._replace(v=w.w1), training=False)
    assert asked == [
        ((256, 16, 64, 24), {"is_gated": False, "training": True}),
        ((1024, 16, 64, 24), {"is_gated": False, "training": True}),
        ((256, 16, 64, 24), {"is_gated": True, "training": False}),
    ]
