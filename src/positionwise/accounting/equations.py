"""The equation of a network that was found, in LaTeX."""

from __future__ import annotations

from positionwise.activations import ACTIVATIONS
from positionwise.adapters import Site

_LIKE = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_python": "gelu", "swish": "silu"}


def equation(site: Site) -> str:
    """Of a found network, x a column; a mixture's is the sum over the chosen experts, g the router's weights."""
    inner = _hidden(site)
    if site.normed:
        inner = rf"\mathrm{{norm}}\left({inner}\right)"
    if site.mixture is None:
        return rf"y = W_2 \left({inner}\right)" + (" + b_2" if site.biases[1] else "")
    expert = rf"W_2^{{(e)}} \left({inner}\right)" + (" + b_2^{(e)}" if site.biases[1] else "")
    chosen = "E" if site.mixture.top_k is None else rf"\mathrm{{top}}\text{{-}}{site.mixture.top_k}"
    total = rf"y = \sum_{{e \in {chosen}}} g_e(x) \left[{expert}\right]"
    return total + (r" + \mathrm{shared}(x)" if any(row.name.startswith("Shared") for row in site.components) else "")


def _hidden(site: Site) -> str:
    """What enters the second map: f(z), f(z) ⊙ v, or, where a clamp reaches both branches, f(z, v)."""
    bias, gate_bias = (" + b_1", " + c") if site.biases[0] else ("", "")
    name, _, offset = site.activation.partition(", up")
    z, v = "W_1 x" + bias, "V x" + gate_bias + offset
    if name.startswith("clamped"):
        return rf"\operatorname{{{name.partition(':')[0]}}}({z},\, {v})"
    row = ACTIVATIONS.get(_LIKE.get(name, name))
    if row is not None:
        hidden = row.equation.replace("{z}", z)
    else:
        hidden = r"\operatorname{" + name.replace("_", r"\_") + "}(" + z + ")"
    return hidden + rf" \odot \left({v}\right)" if site.is_gated else hidden
