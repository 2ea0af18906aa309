"""A converted part of a model in a folder: its weights, and what it was built from."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from positionwise.convert.tensors import Conversion
from positionwise.errors import ConvertError


def save_part(conversion: Conversion, out: Path) -> None:
    """Write ``model.safetensors`` and ``config.json`` (the class, and its spec or configuration) into a new folder.

    Raises:
        ConvertError: when the folder holds anything.
    """
    from safetensors.torch import save_file

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConvertError(f"expected a new or empty folder; got {out}")
    config: Any = conversion.config
    own = type(config).__annotations__  # without what transformers adds to every configuration
    fields = {name: value for name, value in asdict(config).items() if name in own}
    text = json.dumps({"class": type(conversion.module).__name__, "config": fields}, indent=1, default=str)
    out.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in conversion.module.state_dict().items()},
              out / "model.safetensors")  # fmt: skip
    (out / "config.json").write_text(text + "\n", encoding="utf-8")
