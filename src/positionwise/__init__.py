"""The Transformer's position-wise feed-forward network, done completely.

Names are loaded when they are first used, so that ``import positionwise`` stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from positionwise.accounting import Account as Account
    from positionwise.accounting import account as account
    from positionwise.adapters import find as find
    from positionwise.errors import PositionwiseError as PositionwiseError
    from positionwise.feedforward import FeedForward as FeedForward
    from positionwise.feedforward import explain as explain
    from positionwise.hidden_density import density as density
    from positionwise.spec import FFNSpec as FFNSpec

__version__ = "0.1.0"

_HOMES = {
    "Account": "positionwise.accounting",
    "account": "positionwise.accounting",
    "find": "positionwise.adapters",
    "PositionwiseError": "positionwise.errors",
    "FeedForward": "positionwise.feedforward",
    "explain": "positionwise.feedforward",
    "density": "positionwise.hidden_density",
    "FFNSpec": "positionwise.spec",
}

__all__ = ["Account", "FFNSpec", "FeedForward", "PositionwiseError", "account", "density", "explain", "find"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*(name for name in globals() if name.startswith("__")), *__all__])
