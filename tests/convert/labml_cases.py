"""labml's FeedForward in numbers: 52 cases that labml_nn.transformers.feed_forward computed in float64 (e6b3c8a6).

Each case has its call, its weights, an input x and a cotangent R (3, 7, 12), and what came of them: the output, the
hidden units before dropout (3, 7, 40), the mask that dropout drew, and the gradients of sum(out · R).
"""

import functools
import json
from contextlib import nullcontext
from dataclasses import dataclass
from unittest import mock

import numpy as np
import torch
from torch.nn import functional as F

from positionwise import FeedForward, explain
from positionwise.kernels import product
from shared import shared_file

UNGATED = [f"{name}_{bits}" for name in ("relu", "gelu", "silu", "relu2") for bits in ("11", "00", "10", "01")]
GATED = [
    f"{name}_{bits}"
    for name in ("glu", "bilinear", "reglu", "geglu", "swiglu")
    for bits in ("111", "000", "101", "010", "110")  # bias1, bias2, bias_gate
]
DROPPED = ["traindrop_relu", "traindrop_geglu", "traindrop_swiglu"]
RESTING = ["evaldrop_relu", "evaldrop_geglu", "evaldrop_swiglu"]
BIG = ["big_gelu", "big_silu", "big_geglu", "big_swiglu"]  # x of eight times the size
NAMES = [*UNGATED, *GATED, *DROPPED, *RESTING, *BIG, "int_reglu"]  # the last: small integers alone, R excepted


@dataclass(frozen=True)
class Case:
    """One case: ``index`` is its row of the JSON file, ``tensors`` are its arrays of the npz file."""

    name: str
    index: dict
    tensors: dict

    @property
    def arguments(self):
        """The arguments in labml's order; an ungated case says nothing of the gate's bias."""
        names = ["d_model", "d_ff", "dropout_p", "activation", "is_gated", "bias1", "bias2"]
        return tuple(self.index[name] for name in names + ["bias_gate"] * self.index["is_gated"])

    @property
    def state(self):
        """The weights under the names of labml's state dict."""
        return {name: self.tensors[name] for name in self.index["params"]}

    @property
    def expected(self):
        """What the original gave: out, hidden (before dropout), entering (layer2), grad_x and grad_<parameter>."""
        hidden = self.tensors["hidden"]
        gradients = {key: value for key, value in self.tensors.items() if key.startswith("grad_")}
        entering = hidden if self.mask is None else hidden * self.mask
        return {"out": self.tensors["out"], "hidden": hidden, "entering": entering, **gradients}

    @property
    def training(self):
        return self.index["mode"] == "train"

    @property
    def mask(self):
        """What labml's dropout multiplied the hidden units by, 0 or 1/(1 − p); None at rest."""
        return self.tensors.get("dropout_mask")


class Replayed:
    """Stands in for F.dropout: multiplies by a stored mask, and is F.dropout without one; keeps what it was told.

    Paths but the reference draw masks themselves, the lean one for all positions in a row and in backward again: there
    `keep_mask` stands in.
    """

    def __init__(self, mask):
        self.mask, self.real, self.calls, self.seen = mask, F.dropout, [], {}

    def keep_mask(self, shape, p, dtype, generator=None):
        self.calls.append((tuple(shape), p, True))
        return self.mask.reshape(shape)

    def __call__(self, hidden, p=0.5, training=True, inplace=False):
        entering = self.real(hidden, p, training) if self.mask is None else hidden * self.mask
        self.calls.append((tuple(hidden.shape), p, training))
        self.seen = {"hidden": hidden.detach(), "entering": entering.detach()}
        return entering


def index():
    """The whole index: where the cases come from, and the row of each."""
    return json.loads(shared_file("fixtures/labml/fixtures_public.json").read_text())


@functools.cache
def cases():
    """Every case by its name; read once, so its tensors are not to be changed."""
    arrays = np.load(shared_file("fixtures/labml/fixtures_public.npz"))
    found = {name: {} for name in index()["cases"]}
    for key in arrays.files:
        name, _, quantity = key.partition("/")
        if name in found:
            found[name][quantity] = torch.from_numpy(arrays[key])
    return {name: Case(name, row, found[name]) for name, row in index()["cases"].items()}


def block(case, backend="auto"):
    """The case's block in float64, called as labml's is, with the case's weights."""
    ffn = FeedForward(*case.arguments, backend=backend, dtype=torch.float64)
    ffn.load_state_dict(case.state, strict=True)
    return ffn.train(case.training)


def measured(case, way="auto"):
    """What our block gives on a case, under the names of ``Case.expected``, and the calls of dropout.

    ``way`` is a backend, or ``layers``: then a hook of layer2 forces the path that calls the layers, and is what sees
    the entering units. A hook would take a backend off its path, so there they are what dropout gives, and on the lean
    path what goes into the second product; the hidden units before dropout are nowhere whole there.
    """
    ffn, dropout, x = block(case, "auto" if way == "layers" else way), Replayed(case.mask), case.tensors["x"].clone()
    entering = {}
    if way == "layers":
        ffn.layer2.register_forward_pre_hook(lambda layer, args: entering.update(entering=args[0].detach()))
    path = explain(ffn, x.requires_grad_()).path
    assert path == ("lean" if way == "auto" else way)
    names, leaves = zip(*ffn.named_parameters(), strict=True)
    masks = mock.patch("positionwise.kernels.dropout.keep_mask", dropout.keep_mask)
    plain = product.linear_

    def linear_(x, weight, bias, out):
        if weight.shape == ffn.layer2.weight.shape:
            entering["entering"] = x.detach().clone().reshape(3, 7, 40)
        return plain(x, weight, bias, out)

    # Where PyTorch's dropout is replaced, the replacement is called: so only where that is what is wanted.
    replaced = mock.patch.object(F, "dropout", dropout) if way == "reference" else nullcontext()
    with replaced, masks, mock.patch.object(product, "linear_", linear_):
        out = ffn(x.requires_grad_())
        gradients = torch.autograd.grad((out * case.tensors["R"]).sum(), [x, *leaves])
    numbers = dict(zip(["grad_x", *(f"grad_{name}" for name in names)], gradients, strict=True))
    return {"out": out.detach(), **dropout.seen, **entering, **numbers}, dropout.calls


def errors(case, way="auto"):
    """For each quantity, the largest difference from labml's number as a share of the largest of labml's numbers."""
    got, _ = measured(case, way)
    return {
        name: ((got[name] - number).abs().max() / number.abs().max()).item()
        for name, number in case.expected.items()
        if name in got
    }


def check(got, expected):
    """Every entry within 1e-9 of its own size.

    Beside that, 1e-14 of the largest entry: an entry that is small because large terms cancel is no more exact than
    they are (at most 40 terms, each within 1.1e-16 of itself).
    """
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-14 * expected.abs().max().item())
