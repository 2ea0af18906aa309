"""The sizes of tensor2tensor's variables: each variable's axes by name, and what they say together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from positionwise.convert.sizes import Claim, agree
from positionwise.convert.tensor2tensor_names import LEAF, TABLE, TARGET_SPACE, Units
from positionwise.convert.tensors import Tensors
from positionwise.errors import ConvertError

KERNEL = "a kernel (1, 1, in, out) or (in, out)"


def sizes_of(tensors: Tensors, units: Units, alone: bool) -> dict[str, Any]:
    """Every size that the variables hold: d_model, d_ff, d_out, keys and values of all heads, heads.

    Args:
        tensors: the variables.
        units: their parts.
        alone: whether they are a feed-forward network alone, whose output may have a width of its own.

    Raises:
        ConvertError: for a variable whose axes are not those of its name, or not the other variables'; it names it.
    """
    claims = list(_claims(tensors, units, "d_out" if alone else "d_model"))
    outputs = [claim for claim in claims if claim.size == "values"]
    sizes = agree([claim for claim in claims if not claim.size.startswith("width")])
    if "values" not in sizes:
        return sizes
    try:
        return sizes | agree(_keys(claims, sizes["values"]))
    except ConvertError as error:
        if len(outputs) != 1:
            raise
        # The values' width, which is taken off, has then one witness, who may be wrong.
        raise ConvertError(f"{error}, beside values of {outputs[0].value} in {outputs[0].tensor!r}") from None


def _keys(claims: list[Claim], values: int) -> Iterator[Claim]:
    """The keys' width, all heads together: of queries, of keys beside values, and of all three side by side."""
    for size, tensor, width in claims:
        if size == "width of q_transform":
            yield Claim("keys", tensor, width)
        elif size.startswith("width"):
            keys = (int(str(width)) - values) / (1 if size == "width of kv_transform" else 2)
            yield Claim("keys", tensor, int(keys) if keys.is_integer() else keys)


def _claims(tensors: Tensors, units: Units, output: str) -> Iterator[Claim]:
    for name in tensors.names():
        shape = tensors.shape(name)
        if 0 in shape and not TABLE.match(name):  # a shard may have no rows
            raise ConvertError(f"expected numbers in {name!r}; got the shape {shape}")
        if match := LEAF.match(name):
            yield from _of_part(name, shape, match, units.kind(match), output)
        elif TABLE.match(name) or TARGET_SPACE.match(name):
            yield Claim("d_model", name, _axes(name, shape, 2, "rows of d_model")[1])


def _of_part(name: str, shape: tuple[int, ...], match: re.Match[str], kind: str, output: str) -> Iterator[Claim]:
    if match["leaf"] in ("k", "v"):
        heads, d_ff, width = _axes(name, shape, 3, "keys or values (heads, d_ff, width)")
        yield from (Claim("heads", name, heads), Claim("d_ff", name, d_ff))
        # A shape that does not fit the maps is the table's fault rather than theirs.
        yield Claim("parameter attention's keys" if match["leaf"] == "k" else "parameter attention's values", name,
                    heads * width)  # fmt: skip
        return
    if kind == "norm":
        yield Claim("d_model", name, _axes(name, shape, 1, "a vector")[0])
        return
    into, out = _map_sizes(match["map"], kind == "parameter_attention", output)
    if match["part"] == "bias":
        yield Claim(out, name, _axes(name, shape, 1, "a vector")[0])
    elif match["part"] == "depthwise_kernel":
        if len(shape) != 4 or shape[3] != 1:
            raise ConvertError(f"expected a kernel (h, w, channels, 1) in {name!r}; got {shape}")
        yield Claim(into, name, shape[2])
    else:
        if not (len(shape) == 2 or (len(shape) == 4 and shape[:2] == (1, 1))):
            raise ConvertError(f"expected {KERNEL} in {name!r}; got {shape}")
        yield from (Claim(into, name, shape[-2]), Claim(out, name, shape[-1]))


def _map_sizes(name: str, learned: bool, output: str) -> tuple[str, str]:
    """The sizes of a map's input and output."""
    if name in ("conv1", "conv2"):
        return ("d_model", "d_ff") if name == "conv1" else ("d_ff", output)
    if name == "output_transform":
        return "parameter attention's values" if learned else "values", "d_model"
    return "d_model", "parameter attention's keys" if learned else f"width of {name}"


def _axes(name: str, shape: tuple[int, ...], count: int, what: str) -> tuple[int, ...]:
    if len(shape) != count:
        raise ConvertError(f"expected {what} in {name!r}; got the shape {shape}")
    return shape
