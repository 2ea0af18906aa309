"""The program as a whole: help, version, usage errors and exit codes."""

import errno
import re
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

import positionwise
from positionwise.cli import app, main

COMMANDS = ["demo", "train", "translate", "evaluate", "account", "bench", "convert"]


def test_help_lists_every_command(command):
    result = command("--help")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("Usage: ")
    listed = re.findall(r"^  (\w+) ", result.out.partition("Commands:")[2], re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS)
    assert "--version" in result.out


def test_the_version_is_printed(command):
    assert command("--version") == (0, f"positionwise {positionwise.__version__}\n", "")


def test_the_package_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "positionwise", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"positionwise {positionwise.__version__}\n"


def test_without_a_command_there_is_help(command):
    result = command()
    assert result.code == 2
    assert "Commands:" in result.out + result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("demo", ["--out", "--seed"]),
        ("train", ["--data", "--out", "--resume", "--languages", "--minutes", "--max-steps", "--variant", "--d-model",
                   "--d-ff", "--heads", "--layers", "--vocab-size", "--seed", "--checkpoint-minutes"]),
        ("translate", ["RUN", "[FILE]", "--beam"]),
        ("evaluate", ["RUN", "--data", "--beam", "--json"]),
        ("account", ["TARGET", "--json", "--vocab-size", "--batch", "--sequence"]),
    ],
)  # fmt: skip
def test_each_commands_help_lists_what_it_takes(command, name, options):
    result = command(name, "--help")
    assert (result.code, result.err) == (0, "")
    assert [option for option in options if option.lower() not in result.out.lower()] == []
    assert re.search(rf"^Usage: .* {name} ", result.out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["acount", "x"], "No such command 'acount'"),
        (["--nonsense"], "No such option.*--nonsense"),
        (["account", "transformer-base", "--jason"], "No such option.*--jason"),
        (["account"], "(?i)missing argument.*target"),
        (["account", "a", "b"], "(?i)unexpected extra argument.*b"),
        (["account", "transformer-base", "--batch", "many"], "(?i)--batch.*(integer|many)"),
        (["account", "transformer-base", "--vocab-size"], "(?i)--vocab-size.*argument"),
        (["translate"], "(?i)missing argument.*run"),
        (["translate", "RUN", "--beam", "0"], "(?i)--beam.*(0|1)"),
        (["translate", "RUN", "--beam", "1.5"], "(?i)--beam.*(integer|1.5)"),
        (["evaluate"], "(?i)missing argument.*run"),
        (["train"], "(?i)missing option.*--out"),
        (["train", "--out", "x"], "(?i)--data.*expected a file of pairs; got none"),
        (["train", "--out", "x", "--data", "y", "--max-steps", "ten"], "(?i)--max-steps.*(integer|ten)"),
        (["train", "--out", "x", "--data", "y", "--minutes", "soon"], "(?i)--minutes.*(number|float|soon)"),
        (["train", "--out", "x", "--data", "y", "--languages", "en"], "(?i)--languages.*(2|two)"),
        (["demo", "--seed", "x"], "(?i)--seed.*(integer|x)"),
        (["demo", "extra"], "(?i)unexpected extra argument.*extra"),
    ],
)
def test_wrong_usage_is_told_in_two_lines(command, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = command(*arguments)
    assert re.search(message, result.refused())
    assert re.search(r"see .* --help$", result.err.splitlines()[-1])
    assert not list(tmp_path.iterdir())


def test_a_process_ends_with_the_code_of_its_error(process, finish):
    assert "acount" in finish(process("acount")).refused(2)
    assert finish(process("--version")).code == 0


def failing(monkeypatch, error):
    def raise_it(*arguments, **options):
        raise error

    monkeypatch.setattr(app, "app", raise_it)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (
            positionwise.errors.DataError("expected\n  a sentence;   got none"),
            2,
            "error: expected a sentence; got none",
        ),
        (positionwise.errors.SpecError("wrong"), 2, "error: wrong"),
        (positionwise.errors.MissingGroupError("this needs typer"), 1, "error: this needs typer"),
        (FileNotFoundError(errno.ENOENT, "No such file", "x.txt"), 1, "error: No such file (x.txt)"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "error: No space left on device"),
        (KeyboardInterrupt(), 1, "error: interrupted"),
    ],
)
def test_an_error_becomes_a_line_and_a_code(command, monkeypatch, error, code, message):
    failing(monkeypatch, error)
    assert command("account").refused(code) == message


def test_a_fault_of_the_program_is_a_line_that_says_so(command, monkeypatch):
    failing(monkeypatch, ZeroDivisionError("ours\n" * 500))
    line = command("account").refused(1)
    assert line.startswith("error: unexpected ZeroDivisionError: ours")
    assert len(line) < 600


def test_the_installed_program_is_this_one():
    (script,) = entry_points(group="console_scripts", name="positionwise")
    assert script.load() is main
