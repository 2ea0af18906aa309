"""Command lines in this process and in one of their own, and a run of 30 steps that one of them made."""

import io
import itertools
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest

from positionwise.cli import main

MAIN = "from positionwise.cli import main; main()"
SIZES = "--d-model 16 --d-ff 32 --heads 2 --layers 1 --vocab-size 320 --batch-tokens 256 --validation 5 --held-out 10"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80"}


class Result(NamedTuple):
    """What a command line leaves."""

    code: int
    out: str
    err: str

    def refused(self, code=2):
        """Check that an error took one or two lines on standard error and nothing else; give its first line."""
        lines = [line for line in self.err.splitlines() if line]
        assert "Traceback" not in self.err
        assert 1 <= len(lines) <= 2, self.err
        assert (self.code, self.out) == (code, "")
        assert lines[0].startswith("error: ")
        return lines[0]


class _Text(io.TextIOWrapper):
    def __init__(self, content=b""):
        super().__init__(io.BytesIO(content), "utf-8", newline="")


def call(*arguments, stdin=""):
    """Run a command line in this process."""
    out, err, read = _Text(), _Text(), _Text(stdin if isinstance(stdin, bytes) else stdin.encode())
    settings = mock.patch.dict(os.environ, {"COLUMNS": "80"})
    with redirect_stdout(out), redirect_stderr(err), mock.patch("sys.stdin", read), settings:
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
    out.flush(), err.flush()
    return Result(end.value.code, out.buffer.getvalue().decode(), err.buffer.getvalue().decode())


@pytest.fixture(scope="session")
def command():
    return call


@pytest.fixture(scope="session")
def process():
    """Starts a command line in a process of its own; ``code`` is what it runs before."""

    def start(*arguments, code="", **options):
        line = [sys.executable, "-c", f"{code}\n{MAIN}", *map(str, arguments)]
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": ENVIRONMENT} | options
        return subprocess.Popen(line, **options)

    return start


@pytest.fixture(scope="session")
def finish():
    """Waits for a process and gives its result."""

    def wait(process):
        out, err = process.communicate(timeout=300)
        return Result(process.returncode, out or "", err or "")

    return wait


@pytest.fixture(scope="session")
def pairs():
    """Lines of 180 pairs, tab-separated."""
    verbs = {"see": "veo", "have": "tengo", "want": "quiero", "buy": "compro", "sell": "vendo", "take": "tomo"}
    adjectives = {"red": "rojo", "black": "negro", "small": "pequeño", "old": "viejo", "clean": "limpio"}
    nouns = {"cat": "gato", "dog": "perro", "book": "libro", "horse": "caballo", "glass": "vaso", "shoe": "zapato"}
    words = itertools.product(verbs.items(), adjectives.items(), nouns.items())
    return [f"I {v} the {a} {n}.\tYo {w} el {m} {b}." for (v, w), (a, b), (n, m) in words]


@pytest.fixture(scope="session")
def tsv(pairs, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "pairs.tsv"
    path.write_text("\n".join(pairs), "utf-8")
    return path


@pytest.fixture(scope="session")
def sizes():
    """Options of a training of a second or two, without its data, folder and budget."""
    return SIZES.split()


@pytest.fixture(scope="session")
def train(tsv, sizes):
    """Trains in this process; further options override."""

    def start(out, *options, steps=30, data=("--data", tsv)):
        return call("train", *data, "--out", out, *sizes, "--max-steps", steps, *options)

    return start


@pytest.fixture(scope="session")
def training(train, tmp_path_factory):
    """The folder of a finished run, only to be read, and what the command printed."""
    path = tmp_path_factory.mktemp("runs") / "finished"
    return path, train(path)


@pytest.fixture(scope="session")
def run(training):
    return training[0]
