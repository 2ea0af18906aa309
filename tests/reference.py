"""The network in NumPy float64, from its formula alone: what the PyTorch code is judged by.

y = W₂ · dropout(f(W₁x + b₁) [⊙ (Vx + c)]) + b₂ at every position; nothing here calls torch.
"""

import math

import numpy as np

erf = np.vectorize(math.erf, otypes=[np.float64])


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


ACTIVATIONS = {
    "relu": lambda z: np.where(z > 0, z, 0.0),
    "relu2": lambda z: np.where(z > 0, z, 0.0) ** 2,
    "gelu": lambda z: z * (1 + erf(z / math.sqrt(2))) / 2,
    "gelu_tanh": lambda z: z / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))),
    "silu": lambda z: z * sigmoid(z),
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "identity": lambda z: z,
}

# name: (activation, gated), from Shazeer 2020 (arXiv 2002.05202) and So et al. 2021 (arXiv 2109.08668)
VARIANTS = {
    "relu": ("relu", False),
    "gelu": ("gelu", False),
    "gelu_tanh": ("gelu_tanh", False),
    "silu": ("silu", False),
    "swish": ("silu", False),
    "relu2": ("relu2", False),
    "glu": ("sigmoid", True),
    "bilinear": ("identity", True),
    "reglu": ("relu", True),
    "geglu": ("gelu", True),
    "swiglu": ("silu", True),
    "reglu2": ("relu2", True),
}


def linear(x, weight, bias=None):
    """W·x + b over the last axis; weight is (out, in)."""
    y = np.einsum("...i,oi->...o", x, weight)
    return y if bias is None else y + bias


def depthwise(x, kernel, padding="same", dilation=(1, 1)):
    """y[t] = Σ_i kernel[i] · x[t + i·dilation − before], for each channel, over the one or two axes before the last.

    x is (..., positions, channels); kernel is (channels, k) or (channels, h, w).
    """
    axes = kernel.ndim - 1
    widths = [(0, 0)] * x.ndim
    lengths = []
    for i in range(axes):
        axis, span = x.ndim - 1 - axes + i, (kernel.shape[1 + i] - 1) * dilation[i]
        before = {"same": span // 2, "left": span, "valid": 0}[padding]
        widths[axis] = (before, span - before if padding == "same" else 0)
        lengths.append(x.shape[axis] + sum(widths[axis]) - span)
    padded = np.pad(x, widths)
    y = np.zeros((*x.shape[: x.ndim - 1 - axes], *lengths, x.shape[-1]))
    for taps in np.ndindex(kernel.shape[1:]):
        window = [slice(tap * step, tap * step + n) for tap, step, n in zip(taps, dilation, lengths, strict=False)]
        y += padded[(..., *window, slice(None))] * kernel[(slice(None), *taps)]
    return y


def feed_forward(x, first, second, gate=None, activation="relu", keep=None, dropout=0.0):
    """The network over three maps; ``keep`` is the dropout mask, true where a hidden unit stays."""
    hidden = ACTIVATIONS[activation](first(x))
    if gate is not None:
        hidden = hidden * gate(x)
    if keep is not None:
        hidden = np.where(keep, hidden / (1 - dropout), 0.0)
    return second(hidden)


def block(ffn, x, activation, keep=None):
    """The output that the block should have on x: its tensors are read as float64 and put through the formula."""
    state = {name: array(value) for name, value in ffn.state_dict().items()}
    maps = {name: _map(state, name, ffn.spec) for name in ("layer1", "layer2", "linear_v")}
    return feed_forward(
        array(x), maps["layer1"], maps["layer2"], maps["linear_v"], activation, keep, ffn.spec.dropout
    )  # fmt: skip


def array(tensor):
    """A tensor's numbers in float64."""
    return tensor.detach().double().numpy()


def _map(state, name, spec):
    """The map that a layer's arrays stand for, or None where the block has no such layer."""
    if f"{name}.weight" in state:
        return lambda x: linear(x, state[f"{name}.weight"], state.get(f"{name}.bias"))
    if f"{name}.depthwise" not in state:
        return None
    kernel = state[f"{name}.depthwise"][:, 0]
    steps = spec.dilation if isinstance(spec.dilation, tuple) else (spec.dilation, spec.dilation)
    weight, bias = state[f"{name}.pointwise.weight"], state.get(f"{name}.pointwise.bias")
    return lambda x: linear(depthwise(x, kernel, spec.padding, steps), weight, bias)
