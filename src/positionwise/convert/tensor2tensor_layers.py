"""The variables inside tensor2tensor's layers: maps, attention, feed-forward networks, norms."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from positionwise.convert.tensors import Tensors
from positionwise.errors import ConvertError
from positionwise.transformer import TransformerConfig

State = dict[str, Tensor]
SEPCONV = ((3, 1), (31, 1))
"""Kernels of ``conv_hidden_relu_with_sepconv``."""


def scope_of(names: Sequence[str], pattern: str) -> str | None:
    """What stands before the first place where a name holds the pattern; "" at its beginning, None nowhere."""
    for name in names:
        if match := re.search(rf"(^|/){pattern}", name):
            return name[: match.start()]
    return None


def join(scope: str, name: str) -> str:
    """A name inside a scope, which may be empty."""
    return f"{scope}/{name}" if scope else name


class Layers:
    """Reads parts of layers into state dicts; ``at`` is where a part begins in ours."""

    def __init__(self, tensors: Tensors, num_heads: int | None) -> None:
        self.tensors = tensors
        self.given_heads = num_heads

    def num_heads(self) -> int:
        """The number of heads: parameter attention's keys hold it, other variables do not."""
        keys = [self.tensors.shape(name)[0] for name in self.tensors.names() if name.endswith("parameter_attention/k")]
        if self.given_heads is None and not keys:
            raise ConvertError("expected num_heads, which the variables do not hold; got none")
        return keys[0] if self.given_heads is None else self.given_heads

    def map(self, scope: str, name: str) -> str:
        """The scope of a map: with ``_single`` at its end in v1.0.14, without from v1.3.0 on."""
        single = join(scope, f"{name}_single")
        return single if self.tensors.names(f"{single}/") else join(scope, name)

    def matrix(self, name: str, target: str) -> Tensor:
        """A kernel (1, 1, in, out) or (in, out) as (in, out)."""
        kernel = self.tensors.take(name, target)
        if kernel.dim() == 4 and kernel.shape[:2] == (1, 1):
            return kernel[0, 0]
        if kernel.dim() != 2:
            raise ConvertError(f"expected a kernel (1, 1, in, out) or (in, out) in {name!r}; got {tuple(kernel.shape)}")
        return kernel

    def linear(self, scope: str, at: str) -> State:
        """A map with a bias."""
        return {
            f"{at}.weight": self.matrix(f"{scope}/kernel", f"{at}.weight").T,
            f"{at}.bias": self.tensors.take(f"{scope}/bias", f"{at}.bias"),
        }

    def norm(self, scope: str, at: str) -> State:
        """A layer norm."""
        return {
            f"{at}.weight": self.tensors.take(f"{scope}/layer_norm_scale", f"{at}.weight"),
            f"{at}.bias": self.tensors.take(f"{scope}/layer_norm_bias", f"{at}.bias"),
        }

    def attention(self, scope: str, at: str, config: TransformerConfig) -> State:
        """Attention, whose queries, keys and values stand side by side in one map, or keys and values in a second."""
        keys, values = config.num_heads * config.head_dim, config.num_heads * config.head_value_dim
        together = self.tensors.names(join(scope, "qkv_transform"))
        parts = [("qkv", ("query", "key", "value"))] if together else [("q", ("query",)), ("kv", ("key", "value"))]
        state = self.linear(self.map(scope, "output_transform"), f"{at}output")
        for name, ours in parts:
            source = self.map(scope, f"{name}_transform")
            sizes = [values if part == "value" else keys for part in ours]
            weights, biases = ([f"{at}{part}.{leaf}" for part in ours] for leaf in ("weight", "bias"))
            kernel = self.matrix(f"{source}/kernel", ", ".join(weights))
            bias = self.tensors.take(f"{source}/bias", ", ".join(biases))
            for kind, whole in (("kernel", kernel), ("bias", bias)):
                if whole.shape[-1] != sum(sizes):
                    got = tuple(whole.shape)
                    raise ConvertError(f"expected a last axis of {sum(sizes)} in '{source}/{kind}'; got {got}")
            state |= zip(weights, (piece.T for piece in torch.split(kernel, sizes, dim=1)), strict=True)
            state |= zip(biases, torch.split(bias, sizes), strict=True)
        return state

    def attention_fields(self, scope: str) -> dict[str, Any]:
        """What attention's shapes say of the configuration."""
        heads = self.num_heads()
        values, d_model = self.matrix_shape(f"{self.map(scope, 'output_transform')}/kernel")
        together = self.tensors.names(join(scope, "qkv_transform"))
        name = f"{self.map(scope, 'qkv_transform' if together else 'q_transform')}/kernel"
        width = self.matrix_shape(name)[1]
        keys = (width - values) // 2 if together else width
        if keys < 1 or keys % heads or values % heads:
            raise ConvertError(
                f"expected widths that {heads} heads divide; got keys {keys}, values {values} at {name!r}"
            )
        return {"d_model": d_model, "num_heads": heads, "key_dim": keys // heads, "value_dim": values // heads}

    def matrix_shape(self, name: str) -> tuple[int, int]:
        """(in, out) of a kernel."""
        shape = self.tensors.shape(name)
        if len(shape) < 2:
            raise ConvertError(f"expected a kernel (1, 1, in, out) or (in, out) in {name!r}; got {shape}")
        return shape[-2], shape[-1]

    def feed_forward(self, scope: str, at: str, axes: int = 1) -> State:
        """The two maps of `FeedForward`, with their depthwise kernels over one axis or two."""
        state: State = {}
        for theirs, ours in (("conv1", "layer1"), ("conv2", "layer2")):
            source = self.map(scope, theirs)
            if f"{source}/depthwise_kernel" not in self.tensors:
                state |= self.linear(source, f"{at}{ours}")
            else:
                state |= self._separable(source, f"{at}{ours}", axes)
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

    def feed_forward_options(self, scope: str) -> dict[str, Any]:
        """Sizes and kernels of `FeedForward` from its variables' shapes."""
        kernels, shapes = [], []
        for theirs in ("conv1", "conv2"):
            source = self.map(scope, theirs)
            depthwise = f"{source}/depthwise_kernel"
            wide = depthwise in self.tensors
            shapes.append(self.matrix_shape(f"{source}/{'pointwise_kernel' if wide else 'kernel'}"))
            size = self.tensors.shape(depthwise) if wide else (1, 1)
            if wide and (len(size) != 4 or size[3] != 1):
                raise ConvertError(f"expected a kernel (h, w, channels, 1) in {depthwise!r}; got {size}")
            kernels.append(1 if size[:2] == (1, 1) else size[:2])
        (d_model, d_ff), (_, d_out) = shapes
        return {"d_model": d_model, "d_ff": d_ff, "d_out": None if d_out == d_model else d_out,
                "kernel_size": kernels[0], "second_kernel_size": kernels[1]}  # fmt: skip

    def parameter_attention(self, scope: str, at: str) -> State:
        """`ParameterAttention`'s keys, values and maps."""
        state = self.linear(self.map(scope, "q_transform"), f"{at}query")
        state |= self.linear(self.map(scope, "output_transform"), f"{at}output")
        tables = {"k": f"{at}keys", "v": f"{at}values"}
        return state | {target: self.tensors.take(f"{scope}/{name}", target) for name, target in tables.items()}

    def network_scope(self, scope: str) -> tuple[str, str | None]:
        """The kind of a layer's feed-forward network (``ffn_layer``) and its scope."""
        names = self.tensors.names(f"{scope}/" if scope else "")
        attention = next((name for name in names if re.search(r"(^|/)parameter_attention(_\d+)?/k$", name)), None)
        if attention is not None:
            return "parameter_attention", attention.rpartition("/")[0]
        maps = scope_of(names, r"conv1(_single)?/")
        if maps is None:
            return "none", None
        wide = f"{self.map(maps, 'conv1')}/depthwise_kernel" in self.tensors
        return "conv_hidden_relu_with_sepconv" if wide else "conv_hidden_relu", maps

    def network(self, scope: str, at: str) -> State:
        """A layer's feed-forward network, whatever its kind."""
        kind, inner = self.network_scope(scope)
        if inner is None:
            return {}
        return (self.parameter_attention if kind == "parameter_attention" else self.feed_forward)(inner, at)

    def network_fields(self, scope: str) -> dict[str, Any]:
        """What a layer's feed-forward network says of the configuration."""
        kind, inner = self.network_scope(scope)
        if inner is None:
            return {"ffn_layer": kind}
        if kind == "parameter_attention":
            keys, values = (self.tensors.shape(f"{inner}/{name}") for name in ("k", "v"))
            if len(keys) != 3 or len(values) != 3:
                raise ConvertError(f"expected keys and values of three axes in {inner!r}; got {keys} and {values}")
            return {"ffn_layer": kind, "d_ff": keys[1], "num_heads": keys[0], "parameter_key_dim": keys[2],
                    "parameter_value_dim": values[2]}  # fmt: skip
        options = self.feed_forward_options(inner)
        kernels = options["kernel_size"], options["second_kernel_size"]
        if kernels not in ((1, 1), SEPCONV):
            raise ConvertError(f"expected kernels {SEPCONV} or none in {inner!r}; got {kernels}")
        return {"ffn_layer": kind, "d_ff": options["d_ff"]}

    def config_of_layer(self, scope: str, **fields: Any) -> TransformerConfig:
        """The configuration of a layer with attention."""
        names = self.tensors.names(f"{scope}/")
        attention = scope_of([name for name in names if "parameter_attention" not in name], "(qkv|q)_transform")
        if attention is None:
            raise ConvertError(f"expected attention's qkv_transform in {scope!r}; got {names[0]!r}")
        return TransformerConfig(**{**self.network_fields(scope), **self.attention_fields(attention), **fields})

    def config_of_block(self, scope: str, d_model: int) -> TransformerConfig:
        """The configuration of a feed-forward network without attention."""
        return TransformerConfig(**{"d_model": d_model, "num_heads": 1, **self.network_fields(scope)})

    def block(self, scope: str, norm: str, at: str) -> State:
        """A feed-forward block: the network and its norm."""
        return self.network(scope, f"{at}feed_forward.") | self.norm(norm, f"{at}feed_forward_norm")

    def encoder_layer(self, scope: str, at: str, config: TransformerConfig) -> State:
        """`EncoderLayer`."""
        state = self.attention(f"{scope}/encoder_self_attention", f"{at}self_attention.", config)
        state |= self.norm(f"{scope}/layer_norm", f"{at}self_attention_norm")
        return state | self.block(scope, f"{scope}/layer_norm_1", at)

    def decoder_layer(self, scope: str, at: str, config: TransformerConfig) -> State:
        """`DecoderLayer`."""
        state = self.attention(f"{scope}/decoder_self_attention", f"{at}self_attention.", config)
        state |= self.norm(f"{scope}/layer_norm", f"{at}self_attention_norm")
        state |= self.attention(f"{scope}/encdec_attention", f"{at}cross_attention.", config)
        state |= self.norm(f"{scope}/layer_norm_1", f"{at}cross_attention_norm")
        return state | self.block(scope, f"{scope}/layer_norm_2", at)
