"""The command line: thin commands, one way of reporting errors."""

from __future__ import annotations

import os
import sys

DONE, FAILED, WRONG = 0, 1, 2


def main(arguments: list[str] | None = None) -> None:
    """Run ``positionwise`` and exit: 0 done, 1 failed, 2 wrong usage or wrong input."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here is ever fetched
    try:
        from positionwise.cli.app import run
    except ImportError as error:
        sys.exit(_missing(error))
    sys.exit(run(arguments))


def _missing(error: ImportError) -> int:
    print(f"error: {error.name or error} is not installed: pip install 'positionwise[all]'", file=sys.stderr)
    return FAILED
