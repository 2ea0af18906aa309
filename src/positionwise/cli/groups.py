"""Dependency groups: imported on use, and named when they are missing."""

from __future__ import annotations

import importlib
from typing import Any

from positionwise.errors import MissingGroupError


def load(module: str, group: str) -> Any:
    """Import a module that needs a dependency group.

    Raises:
        MissingGroupError: naming the command that installs the group.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("positionwise"):
            raise
        raise MissingGroupError(
            f"this command needs {error.name}: pip install 'positionwise[{group}]'", name=error.name
        ) from None
