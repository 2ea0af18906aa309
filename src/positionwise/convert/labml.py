"""labml's feed-forward state dicts as our module: the names are the same."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import torch

from positionwise.convert.tensors import Conversion, Tensors, read, read_npz
from positionwise.errors import ConvertError
from positionwise.feedforward import FeedForward

_SUFFIXES = ("layer1.weight", "layer1.bias", "layer2.weight", "layer2.bias", "linear_v.weight", "linear_v.bias")


def from_labml(source: Any, *, activation: Any = "relu", dropout: float = 0.1) -> FeedForward:
    """A block with the weights of labml's ``FeedForward``.

    Args:
        source: a state dict, or a file of one (``torch.save``'s, ``.safetensors`` or ``.npz``). The names may stand
            behind a common prefix. Which maps have biases, and whether there is a gate, is read from the names.
        activation: which the state dict does not hold; labml's default.
        dropout: likewise.

    Returns:
        The block, in evaluation mode.

    Raises:
        ConvertError: for a tensor that is missing, unknown, of a wrong shape or not finite, naming it; and for a file
            that would have to be unpickled.
    """
    module = convert_labml(source, activation=activation, dropout=dropout).module
    assert isinstance(module, FeedForward)
    return module


def convert_labml(source: Any, *, activation: Any = "relu", dropout: float = 0.1) -> Conversion:
    """`from_labml` with the account of what went where."""
    tensors = Tensors(read(source, {".npz": read_npz, ".safetensors": _safetensors}, _state_dict))
    prefix = next(
        (name.removesuffix("layer1.weight") for name in tensors.names() if name.endswith("layer1.weight")), ""
    )
    for name in ("layer1.weight", "layer2.weight"):
        if len(shape := tensors.shape(prefix + name)) != 2:
            raise ConvertError(f"expected a matrix (out, in) in {prefix + name!r}; got {shape}")
    (d_ff, d_model), d_out = tensors.shape(f"{prefix}layer1.weight"), tensors.shape(f"{prefix}layer2.weight")[0]
    has = {name: f"{prefix}{name}" in tensors for name in _SUFFIXES}
    if has["linear_v.bias"] and not has["linear_v.weight"]:
        raise ConvertError(f"expected a tensor '{prefix}linear_v.weight' beside its bias; got none of that name")
    block = FeedForward(
        d_model, d_ff, dropout, activation, has["linear_v.weight"], has["layer1.bias"], has["layer2.bias"],
        has["linear_v.bias"], d_out=None if d_out == d_model else d_out,
    )  # fmt: skip
    state = {name: tensors.take(prefix + name, name) for name in _SUFFIXES if has[name]}
    return tensors.load(block, state)


def _safetensors(path: Path) -> dict[str, Any]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ModuleNotFoundError as error:
        from positionwise.errors import MissingGroupError

        raise MissingGroupError(f"{path.name} needs {error.name}: pip install 'positionwise[models]'") from None
    try:
        return dict(load_file(path))
    except (SafetensorError, OSError) as error:
        raise ConvertError(f"expected tensors in {path}; got {error}") from None


def _state_dict(path: Path) -> dict[str, Any]:
    """What ``torch.save`` wrote of a state dict; anything that asks for more than tensors is refused."""
    try:
        with warnings.catch_warnings(action="ignore"):  # about pickles of other protocols, which are refused below
            state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ConvertError(f"expected a file at {path}; got none") from None
    except pickle.UnpicklingError as error:
        got = next((line for line in str(error).splitlines() if "GLOBAL" in line or "Unsupported" in line), "none")
        raise ConvertError(f"expected a state dict of tensors in {path}, unpickling nothing else; got {got}") from None
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, TypeError) as error:
        raise ConvertError(
            f"expected a state dict in {path}; got {(str(error) or type(error).__name__).splitlines()[0]}"
        ) from None
    if not isinstance(state, dict):
        raise ConvertError(f"expected a state dict in {path}; got {type(state).__name__}")
    return state
