"""The package's exceptions: each says what was expected and what came."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PositionwiseError(Exception):
    """Base of every error that the package raises on purpose."""


class SpecError(PositionwiseError, ValueError):
    """A size, an option or a name that no block or model can be built from."""


class InputError(PositionwiseError, ValueError):
    """A tensor of the wrong shape."""


class DtypeError(PositionwiseError, TypeError):
    """A tensor of the wrong dtype."""


class AccountError(PositionwiseError, ValueError):
    """A target that cannot be counted, or two counts that disagree."""


class DataError(PositionwiseError, ValueError):
    """A file of sentences that cannot be read as pairs."""


class ConvertError(PositionwiseError, ValueError):
    """A source of weights that cannot be read, or that is not what it should be."""


class RunError(PositionwiseError, ValueError):
    """A folder that is not a run, or one that this version cannot read."""


class Stopped(PositionwiseError):
    """A training that a signal ended early; its checkpoint is saved."""


class MissingGroupError(PositionwiseError, ImportError):
    """A dependency group that is not installed."""


def unknown_name(kind: str, got: object, known: Iterable[str]) -> SpecError:
    """The error for a name that is not in a table: it lists the table, nearest name first."""
    names = sorted(known)
    near = difflib.get_close_matches(str(got), names, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return SpecError(f"expected {kind} to be one of {', '.join(names)}; got {got!r}{hint}")
