"""The activations f of the feed-forward network: one table.

Each row has the function, its derivative, its equation, whether it makes exact zeros, what PyTorch keeps of it
for backward, and where it was published. torch is imported when a function is first used, so that the table can be
read without it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from positionwise.errors import SpecError, unknown_name

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Activation:
    """One activation f: z ↦ f(z), elementwise."""

    name: str
    function: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor] | None
    """f'(z); None for a function that is not in the table."""
    equation: str
    """LaTeX, with ``{z}`` where the argument goes."""
    exact_zeros: bool
    """True when ordinary inputs give outputs that are exactly zero, so that sparsity can be exact."""
    saved: tuple[str, ...] | None
    """Which hidden-sized tensors PyTorch's autograd keeps for f': ``z``, ``f(z)`` or another; None if not known."""
    source: str

    def __call__(self, z: Tensor) -> Tensor:
        """f(z), the shape and dtype of z."""
        return self.function(z)


def relu(z: Tensor) -> Tensor:
    """max(0, z)."""
    import torch

    return torch.relu(z)


def relu_derivative(z: Tensor) -> Tensor:
    """1 where z > 0, else 0 (0 at z = 0, as in PyTorch)."""
    return (z > 0).to(z.dtype)


def relu2(z: Tensor) -> Tensor:
    """max(0, z)²."""
    positive = relu(z)
    return positive * positive


def relu2_derivative(z: Tensor) -> Tensor:
    """2·max(0, z)."""
    return 2 * relu(z)


def gelu(z: Tensor) -> Tensor:
    """z·Φ(z), with Φ the normal distribution's cumulative function (the exact form)."""
    from torch.nn.functional import gelu

    return gelu(z)


def gelu_derivative(z: Tensor) -> Tensor:
    """Φ(z) + z·φ(z)."""
    import torch

    wide = _widened(z)
    cumulative = 0.5 * (1 + torch.erf(wide * math.sqrt(0.5)))
    density = torch.exp(-0.5 * wide * wide) / math.sqrt(2 * math.pi)
    return (cumulative + wide * density).to(z.dtype)


def gelu_tanh(z: Tensor) -> Tensor:
    """z/2·(1 + tanh(√(2/π)·(z + 0.044715·z³))), the approximation of GPT-2."""
    from torch.nn.functional import gelu

    return gelu(z, approximate="tanh")


def gelu_tanh_derivative(z: Tensor) -> Tensor:
    """The derivative of the tanh form."""
    import torch

    near = _widened(z).clamp(-30, 30)  # further out it is 0 or 1, and z³ would overflow
    scale = math.sqrt(2 / math.pi)
    t = torch.tanh(scale * (near + 0.044715 * near**3))
    return (0.5 * (1 + t) + 0.5 * near * (1 - t * t) * scale * (1 + 3 * 0.044715 * near * near)).to(z.dtype)


def _widened(z: Tensor) -> Tensor:
    """Z in float32 where its dtype is narrower: squares overflow in float16 and lose digits in bfloat16."""
    return z.float() if z.element_size() < 4 else z


def silu(z: Tensor) -> Tensor:
    """z·σ(z), also called Swish."""
    from torch.nn.functional import silu

    return silu(z)


def silu_derivative(z: Tensor) -> Tensor:
    """σ(z)·(1 + z·(1 − σ(z)))."""
    s = sigmoid(z)
    return s * (1 + z * (1 - s))


def sigmoid(z: Tensor) -> Tensor:
    """σ(z) = 1 / (1 + exp(−z))."""
    import torch

    return torch.sigmoid(z)


def sigmoid_derivative(z: Tensor) -> Tensor:
    """σ(z)·(1 − σ(z))."""
    s = sigmoid(z)
    return s * (1 - s)


def tanh(z: Tensor) -> Tensor:
    """Hyperbolic tangent of z."""
    import torch

    return torch.tanh(z)


def tanh_derivative(z: Tensor) -> Tensor:
    """1 − tanh(z)²."""
    t = tanh(z)
    return 1 - t * t


def identity(z: Tensor) -> Tensor:
    """The argument itself."""
    return z


def identity_derivative(z: Tensor) -> Tensor:
    """Ones."""
    import torch

    return torch.ones_like(z)


_ROWS = (
    Activation("relu", relu, relu_derivative, r"\max(0,\, {z})", True, ("f(z)",),
               "Vaswani et al. 2017, arXiv 1706.03762, eq. 2"),
    Activation("relu2", relu2, relu2_derivative, r"\max(0,\, {z})^2", True, ("max(0, z)",),
               "So et al. 2021 (Primer), arXiv 2109.08668, section 4"),
    Activation("gelu", gelu, gelu_derivative, r"\mathrm{GELU}({z})", False, ("z",),
               "Hendrycks and Gimpel 2016, arXiv 1606.08415, section 2"),
    Activation("gelu_tanh", gelu_tanh, gelu_tanh_derivative, r"\mathrm{GELU}_{\tanh}({z})", False, ("z",),
               "Hendrycks and Gimpel 2016, arXiv 1606.08415, section 2 (approximation)"),
    Activation("silu", silu, silu_derivative, r"\mathrm{SiLU}({z})", False, ("z",),
               "Elfwing et al. 2017, arXiv 1702.03118; Swish: Ramachandran et al. 2017, arXiv 1710.05941"),
    Activation("sigmoid", sigmoid, sigmoid_derivative, r"\sigma({z})", False, ("f(z)",),
               "Dauphin et al. 2016, arXiv 1612.08083, eq. 1"),
    Activation("tanh", tanh, tanh_derivative, r"\tanh({z})", False, ("f(z)",),
               "Dauphin et al. 2016, arXiv 1612.08083, section 3 (GTU)"),
    Activation("identity", identity, identity_derivative, "{z}", False, (),
               "Shazeer 2020, arXiv 2002.05202, eq. 5 (bilinear)"),
)  # fmt: skip

ACTIVATIONS: dict[str, Activation] = {row.name: row for row in _ROWS}
ALIASES = {"swish": "silu"}


def get(name: str) -> Activation:
    """The table's row of a name.

    Raises:
        SpecError: for a name that is not in the table; the message lists the names.
    """
    try:
        return ACTIVATIONS[ALIASES.get(name, name)]
    except KeyError:
        raise unknown_name("activation", name, [*ACTIVATIONS, *ALIASES]) from None


def resolve(activation: Any) -> Activation:
    """The row that a name, a function or a module stands for; a row of its own for what is not in the table.

    Raises:
        SpecError: for an unknown name, or for something that cannot be called.
    """
    if isinstance(activation, Activation):
        return activation
    if isinstance(activation, str):
        return get(activation)
    if not callable(activation) or isinstance(activation, type):
        raise SpecError(f"expected activation to be a name, a function or a module instance; got {activation!r}")
    known = _name_in_torch(activation)
    return get(known) if known else _custom(activation)


def _custom(function: Any) -> Activation:
    name = getattr(function, "__name__", type(function).__name__)
    equation = r"\operatorname{" + name.strip("<>").replace("_", r"\_") + "}({z})"
    return Activation(name, function, None, equation, False, None, "given by the caller")


def _name_in_torch(activation: Any) -> str | None:
    """The name of a PyTorch function or stateless module that the table knows, else None.

    Subclasses and modules with hooks are not recognised: what they compute is theirs to say.
    """
    if "torch" not in sys.modules:
        return None
    import torch
    from torch import nn
    from torch.nn import functional as F

    if isinstance(activation, nn.Module):
        hooks = (activation._forward_hooks, activation._forward_pre_hooks, activation._backward_hooks)
        if any(hooks) or "forward" in activation.__dict__:
            return None
        if type(activation) is nn.GELU:
            return "gelu_tanh" if activation.approximate == "tanh" else "gelu"
        modules = {nn.ReLU: "relu", nn.SiLU: "silu", nn.Sigmoid: "sigmoid", nn.Tanh: "tanh", nn.Identity: "identity"}
        return modules.get(type(activation))
    functions: list[tuple[Any, str]] = [
        (F.relu, "relu"), (torch.relu, "relu"), (F.gelu, "gelu"), (F.silu, "silu"), (torch.sigmoid, "sigmoid"),
        (F.sigmoid, "sigmoid"), (torch.tanh, "tanh"), (F.tanh, "tanh"),
        *((row.function, row.name) for row in ACTIVATIONS.values()),
    ]  # fmt: skip
    return next((name for function, name in functions if function is activation), None)
