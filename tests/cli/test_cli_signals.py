"""Trainings in processes of their own that are interrupted or find the disk full, and go on afterwards."""

import resource
import shutil
import signal
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from positionwise.training.run import Run

LIMITED = """
import resource, positionwise.training.train
from torch.utils.tensorboard import SummaryWriter
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
"""


@pytest.fixture(scope="module", params=["SIGINT", "SIGTERM"])
def interrupted(request, process, finish, tsv, sizes, tmp_path_factory):
    """The folder of a training that a signal ended after its tenth step, and what the process left."""
    path = tmp_path_factory.mktemp("runs") / request.param
    started = process("train", "--data", tsv, "--out", path, *sizes, "--max-steps", "1000000")
    killer = threading.Timer(250, started.kill)  # so that a training which never reports ends the test
    killer.start()
    told = []
    for line in started.stderr:
        told.append(line)
        if "tokens/s" in line:
            started.send_signal(getattr(signal, request.param))
            break
    result = finish(started)
    killer.cancel()
    return path, result._replace(err="".join(told) + result.err)


def test_a_signal_ends_a_training_with_a_line(interrupted):
    path, result = interrupted
    assert (result.code, result.out) == (1, "")
    assert "Traceback" not in result.err
    last = result.err.rpartition("error: ")[2]
    assert path.name in last  # the signal's name, too
    assert "--resume" in last
    assert len(last.splitlines()) <= 2


def whole(checkpoint):
    """Check that a checkpoint can be read; give its weights."""
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch.load(checkpoint / name, weights_only=False)
    return load_file(checkpoint / "model.safetensors")


def test_what_a_signal_leaves_is_whole(interrupted):
    path, _ = interrupted
    run = Run.open(path)
    assert int(run.checkpoint().name.removeprefix("checkpoint-")) >= 10
    assert len(list(path.glob("*checkpoint*"))) == 1
    assert not (path / ".partial").exists()
    assert not (path / "model.safetensors").exists()
    assert whole(run.checkpoint())


def test_an_interrupted_run_says_how_to_go_on(interrupted, command):
    assert "--resume" in command("translate", interrupted[0], stdin="I see the red cat.\n").refused()


def resumed(command, path, *options):
    step = int(Run.open(path).checkpoint().name.removeprefix("checkpoint-"))
    return command("train", "--out", path, "--resume", "--max-steps", step + 3, *options), step


def test_a_training_is_resumed(interrupted, command, tmp_path):
    copy = shutil.copytree(interrupted[0], tmp_path / "copy")
    result, step = resumed(command, copy)
    assert result.code == 0
    assert result.out.startswith(f"the run is in {copy}")
    assert Run.open(copy).record["results"]["steps"] == step + 3
    assert command("translate", copy, stdin="I see the red cat.\n").code == 0
    assert not list(copy.glob("*checkpoint*"))


def test_other_pairs_are_not_resumed_with(interrupted, command, tmp_path, pairs):
    (tmp_path / "other.tsv").write_text("\n".join(pairs[1:]), "utf-8")
    result, _ = resumed(command, interrupted[0], "--data", tmp_path / "other.tsv")
    assert "expected the pairs that" in result.refused()
    assert Run.open(interrupted[0]).checkpoint() is not None


def test_pairs_that_have_gone_are_named(interrupted, command, tmp_path):
    copy = shutil.copytree(interrupted[0], tmp_path / "copy")
    (copy / "run.json").write_text((copy / "run.json").read_text().replace("pairs.tsv", "gone.tsv"))
    assert "gone.tsv; got No such file" in resumed(command, copy)[0].refused()


@pytest.mark.parametrize("interrupted", ["SIGINT"], indirect=True)
def test_a_full_disk_ends_a_training_with_a_line(interrupted, process, finish, command, tmp_path):
    copy: Path = shutil.copytree(interrupted[0], tmp_path / "copy")
    before = Run.open(copy).checkpoint()
    weights = whole(before)
    step = int(before.name.removeprefix("checkpoint-"))
    options = ["--out", copy, "--resume", "--max-steps", step + 3]
    result = finish(process("train", *options, code=LIMITED, preexec_fn=ignore_sigxfsz))
    assert (result.code, result.out) == (1, "")
    lines = [line for line in result.err.splitlines() if line and not line.startswith(("165 pairs", "step ", "  "))]
    assert 1 <= len(lines) <= 2, result.err
    assert lines[0].startswith(f"error: could not write checkpoint-{step + 3} in {copy}: ")
    assert [path.name for path in copy.glob("*checkpoint*")] == [before.name]
    assert not (copy / ".partial").exists()
    after = whole(before)
    assert all(torch.equal(weight, after[name]) for name, weight in weights.items())
    assert command("train", *options).code == 0  # with room again, it goes on


def ignore_sigxfsz():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
