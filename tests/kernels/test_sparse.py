"""Exact sparsity: the numbers of the dense path from the hidden units that are not zero, and nothing written beside."""

import copy
import threading
from contextlib import contextmanager

import pytest
import torch

from positionwise import FeedForward, explain
from positionwise.kernels import dense, launch, sparse
from positionwise.kernels.dense import Call, Gradients, Weights
from positionwise.kernels.inference import infer

SIZES = [(1, 1, 1, 1), (1, 3, 17, 64), (3, 17, 1, 3), (5, 64, 33, 65), (17, 65, 129, 63), (66, 3, 70, 200),
         (130, 128, 96, 64)]  # fmt: skip
PLACES = {"none": -1e3, "few": -1.5, "half": 0.0, "all": 1e3}
ALL = [True] * 7
every_activation = pytest.mark.parametrize("activation", sparse.ACTIVATIONS)
every_gate = pytest.mark.parametrize("is_gated", [False, True], ids=["ungated", "gated"])
every_size = pytest.mark.parametrize("sizes", SIZES, ids=str)


@pytest.fixture(autouse=True)
def usable():
    assert launch.is_usable()


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def threads(request, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: request.param)


@contextmanager
def poison():
    """Every buffer of the sparse path begins as NaN, or as places that are wrong, with a margin on both sides."""
    buffers = []

    def empty(*shape, dtype=torch.float32, fill=None):
        count = torch.Size(shape).numel()
        poison = torch.nan if dtype.is_floating_point else -7
        buffer = torch.full((count + 128,), poison, dtype=dtype)
        buffers.append((buffer, count, poison))
        out = buffer[64 : 64 + count].view(shape)
        return out if fill is None else out.fill_(fill)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sparse, "_empty", empty)
        patch.setattr(sparse, "_zeros", lambda *shape: empty(*shape, fill=0.0))
        yield
    assert buffers
    for buffer, count, poison in buffers:
        for margin in (buffer[:64], buffer[64 + count :]):
            assert (margin.isnan() if poison != poison else margin == poison).all()


@pytest.fixture
def poisoned():
    with poison():
        yield


def case(sizes, is_gated, biases=True, place=0.0):
    """X, dy and weights; ``place`` moves z, and so decides how many hidden units are zero."""
    tokens, d_model, d_ff, d_out = sizes
    w = Weights(
        torch.randn(d_ff, d_model) / d_model**0.5,
        torch.randn(d_ff) + place if biases or place else None,
        torch.randn(d_out, d_ff) / d_ff**0.5,
        torch.randn(d_out) if biases else None,
        torch.randn(d_ff, d_model) / d_model**0.5 if is_gated else None,
        torch.randn(d_ff) if is_gated and biases else None,
    )
    return torch.randn(tokens, d_model), torch.randn(tokens, d_out), w


def run(path, x, dy, w, call, asked=None):
    """The output and the gradients by all parameters."""
    asked = [wanted and (i == 0 or w[i - 1] is not None) for i, wanted in enumerate(asked or ALL)]
    if path is sparse:
        y, saved = sparse.forward(x, w, call)
        return {"y": y, **sparse.backward(dy, x, saved, w, call, asked)._asdict()}
    y, kept, gate = dense.forward(x, w, call, True)
    return {"y": y, **dense.backward(dy, x, kept, gate, w, call, asked)._asdict()}


def doubled(w):
    return Weights(*(None if t is None else t.double() for t in w))


def check(x, dy, w, call):
    """Both paths against float64: an error of at most twice the dense path's, and the same layout."""
    ours, plain = run(sparse, x, dy, w, call), run(dense, x, dy, w, call)
    exact = run(dense, x.double(), dy.double(), doubled(w), call)
    for name, true in exact.items():
        if true is None:
            assert ours[name] is None
            continue
        assert ours[name].shape == true.shape
        ours_off, plain_off = ((found[name].double() - true).norm().item() for found in (ours, plain))
        assert ours_off <= 2 * plain_off + 2e-7 * true.norm().item(), name


@every_activation
@every_gate
@every_size
@pytest.mark.parametrize("biases", [True, False], ids=["biases", "no biases"])
@pytest.mark.parametrize("chunk", [4, 1024])
@pytest.mark.usefixtures("threads", "poisoned")
def test_errors_are_no_larger_than_the_dense_paths(activation, is_gated, sizes, biases, chunk):
    check(*case(sizes, is_gated, biases), Call(activation, 0.0, None, chunk))


@every_activation
@every_gate
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.usefixtures("threads", "poisoned")
def test_every_density(activation, is_gated, place):
    x, dy, w = case((37, 20, 100, 70), is_gated, place=PLACES[place])
    check(x, dy, w, Call(activation, 0.0, None, 1024))
    entries, _ = sparse.forward(x, w, Call(activation, 0.0, None, 1024))[1]
    share = len(entries) / (37 * 100)
    assert {"none": share == 0, "few": 0 < share < 0.3, "half": 0.3 < share < 0.7, "all": share == 1}[place]


@every_gate
def test_rows_without_an_active_unit_among_others(is_gated):
    x, dy, w = case((9, 5, 30, 7), is_gated, biases=False)
    x[0], x[4], x[8] = 0, 0, 0
    check(x, dy, w, Call("relu", 0.0, None, 1024))
    assert not sparse.forward(x, w, Call("relu", 0.0, None, 1024))[0][4].any()


@every_gate
@pytest.mark.usefixtures("threads")
def test_no_tokens(is_gated):
    found = run(sparse, *case((0, 5, 30, 7), is_gated), Call("relu", 0.0, None, 1024))
    assert found["y"].shape == (0, 7)
    assert found["x"].shape == (0, 5)
    assert all(not gradient.any() for gradient in found.values() if gradient is not None)


@pytest.mark.usefixtures("threads", "poisoned")
def test_the_active_units_in_both_orders():
    z = torch.tensor([[-1.0, 2.0, -0.0, 3.0], [0.0, -2.0, -torch.inf, 0.0], [torch.nan, 0.0, 0.0, torch.inf]])
    rows = sparse.compress(z, None, square=True)
    assert rows.starts.tolist() == [0, 2, 2, 4]
    assert rows.entries[:, 0].view(torch.int32).tolist() == [1, 3, 0, 3]
    expected = torch.tensor([[4, 2], [9, 3], [torch.nan, torch.nan], [torch.inf, torch.inf]])
    torch.testing.assert_close(rows.entries[:, 1:], expected, equal_nan=True)
    columns = sparse._transpose(rows, 4)
    assert columns.starts.tolist() == [0, 1, 2, 2, 4]
    assert columns.entries[:, 0].view(torch.int32).tolist() == [2, 0, 0, 2]
    torch.testing.assert_close(columns.entries[:, 1], torch.tensor([torch.nan, 4, 9, torch.inf]), equal_nan=True)


@pytest.mark.parametrize("width", [1, 63, 64, 65, 200])
@pytest.mark.usefixtures("threads", "poisoned")
def test_every_place_of_a_word(width):
    """Units in the words of 64 that signs are looked at in, and in the rest of the last one; rows of three tasks."""
    z, gate = torch.randn(35, width), torch.randn(35, width)
    found = sparse.compress(z, gate, square=False)
    t, j = (z > 0).nonzero(as_tuple=True)
    assert torch.equal(found.entries[:, 0].view(torch.int32).long(), j)
    assert torch.equal(found.starts, torch.cat([torch.zeros(1, dtype=torch.int64), (z > 0).sum(1).cumsum(0)]))
    assert torch.equal(found.entries[:, 1:], torch.stack([z[t, j] * gate[t, j], z[t, j], gate[t, j]], 1))


@pytest.mark.parametrize("shape", [(1, 1), (16, 64), (17, 65), (33, 130)], ids=str)
@pytest.mark.usefixtures("threads", "poisoned")
def test_panels_of_every_layout(shape):
    rows, width = shape
    wide = torch.randn(2 * rows, 2 * width)
    for matrix in (wide[:rows, :width].contiguous(), torch.randn(width, rows).t(), wide[::2, ::2],
                   torch.randn(1, width).expand(shape), torch.randn(rows, 1).expand(shape)):  # fmt: skip
        found = sparse.panels(matrix).data.transpose(0, 1).reshape(rows, -1)
        assert torch.equal(found[:, :width], matrix)
        assert not found[:, width:].any()


@every_activation
@every_gate
@pytest.mark.usefixtures("threads")
def test_what_is_no_number_comes_out_as_the_dense_paths(activation, is_gated):
    """Where a unit that is not zero carries it: see the module's note on zero times infinity."""
    x, dy, w = case((7, 6, 40, 70), is_gated)
    x[1, 2], x[5] = torch.nan, 1e30
    call = Call(activation, 0.0, None, 1024)
    ours, plain = run(sparse, x, dy, w, call), run(dense, x, dy, w, call)
    for name in plain:
        if plain[name] is not None:
            torch.testing.assert_close(ours[name], plain[name], rtol=1e-4, atol=1e-4, equal_nan=True)


@every_gate
def test_what_meets_zeros_alone_is_nothing(is_gated):
    """Zero times infinity: NaN on the dense path, nothing here, as the module says."""
    x, _, w = case((5, 6, 40, 7), is_gated)
    w.b1[3] = -1e3  # never active
    w.w2[2, 3] = torch.inf
    call = Call("relu", 0.0, None, 1024)
    assert dense.forward(x, w, call, True)[0][:, 2].isnan().all()
    assert sparse.forward(x, w, call)[0].isfinite().all()


@every_activation
@every_gate
@pytest.mark.parametrize("p", [0.3, 1.0])
@pytest.mark.usefixtures("threads")
def test_dropout_is_the_dense_paths(p, activation, is_gated):
    check(*case((21, 6, 40, 70), is_gated), Call(activation, p, torch.tensor(5), 8))


@every_activation
@every_gate
def test_a_second_backward_finds_what_was_saved_unchanged(activation, is_gated):
    x, dy, w = case((21, 6, 40, 70), is_gated)
    call = Call(activation, 0.0, None, 8)
    saved = sparse.forward(x, w, call)[1]
    first, second = (sparse.backward(dy, x, saved, w, call, ALL if is_gated else [True] * 5 + [False] * 2)
                     for _ in range(2))  # fmt: skip
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True) if one is not None)


@every_gate
def test_only_the_gradients_that_are_asked_for(is_gated):
    x, dy, w = case((9, 6, 40, 70), is_gated)
    call = Call("relu", 0.0, None, 4)
    whole = run(sparse, x, dy, w, call)
    for chosen in (*([i == j for i in range(7)] for j in range(7)), [True, False] * 3 + [True], [False] * 7):
        part = run(sparse, x, dy, w, call, chosen)
        for name, wanted in zip(Gradients._fields, chosen, strict=True):
            if not wanted or whole[name] is None:
                assert part[name] is None
            else:
                assert torch.equal(part[name], whole[name]), name


@every_gate
@pytest.mark.parametrize("tokens", [1, 3, 70])
@pytest.mark.usefixtures("threads", "poisoned")
def test_weights_that_lie_transposed(is_gated, tokens):
    """Few tokens read them where they are."""
    x, dy, w = case((tokens, 64, 40, 128), is_gated)
    w = w._replace(w2=w.w2.t().contiguous().t())
    in_place = sparse.panels(w.w2.t(), tokens).data.data_ptr() == w.w2.data_ptr()
    assert in_place == (tokens < sparse.FEW)
    check(x, dy, w, Call("relu", 0.0, None, 1024))
    assert run(sparse, x, dy, w, Call("relu", 0.0, None, 1024))["w2"].stride() == w.w2.stride()


@every_activation
@every_gate
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("sizes", [(1, 3, 1, 64), (1, 5, 40, 128), (3, 4, 129, 64), (63, 4, 200, 64), (64, 4, 200, 64),
                                   (5, 4, 70, 65)], ids=str)  # fmt: skip
@pytest.mark.usefixtures("threads", "poisoned")
def test_the_second_map_without_gradients(activation, is_gated, place, sizes):
    """Weights that lie transposed and others, for few tokens and more."""
    x, _, w = case(sizes, is_gated, place=PLACES[place])
    exact = infer(x.double(), doubled(w), activation, 0.0)
    plain = infer(x, w, activation, 0.0)
    for w2 in (w.w2, w.w2.t().contiguous().t()):
        ours = infer(x, w._replace(w2=w2), activation, 0.0, skip=True)
        off, plain_off = ((found.double() - exact).norm().item() for found in (ours, plain))
        assert off <= 2 * plain_off + 2e-7 * exact.norm().item()


def test_strided_and_broadcast_tensors():
    _, _, w = case((9, 6, 40, 70), True)
    w = Weights(*(t if t.dim() == 1 else t.repeat_interleave(2, 1)[:, ::2] for t in w))
    call = Call("relu2", 0.0, None, 4)
    check(torch.randn(18, 12)[::2, ::2], torch.randn(1, 1).expand(9, 70), w, call)
    check(torch.randn(1, 6).expand(9, 6), torch.randn(70, 9).t(), w, call)


def test_which_calls_can_be_taken(monkeypatch):
    x = torch.randn(3, 4)
    assert all(sparse.can(activation, x) for activation in sparse.ACTIVATIONS)
    assert not sparse.can("gelu", x)
    assert not sparse.can("relu", x.double())
    monkeypatch.setitem(launch._state, "failed", True)
    assert not sparse.can("relu", x)


def test_threads_do_not_disturb_each_other():
    x, dy, w = case((40, 64, 200, 70), True)
    call = Call("relu", 0.0, None, 16)
    expected, wrong = run(sparse, x, dy, w, call), []

    def work():
        for _ in range(10):
            found = run(sparse, x, dy, w, call)
            wrong.extend(name for name in found if not torch.equal(found[name], expected[name]))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("name", ["relu", "relu2", "reglu", "reglu2"])
def test_a_block_that_skips_zeros(name, saved_bytes):
    ours = FeedForward.variant(name, 24, 70, dropout=0.0, backend="sparse")
    reference = FeedForward.variant(name, 24, 70, dropout=0.0, backend="reference")
    with torch.no_grad():
        ours.layer1.bias.sub_(0.5)
    reference.load_state_dict(ours.state_dict())
    x = torch.randn(2, 9, 24, requires_grad=True)
    assert explain(ours, x).path == "sparse"
    assert explain(ours, x).saved_for_backward == saved_bytes(ours, x)
    found = []
    for block in (ours, reference):
        y = block(x)
        torch.manual_seed(1)
        found.append([y, *torch.autograd.grad(y, [x, *block.parameters()], torch.randn(y.shape))])
        with torch.no_grad():
            found[-1].append(block(x))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{"activation": "gelu"}, {"dtype": torch.float64}])
def test_a_block_that_cannot_skip_says_so(options):
    ffn = FeedForward(6, 10, **{"dropout": 0.0, **options}, backend="sparse")
    x = torch.randn(4, 6, dtype=options.get("dtype"))
    assert explain(ffn, x).path == "lean"
    assert "backend='sparse' skips the zeros of ReLU and squared ReLU, in float32" in explain(ffn, x).reason
    assert ffn(x).shape == (4, 6)


def test_a_sparse_blocks_second_weight_lies_column_by_column():
    """Its shape and its numbers are what they would be otherwise, and it stays so in a copy and after loading."""
    ffn, plain = FeedForward(6, 10, 0.0, backend="sparse"), FeedForward(6, 10, 0.0)
    ffn.load_state_dict(plain.state_dict())
    for each in (ffn, copy.deepcopy(ffn), FeedForward(6, 10, 0.0, backend="sparse", init="pytorch"), ffn.double()):
        assert each.layer2.weight.shape == (6, 10)
        assert each.layer2.weight.stride() == (1, 6)
    assert torch.equal(ffn.layer2.weight, plain.layer2.weight.double())


@pytest.mark.parametrize("init", ["xavier_uniform", "pytorch"])
def test_a_seed_draws_the_same_network_for_every_backend(init):
    drawn = []
    for backend in ("auto", "sparse"):
        torch.manual_seed(3)
        ffn = FeedForward(6, 10, 0.0, backend=backend, init=init)
        ffn.reset_parameters()
        drawn.append(ffn.state_dict())
    assert all(torch.equal(drawn[0][name], drawn[1][name]) for name in drawn[0])


def test_a_network_that_cannot_skip_lies_as_ever():
    assert FeedForward(6, 10, 0.0, "gelu", backend="sparse").layer2.weight.is_contiguous()


def test_a_compiled_block_takes_the_dense_operator():
    ffn, x = FeedForward(6, 10, 0.0, backend="sparse"), torch.randn(4, 6)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(ffn, fullgraph=True, backend="aot_eager")(x), ffn(x))
