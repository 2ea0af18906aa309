"""The commands and what becomes of their errors."""

from __future__ import annotations

import os
import sys
from typing import Any

import typer
from typer.exceptions import TyperException

import positionwise
from positionwise.cli import DONE, FAILED, WRONG, accounting, benchmarking, conversion, running, training
from positionwise.errors import MissingGroupError, PositionwiseError, Stopped

app = typer.Typer(
    name="positionwise",
    help="The Transformer's position-wise feed-forward network: count it, train with it, translate with it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def _version(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        print(f"positionwise {positionwise.__version__}")
        raise typer.Exit()


app.command("demo")(training.demo)
app.command("train")(training.train)
app.command("translate")(running.translate)
app.command("evaluate")(running.evaluate)
app.command("account")(accounting.account)
app.command("bench")(benchmarking.bench)
app.command("convert")(conversion.convert)


def run(arguments: list[str] | None = None) -> int:
    """Run a command line and give its exit code; errors go to standard error in a line or two."""
    try:
        code: Any = app(arguments, standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else DONE
    except TyperException as error:
        return _wrong_usage(error)
    except PositionwiseError as error:
        return _report(str(error), FAILED if isinstance(error, (MissingGroupError, OSError, Stopped)) else WRONG)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        place = f" ({error.filename})" if error.filename else ""
        return _report(f"{error.strerror or error}{place}", FAILED)
    except (KeyboardInterrupt, typer.Abort):
        return _report("interrupted", FAILED)
    except Exception as error:  # a fault of ours: still a line, not a traceback
        return _report(f"unexpected {type(error).__name__}: {error}"[:500], FAILED)


def _wrong_usage(error: Any) -> int:
    """A wrong command line in two lines; none at all prints the help."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.ctx.get_help())
        return WRONG
    where = context.command_path if context else "positionwise"
    return _report(error.format_message(), WRONG, f"see {where} --help")


def _report(message: str, code: int, hint: str = "") -> int:
    print("error: " + " ".join(message.split()), file=sys.stderr)
    if hint:
        print(hint, file=sys.stderr)
    return code
