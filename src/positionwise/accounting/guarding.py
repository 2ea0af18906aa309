"""Running the library's code for configurations: its errors as one line, its voice kept down, its builds limited."""

from __future__ import annotations

import logging
import os
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from positionwise.errors import AccountError, MissingGroupError

MOST_MODULES = 600_000
"""The most modules that are built, half a minute's worth; the largest published model, Switch-C, has 310,000."""
_MODELS = os.path.join("transformers", "models", "")


def version() -> str:
    """The library's name and version."""
    from transformers import __version__

    return f"transformers {__version__}"


def refused(expected: str, error: BaseException) -> AccountError:
    """One line for what went wrong elsewhere: its kind and its message, without line breaks."""
    said = " ".join(str(error).split())[:300]
    lines = [frame.line for frame in traceback.extract_tb(error.__traceback__) if _MODELS in frame.filename]
    # An error that is no check of the library's says little; the line at which it came names the field.
    where = f" (at: {lines[-1]})" if lines and not isinstance(error, (ValueError, ImportError)) else ""
    return AccountError(f"expected {expected}; got {type(error).__name__}{': ' if said else ''}{said}{where}")


def buildable(place: str) -> str:
    """What is expected of a configuration."""
    return f"a configuration in {place} that {version()} can build"


@contextmanager
def refusals(expected: str) -> Iterator[None]:
    """Turn whatever is raised into one line.

    The library's classes check their fields by means of their own or not at all, so a wrong field shows as any
    exception there is.
    """
    try:
        yield
    except AccountError:
        raise
    except Exception as error:
        raise refused(expected, error) from None


@contextmanager
def quiet() -> Iterator[None]:
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
def at_most_modules(name: str) -> Iterator[None]:
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
