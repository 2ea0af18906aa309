"""tensor2tensor's variables as our modules: a layer, a block, a stack, or the whole model."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn

from positionwise.convert.axis_one import AxisOneFeedForward
from positionwise.convert.tensor2tensor_layers import Layers
from positionwise.convert.tensor2tensor_names import (
    TABLE,
    TARGET_SPACE,
    Units,
    layer_scopes,
    optimizer_variables,
    refuse_foreign,
)
from positionwise.convert.tensor2tensor_shapes import sizes_of
from positionwise.convert.tensor2tensor_tables import read_tables
from positionwise.convert.tensorbundle import read_bundle
from positionwise.convert.tensors import Arrays, Conversion, Tensors, read, read_npz
from positionwise.errors import ConvertError, SpecError
from positionwise.feedforward import FeedForward
from positionwise.spec import PADDINGS
from positionwise.transformer import (
    DecoderLayer,
    EncoderLayer,
    FeedForwardBlock,
    ParameterAttention,
    TransformerConfig,
    TransformerForTranslation,
)
from positionwise.transformer.attention import MultiHeadAttention
from positionwise.transformer.models import Encoder


def from_tensor2tensor(
    source: Any, *, num_heads: int | None = None, target_space_id: int | None = None, padding: str | None = None
) -> nn.Module:
    """A module with tensor2tensor's weights (v1.0.14's names; kernels of four axes or, as from v1.3.0 on, of two).

    Args:
        source: a mapping of variable names to arrays, an ``.npz`` file of one, or a TensorFlow checkpoint (its folder,
            its prefix or one of its files).
        num_heads: of attention; the variables do not hold it.
        target_space_id: which target space (0 to 31) a whole model translates to; the variables do not hold it.
        padding: of wide kernels alone, ``same``, ``left`` or ``valid``; in a layer they are tensor2tensor's ``left``.

    Returns:
        `FeedForward` or `ParameterAttention` for such variables alone, `FeedForwardBlock` with a layer norm beside
        them, ``MultiHeadAttention`` for attention alone, `EncoderLayer` or `DecoderLayer` for one layer,
        ``Encoder`` for several, `TransformerForTranslation` for a whole model; in evaluation mode. What the variables
        are decides, under whatever scope they stand. An optimizer's variables, and the target space of an encoder
        without embeddings, are set aside. Wide kernels alone give an `AxisOneFeedForward`: its spec does not hold its
        axes, so that ``AxisOneFeedForward.from_spec``, not ``FeedForward.from_spec``, makes another.

    Raises:
        ConvertError: for a variable that is missing, unknown, of a wrong shape or not finite, naming it; and for an
            option that the variables do not hold and that is not given, or that has no place in what they are.
    """
    return convert_tensor2tensor(source, num_heads=num_heads, target_space_id=target_space_id, padding=padding).module


def convert_tensor2tensor(
    source: Any, *, num_heads: int | None = None, target_space_id: int | None = None, padding: str | None = None
) -> Conversion:
    """`from_tensor2tensor` with the account of what went where."""
    _check_options(num_heads, padding)
    arrays, said = _variables(read(source, {".npz": read_npz}, read_bundle))
    whole = any(TABLE.match(name) for name in arrays)
    aside = [*optimizer_variables(arrays), *(name for name in arrays if not whole and TARGET_SPACE.match(name))]
    tensors = Tensors(arrays, aside)
    if not tensors.names():
        raise ConvertError("expected tensor2tensor's variables; got none")
    refuse_foreign(tensors.names())
    units = Units(tensors.names())
    sizes = sizes_of(tensors, units, alone=units.kinds == {"feed_forward"})
    layers = Layers(tensors, units, sizes, said.get("num_heads") if num_heads is None else num_heads)
    said_id = said.get("target_space_id") if target_space_id is None else target_space_id
    try:
        made = _model(layers, said_id) if whole else _part(layers, padding)
    except SpecError as error:  # an even kernel with padding left, a target space that the table lacks
        raise ConvertError(str(error)) from None
    _refuse_idle(made.module, target_space_id, padding)
    return made


def _refuse_idle(module: nn.Module, target_space_id: int | None, padding: str | None) -> None:
    """Refuse an option that has no place in what was made."""
    if target_space_id is not None and "target_space_embedding.weight" not in module.state_dict():
        raise ConvertError("expected no target_space_id for variables without a whole model's "
                           f"target_space_embedding/kernel; got {target_space_id!r}")  # fmt: skip
    if padding is not None and not isinstance(module, AxisOneFeedForward):
        raise ConvertError("expected no padding for anything but a feed-forward network alone with wide kernels; "
                           f"got {padding!r}")  # fmt: skip


def _check_options(num_heads: Any, padding: Any) -> None:
    if num_heads is not None and (not isinstance(num_heads, int) or isinstance(num_heads, bool) or num_heads < 1):
        raise ConvertError(f"expected num_heads to be an integer of at least 1; got {num_heads!r}")
    if padding is not None and padding not in PADDINGS:
        raise ConvertError(f"expected padding to be one of {', '.join(PADDINGS)}; got {padding!r}")


def _variables(arrays: Arrays) -> tuple[dict[str, Any], dict[str, int]]:
    """The variables, and the options that a fixture's archive holds beside them (``var/…``, ``meta/…``)."""
    if not any(name.startswith("var/") for name in arrays):
        return dict(arrays), {}
    said = {}
    for name in ("num_heads", "target_space_id"):
        if (value := arrays.get(f"meta/{name}")) is not None:
            if np.shape(value) or not np.issubdtype(np.asarray(value).dtype, np.integer):
                raise ConvertError(f"expected an integer in 'meta/{name}'; got {value!r}")
            said[name] = int(value)
    return {name[4:]: value for name, value in arrays.items() if name.startswith("var/")}, said


def _part(layers: Layers, padding: str | None) -> Conversion:
    """Less than a model: what kinds of variables there are says what is made."""
    kinds = layers.units.kinds
    if kinds == {"feed_forward"}:
        return _feed_forward(layers, padding)
    if "parameter_attention" in kinds and "norm" not in kinds:
        return _parameter_attention(layers)
    if kinds == {"attention"}:
        return _attention(layers)
    if "attention" in kinds:
        return _stack(layers)
    return _block(layers)


def _feed_forward(layers: Layers, padding: str | None) -> Conversion:
    scope = layers.units.only("feed_forward") or ""
    kernels = layers.kernels(scope)
    d_model, d_ff, d_out = (layers.sizes.get(name) for name in ("d_model", "d_ff", "d_out"))
    if None in (d_model, d_ff, d_out):
        layers.feed_forward(scope, "")  # names what is missing
    sizes: dict[str, Any] = {"d_model": d_model, "d_ff": d_ff, "d_out": None if d_out == d_model else d_out}
    if kernels == {"conv1": 1, "conv2": 1}:
        return layers.tensors.load(FeedForward(**sizes, dropout=0.0), layers.feed_forward(scope, ""))
    if padding is None:
        raise ConvertError(f"expected padding (same, left or valid), which the variables of kernels {kernels['conv1']} "
                           f"and {kernels['conv2']} do not hold; got none")  # fmt: skip
    block = AxisOneFeedForward(**sizes, dropout=0.0, padding=padding, kernel_size=kernels["conv1"],
                               second_kernel_size=kernels["conv2"])  # fmt: skip
    return layers.tensors.load(block, layers.feed_forward(scope, "", axes=2))


def _parameter_attention(layers: Layers) -> Conversion:
    state = layers.parameter_attention(scope := layers.units.only("parameter_attention") or "", "")
    fields = layers.learned_fields(scope)
    built = ParameterAttention(
        layers.sizes["d_model"], layers.sizes["d_ff"], fields["num_heads"], fields["parameter_key_dim"],
        fields["parameter_value_dim"],
    )  # fmt: skip
    return layers.tensors.load(built, state)


def _attention(layers: Layers) -> Conversion:
    scope = layers.units.only("attention") or ""
    config = TransformerConfig(**layers.attention_fields(scope))
    heads, keys, values = config.num_heads, config.head_dim, config.head_value_dim
    built = MultiHeadAttention(config.d_model, heads, keys, values, config.attention_dropout)
    return layers.tensors.load(built, layers.attention(scope, "", config), config)


def _block(layers: Layers) -> Conversion:
    """A network with its layer norm, or the norm alone, whose network is the identity (``ffn_layer`` none)."""
    norms = [scope for scope, count in layers.units.within("norm").items() if count == 2]
    if len(norms) > 1:
        raise ConvertError(f"expected attention beside the layer norms {norms[0]!r} and {norms[1]!r}; got none")
    norm = layers.units.only("norm")
    if norm is None:
        raise ConvertError(f"expected variables of a feed-forward network, attention or more; "
                           f"got {layers.tensors.names()[0]!r}")  # fmt: skip
    state = layers.block("", norm, "")
    config = layers.config_of_block("")
    return layers.tensors.load(FeedForwardBlock(config), state, config)


def _stack(layers: Layers) -> Conversion:
    """Encoder layers, or one decoder layer, without embeddings."""
    scopes = layer_scopes(layers.units)
    if len(scopes["decoder"]) > 1 or (scopes["decoder"] and scopes["encoder"]):
        raise ConvertError("expected a whole model, encoder layers or one decoder layer; got decoder layers without "
                           "embeddings (symbol_modality_…)")  # fmt: skip
    if scopes["decoder"]:
        config = layers.config_of_layers(scopes["decoder"])
        return layers.tensors.load(DecoderLayer(config), layers.decoder_layer(scopes["decoder"][0], "", config), config)
    config = layers.config_of_layers(scopes["encoder"], encoder_layers=len(scopes["encoder"]))
    if len(scopes["encoder"]) == 1:
        return layers.tensors.load(EncoderLayer(config), layers.encoder_layer(scopes["encoder"][0], "", config), config)
    return layers.tensors.load(Encoder(config), _encoder(layers, scopes["encoder"], "", config), config)


def _encoder(layers: Layers, scopes: list[str], at: str, config: TransformerConfig) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for i, scope in enumerate(scopes):
        state |= layers.encoder_layer(scope, f"{at}layers.{i}.", config)
    return state


def _model(layers: Layers, target_space_id: int | None) -> Conversion:
    """The whole model: embeddings, encoder, decoder, output."""
    tensors = layers.tensors
    state, fields = read_tables(tensors)
    if space := [name for name in tensors.names() if TARGET_SPACE.match(name)]:
        if target_space_id is None:
            raise ConvertError("expected target_space_id, which the variables do not hold; got none")
        state["target_space_embedding.weight"] = tensors.take(space[0], "target_space_embedding.weight")
        fields |= {"target_spaces": len(state["target_space_embedding.weight"]), "target_space_id": target_space_id}
    scopes = layer_scopes(layers.units)
    if not scopes["encoder"] or not scopes["decoder"]:
        raise ConvertError(f"expected layers of encoder and decoder; got {len(scopes['encoder'])} and "
                           f"{len(scopes['decoder'])}")  # fmt: skip
    fields |= {"encoder_layers": len(scopes["encoder"]), "decoder_layers": len(scopes["decoder"])}
    config = layers.config_of_layers(scopes["encoder"] + scopes["decoder"], **fields)
    state |= _encoder(layers, scopes["encoder"], "encoder.", config)
    for i, scope in enumerate(scopes["decoder"]):
        state |= layers.decoder_layer(scope, f"decoder.layers.{i}.", config)
    return tensors.load(TransformerForTranslation(config), state)
