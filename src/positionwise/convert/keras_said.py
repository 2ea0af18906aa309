"""What a Keras file's description and the caller say beside the weights, and what is assumed where neither does."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from positionwise.convert.keras_names import Owner
from positionwise.errors import ConvertError
from positionwise.transformer import PRESETS, TransformerConfig

_ACTIVATIONS = {"linear": "identity", "swish": "silu"}
_BOOK = PRESETS["keras-translation"]
_HUB_EPSILON = 1e-5
# Our options, what KerasHub's layers call them, and their kinds.
_FIELDS: dict[str, tuple[str, type]] = {
    "num_heads": ("num_heads", int), "epsilon": ("layer_norm_epsilon", float), "norm_first": ("normalize_first", bool),
    "activation": ("activation", str), "dropout": ("dropout", float),
}  # fmt: skip


@dataclass(frozen=True)
class Said:
    """What the file's description and the caller say."""

    layers: Mapping[str, dict[str, Any]]
    """The description's layers by their names among the weights."""
    options: Mapping[str, Any]

    def label(self, owner: Owner) -> str:
        """A layer's name as its maker gave it, where the file says it."""
        return str(self._config(owner).get("name") or self.layers.get(owner.name, {}).get("name") or owner.name)

    def _config(self, owner: Owner) -> dict[str, Any]:
        found: dict[str, Any] = self.layers.get(owner.name, {}).get("config", {})
        return found

    def field(self, name: str) -> Any:
        """What the blocks and the caller say of a field; None where they do not.

        Raises:
            ConvertError: when they contradict each other, layers of one model differ, or the value is of another kind.
        """
        theirs, kind = _FIELDS[name]
        blocks = [each["config"] for each in self.layers.values() if each["class_name"].startswith("Transformer")]
        return _one(name, kind, [*(block.get(theirs) for block in blocks), self.options.get(name)])

    def dense_activations(self, maps: Iterable[Owner]) -> list[str | None]:
        """The activations of dense layers, by our names; None where the file does not say."""
        dense = [owner for owner in maps if self.layers.get(owner.name, {}).get("class_name") == "Dense"]
        return [_one("activation", str, [self._config(owner).get("activation")]) if owner in dense else None
                for owner in maps]  # fmt: skip

    def feed_forward(self, maps: list[Owner]) -> tuple[str, tuple[str, ...]]:
        """The activation of two dense layers, and what is assumed."""
        first, second = self.dense_activations(maps)
        if second not in (None, "identity"):
            raise ConvertError(f"expected a linear {self.label(maps[1])!r} after {self.label(maps[0])!r}; "
                               f"got its activation {second!r}")  # fmt: skip
        said = _one("activation", str, [first, self.field("activation")])
        return (said, ()) if said is not None else ("relu", ("activation=relu (--activation)",))

    def config(self, sizes: Mapping[str, int], blocks: list[Owner], **fields: Any) -> tuple[Any, tuple[str, ...]]:
        """The configuration that sizes and the rest of what is said make, and what of it is assumed.

        KerasHub's one rate drops attention's weights and each sublayer's output, not the hidden units.
        """
        heads = self.field("num_heads")
        if heads not in (None, sizes["num_heads"]):
            raise ConvertError(f"expected {sizes['num_heads']} heads as in {blocks[0].name!r}; got num_heads={heads}")
        epsilon = _HUB_EPSILON if any(owner.is_hub for owner in blocks) else _BOOK["layer_norm_eps"]
        defaults: dict[str, Any] = {
            "epsilon": epsilon,
            "norm_first": False,
            "activation": "relu",
            "dropout": _BOOK["dropout"],
        }
        said = {name: self.field(name) for name in defaults}
        assumed = [f"{name}={value}" + ("" if name == "dropout" else f" (--{name.replace('_', '-')})")
                   for name, value in defaults.items() if said[name] is None]  # fmt: skip
        taken = {name: value if said[name] is None else said[name] for name, value in defaults.items()}
        taken["layer_norm_eps"] = taken.pop("epsilon")
        taken["attention_dropout"] = taken["dropout"]
        return TransformerConfig(**{**_BOOK, **sizes, **taken, **fields}), tuple(assumed)

    def output_dropout(self) -> tuple[float, tuple[str, ...]]:
        """The rate of a whole model's Dropout layer, which stands before its output, and what is assumed."""
        layers = [each["config"] for each in self.layers.values() if each["class_name"] == "Dropout"]
        rate = _one("rate of Dropout", float, [each.get("rate") for each in layers])
        book: float = _BOOK["output_dropout"]
        return (book, (f"output_dropout={book}",)) if rate is None else (rate, ())


def _one(name: str, kind: type, values: Iterable[Any]) -> Any:
    """The one value among those that are said; None where none is."""
    found: list[Any] = []
    for value in values:
        if value is None:
            continue
        if not _is(kind, value):
            raise ConvertError(f"expected {name} to be of type {kind.__name__}; got {reprlib.repr(value)}")
        value = _ACTIVATIONS.get(value, value) if kind is str else kind(value)
        if value not in found:
            found.append(value)
    if len(found) > 1:
        raise ConvertError(f"expected one {name} of the file and the options; got {' and '.join(map(repr, found))}")
    return found[0] if found else None


def _is(kind: type, value: Any) -> bool:
    """Whether a value is of a kind: an integer may stand for a float, True for no number."""
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return isinstance(value, kind) and isinstance(value, bool) == (kind is bool)
