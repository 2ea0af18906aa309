"""labml's feed-forward state dicts as our module: the names are the same."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from positionwise.convert.sizes import Claim, agree
from positionwise.convert.tensors import Arrays, Conversion, Tensors, read, read_npz, read_safetensors
from positionwise.errors import ConvertError
from positionwise.feedforward import FeedForward

_AXES = {
    "layer1.weight": ("d_ff", "d_model"), "layer1.bias": ("d_ff",), "layer2.weight": ("d_out", "d_ff"),
    "layer2.bias": ("d_out",), "linear_v.weight": ("d_ff", "d_model"), "linear_v.bias": ("d_ff",),
}  # fmt: skip
"""The block's tensors, and the size of each axis."""


def from_labml(
    source: Any, *, activation: Any = "relu", dropout: float = 0.1, prefix: str | None = None
) -> FeedForward:
    """A block with the weights of labml's ``FeedForward``.

    Args:
        source: a state dict, or a file of one (``torch.save``'s, ``.safetensors`` or ``.npz``). The names may stand
            behind a common prefix. Which maps have biases, and whether there is a gate, is read from the names.
        activation: which the state dict does not hold; labml's default.
        dropout: likewise.
        prefix: of the block's names, where the state dict holds more than the block; the rest is set aside.

    Returns:
        The block, in evaluation mode.

    Raises:
        ConvertError: for a tensor that is missing, unknown, of a wrong shape or not finite, naming it; for several
            blocks without a prefix; and for a file that would have to be unpickled.
    """
    module = convert_labml(source, activation=activation, dropout=dropout, prefix=prefix).module
    assert isinstance(module, FeedForward)
    return module


def convert_labml(
    source: Any, *, activation: Any = None, dropout: float | None = None, prefix: str | None = None
) -> Conversion:
    """`from_labml` with the account of what went where, and of what was assumed where None is given."""
    assumed = [*(["activation=relu (--activation)"] if activation is None else []),
               *(["dropout=0.1 (--dropout)"] if dropout is None else [])]  # fmt: skip
    activation, dropout = "relu" if activation is None else activation, 0.1 if dropout is None else dropout
    arrays = read(source, {".npz": read_npz, ".safetensors": read_safetensors}, _state_dict)
    _refuse_nested(arrays)
    at = _prefix(arrays) if prefix is None else f"{prefix.removesuffix('.')}." if prefix else ""
    tensors = Tensors(arrays, [] if prefix is None else [name for name in arrays if not name.startswith(at)])
    sizes = agree(_claims(tensors, at))
    for name in ("layer1.weight", "layer2.weight"):
        tensors.shape(at + name)  # must be there
    has = {name: at + name in tensors for name in _AXES}
    if has["linear_v.bias"] and not has["linear_v.weight"]:
        raise ConvertError(f"expected a tensor '{at}linear_v.weight' beside its bias; got none of that name")
    d_model, d_out = sizes["d_model"], sizes["d_out"]
    block = FeedForward(
        d_model, sizes["d_ff"], dropout, copy.deepcopy(activation), has["linear_v.weight"], has["layer1.bias"],
        has["layer2.bias"], has["linear_v.bias"], d_out=None if d_out == d_model else d_out,
    )  # fmt: skip
    # The block's names are those of labml's, an activation's own parameters among them.
    state = {name: tensors.take(at + name, name) for name in block.state_dict()}
    return tensors.load(block, state, assumed=tuple(assumed))


def _refuse_nested(arrays: Arrays) -> None:
    """A checkpoint of a training holds the state dict under a name of its own."""
    if inner := [name for name, value in arrays.items() if isinstance(value, Mapping) and value]:
        raise ConvertError(f"expected a state dict; got a dict under {', '.join(map(repr, inner))}: pass that")


def _prefix(arrays: Arrays) -> str:
    """What stands before the one block's names: that of most of them."""
    found: Counter[str] = Counter()
    for name in arrays:
        found.update(name.removesuffix(end) for end in _AXES if name == end or name.endswith(f".{end}"))
    whole = [at for at in found if all(f"{at}{name}" in arrays for name in ("layer1.weight", "layer2.weight"))]
    if len(whole) > 1:
        names = ", ".join(repr(at.removesuffix(".")) for at in whole[:6]) + (", …" if len(whole) > 6 else "")
        raise ConvertError(f"expected one block, or its prefix; got {len(whole)} blocks, of the prefixes {names}")
    return found.most_common(1)[0][0] if found else ""


def _claims(tensors: Tensors, at: str) -> Iterator[Claim]:
    for end, axes in _AXES.items():
        if (name := at + end) in tensors:
            shape = tensors.shape(name)
            if len(shape) != len(axes) or 0 in shape:
                raise ConvertError(f"expected the axes ({', '.join(axes)}) in {name!r}; got {shape}")
            yield from (Claim(axis, name, size) for axis, size in zip(axes, shape, strict=True))


def _state_dict(path: Path) -> dict[str, Any]:
    """What ``torch.save`` wrote of a state dict; anything that asks for more than tensors is refused."""
    try:
        with warnings.catch_warnings(action="ignore"):  # about pickles of other protocols, which are refused below
            state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ConvertError(f"expected a file at {path}; got none") from None
    except Exception as error:  # of a file that is not what it should be, torch.load raises what it comes upon
        lines = str(error).splitlines() or [type(error).__name__]
        if isinstance(error, pickle.UnpicklingError):
            got = next((line for line in lines if "GLOBAL" in line), "no state dict")
            raise ConvertError(f"expected a state dict of tensors in {path}, unpickling nothing else (save "
                               f"module.state_dict()); got {got.strip()}") from None  # fmt: skip
        raise ConvertError(f"expected a state dict in {path}; got no state dict ({lines[0]})") from None
    if not isinstance(state, dict):
        raise ConvertError(f"expected a state dict in {path}; got {type(state).__name__}")
    return state
