"""Keras's weights as our modules: a layer of the book's or of KerasHub's classes, or the book's translation model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from positionwise.convert.keras_files import read_keras, read_weights
from positionwise.convert.keras_names import OPTIMIZER, Owner, owners
from positionwise.convert.tensors import Arrays, Conversion, Tensors, read, read_npz
from positionwise.errors import ConvertError
from positionwise.feedforward import FeedForward
from positionwise.transformer import PRESETS, DecoderLayer, EncoderLayer, TransformerConfig, TransformerForTranslation
from positionwise.transformer.models import Encoder

State = dict[str, Tensor]
_ACTIVATIONS = {"linear": "identity", "swish": "silu"}
_BOOK = PRESETS["keras-translation"]
_HUB_EPSILON = 1e-5


def from_keras(
    source: Any,
    *,
    num_heads: int | None = None,
    epsilon: float | None = None,
    norm_first: bool | None = None,
    activation: str | None = None,
) -> nn.Module:
    """A module with Keras 3's weights, read without Keras; nothing in the file is executed.

    Args:
        source: a ``.weights.h5`` or ``.keras`` file, or a mapping of variable names to arrays (or an ``.npz`` file of
            one), named as in the weights file or by the variables' own paths.
        num_heads: checked against the kernels, whose shape holds it.
        epsilon: of the layer norms. Where neither it nor the file says, 1e-3 as in the book's classes (Keras's
            default), 1e-5 in KerasHub's.
        norm_first: pre-norm; likewise, False in both.
        activation: of the feed-forward networks; likewise, ``relu`` in both.

    Returns:
        `FeedForward` for two dense layers, `EncoderLayer`, `DecoderLayer`, ``Encoder`` for several encoder layers,
        `TransformerForTranslation` for the whole model; in evaluation mode. An optimizer's variables are set aside.

    Raises:
        ConvertError: for a variable that is missing, unknown, of a wrong shape or not finite, naming it; for a damaged
            file; and for an option that contradicts the file.
    """
    return convert_keras(
        source, num_heads=num_heads, epsilon=epsilon, norm_first=norm_first, activation=activation
    ).module  # fmt: skip


def convert_keras(source: Any, **options: Any) -> Conversion:
    """`from_keras` with the account of what went where."""
    said: list[dict[str, Any]] = []

    def archive(path: Path) -> dict[str, Any]:
        arrays, layers = read_keras(path)
        said.extend(layers)
        return arrays

    readers: dict[str, Callable[[Path], Arrays]] = {".npz": read_npz, ".keras": archive, ".h5": read_weights}
    arrays = dict(read(source, readers, _refuse))
    if any(name.startswith("w:") for name in arrays):  # a fixture's archive holds its results beside the weights
        arrays = {name[2:]: value for name, value in arrays.items() if name.startswith("w:")}
    tensors = Tensors(arrays, [name for name in arrays if OPTIMIZER.search(name)])
    found, unknown = owners(tensors.names())
    if unknown or not found:
        raise ConvertError(f"expected variables of Keras layers; got {unknown[0] if unknown else 'none'!r}")
    return _Reader(tensors, found, Said.of(said, options, found)).convert()


def _refuse(path: Path) -> dict[str, Any]:
    raise ConvertError(f"expected a .keras, .weights.h5 or .npz file; got {path}")


@dataclass(frozen=True)
class Said:
    """What the file's description and the caller say beside the weights."""

    num_heads: int | None
    epsilon: float
    norm_first: bool
    activation: str
    output_dropout: float

    @classmethod
    def of(cls, layers: list[dict[str, Any]], options: dict[str, Any], found: list[Owner]) -> Said:
        """Join the two, and the original classes' own defaults where neither says anything.

        Raises:
            ConvertError: when they contradict each other, or layers of one model differ.
        """
        names = {"num_heads": "num_heads", "epsilon": "layer_norm_epsilon", "norm_first": "normalize_first",
                 "activation": "activation"}  # fmt: skip
        blocks = [each["config"] for each in layers if str(each["class_name"]).startswith("Transformer")]
        merged: dict[str, Any] = {}
        for ours, theirs in names.items():
            values = {repr(block[theirs]): block[theirs] for block in blocks if block.get(theirs) is not None}
            if options.get(ours) is not None:
                values.setdefault(repr(options[ours]), options[ours])
            if len(values) > 1:
                raise ConvertError(f"expected one {ours} of the file and the options; got {' and '.join(values)}")
            merged[ours] = next(iter(values.values()), None)
        hub = any(part.startswith("_") or "_layer/" in part for owner in found for part in _paths(owner))
        rates = [each["config"].get("rate") for each in layers if each["class_name"] == "Dropout"]
        activation = "relu" if merged["activation"] is None else merged["activation"]
        if not isinstance(activation, str):
            raise ConvertError(f"expected the activation's name; got {activation!r}")
        return cls(
            merged["num_heads"],
            merged["epsilon"] if merged["epsilon"] is not None else _HUB_EPSILON if hub else _BOOK["layer_norm_eps"],
            bool(merged["norm_first"]),
            _ACTIVATIONS.get(activation, activation),
            rates[0] if rates else _BOOK["output_dropout"],
        )


def _paths(owner: Owner) -> list[str]:
    """The names of a layer's variables, without the layer's own."""
    names = [name for variables in owner.parts.values() for name in variables.values()]
    return [name.replace(".", "/").partition(f"{owner.name}/")[2] for name in names]


class _Reader:
    """Puts layers together."""

    def __init__(self, tensors: Tensors, found: list[Owner], said: Said) -> None:
        self.tensors = tensors
        self.found = found
        self.said = said

    def of(self, *kinds: str) -> list[Owner]:
        return [owner for owner in self.found if owner.kind in kinds]

    def convert(self) -> Conversion:
        """Build the smallest of our modules that holds all layers."""
        kinds = [owner.kind for owner in self.found]
        if kinds == ["feed_forward"] or kinds == ["map", "map"]:
            return self._feed_forward()
        if kinds == ["encoder"]:
            config = self.config(self.found[0])
            return self.tensors.load(EncoderLayer(config), self.layer(self.found[0], ""), config)
        if kinds == ["decoder"]:
            config = self.config(self.found[0])
            return self.tensors.load(DecoderLayer(config), self.layer(self.found[0], ""), config)
        if set(kinds) == {"encoder"} and not self.said.norm_first:
            config = self.config(self.found[0], encoder_layers=len(kinds))
            return self.tensors.load(Encoder(config), self.stack(self.found, "layers."), config)
        return self._model()

    def variable(self, owner: Owner, part: str, number: int, target: str) -> Tensor:
        """One of a part's variables."""
        name = owner.parts.get(part, {}).get(number)
        if name is None:
            kind = "kernel" if number == 0 else "bias"
            raise ConvertError(f"expected the {kind} of {part or 'a map'} in {owner.name!r}; got none")
        return self.tensors.take(name, target)

    def map(self, owner: Owner, part: str, at: str, into: int = 1) -> State:
        """A dense layer, or a map of attention: the first ``into`` axes of its kernel are the input's."""
        kernel = self.variable(owner, part, 0, f"{at}.weight")
        bias = self.variable(owner, part, 1, f"{at}.bias")
        if kernel.dim() <= into:
            raise ConvertError(f"expected a kernel of more than {into} axes in {owner.parts[part][0]!r}; got "
                               f"{tuple(kernel.shape)}")  # fmt: skip
        return {f"{at}.weight": kernel.flatten(0, into - 1).flatten(1).T, f"{at}.bias": bias.flatten()}

    def norm(self, owner: Owner, part: str, at: str) -> State:
        """A layer norm."""
        names = {f"{at}.weight": 0, f"{at}.bias": 1}
        return {target: self.variable(owner, part, number, target) for target, number in names.items()}

    def layer(self, owner: Owner, at: str) -> State:
        """An encoder or decoder layer."""
        state: State = {}
        for attention in ("self_attention", *(["cross_attention"] if owner.kind == "decoder" else [])):
            for part in ("query", "key", "value"):
                state |= self.map(owner, f"{attention}.{part}", f"{at}{attention}.{part}")
            state |= self.map(owner, f"{attention}.output", f"{at}{attention}.output", into=2)
            state |= self.norm(owner, f"{attention}_norm", f"{at}{attention}_norm")
        for part in ("layer1", "layer2"):
            state |= self.map(owner, part, f"{at}feed_forward.{part}")
        return state | self.norm(owner, "feed_forward_norm", f"{at}feed_forward_norm")

    def stack(self, layers: list[Owner], at: str) -> State:
        """Layers one after another."""
        return {name: value for i, owner in enumerate(layers) for name, value in self.layer(owner, f"{at}{i}.").items()}

    def shape(self, owner: Owner, part: str, axes: int) -> tuple[int, ...]:
        """The shape of a part's kernel, which must have so many axes."""
        name = owner.parts.get(part, {}).get(0)
        if name is None:
            raise ConvertError(f"expected the kernel of {part or 'a map'} in {owner.name!r}; got none")
        shape = self.tensors.shape(name)
        if len(shape) != axes:
            raise ConvertError(f"expected a kernel of {axes} axes in {name!r}; got {shape}")
        return shape

    def config(self, layer: Owner, **fields: Any) -> TransformerConfig:
        """The configuration that a layer's shapes and the rest of what is said make."""
        d_model, heads, key_dim = self.shape(layer, "self_attention.query", 3)
        if self.said.num_heads not in (None, heads):
            raise ConvertError(f"expected {heads} heads as in {layer.name!r}; got num_heads={self.said.num_heads}")
        keys, values = (self.shape(layer, f"self_attention.{part}", 3) for part in ("key", "value"))
        if keys != (d_model, heads, key_dim) or values[:2] != (d_model, heads):
            name = layer.parts["self_attention.key"][0]
            raise ConvertError(f"expected keys, and values beside them, for queries {(d_model, heads, key_dim)} in "
                               f"{name!r}; got {keys} and {values}")  # fmt: skip
        sizes = {
            "d_model": d_model, "num_heads": heads, "key_dim": key_dim, "value_dim": values[2],
            "d_ff": self.shape(layer, "layer1", 2)[1], "layer_norm_eps": self.said.epsilon,
            "norm_first": self.said.norm_first, "activation": self.said.activation,
            "output_dropout": self.said.output_dropout,
        }  # fmt: skip
        return TransformerConfig(**{**_BOOK, **sizes, **fields})

    def _feed_forward(self) -> Conversion:
        first, second = (self.found * 2)[:2]
        parts = ("layer1", "layer2") if first is second else ("", "")
        state: State = {}
        for owner, part, ours in zip((first, second), parts, ("layer1", "layer2"), strict=True):
            state |= self.map(owner, part, ours)
        (d_ff, d_model), d_out = state["layer1.weight"].shape, len(state["layer2.weight"])
        options: dict[str, Any] = {"activation": self.said.activation, "dropout": 0.0}
        block = FeedForward(d_model, d_ff, d_out=None if d_out == d_model else d_out, **options)
        return self.tensors.load(block, state)

    def _model(self) -> Conversion:
        """The book's translation model, with positions or without."""
        tables, encoders, decoders, maps = (self.of(*kinds) for kinds in
                                            (("embedding", "table"), ("encoder",), ("decoder",), ("map",)))  # fmt: skip
        if len(tables) != 2 or not encoders or not decoders or len(maps) != 1 or self.said.norm_first:
            kinds = ", ".join(f"{owner.name} ({owner.kind})" for owner in self.found)
            raise ConvertError(f"expected a layer, or two embeddings, post-norm encoders and decoders and one output "
                               f"map; got {kinds}")  # fmt: skip
        state = self.map(maps[0], "", "output")
        tables = self._in_order(tables, len(state["output.weight"]))
        fields: dict[str, Any] = {"encoder_layers": len(encoders), "decoder_layers": len(decoders)}
        for side, size, owner in zip(("source", "target"), ("vocab_size", "target_vocab_size"), tables, strict=True):
            part = "tokens" if owner.kind == "embedding" else ""
            state[f"{side}_embedding.weight"] = self.variable(owner, part, 0, f"{side}_embedding.weight")
            fields[size] = len(state[f"{side}_embedding.weight"])
            if "positions" in owner.parts:
                state[f"{side}_positions.weight"] = self.variable(owner, "positions", 0, f"{side}_positions.weight")
        rows = [len(state[name]) for name in ("source_positions.weight", "target_positions.weight") if name in state]
        if len(rows) == 1 or len(set(rows)) > 1:
            raise ConvertError(f"expected the same positions on both sides; got {rows} rows")
        fields |= {"positions": "learned", "max_positions": rows[0]} if rows else {"positions": "none"}
        config = self.config(encoders[0], **fields)
        state |= self.stack(encoders, "encoder.layers.") | self.stack(decoders, "decoder.layers.")
        return self.tensors.load(TransformerForTranslation(config), state)

    def _in_order(self, tables: list[Owner], target_size: int) -> list[Owner]:
        """Source, then target: the target's table has the output's rows; where both have, the first is the source's."""
        rows = [self.shape(owner, "tokens" if owner.kind == "embedding" else "", 2)[0] for owner in tables]
        if target_size not in rows:
            raise ConvertError(
                f"expected an embedding of the output's {target_size} words; got {rows[0]} and {rows[1]}"
            )
        return tables if rows[1] == target_size else tables[::-1]
