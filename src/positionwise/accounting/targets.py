"""From a folder, a ``config.json`` or a transformers configuration to a model on the meta device.

Nothing is downloaded, no code of a repository is run and no weights are read. What cannot be built is one line:
whatever the library raises becomes an `AccountError` that names the configuration and the reason.
"""

from __future__ import annotations

import copy
import difflib
import importlib
import json
import logging
import math
import os
import re
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from positionwise.accounting.backbones import without_timm
from positionwise.adapters.families import differs_between_versions
from positionwise.errors import AccountError, MissingGroupError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

LARGEST_FILE = 16 * 2**20
"""Bytes of a configuration that are read: a hundred times what the largest published ones have."""
MOST_REPEATED = 1_000_000
"""The most layers, experts or labels that a configuration may ask for: the library loops over each of them."""
MOST_MODULES = 250_000
"""The most modules that are built, about ten seconds' worth; published models stay below 100,000."""
_LOOPED = re.compile(
    r"^(num|n)_\w*(layer|block|depth|stage|expert|head|group|label|codebook)|^(\w+_)?(encoder|decoder)_layers$"
    r"|^(layers|depths?|blocks)$"
)
"""Names of how often something is there. As few as none may be right (experts), but not fewer."""
_REMOTE = ", whose code lies beside its weights (auto_map): remote code is never run"
_MODELS = os.path.join("transformers", "models", "")
_NEEDED = {"num_hidden_layers", "num_layers", "n_layers", "n_layer", "num_attention_heads", "n_head",
           "hidden_size", "d_model", "n_embd", "vocab_size"}  # fmt: skip
"""What no model is without."""
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k", "moe_k")


@dataclass(frozen=True)
class Target:
    """A model that can be built and counted."""

    name: str
    """The folder's or the file's name, or the model type."""
    config: PreTrainedConfig
    model_class: type[nn.Module]
    folder: Path | None = None
    """Where the weights may lie."""
    notes: tuple[str, ...] = ()
    """What a reader of the account must know: which class was taken, and by which version of the library."""


def read(path: Path) -> Target:
    """The target of a folder that holds a ``config.json``, or of a JSON file of any name.

    Raises:
        AccountError: for a path that is neither, a file that is no configuration, and a configuration that contradicts
            itself or that the installed transformers does not know.
        MissingGroupError: without transformers.
    """
    file, folder = _find(path)
    data = _load(file)
    with _refusals(f"fields that are not nested without end in {file}"):
        _check_fields(data, str(file))
    with _quiet():
        config, notes = _configuration(data, str(file))
        target = _target(config, str(file), data)
    name = file.resolve().parent.name if file.name == "config.json" else file.name
    return Target(name, target.config, target.model_class, folder, (*notes, *target.notes))


def from_config(config: Any) -> Target:
    """The target of a transformers configuration: its ``architectures[0]``, or the base model.

    Raises:
        AccountError: for a configuration that contradicts itself, or without a class that can be built.
    """
    with _quiet():
        return _target(config, type(config).__name__, {})


def build(target: Target) -> nn.Module:
    """The target's model on the meta device: every parameter has its shape and no storage.

    Raises:
        AccountError: naming the target and what the library said, when no model comes of it.
    """
    model_class = cast(Any, target.model_class)
    # The library writes into what it is given, so it is given a copy. Eager attention is in every class, and has the
    # parameters of the others.
    with _refusals(_buildable(target.name)), _quiet(), torch.device("meta"), _at_most_modules(target.name):
        model: nn.Module = model_class._from_config(copy.deepcopy(target.config), attn_implementation="eager")
    for name, parameter in model.named_parameters():
        # A list of no extra tokens, (0, d_model), is no mistake; a map from or to nothing is one.
        if parameter.numel() == 0 and (name.endswith("weight") or parameter.shape[-1] == 0):
            raise AccountError(f"expected sizes of at least 1 in {target.name}; got {name} of {tuple(parameter.shape)}")
    return model


def _find(path: Path) -> tuple[Path, Path | None]:
    """The configuration's file, and the folder where its weights may lie."""
    wanted = f"a folder with a config.json or a JSON file at {path}"
    with _refusals(wanted):
        if path.is_dir():
            if not (path / "config.json").is_file():
                raise AccountError(f"expected a config.json in {path}; got a folder without one")
            return path / "config.json", path
        if not path.exists():
            raise AccountError(f"expected {wanted}; got nothing there")
        if not path.is_file():  # a pipe or a device, which may have no end
            raise AccountError(f"expected {wanted}; got another kind of file")
    return path, path.parent if path.name == "config.json" else None


def _load(file: Path) -> dict[str, Any]:
    """The JSON object in a file, which is measured before it is read."""
    with _refusals(f"JSON in {file}"):
        size = file.stat().st_size
        if size > LARGEST_FILE:
            raise AccountError(f"expected at most {LARGEST_FILE:,} bytes of configuration in {file}; got {size:,}")
        with file.open("rb") as opened:
            text = opened.read(LARGEST_FILE).decode()
        if not text.strip():
            raise AccountError(f"expected JSON in {file}; got an empty file")
        data = json.loads(text)
    if not isinstance(data, dict):
        raise AccountError(f"expected a JSON object in {file}; got {_json_kind(data)}")
    return data


def _json_kind(value: Any) -> str:
    kinds = {list: "a list", str: "a string", bool: "true or false", int: "a number", float: "a number"}
    return kinds.get(type(value), "null")


def _check_fields(data: Mapping[str, Any], place: str) -> None:
    """Refuse the numbers that the library takes in silence, or that it would loop over for hours."""
    for name, value in data.items():
        if name == "quantization_config":
            continue
        for entry in value if isinstance(value, list) else [value]:
            if isinstance(entry, dict):
                _check_fields(entry, place)
            elif isinstance(entry, float) and math.isnan(entry):
                raise AccountError(f"expected {name} in {place} to be a number; got NaN")
            elif isinstance(entry, int) and not isinstance(entry, bool):
                looped = bool(_LOOPED.search(name))
                least = 1 if name in _NEEDED else 0
                if (looped or least) and entry < least:
                    raise AccountError(f"expected {name} in {place} to be at least {least}; got {entry}")
                if looped and entry > MOST_REPEATED:
                    raise AccountError(f"expected {name} in {place} to be at most {MOST_REPEATED:,}; got {entry:,}")


def _configuration(data: dict[str, Any], place: str) -> tuple[PreTrainedConfig, tuple[str, ...]]:
    """The configuration that a file describes, and what had to be inferred for it."""
    notes: tuple[str, ...] = ()
    model_type = data.get("model_type")
    if model_type is None:
        model_type = _inferred_type(data, place)
        notes = (f"The file has no model_type; {data['architectures'][0]} says that it is {model_type}.",)
    elif not isinstance(model_type, str):
        raise AccountError(f"expected model_type in {place} to be a string; got {model_type!r}")
    config_class = _config_class(model_type, "auto_map" in data, place)
    from transformers import PreTrainedConfig

    with _refusals(_buildable(place)):
        # Infinity is written as {"__float__": "Infinity"}, which only the library's own reader of files undoes.
        fields = PreTrainedConfig._decode_special_floats(data)
        return config_class.from_dict({**fields, "model_type": model_type}), notes


def _inferred_type(data: Mapping[str, Any], place: str) -> str:
    """The model type of the class that ``architectures[0]`` names, where the file does not say it."""
    name = _architecture(data.get("architectures"), place)
    if name is None:
        shown = ", ".join(list(data)[:4]) or "none"
        raise AccountError(f"expected model_type or architectures in {place}; got neither (its fields: {shown})")
    model_class = _model_class(name, place, "auto_map" in data)
    model_type: str = cast(Any, model_class).config_class.model_type
    return model_type


def _config_class(model_type: str, remote: bool, place: str) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from positionwise.transformer import TransformerConfig

    if model_type == TransformerConfig.model_type:
        return TransformerConfig
    if model_type in CONFIG_MAPPING:
        with _refusals(_buildable(place)):
            return CONFIG_MAPPING[model_type]
    if remote:
        raise AccountError(f"expected a model type of {_version()} in {place}; got {model_type!r}{_REMOTE}")
    near = difflib.get_close_matches(model_type, list(CONFIG_MAPPING), n=3)
    hint = f" (near it: {', '.join(near)})" if near else ""
    raise AccountError(f"expected a model type of {_version()} in {place}; got {model_type!r}{hint}")


def _architecture(names: Any, place: str) -> str | None:
    """``architectures[0]``; None where there is none."""
    if names is None or names == []:
        return None
    if not isinstance(names, list) or not isinstance(names[0], str):
        raise AccountError(f"expected architectures in {place} to be a list of names; got {names!r}")
    return names[0]


def _target(config: Any, place: str, data: Mapping[str, Any]) -> Target:
    """The class that a configuration asks for, with what the account has to say about that choice."""
    _check_experts(config, place)
    remote = "auto_map" in data
    name = _architecture(getattr(config, "architectures", None), place)
    notes = []
    if name is None:
        model_class, note = _base_model(config, place)
        notes.append(note)
    else:
        model_class = _model_class(name, place, remote)
        expected = cast(Any, model_class).config_class
        if not isinstance(config, expected):
            raise AccountError(f"expected architectures in {place} to name a class of {config.model_type}; got {name}, "
                               f"a class of {expected.model_type}")  # fmt: skip
    if remote:
        notes.append(f"The code named in auto_map is not run: {_version()}'s own {model_class.__name__} is counted.")
    written = data.get("transformers_version")
    other = isinstance(written, str) and written.partition(".")[0] != _version().partition(" ")[2].partition(".")[0]
    by = f"; the configuration was written by {written}" if other else ""
    notes.append(f"Counted as {_version()} builds {model_class.__name__}{by}.")
    config, replaced = without_timm(config)
    known = differs_between_versions(config)
    return Target(config.model_type, config, model_class, None, (*notes, *replaced, *((known,) if known else ())))


def _model_class(name: str, place: str, remote: bool) -> type[nn.Module]:
    """The library's, or our own, model class of a name."""
    import transformers

    from positionwise.transformer import TransformerForTranslation

    if name == TransformerForTranslation.__name__:
        return TransformerForTranslation
    with _refusals(_buildable(place)):
        # A name that the library has, but whose packages are not installed, gives a stand-in that is no model.
        found = getattr(transformers, name, None)
    if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel) and found.config_class is not None:
        return found
    why = _REMOTE if remote else ""
    raise AccountError(f"expected architectures in {place} to name a model class of {_version()}; got {name!r}{why}")


def _base_model(config: Any, place: str) -> tuple[type[nn.Module], str]:
    """The model that AutoModel builds. Without an entry there: the one public class of this very configuration."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    from positionwise.transformer import TransformerConfig, TransformerForTranslation

    said = "The configuration names no architecture"
    if isinstance(config, TransformerConfig):
        return TransformerForTranslation, f"{said}: TransformerForTranslation is counted."
    with _refusals(_buildable(place)):
        if type(config) in MODEL_MAPPING:
            found = MODEL_MAPPING[type(config)]
            base = cast("type[nn.Module]", found[0] if isinstance(found, tuple) else found)
            return base, f"{said}: the base model, {base.__name__}, is counted."
        # The library names the file of a model's classes after that of its configuration.
        module = importlib.import_module(type(config).__module__.replace(".configuration_", ".modeling_"))
    classes = [
        value
        for name, value in vars(module).items()
        if getattr(value, "config_class", None) is type(config) and "PreTrainedModel" not in name
    ]
    classes = [value for value in classes if hasattr(transformers, value.__name__)] or classes
    if not classes:
        raise AccountError(f"expected a model type with a model in {place}; got {config.model_type!r}, only a part")
    # What a head is put on, rather than the head; else a whole model rather than a part of it.
    names = sorted(
        (value.__name__ for value in classes), key=lambda one: (one[-5:] != "Model", "For" not in one, len(one))
    )
    others = f", not {', '.join(names[1:])}" if names[1:] else ""
    note = f"{said}, and {config.model_type} has no base model: {names[0]} is counted{others}."
    return vars(module)[names[0]], note


def _check_experts(config: Any, place: str) -> None:
    """Refuse more chosen experts than there are, and heads that cannot share keys evenly, in a part or in the whole."""
    fields = vars(config)
    for part in fields.values():
        if hasattr(part, "model_type"):
            _check_experts(part, place)
    experts = next((fields[name] for name in _EXPERTS if isinstance(fields.get(name), int) and fields[name]), None)
    for name in _CHOSEN:
        if experts is not None and isinstance(fields.get(name), int) and not 0 < fields[name] <= experts:
            raise AccountError(f"expected {name} in {place} to be 1 to {experts}, its experts; got {fields[name]}")
    heads, shared = fields.get("num_attention_heads"), fields.get("num_key_value_heads")
    if isinstance(heads, int) and isinstance(shared, int) and shared > 0 and heads % shared:
        raise AccountError(f"expected num_key_value_heads in {place} to divide {heads} heads; got {shared}")


def _version() -> str:
    from transformers import __version__

    return f"transformers {__version__}"


def _refused(expected: str, error: BaseException) -> AccountError:
    """One line for what went wrong elsewhere: its kind and its message, without line breaks."""
    said = " ".join(str(error).split())[:300]
    lines = [frame.line for frame in traceback.extract_tb(error.__traceback__) if _MODELS in frame.filename]
    # An error that is no check of the library's says little; the line at which it came names the field.
    where = f" (at: {lines[-1]})" if lines and not isinstance(error, (ValueError, ImportError)) else ""
    return AccountError(f"expected {expected}; got {type(error).__name__}{': ' if said else ''}{said}{where}")


def _buildable(place: str) -> str:
    return f"a configuration in {place} that {_version()} can build"


@contextmanager
def _refusals(expected: str) -> Iterator[None]:
    """Turn whatever is raised into one line.

    The library's classes check their fields by means of their own or not at all, so a wrong field shows as any
    exception there is.
    """
    try:
        yield
    except AccountError:
        raise
    except Exception as error:
        raise _refused(expected, error) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the library's warnings and log lines from the terminal, and the library from the network.

    Some classes look up another model's configuration when they are built; offline, that is an error at once.
    """
    try:
        import transformers  # noqa: F401
        from huggingface_hub import constants
    except ModuleNotFoundError as error:
        raise MissingGroupError(f"this needs {error.name}: pip install 'positionwise[models]'") from None
    disabled, offline = logging.root.manager.disable, constants.HF_HUB_OFFLINE
    logging.disable(logging.CRITICAL)
    constants.HF_HUB_OFFLINE = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        constants.HF_HUB_OFFLINE = offline
        logging.disable(disabled)


@contextmanager
def _at_most_modules(name: str) -> Iterator[None]:
    """Stop a build that would go on for hours: sizes are free on the meta device, modules are not."""
    built = 0

    def count(*_: Any) -> None:
        nonlocal built
        built += 1
        if built > MOST_MODULES:
            raise AccountError(f"expected at most {MOST_MODULES:,} modules in {name}; got more, and stopped")

    handle = nn.modules.module.register_module_module_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()
