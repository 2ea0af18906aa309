"""The variables inside tensor2tensor's layers: maps, attention, feed-forward networks, norms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from positionwise.convert.sizes import Claim, agree
from positionwise.convert.tensor2tensor_names import Units
from positionwise.convert.tensors import Tensors
from positionwise.errors import ConvertError
from positionwise.transformer import TransformerConfig

State = dict[str, Tensor]
SEPCONV = {"conv1": (3, 1), "conv2": (31, 1)}
"""Kernels of ``conv_hidden_relu_with_sepconv``."""


def join(scope: str, name: str) -> str:
    """A name inside a scope, which may be empty."""
    return f"{scope}/{name}" if scope else name


class Layers:
    """Reads parts of layers into state dicts; ``at`` is where a part begins in ours."""

    def __init__(self, tensors: Tensors, units: Units, sizes: dict[str, Any], num_heads: int | None) -> None:
        self.tensors, self.units, self.sizes = tensors, units, sizes
        self.given_heads = num_heads
        self.suffix = "_single" if any("_single/" in name for name in tensors.names()) else ""

    def num_heads(self) -> int:
        """The number of heads: parameter attention's keys hold it, other variables do not."""
        heads: int | None = self.sizes.get("heads", self.given_heads)
        if heads is None:
            raise ConvertError("expected num_heads, which the variables do not hold; got none")
        if self.given_heads not in (None, heads):
            raise ConvertError(f"expected num_heads={heads}, as parameter attention has; got {self.given_heads}")
        return heads

    def map(self, scope: str, name: str) -> str:
        """The scope of a map: with ``_single`` at its end in v1.0.14, without from v1.3.0 on."""
        endings = [end for end in (self.suffix, "", "_single") if self.tensors.names(f"{join(scope, name)}{end}/")]
        return f"{join(scope, name)}{endings[0] if endings else self.suffix}"

    def matrix(self, name: str, target: str) -> Tensor:
        """A kernel (1, 1, in, out) or (in, out) as (in, out)."""
        return self.tensors.take(name, target).flatten(0, -2)

    def linear(self, scope: str, at: str) -> State:
        """A map with a bias."""
        return {
            f"{at}.weight": self.matrix(f"{scope}/kernel", f"{at}.weight").T,
            f"{at}.bias": self.tensors.take(f"{scope}/bias", f"{at}.bias"),
        }

    def norm(self, scope: str, at: str) -> State:
        """A layer norm."""
        return {
            f"{at}.weight": self.tensors.take(join(scope, "layer_norm_scale"), f"{at}.weight"),
            f"{at}.bias": self.tensors.take(join(scope, "layer_norm_bias"), f"{at}.bias"),
        }

    def attention(self, scope: str, at: str, config: TransformerConfig) -> State:
        """Attention, whose queries, keys and values stand side by side in one map, or keys and values in a second."""
        keys, values = config.num_heads * config.head_dim, config.num_heads * config.head_value_dim
        parts = [("q", ("query",)), ("kv", ("key", "value"))]
        apart = any(self.tensors.names(f"{join(scope, name)}_transform") for name, _ in parts)
        state: State = {}
        for name, ours in parts if apart else [("qkv", ("query", "key", "value"))]:
            source = self.map(scope, f"{name}_transform")
            sizes = [values if part == "value" else keys for part in ours]
            weights, biases = ([f"{at}{part}.{leaf}" for part in ours] for leaf in ("weight", "bias"))
            kernel = self.matrix(f"{source}/kernel", ", ".join(weights))
            bias = self.tensors.take(f"{source}/bias", ", ".join(biases))
            state |= zip(weights, (piece.T for piece in torch.split(kernel, sizes, dim=1)), strict=True)
            state |= zip(biases, torch.split(bias, sizes), strict=True)
        return state | self.linear(self.map(scope, "output_transform"), f"{at}output")

    def attention_fields(self, scope: str) -> dict[str, Any]:
        """What attention's sizes say of the configuration."""
        heads = self.num_heads()
        keys, values = self.sizes.get("keys"), self.sizes.get("values")
        output = f"{self.map(scope, 'output_transform')}/kernel"
        if values is None:
            raise ConvertError(f"expected a tensor {output!r}; got none of that name")
        if keys is None:
            raise ConvertError(f"expected attention's qkv_transform, or q_transform and kv_transform, in {scope!r}; "
                               "got neither")  # fmt: skip
        if keys % heads or values % heads or keys < 1:
            kernels = [name for name in self.tensors.names(join(scope, "")) if name.endswith("/kernel")]
            raise ConvertError(f"expected widths that {heads} heads divide; got keys {keys}, values {values} in "
                               f"{', '.join(map(repr, kernels))}")  # fmt: skip
        return {"d_model": self.sizes["d_model"], "num_heads": heads, "key_dim": keys // heads,
                "value_dim": values // heads}  # fmt: skip

    def is_separable(self, source: str) -> bool:
        """Whether a map has a depthwise kernel before it."""
        return any(f"{source}/{kind}_kernel" in self.tensors for kind in ("depthwise", "pointwise"))

    def feed_forward(self, scope: str, at: str, axes: int = 1) -> State:
        """The two maps of `FeedForward`, with their depthwise kernels over one axis or two."""
        state: State = {}
        for theirs, ours in (("conv1", "layer1"), ("conv2", "layer2")):
            source = self.map(scope, theirs)
            if self.is_separable(source):
                state |= self._separable(source, f"{at}{ours}", axes)
            else:
                state |= self.linear(source, f"{at}{ours}")
        return state

    def _separable(self, source: str, at: str, axes: int) -> State:
        """Depthwise (h, w, channels, 1), then pointwise; a kernel of one weight is a factor of the map."""
        one = self.tensors.shape(f"{source}/depthwise_kernel")[:2] == (1, 1)
        inner = at if one else f"{at}.pointwise"
        kernel = self.tensors.take(f"{source}/depthwise_kernel", f"{at}.weight" if one else f"{at}.depthwise")
        weight = self.matrix(f"{source}/pointwise_kernel", f"{inner}.weight").T
        state = {f"{inner}.bias": self.tensors.take(f"{source}/bias", f"{inner}.bias")}
        if one:
            return state | {f"{at}.weight": weight * kernel.flatten()}
        wide = kernel.permute(2, 3, 0, 1)
        return state | {f"{inner}.weight": weight, f"{at}.depthwise": wide if axes == 2 else wide[..., 0]}

    def kernels(self, scope: str) -> dict[str, Any]:
        """The kernel of each of `FeedForward`'s maps: 1, or (h, w)."""
        found: dict[str, Any] = {}
        for theirs in ("conv1", "conv2"):
            source = self.map(scope, theirs)
            wide = self.is_separable(source)
            size = self.tensors.shape(f"{source}/depthwise_kernel")[:2] if wide else (1, 1)
            found[theirs] = 1 if size == (1, 1) else size
        return found

    def parameter_attention(self, scope: str, at: str) -> State:
        """`ParameterAttention`'s keys, values and maps."""
        tables = {"k": f"{at}keys", "v": f"{at}values"}
        state = {target: self.tensors.take(join(scope, name), target) for name, target in tables.items()}
        state |= self.linear(self.map(scope, "q_transform"), f"{at}query")
        return state | self.linear(self.map(scope, "output_transform"), f"{at}output")

    def network_scope(self, scope: str) -> tuple[str, str | None]:
        """The kind of a layer's feed-forward network (``ffn_layer``) and its scope."""
        if (learned := self.units.only("parameter_attention", scope)) is not None:
            return "parameter_attention", learned
        maps = self.units.only("feed_forward", scope)
        if maps is None:
            return "none", None
        wide = any(self.is_separable(self.map(maps, name)) for name in SEPCONV)
        return "conv_hidden_relu_with_sepconv" if wide else "conv_hidden_relu", maps

    def network(self, scope: str, at: str) -> State:
        """A layer's feed-forward network, whatever its kind."""
        kind, inner = self.network_scope(scope)
        if inner is None:
            return {}
        return (self.parameter_attention if kind == "parameter_attention" else self.feed_forward)(inner, at)

    def network_fields(self, scopes: list[str]) -> dict[str, Any]:
        """What the layers' feed-forward networks say of the configuration, all of them the same."""
        found = {scope: self.network_scope(scope) for scope in scopes}
        agreed = agree(Claim("network", inner or scope, kind) for scope, (kind, inner) in found.items())
        for kind, inner in found.values():
            if inner is not None and kind == "conv_hidden_relu_with_sepconv":
                self._check_kernels(inner)
        if agreed["network"] != "none" and "d_ff" not in self.sizes:
            raise ConvertError(f"expected maps or keys in {scopes[0]!r}; got none")
        fields = {"ffn_layer": agreed["network"], "d_ff": self.sizes.get("d_ff")}
        if agreed["network"] == "parameter_attention":
            fields |= self.learned_fields(next(inner for _, inner in found.values() if inner is not None))
        return {name: value for name, value in fields.items() if value is not None}

    def learned_fields(self, scope: str) -> dict[str, Any]:
        """What parameter attention's keys and values say of the configuration."""
        keys, values = (self.tensors.shape(join(scope, name))[2] for name in ("k", "v"))
        return {"num_heads": self.num_heads(), "parameter_key_dim": keys, "parameter_value_dim": values}

    def _check_kernels(self, scope: str) -> None:
        """A layer's wide kernels are those of ``conv_hidden_relu_with_sepconv``."""
        for theirs, size in self.kernels(scope).items():
            if size != SEPCONV[theirs]:
                name = f"{self.map(scope, theirs)}/depthwise_kernel"
                raise ConvertError(f"expected a kernel {SEPCONV[theirs]} in a layer's {name!r}; got {size}")

    def config_of_layers(self, scopes: list[str], **fields: Any) -> TransformerConfig:
        """The configuration of layers with attention."""
        attention = self.units.within("attention", scopes[0]).most_common(1)
        found = self.attention_fields(attention[0][0] if attention else scopes[0])
        return TransformerConfig(**{**self.network_fields(scopes), **found, **fields})

    def config_of_block(self, scope: str) -> TransformerConfig:
        """The configuration of a feed-forward network without attention."""
        return TransformerConfig(**{"d_model": self.sizes["d_model"], "num_heads": 1, **self.network_fields([scope])})

    def block(self, scope: str, norm: str, at: str) -> State:
        """A feed-forward block: the network and its norm."""
        return self.network(scope, f"{at}feed_forward.") | self.norm(norm, f"{at}feed_forward_norm")

    def encoder_layer(self, scope: str, at: str, config: TransformerConfig) -> State:
        """`EncoderLayer`."""
        state = self.attention(join(scope, "encoder_self_attention"), f"{at}self_attention.", config)
        state |= self.norm(join(scope, "layer_norm"), f"{at}self_attention_norm")
        return state | self.block(scope, join(scope, "layer_norm_1"), at)

    def decoder_layer(self, scope: str, at: str, config: TransformerConfig) -> State:
        """`DecoderLayer`."""
        state = self.attention(join(scope, "decoder_self_attention"), f"{at}self_attention.", config)
        state |= self.norm(join(scope, "layer_norm"), f"{at}self_attention_norm")
        state |= self.attention(join(scope, "encdec_attention"), f"{at}cross_attention.", config)
        state |= self.norm(join(scope, "layer_norm_1"), f"{at}cross_attention_norm")
        return state | self.block(scope, join(scope, "layer_norm_2"), at)
