"""Configuration files: found, measured before they are read, and checked for what the library takes in silence."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from positionwise.accounting.guarding import refusals
from positionwise.errors import AccountError

LARGEST_FILE = 16 * 2**20
"""Bytes of a configuration that are read: a hundred times what the largest published ones have."""
MOST_REPEATED = 1_000_000
"""The most layers, experts or labels that a configuration may ask for: the library loops over each of them."""
_LOOPED = re.compile(
    r"^(num|n)_\w*(layer|block|depth|stage|expert|head|group|label|codebook)|^(\w+_)?(encoder|decoder)_layers$"
    r"|^(layers|depths?|blocks|inner_group_num)$"
)
"""Names of how often something is there. As few as none may be right (experts), but not fewer."""
_NEEDED = {"num_hidden_layers", "num_layers", "n_layers", "n_layer", "num_attention_heads", "n_head",
           "hidden_size", "d_model", "n_embd", "vocab_size"}  # fmt: skip
"""What no model is without."""
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k", "moe_k")
_WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".onnx", ".msgpack", ".ckpt"}


def find(path: Path) -> tuple[Path, Path | None]:
    """The configuration's file, and the folder where its weights may lie."""
    wanted = f"a folder with a config.json or a JSON file at {path}"
    with refusals(wanted):
        if path.is_dir():
            if not (path / "config.json").is_file():
                adapter = (path / "adapter_config.json").is_file()
                got = "an adapter's folder: count the model that it adapts" if adapter else "a folder without one"
                raise AccountError(f"expected a config.json in {path}; got {got}")
            return path / "config.json", path
        if not path.exists():
            raise AccountError(f"expected {wanted}; got nothing there")
        if not path.is_file():  # a pipe or a device, which may have no end
            raise AccountError(f"expected {wanted}; got another kind of file")
        if path.suffix in _WEIGHTS:
            raise AccountError(f"expected {wanted}; got a file of weights: give the folder that has its config.json")
    return path, path.parent if path.name == "config.json" else None


def load(file: Path) -> dict[str, Any]:
    """The JSON object in a file, which is measured before it is read."""
    with refusals(f"JSON in {file}"):
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


def check_fields(data: Mapping[str, Any], place: str) -> None:
    """Refuse the numbers that the library takes in silence, or that it would loop over for hours."""
    for name, value in data.items():
        if name == "quantization_config":
            continue
        for entry in value if isinstance(value, list) else [value]:
            if isinstance(entry, dict):
                check_fields(entry, place)
            elif isinstance(entry, float) and math.isnan(entry):
                raise AccountError(f"expected {name} in {place} to be a number; got NaN")
            elif isinstance(entry, int) and not isinstance(entry, bool):
                looped = bool(_LOOPED.search(name))
                least = 1 if name in _NEEDED else 0
                if (looped or least) and entry < least:
                    raise AccountError(f"expected {name} in {place} to be at least {least}; got {entry}")
                if looped and entry > MOST_REPEATED:
                    raise AccountError(f"expected {name} in {place} to be at most {MOST_REPEATED:,}; got {entry:,}")


def check_experts(config: Any, place: str) -> None:
    """Refuse more chosen experts than there are, and heads that cannot share keys evenly, in a part or in the whole."""
    fields = vars(config)
    for part in fields.values():
        if hasattr(part, "model_type"):
            check_experts(part, place)
    experts = next((fields[name] for name in _EXPERTS if isinstance(fields.get(name), int) and fields[name]), None)
    for name in _CHOSEN:
        if experts is not None and isinstance(fields.get(name), int) and not 0 < fields[name] <= experts:
            raise AccountError(f"expected {name} in {place} to be 1 to {experts}, its experts; got {fields[name]}")
    heads, shared = fields.get("num_attention_heads"), fields.get("num_key_value_heads")
    if isinstance(heads, int) and isinstance(shared, int) and shared > 0 and heads % shared:
        raise AccountError(f"expected num_key_value_heads in {place} to divide {heads} heads; got {shared}")


def misspelled(data: Mapping[str, Any], config: Any) -> tuple[str, ...]:
    """Notes on fields that the configuration does not know and that are near to one it takes from its defaults."""
    known = {*getattr(type(config), "__dataclass_fields__", ()), *type(config).attribute_map}
    absent = sorted(known - set(data))
    notes = []
    for name in data if known else ():
        near = [] if name in known else difflib.get_close_matches(name, absent, n=1, cutoff=0.88)
        if near:
            notes.append(f"{name} is no field of {type(config).__name__} (did you mean {near[0]}?): it is ignored.")
    return tuple(notes)


def weights_beside(data: Mapping[str, Any], folder: Path | None) -> tuple[str, ...]:
    """Notes on weights that are not compared with the model, and on ones that are stored packed."""
    notes = []
    quantised = data.get("quantization_config")
    if isinstance(quantised, dict):
        method = quantised.get("quant_method", "an unnamed method")
        notes.append(f"The weights are quantised ({method}): counted as the maps that they stand for.")
    names = sorted(path.name for path in folder.iterdir()) if folder is not None else []
    others = [name for name in names if Path(name).suffix in _WEIGHTS - {".safetensors"}]
    if others and not any(name.endswith(".safetensors") for name in names):
        notes.append(f"Weights in {others[0]} are not compared: only the headers of safetensors files are read.")
    return tuple(notes)
