"""Keras's weights as our modules: a layer of the book's or of KerasHub's classes, or the book's translation model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from positionwise.convert.keras_files import read_keras, read_weights
from positionwise.convert.keras_layers import State, block, blocks, feed_forward_axes, fit, fit_blocks, take_map
from positionwise.convert.keras_model import NO_NORM, translation
from positionwise.convert.keras_names import NO_WEIGHT, Owner, owners
from positionwise.convert.keras_said import Said
from positionwise.convert.tensors import Arrays, Conversion, Tensors, read, read_npz
from positionwise.errors import ConvertError, SpecError
from positionwise.feedforward import FeedForward
from positionwise.transformer import DecoderLayer, EncoderLayer
from positionwise.transformer.models import Encoder


def from_keras(
    source: Any,
    *,
    num_heads: int | None = None,
    epsilon: float | None = None,
    norm_first: bool | None = None,
    activation: str | None = None,
) -> nn.Module:
    """A module with Keras 3's weights, read without Keras; nothing in the file is executed.

    Layers of one kind stand in the order of the numbers in their names (``dense``, ``dense_2``, ``dense_10``), and in
    the source's where names differ in more than numbers. The two embeddings of a model are told apart by the words
    source and target, or encoder and decoder, in their names, or else by number; two dense layers by number, or the
    other way round where only that fits.

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
            file; for several pre-norm layers, after which our stack has a norm; and for an option that contradicts the
            file.
    """
    return convert_keras(
        source, num_heads=num_heads, epsilon=epsilon, norm_first=norm_first, activation=activation
    ).module  # fmt: skip


def convert_keras(source: Any, **options: Any) -> Conversion:
    """`from_keras` with the account of what went where, and of what was assumed."""
    said: dict[str, dict[str, Any]] = {}

    def archive(path: Path) -> dict[str, Any]:
        arrays, layers = read_keras(path)
        said.update(layers)
        return arrays

    readers: dict[str, Callable[[Path], Arrays]] = {".npz": read_npz, ".keras": archive, ".h5": read_weights}
    arrays = dict(read(source, readers, _refuse))
    if any(name.startswith("w:") for name in arrays):  # a fixture's archive holds its results beside the weights
        arrays = {name[2:]: value for name, value in arrays.items() if name.startswith("w:")}
    tensors = Tensors(arrays, [name for name in arrays if NO_WEIGHT.search(name)])
    found, unknown = owners(tensors.names())
    if unknown or not found:
        raise ConvertError(f"expected variables of Keras layers; got {unknown[0] if unknown else 'none'!r}")
    try:
        return _module(tensors, found, Said(said, options))
    except SpecError as error:  # a size of 0, an activation that we do not have, a rate above 1
        raise ConvertError(str(error)) from None


def _refuse(path: Path) -> dict[str, Any]:
    raise ConvertError(f"expected a .keras, .weights.h5 or .npz file; got {path}")


def _module(tensors: Tensors, found: list[Owner], said: Said) -> Conversion:
    """The smallest of our modules that holds all layers."""
    kinds = [owner.kind for owner in found]
    if kinds == ["feed_forward"]:
        return _feed_forward(tensors, found * 2, ("layer1", "layer2"), said)
    if len(kinds) == 2 and set(kinds) <= {"map", "table"}:  # here a table is a map that lacks its bias
        return _feed_forward(tensors, _in_order(tensors, found), ("", ""), said)
    if len(kinds) == 1 and kinds[0] in ("encoder", "decoder"):
        config, assumed = said.config(fit_blocks(tensors, found), found)
        layer = EncoderLayer(config) if kinds[0] == "encoder" else DecoderLayer(config)
        return tensors.load(layer, block(tensors, found[0], ""), config, assumed)
    if set(kinds) == {"encoder"}:
        if said.field("norm_first"):
            raise ConvertError(NO_NORM)
        config, assumed = said.config(fit_blocks(tensors, found), found, encoder_layers=len(found))
        return tensors.load(Encoder(config), blocks(tensors, found, "layers."), config, assumed)
    return translation(tensors, found, said)


def _in_order(tensors: Tensors, maps: list[Owner]) -> list[Owner]:
    """Two dense layers by number, or the other way round where only that fits."""
    maps = sorted(maps, key=lambda owner: owner.numbers)
    first, second = (tensors.shape(owner.parts[""][0]) if 0 in owner.parts[""] else () for owner in maps)
    if first and second and first[-1] != second[0] and second[-1] == first[0]:
        return maps[::-1]
    return maps


def _feed_forward(tensors: Tensors, maps: list[Owner], parts: tuple[str, str], said: Said) -> Conversion:
    """Two dense layers, or the parts of one layer."""
    ours = ("layer1", "layer2")
    axes = [feed_forward_axes(layer, "d_out")[layer] for layer in ours]
    sizes = fit(tensors, [(owner, {part: each}) for owner, part, each in zip(maps, parts, axes, strict=True)])
    activation, assumed = said.feed_forward(maps)
    d_model, d_ff, d_out = (sizes[axis] for axis in ("d_model", "d_ff", "d_out"))
    ffn = FeedForward(
        d_model, d_ff, d_out=None if d_out == d_model else d_out, activation=activation, dropout=0.0
    )  # fmt: skip
    state: State = {}
    for owner, part, layer in zip(maps, parts, ours, strict=True):
        state |= take_map(tensors, owner, part, layer)
    return tensors.load(ffn, state, assumed=assumed)
