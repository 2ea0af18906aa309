"""tensor2tensor's variables as our modules: a layer, a block, a stack, or the whole model."""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor, nn

from positionwise.convert.shards import join_shards
from positionwise.convert.tensor2tensor_layers import Layers, scope_of
from positionwise.convert.tensorbundle import read_bundle
from positionwise.convert.tensors import Arrays, Conversion, Tensors, read, read_npz
from positionwise.errors import ConvertError, InputError
from positionwise.feedforward import FeedForward
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

# What a checkpoint holds beside the model: an optimizer's slots and counters.
_OPTIMIZER = re.compile(
    r"(^|/)(Adam|Adam_1|Momentum|Adagrad|Adafactor|RMSProp|Ftrl|ExponentialMovingAverage)(_\d+)?$"
    r"|(^|/)(beta[12]_power|global_step|learning_rate)(_\d+)?$|^(training|optimize|losses_avg)/"
)
_LAYER = re.compile(r"(.*/)?(encoder|decoder)/layer_(\d+)/")
_TABLE = re.compile(r"(.*/)?symbol_modality_(\d+)_(\d+)/(shared|input_emb|target_emb|softmax)/weights_(\d+)$")
_TARGET_SPACE = re.compile(r"(.*/)?target_space_embedding/kernel$")


def from_tensor2tensor(
    source: Any, *, num_heads: int | None = None, target_space_id: int | None = None, padding: str | None = None
) -> nn.Module:
    """A module with tensor2tensor's weights (v1.0.14's names; kernels of four axes or, as from v1.3.0 on, of two).

    Args:
        source: a mapping of variable names to arrays, an ``.npz`` file of one, or a TensorFlow checkpoint (its prefix,
            its ``.index`` file or its folder).
        num_heads: of attention; the variables do not hold it.
        target_space_id: which target space (0 to 31) a whole model translates to; the variables do not hold it.
        padding: of wide kernels alone, ``same``, ``left`` or ``valid``; in a layer they are tensor2tensor's ``left``.

    Returns:
        `FeedForward` or `ParameterAttention` for such variables alone, `FeedForwardBlock` with a layer norm beside
        them, ``MultiHeadAttention`` for attention alone, `EncoderLayer` or `DecoderLayer` for one layer,
        ``Encoder`` for several, `TransformerForTranslation` for a whole model; in evaluation mode. An optimizer's
        variables, and the target space of an encoder without embeddings, are set aside.

    Raises:
        ConvertError: for a variable that is missing, unknown, of a wrong shape or not finite, naming it; and for an
            option that the variables do not hold and that is not given.
    """
    return convert_tensor2tensor(source, num_heads=num_heads, target_space_id=target_space_id, padding=padding).module


def convert_tensor2tensor(
    source: Any, *, num_heads: int | None = None, target_space_id: int | None = None, padding: str | None = None
) -> Conversion:
    """`from_tensor2tensor` with the account of what went where."""
    arrays, said = _variables(read(source, {".npz": read_npz}, read_bundle))
    num_heads = said.get("num_heads") if num_heads is None else num_heads
    target_space_id = said.get("target_space_id") if target_space_id is None else target_space_id
    whole = any(_TABLE.match(name) for name in arrays)
    aside = [name for name in arrays if _OPTIMIZER.search(name) or (not whole and _TARGET_SPACE.match(name))]
    tensors = Tensors(arrays, aside)
    if not tensors.names():
        raise ConvertError("expected tensor2tensor's variables; got none")
    layers = Layers(tensors, num_heads)
    if whole:
        return _model(layers, target_space_id)
    if any(_LAYER.match(name) for name in tensors.names()):
        return _stack(layers)
    return _part(layers, padding)


def _variables(arrays: Arrays) -> tuple[dict[str, Any], dict[str, int]]:
    """The variables, and the options that a fixture's archive holds beside them (``var/…``, ``meta/…``)."""
    if not any(name.startswith("var/") for name in arrays):
        return dict(arrays), {}
    said = {name: int(arrays[f"meta/{name}"]) for name in ("num_heads", "target_space_id") if f"meta/{name}" in arrays}
    return {name[4:]: value for name, value in arrays.items() if name.startswith("var/")}, said


def _part(layers: Layers, padding: str | None) -> Conversion:
    """Less than a layer: feed-forward variables, with a layer norm or without, or attention alone."""
    tensors = layers.tensors
    names = tensors.names()
    scale = next((name for name in names if name.endswith("/layer_norm_scale")), None)
    if scale is not None:
        norm = scale.rpartition("/")[0]
        scope = norm.rpartition("/")[0]
        config = layers.config_of_block(scope, *tensors.shape(scale))
        return tensors.load(FeedForwardBlock(config), layers.block(scope, norm, ""), config)
    kind, network = layers.network_scope("")
    if network is None:
        return _attention(layers)
    if kind != "parameter_attention":
        return _feed_forward(layers, network, padding)
    fields = layers.network_fields("")
    built = ParameterAttention(
        layers.matrix_shape(f"{layers.map(network, 'q_transform')}/kernel")[0], fields["d_ff"], fields["num_heads"],
        fields["parameter_key_dim"], fields["parameter_value_dim"],
    )  # fmt: skip
    return tensors.load(built, layers.parameter_attention(network, ""))


def _attention(layers: Layers) -> Conversion:
    names = layers.tensors.names()
    scope = scope_of(names, "(qkv|q)_transform")
    if scope is None:
        raise ConvertError(f"expected variables of a feed-forward network, attention or more; got {names[0]!r}")
    config = TransformerConfig(**layers.attention_fields(scope))
    heads, keys, values = config.num_heads, config.head_dim, config.head_value_dim
    built = MultiHeadAttention(config.d_model, heads, keys, values, config.attention_dropout)
    return layers.tensors.load(built, layers.attention(scope, "", config), config)


def _feed_forward(layers: Layers, scope: str, padding: str | None) -> Conversion:
    options = layers.feed_forward_options(scope)
    kernels = options["kernel_size"], options["second_kernel_size"]
    if kernels == (1, 1):
        return layers.tensors.load(FeedForward(**options, dropout=0.0), layers.feed_forward(scope, ""))
    if padding is None:
        raise ConvertError(f"expected padding (same, left or valid), which the variables of kernels {kernels[0]} and "
                           f"{kernels[1]} do not hold; got none")  # fmt: skip
    block = AxisOneFeedForward(**options, dropout=0.0, padding=padding)
    return layers.tensors.load(block, layers.feed_forward(scope, "", axes=2))


class AxisOneFeedForward(FeedForward):
    """`FeedForward` with tensor2tensor's axes: kernels (h, w) convolve axis 1 by h, whatever the rank.

    Shapes: (B, S, d_model) → (B, S, d_out), or (B, H, W, d_model) → (B, H, W, d_out).

    Source: tensor2tensor v1.0.14, ``common_layers.conv_hidden_relu``.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Apply the network; three axes get a fourth of width 1 and lose it again."""
        if x.dim() == 4:
            return super().forward(x)
        if x.dim() != 3:
            raise InputError(f"expected an input of 3 or 4 axes; got {tuple(x.shape)}")
        widths = [size[1] for size in (self.spec.kernel_size, self.spec.second_kernel_size) if isinstance(size, tuple)]
        if self.spec.padding == "left" and max(widths) > 1:  # the original leaves an axis of width 1 without padding
            raise InputError(f"expected an input of 4 axes for kernels of width {max(widths)}; got {tuple(x.shape)}")
        return super().forward(x.unsqueeze(2)).squeeze(2)


def _layer_scopes(tensors: Tensors) -> dict[str, list[str]]:
    """The scopes of the encoder's and of the decoder's layers, in their order."""
    found: dict[str, dict[int, str]] = {"encoder": {}, "decoder": {}}
    for name in tensors.names():
        if match := _LAYER.match(name):
            found[match[2]].setdefault(int(match[3]), match[0].rstrip("/"))
    scopes = {}
    for side, layers in found.items():
        if missing := set(range(len(layers))) - layers.keys():
            raise ConvertError(f"expected layers 0 to {max(layers)} of the {side}; got no layer_{min(missing)}")
        scopes[side] = [layers[i] for i in range(len(layers))]
    return scopes


def _stack(layers: Layers) -> Conversion:
    """Encoder layers, or one decoder layer, without embeddings."""
    scopes = _layer_scopes(layers.tensors)
    if len(scopes["decoder"]) > 1 or (scopes["decoder"] and scopes["encoder"]):
        raise ConvertError("expected a whole model, encoder layers or one decoder layer; got decoder layers without "
                           "embeddings (symbol_modality_…)")  # fmt: skip
    if scopes["decoder"]:
        config = layers.config_of_layer(scopes["decoder"][0])
        return layers.tensors.load(DecoderLayer(config), layers.decoder_layer(scopes["decoder"][0], "", config), config)
    config = layers.config_of_layer(scopes["encoder"][0], encoder_layers=len(scopes["encoder"]))
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
    scopes = _layer_scopes(tensors)
    state: dict[str, Tensor] = {}
    fields: dict[str, Any] = {}
    _tables(tensors, state, fields)
    if space := [name for name in tensors.names() if _TARGET_SPACE.match(name)]:
        if target_space_id is None:
            raise ConvertError("expected target_space_id, which the variables do not hold; got none")
        state["target_space_embedding.weight"] = tensors.take(space[0], "target_space_embedding.weight")
        fields |= {"target_spaces": len(state["target_space_embedding.weight"]), "target_space_id": target_space_id}
    if not scopes["encoder"] or not scopes["decoder"]:
        raise ConvertError(f"expected layers of encoder and decoder; got {len(scopes['encoder'])} and "
                           f"{len(scopes['decoder'])}")  # fmt: skip
    fields |= {"encoder_layers": len(scopes["encoder"]), "decoder_layers": len(scopes["decoder"])}
    config = layers.config_of_layer(scopes["encoder"][0], **fields)
    state |= _encoder(layers, scopes["encoder"], "encoder.", config)
    for i, scope in enumerate(scopes["decoder"]):
        state |= layers.decoder_layer(scope, f"decoder.layers.{i}.", config)
    return tensors.load(TransformerForTranslation(config), state)


def _tables(tensors: Tensors, state: dict[str, Tensor], fields: dict[str, Any]) -> None:
    """Join the shards of each table, and note what they say of the configuration."""
    places = {"shared": "source_embedding", "input_emb": "source_embedding", "target_emb": "target_embedding",
              "softmax": "output"}  # fmt: skip
    found: dict[str, dict[int, str]] = {}
    rows: dict[str, int] = {}
    for name in tensors.names():
        if match := _TABLE.match(name):
            if rows.setdefault(match[4], int(match[2])) != int(match[2]):
                raise ConvertError(f"expected one vocabulary in {match[4]}; got {rows[match[4]]} and {name!r}")
            found.setdefault(match[4], {})[int(match[5])] = name
    kinds = sorted(found)
    if kinds not in (["shared"], ["input_emb", "softmax", "target_emb"]):
        raise ConvertError(f"expected the table shared, or input_emb, target_emb and softmax; got {', '.join(kinds)}")
    for kind, shards in found.items():
        if missing := set(range(max(shards) + 1)) - shards.keys():
            raise ConvertError(f"expected shards 0 to {max(shards)} of {kind}; got no weights_{min(missing)}")
        scope = shards[0].rpartition("/")[0]
        if strange := [name for name in tensors.names(f"{scope}/") if name not in shards.values()]:
            raise ConvertError(f"expected shards weights_0 and on in {scope!r}; got {strange[0]!r}")
        target = f"{places[kind]}.weight"
        table = join_shards({shards[i]: tensors.take(shards[i], target) for i in range(len(shards))})
        if len(table) != rows[kind]:
            last = f"weights_{len(shards) - 1}"
            raise ConvertError(f"expected {rows[kind]} rows in weights_0 to {last} of {scope!r}; got {len(table)}")
        state[target] = table
    if kinds == ["shared"]:
        fields["vocab_size"] = rows["shared"]
    else:
        fields |= {"vocab_size": rows["input_emb"], "target_vocab_size": rows["target_emb"],
                   "share_embeddings": False, "tie_word_embeddings": False}  # fmt: skip
