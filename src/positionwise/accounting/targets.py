"""From a folder, a ``config.json`` or a transformers configuration to a model on the meta device.

Nothing is downloaded, no code of a repository is run and no weights are read. What cannot be built is one line:
whatever the library raises becomes an `AccountError` that names the configuration and the reason.
"""

from __future__ import annotations

import copy
import difflib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from positionwise.accounting.backbones import without_timm
from positionwise.accounting.files import check_experts, check_fields, find, load, misspelled, weights_beside
from positionwise.accounting.guarding import at_most_modules, buildable, quiet, refusals, version
from positionwise.adapters.families import differs_between_versions
from positionwise.errors import AccountError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_REMOTE = ", whose code lies beside its weights (auto_map): remote code is never run"


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
    file, folder = find(path)
    data = load(file)
    with refusals(f"fields that are not nested without end in {file}"):
        check_fields(data, str(file))
    with quiet():
        config, notes = _configuration(data, str(file))
        target = _target(config, str(file), data)
        notes = (*notes, *misspelled(data, config), *weights_beside(data, folder))
    name = file.resolve().parent.name if file.name == "config.json" else file.name
    return Target(name, target.config, target.model_class, folder, (*notes, *target.notes))


def from_config(config: Any) -> Target:
    """The target of a transformers configuration: its ``architectures[0]``, or the base model.

    Raises:
        AccountError: for a configuration that contradicts itself, or without a class that can be built.
    """
    with quiet():
        return _target(config, type(config).__name__, {})


def build(target: Target) -> nn.Module:
    """The target's model on the meta device: every parameter has its shape and no storage.

    Raises:
        AccountError: naming the target and what the library said, when no model comes of it.
    """
    model_class = cast(Any, target.model_class)
    # The library writes into what it is given, so it is given a copy. Eager attention is in every class, and has the
    # parameters of the others.
    with refusals(buildable(target.name)), quiet(), torch.device("meta"), at_most_modules(target.name):
        model: nn.Module = model_class._from_config(copy.deepcopy(target.config), attn_implementation="eager")
    for name, parameter in model.named_parameters():
        # A list of no extra tokens, (0, d_model), is no mistake; a map from or to nothing is one.
        if parameter.numel() == 0 and (name.endswith("weight") or parameter.shape[-1] == 0):
            raise AccountError(f"expected sizes of at least 1 in {target.name}; got {name} of {tuple(parameter.shape)}")
    if not any(True for _ in model.parameters()):
        raise AccountError(f"expected a model with parameters in {target.name}; got {model_class.__name__} without any")
    return model


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

    with refusals(buildable(place)):
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
        with refusals(buildable(place)):
            return CONFIG_MAPPING[model_type]
    if remote:
        raise AccountError(f"expected a model type of {version()} in {place}; got {model_type!r}{_REMOTE}")
    near = difflib.get_close_matches(model_type, list(CONFIG_MAPPING), n=3)
    hint = f" (near it: {', '.join(near)})" if near else ""
    raise AccountError(f"expected a model type of {version()} in {place}; got {model_type!r}{hint}")


def _architecture(names: Any, place: str) -> str | None:
    """``architectures[0]``; None where there is none."""
    if names is None or names == []:
        return None
    if not isinstance(names, list) or not isinstance(names[0], str):
        raise AccountError(f"expected architectures in {place} to be a list of names; got {names!r}")
    return names[0]


def _target(config: Any, place: str, data: Mapping[str, Any]) -> Target:
    """The class that a configuration asks for, with what the account has to say about that choice."""
    check_experts(config, place)
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
        notes.append(f"The code named in auto_map is not run: {version()}'s own {model_class.__name__} is counted.")
    written = data.get("transformers_version")
    other = isinstance(written, str) and written.partition(".")[0] != version().partition(" ")[2].partition(".")[0]
    by = f"; the configuration was written by {written}" if other else ""
    notes.append(f"Counted as {version()} builds {model_class.__name__}{by}.")
    config, replaced = without_timm(config)
    known = differs_between_versions(config)
    return Target(config.model_type, config, model_class, None, (*notes, *replaced, *((known,) if known else ())))


def _model_class(name: str, place: str, remote: bool) -> type[nn.Module]:
    """The library's, or our own, model class of a name."""
    import transformers

    from positionwise.transformer import TransformerForTranslation

    if name == TransformerForTranslation.__name__:
        return TransformerForTranslation
    with refusals(buildable(place)):
        # A name that the library has, but whose packages are not installed, gives a stand-in that is no model.
        found = getattr(transformers, name, None)
    if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel) and found.config_class is not None:
        return found
    near = difflib.get_close_matches(
        name.lower(), (known := {n.lower(): n for n in dir(transformers) if "For" in n}), n=1
    )
    why = _REMOTE if remote else f" (did you mean {known[near[0]]!r}?)" if near else ""
    raise AccountError(f"expected architectures in {place} to name a model class of {version()}; got {name!r}{why}")


def _base_model(config: Any, place: str) -> tuple[type[nn.Module], str]:
    """The model that AutoModel builds. Without an entry there: the one public class of this very configuration."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    from positionwise.transformer import TransformerConfig, TransformerForTranslation

    said = "The configuration names no architecture"
    if isinstance(config, TransformerConfig):
        return TransformerForTranslation, f"{said}: TransformerForTranslation is counted."
    with refusals(buildable(place)):
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
