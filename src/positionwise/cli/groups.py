"""Dependency groups: imported on use, and named when they are missing."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

from positionwise.errors import MissingGroupError

PACKAGES = {
    "models": ("transformers", "rich"),
    "train": ("transformers", "rich", "tokenizers", "accelerate", "sacrebleu", "tensorboard"),
    "convert": ("transformers", "rich", "h5py", "google_crc32c"),
}
"""What a group brings, asked for before anything is done."""


def load(module: str, group: str) -> Any:
    """Import a module that needs a dependency group.

    Raises:
        MissingGroupError: naming the command that installs the group.
    """
    for package in PACKAGES[group]:
        if find_spec(package) is None:
            raise MissingGroupError(f"this command needs {package}: pip install 'positionwise[{group}]'", name=package)
    return importlib.import_module(module)
