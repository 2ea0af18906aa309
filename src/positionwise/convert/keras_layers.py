"""Keras's layers as our modules' states: every variable there, of exactly the shape that the layer's sizes say.

Keras's kernels, by the axes that our configuration names: query, key (d_model, num_heads, key_dim), value (d_model,
num_heads, value_dim), attention's output (num_heads, value_dim, d_model), dense (inputs, outputs); ours are 2-D and
transposed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from torch import Tensor

from positionwise.convert.keras_names import Owner, missing
from positionwise.convert.tensors import Tensors
from positionwise.errors import ConvertError

State = dict[str, Tensor]
Axes = Mapping[str, tuple[tuple[str, ...], ...]]
"""The axes of each part's variables: a kernel's and a bias's, or a table's."""

_KEYS = (("d_model", "num_heads", "key_dim"), ("num_heads", "key_dim"))
_ATTENTION: Axes = {
    "query": _KEYS,
    "key": _KEYS,
    "value": (("d_model", "num_heads", "value_dim"), ("num_heads", "value_dim")),
    "output": (("num_heads", "value_dim", "d_model"), ("d_model",)),
}
_NORM = (("d_model",), ("d_model",))


def block_axes(kind: str) -> Axes:
    """The axes of an encoder's or a decoder's parts."""
    axes: dict[str, tuple[tuple[str, ...], ...]] = {}
    for attention in attentions(kind):
        axes |= {f"{attention}.{part}": each for part, each in _ATTENTION.items()} | {f"{attention}_norm": _NORM}
    return {**axes, **feed_forward_axes("layer1", "d_model"), **feed_forward_axes("layer2", "d_model"),
            "feed_forward_norm": _NORM}  # fmt: skip


def feed_forward_axes(layer: str, outputs: str) -> Axes:
    """The axes of one of a feed-forward network's two maps."""
    return {layer: (("d_model", "d_ff"), ("d_ff",)) if layer == "layer1" else (("d_ff", outputs), (outputs,))}


def attentions(kind: str) -> tuple[str, ...]:
    """The attentions of an encoder or a decoder."""
    return ("self_attention", "cross_attention") if kind == "decoder" else ("self_attention",)


def fit(tensors: Tensors, layers: list[tuple[Owner, Axes]], known: Mapping[str, int] | None = None) -> dict[str, int]:
    """The sizes of the axes, as most variables have them and the first of equally many.

    Args:
        tensors: the source's.
        layers: the axes of every layer's variables.
        known: sizes that are not asked for.

    Raises:
        ConvertError: for a variable that is missing or has another shape; it names it.
    """
    votes: dict[str, Counter[int]] = defaultdict(Counter)
    for owner, parts in layers:
        for part, number, axes in _variables(parts):
            name = owner.parts.get(part, {}).get(number)
            if name is not None and len(tensors.shape(name)) == len(axes):
                for axis, size in zip(axes, tensors.shape(name), strict=True):
                    votes[axis][size] += 1
    sizes = {axis: found.most_common(1)[0][0] for axis, found in votes.items()} | dict(known or {})
    for owner, parts in layers:
        for part, number, axes in _variables(parts):
            name = variable(owner, part, number)
            expected = tuple(sizes.get(axis, axis) for axis in axes)
            if tensors.shape(name) != expected:
                shown = f"({', '.join(map(str, expected))}{',' * (len(expected) == 1)})"
                raise ConvertError(f"expected {name!r} of shape {shown}; got {tensors.shape(name)}")
    return sizes


def fit_blocks(tensors: Tensors, layers: list[Owner]) -> dict[str, int]:
    """The sizes of the first encoder or decoder layer, which every other one must have too."""
    axes = [(owner, block_axes(owner.kind)) for owner in layers]
    return fit(tensors, axes[1:], fit(tensors, axes[:1]))


def _variables(parts: Axes) -> list[tuple[str, int, tuple[str, ...]]]:
    return [(part, number, axes) for part, both in parts.items() for number, axes in enumerate(both)]


def variable(owner: Owner, part: str, number: int) -> str:
    """The source's name of a variable that must be there."""
    name = owner.parts.get(part, {}).get(number)
    if name is None:
        raise ConvertError(f"expected a variable {missing(owner, part, number)!r}; got none of that name")
    return name


def take_map(tensors: Tensors, owner: Owner, part: str, at: str, into: int = 1) -> State:
    """A dense layer, or a map of attention: the first ``into`` axes of its kernel are the input's."""
    kernel, bias = take(tensors, owner, part, {0: f"{at}.weight", 1: f"{at}.bias"}).values()
    return {f"{at}.weight": kernel.flatten(0, into - 1).flatten(1).T, f"{at}.bias": bias.flatten()}


def take(tensors: Tensors, owner: Owner, part: str, targets: Mapping[int, str]) -> State:
    """Variables of a part as they are."""
    return {target: tensors.take(variable(owner, part, number), target) for number, target in targets.items()}


def block(tensors: Tensors, owner: Owner, at: str) -> State:
    """An encoder or decoder layer."""
    state: State = {}
    norms = ["feed_forward_norm"]
    for attention in attentions(owner.kind):
        for part in _ATTENTION:
            into = 2 if part == "output" else 1
            state |= take_map(tensors, owner, f"{attention}.{part}", f"{at}{attention}.{part}", into)
        norms.append(f"{attention}_norm")
    for part in ("layer1", "layer2"):
        state |= take_map(tensors, owner, part, f"{at}feed_forward.{part}")
    for norm in norms:
        state |= take(tensors, owner, norm, {0: f"{at}{norm}.weight", 1: f"{at}{norm}.bias"})
    return state


def blocks(tensors: Tensors, layers: list[Owner], at: str) -> State:
    """Layers one after another."""
    return {name: value for i, owner in enumerate(layers) for name, value in block(tensors, owner, f"{at}{i}.").items()}
