"""Keras's variables by what they are: which part of which layer, whatever form their names have.

Three forms are read: a weights file's paths (``layers/transformer_encoder/self_attention/query_dense/vars/0``),
variables' own paths (``transformer_encoder/multi_head_attention/query/kernel``), and attributes
(``transformer_encoder.self_attention.query.kernel``).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

# A part of a layer: its name in the book's classes, its name in KerasHub's, and its class, by which variables' own
# paths number the layers in the order in which they were made.
_PARTS = {
    "self_attention": ("self_attention", "self_attention_layer", "multi_head_attention"),
    "cross_attention": ("cross_attention", "cross_attention_layer", "multi_head_attention"),
    "self_attention_norm": ("self_attention_layernorm", "self_attention_layer_norm", "layer_normalization"),
    "cross_attention_norm": ("cross_attention_layernorm", "cross_attention_layer_norm", "layer_normalization"),
    "layer1": ("feed_forward_1", "feedforward_intermediate_dense", "dense"),
    "layer2": ("feed_forward_2", "feedforward_output_dense", "dense"),
    "feed_forward_norm": ("feed_forward_layernorm", "feedforward_layer_norm", "layer_normalization"),
    "tokens": ("token_embeddings", "token_embedding", "embedding"),
    "positions": ("position_embeddings", "position_embedding", "embedding"),
}
_BY_NAME = {name: part for part, names in _PARTS.items() for name in names[:2]}
_HUB = {names[1] for part, names in _PARTS.items() if part not in ("tokens", "positions")}
_NUMBERED = re.compile(r"(multi_head_attention|layer_normalization|dense|embedding)(?:_\d+)?")
_MAPS = {"query": "query", "query_dense": "query", "key": "key", "key_dense": "key", "value": "value",
         "value_dense": "value", "attention_output": "output", "output_dense": "output"}  # fmt: skip
_LEAVES = {"0": 0, "1": 1, "kernel": 0, "gamma": 0, "embeddings": 0, "bias": 1, "beta": 1}
_OPTIMIZERS = ("optimizer|loss_scale_optimizer|adam|adamw|adamax|adadelta|adafactor|adagrad|nadam|sgd|rmsprop|ftrl|"
               "lion|lamb|muon|schedule_free_adamw")  # fmt: skip
NO_WEIGHT = re.compile(rf"^(?:{_OPTIMIZERS})(?:_\d+)?[/.]|(?:^|[/.])seed_generator(?:_\d+|_state)?(?:$|[/.])")
"""Variables that are no weights: an optimizer's, and a dropout's random state."""


@dataclass
class Owner:
    """A layer: its parts (``self_attention.query``, ``layer1``, … or "" for itself), each with its two variables."""

    name: str
    start: str
    """How the names of its variables begin."""
    parts: dict[str, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))

    @property
    def kind(self) -> str:
        """What the layer is, by the parts that it has."""
        roots = {part.partition(".")[0] for part in self.parts}
        if "cross_attention" in roots:
            return "decoder"
        if "self_attention" in roots:
            return "encoder"
        if "tokens" in roots:
            return "embedding"
        if {"layer1", "layer2"} <= roots:
            return "feed_forward"
        return "map" if 1 in self.parts.get("", {}) else "table"

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers in its name: (10,) of ``dense_10``, (0,) of ``dense``."""
        return natural(self.name)[1]

    def inside(self, part: str | None = None) -> list[list[str]]:
        """The names of its variables, or of one part's, without the layer's own, cut where they are joined."""
        names = [name for found, each in self.parts.items() if part in (None, found) for name in each.values()]
        return [re.split("[/.]", name[len(self.start) :].lstrip("/.")) for name in names]

    @property
    def is_hub(self) -> bool:
        """Whether its parts have KerasHub's names."""
        return any(path[0].removeprefix("_") in _HUB for path in self.inside())


def natural(name: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """A name's words and its numbers, a missing one being 0: ``layer`` is before ``layer_2``, and that before _10."""
    words, numbers = [], []
    for part in name.split("/"):
        found = re.fullmatch(r"(.*?)_?(\d{0,18})", part, re.DOTALL)
        words.append(found[1] if found else part)
        numbers.append(int(found[2] or 0) if found else 0)
    return tuple(words), tuple(numbers)


def owners(names: Iterable[str]) -> tuple[list[Owner], list[str]]:
    """The layers, and the names that fit nowhere.

    Layers whose names differ in their numbers alone stand in their numbers' order; others in the order of their first
    variable.
    """
    found: dict[str, Owner] = {}
    unknown = []
    for name in names:
        place = _place(name)
        if place is None:
            unknown.append(name)
            continue
        layer, part, variable = place
        start = name[: len(name) - len(name.removeprefix("layers/")) + len(layer)]
        found.setdefault(layer, Owner(layer, start)).parts[part][variable] = name
    words: dict[tuple[str, ...], int] = {}
    for owner in found.values():
        _number(owner)
        words.setdefault(natural(owner.name)[0], len(words))
    return sorted(found.values(), key=lambda owner: (words[natural(owner.name)[0]], owner.numbers)), unknown


def _place(name: str) -> tuple[str, str, int] | None:
    """(layer, part, number of the variable) of a name."""
    path = name.removeprefix("layers/").replace(".", "/").split("/")
    leaf = _LEAVES.get(path.pop())
    if leaf is None:
        return None
    if path and path[-1] == "vars":
        path.pop()
    # A map called output_dense may be a layer of its own: it is attention's only inside of attention.
    inner = _MAPS[path.pop()] if len(path) > 1 and path[-1] in _MAPS and _is_attention(path[-2]) else ""
    root = path[-1] if path else ""
    numbered = _NUMBERED.fullmatch(root)
    if numbered and len(path) == 1 and numbered[1] in ("dense", "embedding"):
        numbered = None  # a layer of its own
    part = root if numbered else _BY_NAME.get(root.removeprefix("_"))
    if part is None:
        return "/".join(path), inner, leaf
    return "/".join(path[:-1]), f"{part}.{inner}".rstrip("."), leaf


def _is_attention(root: str) -> bool:
    part, numbered = _BY_NAME.get(root.removeprefix("_")), _NUMBERED.fullmatch(root)
    return part in ("self_attention", "cross_attention") or bool(numbered and numbered[1] == "multi_head_attention")


def _number(owner: Owner) -> None:
    """Give numbered parts their meaning: the first attention is to itself, the second to the source, and so on."""
    roots: dict[str, set[str]] = defaultdict(set)
    for part in owner.parts:
        root = part.partition(".")[0]
        if root not in _PARTS and (match := _NUMBERED.fullmatch(root)):
            roots[match[1]].add(root)
    two = len(roots["multi_head_attention"]) > 1
    renamed: dict[str, str] = {}
    for kind, found in roots.items():
        meanings = [part for part, names in _PARTS.items() if names[2] == kind and (two or "cross" not in part)]
        renamed |= dict(zip(sorted(found, key=lambda root: natural(root)[1]), meanings, strict=False))
    for part in list(owner.parts):
        root, dot, inner = part.partition(".")
        if root in renamed:
            owner.parts[f"{renamed[root]}{dot}{inner}"] = owner.parts.pop(part)


def missing(owner: Owner, part: str, number: int) -> str:
    """The name that a missing variable would have, in the form of the layer's other names; ``*`` for any number."""
    root, _, inner = part.partition(".")
    paths = owner.inside()
    stored = any("vars" in path for path in paths)
    path = [] if not root else [_root(owner, root)]
    if inner:
        path.append(f"{inner}_dense" if stored else "attention_output" if inner == "output" else inner)
    if stored:
        path += ["vars", str(number)]
    elif root in ("tokens", "positions"):
        path.append("embeddings")
    else:
        path.append(("gamma", "beta")[number] if root.endswith("_norm") else ("kernel", "bias")[number])
    dotted = not any("/" in name for each in owner.parts.values() for name in each.values())
    return ("." if dotted else "/").join([owner.start, *path] if owner.start else path)


def _root(owner: Owner, root: str) -> str:
    """A part's name beside the layer's other parts."""
    for part in owner.parts:
        if part.partition(".")[0] == root:
            return owner.inside(part)[0][0]
    paths = owner.inside()
    if any(_NUMBERED.fullmatch(path[0]) for path in paths):
        return f"{_PARTS[root][2]}_*"
    return "_" * any(path[0].startswith("_") for path in paths) + _PARTS[root][1 if owner.is_hub else 0]
