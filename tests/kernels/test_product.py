"""The engines of a product: equal numbers from each, the choice that is kept, and our kernel's every corner."""

import json
import os
import subprocess
import sys
import threading

import pytest
import torch

from positionwise import FeedForward, explain
from positionwise.kernels import launch, product
from positionwise.kernels.answers import PRODUCTS

ENGINES = ["torch", "onednn", "numba"]
every_engine = pytest.mark.parametrize("name", ENGINES)
SIZES = [(1, 1, 1), (1, 8, 4), (2, 3, 5), (3, 17, 33), (4, 16, 31), (5, 7, 64), (6, 64, 3), (7, 1, 129), (64, 33, 70),
         (8, 1, 1)]  # fmt: skip


@pytest.fixture(autouse=True)
def answers(tmp_path, monkeypatch):
    """Answers of this test alone, and nothing written elsewhere."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(PRODUCTS, "held", None)
    return tmp_path / "positionwise"


def operands(tokens, width, rows, bias=True):
    draw = torch.randn
    return draw(tokens, width), draw(rows, width), draw(rows) if bias else None


def exact(x, weight, bias, relu):
    y = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
    return y.relu() if relu else y


@every_engine
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("relu", [True, False], ids=["relu", "linear"])
def test_every_engine_gives_the_product(name, sizes, bias, relu):
    x, weight, b = operands(*sizes, bias)
    y = product.run(name, x, weight, b, relu)
    torch.testing.assert_close(y.double(), exact(x, weight, b, relu), rtol=1e-5, atol=1e-5)
    assert y.is_contiguous()


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_our_kernel_writes_every_number_and_no_other(monkeypatch, sizes, threads):
    """The output lies in a buffer of NaN with a margin around it."""
    tokens, width, rows = sizes
    x, weight, bias = operands(*sizes)
    buffer = torch.full((tokens * rows + 64,), torch.nan)
    out = buffer[32 : 32 + tokens * rows].view(tokens, rows)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    y = launch.linear(x, weight, bias, False, out)
    assert y.data_ptr() == out.data_ptr()
    torch.testing.assert_close(y.double(), exact(x, weight, bias, False), rtol=1e-5, atol=1e-5)
    assert buffer[:32].isnan().all()
    assert buffer[32 + tokens * rows :].isnan().all()


@every_engine
@pytest.mark.parametrize("relu", [True, False], ids=["relu", "linear"])
def test_what_is_no_number_comes_out_as_eagers(name, relu):
    for value in (float("nan"), float("inf"), -float("inf"), 3e38, 1e-42):
        x, weight, bias = operands(5, 9, 11)
        x[1, 3], weight[4, 2], bias[7] = value, value, value
        y, eager = product.run(name, x, weight, bias, relu), torch.nn.functional.linear(x, weight, bias)
        torch.testing.assert_close(y, eager.relu() if relu else eager, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_errors_are_no_larger_than_eagers():
    ratios = []
    for tokens in (2, 3, 4, 7, 16):
        x, weight, bias = operands(tokens, 512, 300)
        true = exact(x, weight, bias, False)
        ours, eager = (
            (product.run(name, x, weight, bias, False).double() - true).norm() for name in ("numba", "torch")
        )
        ratios.append((ours / eager).item())
    assert max(ratios) <= 2
    assert sorted(ratios)[len(ratios) // 2] <= 1


def test_each_kind_of_product_is_measured_once_and_kept(answers, monkeypatch):
    monkeypatch.setattr(product, "LEAST", 1)
    measured = []
    monkeypatch.setattr(product, "_measure", lambda x, weight: measured.append(tuple(x.shape)) or "onednn")
    x, weight, bias = operands(6, 8, 4)
    for tokens in (6, 7, 8, 5, 6):  # of one kind: up to the next power of two
        assert product.engine(x[:1].expand(tokens, 8), weight) == "onednn"
    assert product.engine(x[:3], weight) == "onednn"
    assert measured == [(6, 8), (3, 8)]
    threads = torch.get_num_threads()
    (path,) = answers.iterdir()
    assert json.loads(path.read_text("utf-8")) == {f"8x4x8x{threads}x0": "onednn", f"4x4x8x{threads}x0": "onednn"}
    monkeypatch.setattr(PRODUCTS, "held", None)  # a later process reads the file
    assert product.engine(x, weight) == "onednn"
    assert len(measured) == 2


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"a": 3}', '{"1x2": 5}'])
def test_a_damaged_file_of_answers_is_measured_anew(answers, monkeypatch, content):
    monkeypatch.setattr(product, "LEAST", 1)
    answers.mkdir()
    PRODUCTS.file().write_text(content, "utf-8")
    x, weight, bias = operands(6, 8, 4)
    assert product.engine(x, weight) in ENGINES


def test_a_folder_that_cannot_be_written_to_does_no_harm(monkeypatch):
    monkeypatch.setattr(product, "LEAST", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    x, weight, bias = operands(6, 8, 4)
    torch.testing.assert_close(product.linear(x, weight, bias), torch.nn.functional.linear(x, weight, bias))


def test_what_is_measured_decides():
    x, weight, bias = operands(4, 64, 64)
    slow = {"torch": 0.02, "onednn": 0.0, "numba": 0.01}

    def run(name, *rest):
        threading.Event().wait(slow[name])
        return x

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(product, "run", run)
        assert product._measure(x, weight) == "onednn"
        slow.update(onednn=0.02, torch=0.02)
        assert product._measure(x, weight) == "numba"
        slow.update(numba=0.021, onednn=0.021)
        assert product._measure(x, weight) == "torch"


NETWORKS = [(1, 1, 1, 1), (1, 16, 4, 8), (2, 17, 33, 3), (6, 15, 64, 5), (7, 64, 9, 130), (13, 33, 70, 4)]


@pytest.mark.parametrize("sizes", NETWORKS, ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_network_in_one_call(monkeypatch, sizes, bias, threads):
    """Its buffers begin as NaN, with margins that stay so."""
    tokens, d_model, d_ff, d_out = sizes
    x, w1, b1 = operands(tokens, d_model, d_ff, bias)
    _, w2, b2 = operands(tokens, d_ff, d_out, bias)
    true = exact(exact(x, w1, b1, True), w2, b2, False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    buffers = []

    def empty(like, *size):
        buffers.append(torch.full((size[0] * size[1] + 64,), torch.nan))
        return buffers[-1][32:-32].view(size)

    monkeypatch.setattr(torch.Tensor, "new_empty", empty)
    y = launch.network(x, w1, b1, w2, b2)
    torch.testing.assert_close(y.double(), true, rtol=1e-5, atol=1e-5)
    assert len(buffers) == 2
    for buffer in buffers:
        assert buffer[:32].isnan().all()
        assert buffer[-32:].isnan().all()
        assert buffer[32:-32].isfinite().all()


def test_no_number_in_one_call_is_none_in_the_output():
    x, w1, b1 = operands(7, 17, 33)
    x[2, 3], x[4] = torch.nan, 1e38
    _, w2, b2 = operands(7, 33, 5)
    eager = torch.nn.functional.linear(torch.nn.functional.linear(x, w1, b1).relu(), w2, b2)
    torch.testing.assert_close(launch.network(x, w1, b1, w2, b2)[:4], eager[:4], rtol=1e-4, atol=1e-4, equal_nan=True)
    assert not launch.network(x, w1, b1, w2, b2)[4].isfinite().any()


def test_both_maps_are_one_call_where_that_is_faster(monkeypatch):
    monkeypatch.setattr(product, "LEAST", 1)
    x, w1, b1 = operands(5, 8, 12)
    _, w2, b2 = operands(5, 12, 6)
    called, network = [], launch.network
    monkeypatch.setattr(launch, "network", lambda *given: called.append(1) or network(*given))
    for answer in ("numba", "torch"):
        called.clear()
        threads = torch.get_num_threads()
        PRODUCTS.held = {(8, 12, 8, threads, 0): "torch", (8, 6, 12, threads, 0): "torch"}
        PRODUCTS.held[8, 12, 8, 6, threads, 0] = answer
        product.network(x, w1, b1, w2, b2)
        assert bool(called) == (answer == "numba")
    for given in (
        (x[:0], w1, b1, w2, b2),
        (torch.randn(65, 8), w1, b1, w2, b2),
        (x, w1.t().contiguous().t(), b1, w2, b2),
    ):
        PRODUCTS.held = {}
        assert not product._is_one_call(*given)


def test_measuring_one_kind_may_ask_for_another(monkeypatch):
    """Two products, measured against one call, are measured themselves."""
    monkeypatch.setattr(product, "LEAST", 1)
    x, w1, b1 = operands(5, 8, 12)
    _, w2, b2 = operands(5, 12, 6)
    thread = threading.Thread(target=product.network, args=(x, w1, b1, w2, b2), daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert len(PRODUCTS.held) == 3


def test_small_odd_and_single_products_are_left_to_pytorch():
    x, weight, bias = operands(6, 8, 4)
    assert product.engine(x, weight) == "torch"
    large = torch.randn(512, 512)
    assert product.engine(torch.randn(1, 512), large) == "torch"
    assert product.engine(torch.randn(6, 512).double(), large.double()) == "torch"
    assert product.engine(torch.randn(0, 512), large) == "torch"


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("activation", ["relu", "relu2", "gelu", "silu", "sigmoid", "identity"])
@pytest.mark.parametrize("is_gated", [False, True], ids=["ungated", "gated"])
def test_a_block_without_gradients(monkeypatch, name, activation, is_gated):
    monkeypatch.setattr(product, "engine", lambda x, weight: name)
    ffn = FeedForward(24, 40, 0.0, activation, is_gated)
    reference = FeedForward(24, 40, 0.0, activation, is_gated, backend="reference")
    reference.load_state_dict(ffn.state_dict())
    for shape in ((24,), (1, 24), (2, 3, 24), (5, 24)):
        x = torch.randn(shape)
        with torch.no_grad():
            assert explain(ffn, x).path == "dense"
            torch.testing.assert_close(ffn(x), reference(x), rtol=1e-5, atol=1e-5)
    with torch.no_grad():  # nothing that was derived from the weights outlives their change
        for parameter, other in zip(ffn.parameters(), reference.parameters(), strict=True):
            parameter.data.mul_(2)
            other.data.mul_(2)
        torch.testing.assert_close(ffn(x), reference(x), rtol=1e-5, atol=1e-5)


def test_dropout_without_gradients_is_dropout():
    ffn = FeedForward(4, 4000, 0.25).train()
    with torch.no_grad():
        ffn.layer1.bias.add_(1)
        ffn.layer2.weight.fill_(1 / 4000)
        y = ffn(torch.zeros(20, 4))
    assert (y[:, 0] - 1).abs().max() < 0.1
    assert y[:, 0].unique().numel() > 10


def test_two_threads_at_once():
    x, weight, bias = operands(4, 256, 512)
    expected = product.run("numba", x, weight, bias, True)
    wrong = []

    def work():
        for _ in range(50):
            if not torch.equal(product.run("numba", x, weight, bias, True), expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_forked_child_takes_pytorchs_product():
    """GNU's OpenMP ends a child that enters a parallel region of its parent's."""
    code = (
        "import os, torch\n"
        "from positionwise.kernels import answers, launch, product\n"
        "x, w = torch.randn(4, 64), torch.randn(64, 64)\n"
        "assert launch.is_usable(x, w)\n"
        "launch.linear(x, w, None, False)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    answers.PRODUCTS.held = {(4, 64, 64, torch.get_num_threads(), 0): 'numba'}\n"
        "    product.LEAST = 1\n"
        "    os._exit(0 if not launch.is_usable(x, w) and product.engine(x, w) == 'torch' else 3)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True,
                          env={**os.environ, "OMP_NUM_THREADS": "2"})  # fmt: skip
    assert done.stdout.strip() == "0"


def test_without_numba_pytorch_does_the_work(monkeypatch):
    monkeypatch.setitem(launch._state, "kernels", None)
    monkeypatch.setitem(launch._state, "failed", True)
    x, weight, bias = operands(4, 64, 64)
    assert not launch.is_usable(x, weight)
    assert product._measure(x, weight) in ("torch", "onednn")


def test_the_start_of_our_threads_leaves_pytorchs_number():
    """Numba's OpenMP sets the number that PyTorch's reads."""
    code = (
        "import torch\n"
        "from positionwise.kernels import launch\n"
        "torch.set_num_threads(1)\n"
        "assert launch.is_usable()\n"
        "launch.linear(torch.randn(4, 64), torch.randn(64, 64), None, False)\n"
        "print(torch.get_num_threads())\n"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "NUMBA_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "1"


def test_a_slow_start_says_so(capsys, monkeypatch):
    monkeypatch.setattr(launch.threading, "Timer", lambda seconds, tell: Immediate(seconds, tell))
    with launch.told_when_slow("compiling"):
        pass
    assert capsys.readouterr().err == "positionwise: compiling …\n"


class Immediate:
    """A timer whose time has come."""

    def __init__(self, seconds, tell):
        assert seconds == 1
        self.tell = tell

    def start(self):
        self.tell()

    def cancel(self):
        pass


@pytest.mark.parametrize("dtype", product.HALF, ids=str)
@pytest.mark.parametrize("is_gated", [False, True], ids=["ungated", "gated"])
@pytest.mark.parametrize("way", [{}, {"recompute": True, "chunk_size": 7}], ids=str)
def test_widened_half_precision_is_no_further_off_than_eager(monkeypatch, dtype, is_gated, way):
    monkeypatch.setattr(product, "engine", lambda x, weight: "wide")
    monkeypatch.setattr(product, "BLOCK", 30)
    ours = FeedForward(64, 96, 0.0, "silu", is_gated, dtype=dtype, **way)
    eager = FeedForward(64, 96, 0.0, "silu", is_gated, dtype=dtype, backend="reference")
    exact = FeedForward(64, 96, 0.0, "silu", is_gated, dtype=torch.float64, backend="reference")
    for block in (eager, exact):
        block.load_state_dict(ours.state_dict())
    x = torch.randn(50, 64).to(dtype)

    def run(block, x):
        x = x.clone().requires_grad_()
        y = block(x)
        torch.manual_seed(1)
        gradients = torch.autograd.grad(y, [x, *block.parameters()], torch.randn(y.shape).to(y.dtype))
        with torch.no_grad():
            return [y, block(x), *gradients]

    ratios = []
    for one, other, true in zip(run(ours, x), run(eager, x), run(exact, x.double()), strict=True):
        assert one.dtype == dtype
        ratios.append(((one.double() - true).norm() / (other.double() - true).norm()).item())
    assert max(ratios) <= 2
    assert sorted(ratios)[len(ratios) // 2] <= 1.05


def test_half_precision_is_widened_where_that_is_measured_to_be_faster():
    x, weight = torch.randn(4, 64).bfloat16(), torch.randn(64, 64).bfloat16()
    slow = {"torch": 0.02, "wide": 0.0}

    def run(name, *rest):
        threading.Event().wait(slow[name])
        return x

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(product, "run", run)
        assert product._measure(x, weight) == "wide"
        slow.update(wide=0.03)
        assert product._measure(x, weight) == "torch"


@pytest.mark.parametrize("name", ENGINES)
def test_operands_of_any_strides(name):
    weight, bias, x = torch.randn(12, 16)[::2, ::2], torch.randn(12)[::2], torch.randn(8, 10).t()[:5, ::1]
    if name == "numba":  # it is asked for whole rows alone, but for the bias
        weight, x = weight.contiguous(), x.contiguous()
    torch.testing.assert_close(product.run(name, x, weight, bias, False), torch.nn.functional.linear(x, weight, bias))
