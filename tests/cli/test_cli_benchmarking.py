"""``positionwise bench``: what it prints, what it writes, and what it refuses before it measures."""

import json
import re
from pathlib import Path

import pytest

from positionwise.bench import Case, cases, rounds
from positionwise.cli import benchmarking

QUICK = ("--rounds", 1, "--seconds", 0.001, "--threads", 1)


@pytest.fixture
def tiny(monkeypatch):
    """Makes the sparse row one of tiny blocks, which no kernel has to be compiled for."""
    row = {"row": "sparse", "mode": "train", "d_model": 8, "d_ff": 16, "density": 0.1}
    monkeypatch.setitem(cases.ROWS, "sparse", lambda: iter([Case(**row, tokens=tokens) for tokens in (1, 4)]))


def test_a_row_is_measured_printed_and_written(command, tiny, tmp_path):
    path = tmp_path / "table.json"
    result = command("bench", "--rows", "sparse", "--tokens", 1, *QUICK, "--json", path)
    assert (result.code, result.err) == (0, "1 of 1: sparse, ReLU 8×16, 10 %, T = 1\n")
    entry = json.loads(path.read_text("utf-8"))
    assert list(entry) == [
        "machine", "command", "rounds", "seconds", "threads", "not_measured", "results", "recommendation",
    ]  # fmt: skip
    (held,) = entry["results"]
    assert (held["row"], held["tokens"], list(held["seconds"])) == ("sparse", 1, ["eager", "positionwise"])
    assert result.out.startswith(entry["machine"]["processor"])
    assert f"{held['ratios'][0]['ratio']:.2f}" in result.out
    for line in ("sparse", "ReLU 8×16, 10 %", "forward and backward", *entry["recommendation"]):
        assert line in result.out
    assert max(map(len, result.out.partition("Recommendation")[0].splitlines()[1:])) <= benchmarking.WIDTH


def test_what_is_not_measured_is_said_in_a_line(command, tiny, monkeypatch):
    monkeypatch.setattr(rounds, "find_spec", lambda name: None)
    row = {
        "row": "sparse",
        "mode": "forward",
        "d_model": 8,
        "d_ff": 16,
        "contenders": ("eager", "openvino", cases.OURS),
    }
    monkeypatch.setitem(cases.ROWS, "sparse", lambda: iter([Case(**row, tokens=1)]))
    result = command("bench", "--rows", "sparse", *QUICK)
    assert result.code == 0
    assert result.out.count("not measured: openvino: openvino is not installed\n") == 1


def test_a_worker_that_dies_is_one_line(command, monkeypatch):
    case = Case("sparse", "train", 8, 16, 1, dtype="float31")
    monkeypatch.setitem(cases.ROWS, "sparse", lambda: iter([case]))
    result = command("bench", "--rows", "sparse", *QUICK)
    (line,) = [line for line in result.err.splitlines() if line.startswith("error: ")]
    assert result.code == 1
    assert re.match("error: expected figures of eager; got the end of its process: .*float31", line)
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rows", "spares"], "--rows to be one of .*; got 'spares' .did you mean 'sparse'"),
        (["--rows", "recompute", "--tokens", "1"], "--tokens of the chosen rows .4096.; got 1"),
        (["--tokens", "0"], "--tokens .*got 0"),
        (["--rounds", "0"], "--rounds from 1 to 1000; got 0"),
        (["--seconds", "0"], "--seconds above 0, up to 60; got 0"),
        (["--seconds", "nan"], "--seconds .*got nan"),
        (["--threads", "0"], "--threads from 1 to .*; got 0"),
        (["--threads", "100000"], "--threads from 1 to .*; got 100000"),
        (["--plot", "table.pdf"], "--plot to end in .png or .svg; got table.pdf"),
        (["--json", "no/such/folder.json"], "be written for --json; got no/such/folder.json: No such file"),
        (["--json", "."], "a new file for --json; got ., which exists"),
        (["--json", "one.png", "--plot", "one.png"], "two files for --json and --plot; got one.png for both"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_measured(command, arguments, message, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(benchmarking, "_measure", lambda *_: pytest.fail("measured"))
    assert re.search(message, command("bench", *arguments).refused(2))
    assert not list(tmp_path.iterdir())


def test_a_plot_that_cannot_be_drawn_names_the_group(command, monkeypatch):
    monkeypatch.setattr(benchmarking, "find_spec", lambda name: None)
    monkeypatch.setattr(benchmarking, "_measure", lambda *_: pytest.fail("measured"))
    assert "matplotlib: pip install 'positionwise[all]'" in command("bench", "--plot", "table.png").refused(1)


def test_a_file_that_is_there_is_kept(command, tmp_path):
    path = tmp_path / "table.json"
    path.write_text("before")
    result = command("bench", "--json", path)
    assert result.code == 2
    assert "expected a new file for --json; got" in result.err
    assert path.read_text() == "before"


def test_the_picture_is_drawn(command, tiny, tmp_path):
    pytest.importorskip("matplotlib")
    path = Path(tmp_path / "table.svg")
    assert command("bench", "--rows", "sparse", *QUICK, "--plot", path).code == 0
    assert path.stat().st_size > 1000


@pytest.mark.parametrize(("seconds", "shown"), [(4.2e-6, "4 µs"), (9.994e-4, "999 µs"), (1.5, "1,500.0 ms")])
def test_times_are_shown_with_their_unit(seconds, shown):
    assert benchmarking._time(seconds) == shown
