"""A case as each library computes it, with the same weights in all of them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from positionwise import FeedForward
from positionwise.bench.cases import ENGINES, OURS, Case, Job

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "gelu": F.gelu, "silu": F.silu}


class Timed(NamedTuple):
    """What is timed, and the weights that change before each round."""

    run: Callable[[], Any]
    weights: list[Tensor]
    """None of an engine's: it compiles them in as constants, which is the most that it can do with them."""


class Plain(nn.Module):
    """The block as a user would otherwise write it, on the layers of ours."""

    def __init__(self, ours: FeedForward, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer1, self.layer2, self.linear_v = ours.layer1, ours.layer2, ours.linear_v
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Compute W₂ · (f(W₁x + b₁) [⊙ (Vx + c)]) + b₂."""
        h = self.function(self.layer1(x))
        y: Tensor = self.layer2(h if self.linear_v is None else h * self.linear_v(x))
        return y


def build(case: Case, library: str) -> tuple[nn.Module, Tensor]:
    """The module and its input (tokens, d_model)."""
    torch.manual_seed(0)
    ours = FeedForward(
        case.d_model, case.d_ff, 0.0, case.activation, case.is_gated, backend=case.backend, recompute=case.recompute
    )
    _set_density(cast(nn.Linear, ours.layer1), case.density)
    block: nn.Module = ours if library == OURS else Plain(ours, FUNCTIONS[case.activation])
    if case.between:
        block = nn.Sequential(nn.LayerNorm(case.d_model), block, nn.Linear(case.d_model, case.d_model))
    dtype: torch.dtype = getattr(torch, case.dtype)
    return block.to(dtype), torch.randn(case.tokens, case.d_model).to(dtype)


def _set_density(layer: nn.Linear, density: float) -> None:
    """Of normal pre-activations with variance 1, the bias leaves that share positive."""
    with torch.no_grad():
        layer.weight.normal_(0.0, layer.in_features**-0.5)
        layer.bias.fill_(torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(density)).item())  # type: ignore[no-untyped-call]


def prepare(job: Job) -> Timed:
    """What a worker times."""
    module, x = build(job.case, job.library)
    if job.library in ENGINES:
        module.eval().requires_grad_(False)
        return Timed(_START[job.library](_exported(module, x), x, job.threads), [])
    weights: list[Tensor] = list(module.parameters())
    compute: Callable[[Tensor], Tensor] = module
    if job.library == "compile":
        if job.case.mode == "forward":
            inductor: Any = import_module("torch._inductor.config")
            inductor.freezing = True  # packs the weights in advance: the most that it can do with them
        compute = torch.compile(module)
    if job.case.mode == "train":
        return Timed(_training(compute, x, weights), weights)
    module.eval().requires_grad_(False)
    return Timed(_inference(compute, x), weights)


def _inference(compute: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], Tensor]:
    def run() -> Tensor:
        with torch.no_grad():
            return compute(x)

    return run


def _training(compute: Callable[[Tensor], Tensor], x: Tensor, weights: list[Tensor]) -> Callable[[], list[Tensor]]:
    """A call that gives y and the gradients of x and of every weight."""
    leaves, dy = [x.requires_grad_(), *weights], torch.randn_like(x)

    def run() -> list[Tensor]:
        y = compute(x)
        return [y, *torch.autograd.grad(y, leaves, dy)]

    return run


def _exported(module: nn.Module, x: Tensor) -> bytes:
    """The module as an ONNX model."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "block.onnx"
        torch.onnx.export(module, (x,), path, dynamo=False, input_names=["x"], output_names=["y"])
        return path.read_bytes()


def _onnxruntime(model: bytes, x: Tensor, threads: int) -> Callable[[], Any]:
    package = import_module("onnxruntime")
    options = package.SessionOptions()
    options.intra_op_num_threads = threads
    session = package.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    inputs = {"x": x.numpy()}
    return lambda: session.run(None, inputs)


def _openvino(model: bytes, x: Tensor, threads: int) -> Callable[[], Any]:
    core = import_module("openvino").Core()
    core.set_property("CPU", {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"})
    request = core.compile_model(core.read_model(model, b""), "CPU").create_infer_request()
    inputs = {0: x.numpy()}
    return lambda: request.infer(inputs, share_inputs=True, share_outputs=True)


_START: dict[str, Callable[[bytes, Tensor, int], Callable[[], Any]]] = {
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
}
