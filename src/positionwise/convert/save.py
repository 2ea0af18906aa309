"""A converted part of a model in a folder: its weights, and what it was built from; written, and read again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from positionwise.activations import ACTIVATIONS, resolve
from positionwise.convert.axis_one import AxisOneFeedForward
from positionwise.convert.tensors import Conversion, Tensors, read_safetensors
from positionwise.errors import ConvertError, PositionwiseError
from positionwise.feedforward import FeedForward
from positionwise.spec import FFNSpec
from positionwise.transformer import (
    DecoderLayer,
    EncoderLayer,
    FeedForwardBlock,
    ParameterAttention,
    TransformerConfig,
)
from positionwise.transformer.layers import attention
from positionwise.transformer.models import Encoder

_Build = Callable[..., Any]
# What a module is built from, by the fields that are written, and the module itself.
_PARTS: dict[str, tuple[_Build, _Build]] = {
    "FeedForward": (FFNSpec, FeedForward.from_spec),
    "AxisOneFeedForward": (FFNSpec, AxisOneFeedForward.from_spec),
    "ParameterAttention": (dict, lambda fields: ParameterAttention(**fields)),
    "MultiHeadAttention": (TransformerConfig, lambda config: attention(config, 0)),
    "FeedForwardBlock": (TransformerConfig, FeedForwardBlock),
    "EncoderLayer": (TransformerConfig, EncoderLayer),
    "DecoderLayer": (TransformerConfig, DecoderLayer),
    "Encoder": (TransformerConfig, Encoder),
}


def save_part(conversion: Conversion, out: Path) -> None:
    """Write ``model.safetensors`` and ``config.json`` (the class, and its spec or configuration) into a new folder.

    Raises:
        ConvertError: when the folder holds anything, or the module's activation has no name to write.
    """
    from safetensors.torch import save_file

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConvertError(f"expected a new or empty folder; got {out}")
    config: Any = conversion.config
    own = type(config).__annotations__  # without what transformers adds to every configuration
    fields = {name: value for name, value in asdict(config).items() if name in own}
    if "activation" in fields:
        fields["activation"] = _name_of(config.activation)
    text = json.dumps({"class": type(conversion.module).__name__, "config": fields}, indent=1)
    out.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in conversion.module.state_dict().items()},
              out / "model.safetensors")  # fmt: skip
    (out / "config.json").write_text(text + "\n", encoding="utf-8")


def _name_of(activation: Any) -> str:
    name = resolve(activation).name
    if name not in ACTIVATIONS:
        raise ConvertError(f"expected an activation of a known name, to be read again; got {activation!r}")
    return name


def load_part(folder: str | Path) -> nn.Module:
    """The module that `save_part` wrote (as ``positionwise convert`` does for less than a model), in evaluation mode.

    Raises:
        ConvertError: for a file or tensor that is missing or not what it should be, and for an unknown class.
    """
    path = Path(folder) / "config.json"
    kind, fields = _described(path)
    described, build = _PARTS[kind]
    try:
        config = described(**{name: _pair(value) for name, value in fields.items()})
        module: nn.Module = build(config)
    except (PositionwiseError, TypeError, ValueError) as error:
        raise ConvertError(f"expected the fields of a {kind} in {path}; got {error}") from None
    tensors = Tensors(read_safetensors(path.with_name("model.safetensors")))
    state = {name: tensors.take(name, name) for name in module.state_dict()}
    return tensors.load(module, state, config).module


def _described(path: Path) -> tuple[str, dict[str, Any]]:
    """The class and the fields of a ``config.json``."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConvertError(f"expected a part's configuration at {path}; got {error}") from None
    if not isinstance(said, Mapping) or not isinstance(said.get("config"), Mapping):
        raise ConvertError(f"expected a class and its config in {path}; got neither (a whole model is read by "
                           "TransformerForTranslation.from_pretrained)")  # fmt: skip
    if str(said.get("class")) not in _PARTS:
        raise ConvertError(f"expected one of the classes {', '.join(_PARTS)} in {path}; got {said.get('class')!r}")
    return said["class"], dict(said["config"])


def _pair(value: Any) -> Any:
    """JSON has lists for a kernel's pairs."""
    return tuple(value) if isinstance(value, list) else value
