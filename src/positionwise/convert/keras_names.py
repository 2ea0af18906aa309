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

# A part of a layer, and the names that the book's classes, KerasHub's and our modules' places have for it.
_PARTS = {
    "self_attention": r"_?self_attention(?:_layer)?",
    "cross_attention": r"_?cross_attention(?:_layer)?",
    "self_attention_norm": r"_?self_attention_(?:layernorm|layer_norm)",
    "cross_attention_norm": r"_?cross_attention_(?:layernorm|layer_norm)",
    "feed_forward_norm": r"_?(?:feed_forward_layernorm|feedforward_layer_norm)",
    "layer1": r"_?(?:feed_forward_1|feedforward_intermediate_dense)",
    "layer2": r"_?(?:feed_forward_2|feedforward_output_dense)",
    "tokens": r"token_embeddings?",
    "positions": r"position_embeddings?",
    # Variables' own paths number the layers of a class in the order in which they were made.
    "attention": r"multi_head_attention(?:_\d+)?",
    "norm": r"layer_normalization(?:_\d+)?",
    "dense": r"dense(?:_\d+)?",
    "embedding": r"embedding(?:_\d+)?",
}
_MAPS = {"query": "query", "query_dense": "query", "key": "key", "key_dense": "key", "value": "value",
         "value_dense": "value", "attention_output": "output", "output_dense": "output"}  # fmt: skip
_LEAVES = {"0": 0, "1": 1, "kernel": 0, "gamma": 0, "embeddings": 0, "bias": 1, "beta": 1}
_PART = re.compile("|".join(f"(?P<{part}>{names})" for part, names in _PARTS.items()))
OPTIMIZER = re.compile(r"^optimizer(/|$)|(^|/)seed_generator(/|$)|(^|/)seed_generator_state$")
"""Variables that are no weights: an optimizer's, and a dropout's random state."""


@dataclass
class Owner:
    """A layer: its parts (``self_attention.query``, ``layer1``, … or "" for itself), each with its two variables."""

    name: str
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


def owners(names: Iterable[str]) -> tuple[list[Owner], list[str]]:
    """The layers in the order of their first variable, and the names that fit nowhere."""
    found: dict[str, Owner] = {}
    unknown = []
    for name in names:
        place = _place(name)
        if place is None:
            unknown.append(name)
            continue
        layer, part, variable = place
        found.setdefault(layer, Owner(layer)).parts[part][variable] = name
    for owner in found.values():
        _number(owner)
    return list(found.values()), unknown


def _place(name: str) -> tuple[str, str, int] | None:
    """(layer, part, number of the variable) of a name."""
    path = name.replace(".", "/").removeprefix("layers/").split("/")
    leaf = _LEAVES.get(path.pop())
    if leaf is None:
        return None
    if path and path[-1] == "vars":
        path.pop()
    # A map called output_dense may be a layer of its own: it is attention's only inside of attention.
    inner = _MAPS[path.pop()] if len(path) > 1 and path[-1] in _MAPS and _is_attention(path[-2]) else ""
    match = _PART.fullmatch(path[-1]) if path else None
    if match is None or match.lastgroup is None or (len(path) == 1 and match.lastgroup in ("dense", "embedding")):
        return "/".join(path), inner, leaf
    return "/".join(path[:-1]), f"{path[-1] if _is_numbered(match) else match.lastgroup}.{inner}".rstrip("."), leaf


def _is_attention(part: str) -> bool:
    match = _PART.fullmatch(part)
    return match is not None and match.lastgroup in ("self_attention", "cross_attention", "attention")


def _is_numbered(match: re.Match[str]) -> bool:
    return match.lastgroup in ("attention", "norm", "dense", "embedding")


def _number(owner: Owner) -> None:
    """Give numbered parts their meaning: the first attention is to itself, the second to the source, and so on."""
    numbered: dict[str, list[str]] = defaultdict(list)
    for part in owner.parts:
        root = part.partition(".")[0]
        match = _PART.fullmatch(root)
        if match and _is_numbered(match) and root not in numbered[str(match.lastgroup)]:
            numbered[str(match.lastgroup)].append(root)
    two = len(numbered["attention"]) > 1
    meanings = {
        "attention": ["self_attention", "cross_attention"],
        "norm": ["self_attention_norm", *(["cross_attention_norm"] if two else []), "feed_forward_norm"],
        "dense": ["layer1", "layer2"],
        "embedding": ["tokens", "positions"],
    }
    renamed: dict[str, str] = {}
    for kind, roots in numbered.items():
        roots.sort(key=lambda root: int((re.search(r"\d+$", root) or ["0"])[0]))
        renamed |= dict(zip(roots, meanings[kind], strict=False))
    for part in list(owner.parts):
        root, dot, inner = part.partition(".")
        if root in renamed:
            owner.parts[f"{renamed[root]}{dot}{inner}"] = owner.parts.pop(part)
