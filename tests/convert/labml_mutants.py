"""The mistakes that people make in this network: each is the right network of a case with one part exchanged.

The index of labml's cases has, for each, how far its output then lands from the right one.
"""

from functools import partial

import torch
from torch.nn import functional as F

RIGHT = {
    "relu": F.relu,
    "relu2": lambda z: F.relu(z) ** 2,
    "gelu": F.gelu,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "identity": lambda z: z,
}
LEAKY = {"relu": lambda z: F.leaky_relu(z, 0.01), "relu2": lambda z: F.leaky_relu(z, 0.01) ** 2}


def network(case, functions=RIGHT, combine=lambda f, z, v: f(z) * v, without=None):
    """labml's network at rest, or a mistake in it.

    Args:
        case: a `labml_cases.Case` at rest.
        functions: f by its name.
        combine: how a gated network makes its hidden units of f, z = W₁x + b₁ and v = Vx + c.
        without: the name of a parameter that is left out.
    """
    tensors = {name: tensor for name, tensor in case.state.items() if name != without}

    def linear(name, x):
        return F.linear(x, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))

    x, f = case.tensors["x"], functions[case.index["activation"]]
    z = linear("layer1", x)
    hidden = combine(f, z, linear("linear_v", x)) if case.index["is_gated"] else f(z)
    return linear("layer2", hidden)


def only(name, function):
    """The functions, one of them exchanged."""
    return {**RIGHT, name: function}


MUTANTS = {
    "gate_on_V": partial(network, combine=lambda f, z, v: z * f(v)),
    "act_over_product": partial(network, combine=lambda f, z, v: f(z * v)),
    "act_on_both": partial(network, combine=lambda f, z, v: f(z) * f(v)),
    "no_gate": partial(network, combine=lambda f, z, v: f(z)),
    "sum_not_product": partial(network, combine=lambda f, z, v: f(z) + v),
    "drop_bias1": partial(network, without="layer1.bias"),
    "drop_bias2": partial(network, without="layer2.bias"),
    "drop_bias_gate": partial(network, without="linear_v.bias"),
    "no_activation": partial(network, functions=dict.fromkeys(RIGHT, RIGHT["identity"])),
    "leak_0.01": partial(network, functions={**RIGHT, **LEAKY}),
    "gelu_tanh": partial(network, functions=only("gelu", lambda z: F.gelu(z, approximate="tanh"))),
    "gelu_quick": partial(network, functions=only("gelu", lambda z: z * torch.sigmoid(1.702 * z))),
    "silu_as_gelu": partial(network, functions=only("silu", F.gelu)),
}
