"""Workers: tiny cases measured for real, contenders that are missing or die, and settings out of range."""

import os
from dataclasses import replace

import pytest

from positionwise.bench import Case, Settings, absent, measure, rounds
from positionwise.bench.cases import ENGINES, OURS, Job
from positionwise.bench.rounds import Worker, WorkerError

TINY = Case("train", "train", 8, 16, 4, memory="saved")
QUICK = Settings(2, 1e-4, 1)


@pytest.fixture
def without(monkeypatch):
    """Makes packages look as if they were not installed."""

    def hide(*packages):
        monkeypatch.setattr(rounds, "find_spec", lambda name: None if name in packages else object())

    return hide


def test_a_case_is_measured_in_processes_of_its_contenders():
    result = measure(TINY, QUICK, {})
    assert list(result.times) == ["eager", OURS]
    assert all(len(times) == 2 and min(times) > 0 for times in result.times.values())
    assert result.bytes == {"eager": 256, OURS: 256}
    assert [(figure.base, figure.rounds) for figure in result.figures] == [("eager", 2)]


def test_the_peak_is_measured_in_processes_of_its_own():
    result = measure(replace(TINY, d_ff=1024, tokens=2048, memory="peak"), replace(QUICK, rounds=1), {})
    eager = result.bytes["eager"]
    assert eager is None or eager > 2048 * 1024 * 4  # at least the hidden units
    assert list(result.bytes) == ["eager", OURS]


def test_what_is_not_installed_is_named(without):
    cases = [TINY, replace(TINY, contenders=("eager", *ENGINES, OURS))]
    without("openvino")
    assert absent(cases) == {"openvino": "openvino is not installed"}
    without("onnx")
    assert absent(cases) == dict.fromkeys(ENGINES, "onnx is not installed")
    assert absent(cases[:1]) == {}


def test_a_contender_that_can_be_done_without_is_left_out_and_told():
    missing = {"onnxruntime": "onnx is not installed"}
    case = replace(TINY, memory="", contenders=("eager", "onnxruntime", "tensorflow", OURS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds.Case, "as_of", lambda case, name: (name, replace(case, d_ff=0 if "tensor" in name else 8)))
        result = measure(case, replace(QUICK, rounds=1), missing)
    assert list(result.times) == ["eager", OURS]
    assert set(missing) == {"onnxruntime", "tensorflow"}
    assert "expected d_ff" in missing["tensorflow"]


@pytest.mark.parametrize("memory", ["", "peak"])
def test_a_contender_that_is_needed_is_an_error_with_what_it_said(memory):
    case = replace(TINY, activation="rellu", memory=memory)
    with pytest.raises(
        WorkerError, match=r"figures of eager; got the end of its process: .*SpecError.*'rellu'"
    ) as told:
        measure(case, QUICK, {})
    assert "\n" not in str(told.value)


def test_a_contender_that_dies_between_rounds_is_named():
    with Worker("openvino", Job(replace(TINY, memory=""), "eager", 1, 1e-4)) as worker:
        assert worker.answer() == {"ready": "eager", "bytes": None}
        assert worker.round() > 0
        worker.process.kill()
        worker.process.wait()
        with pytest.raises(WorkerError, match="figures of openvino; got the end of its process: exit code -9"):
            worker.round()


def test_a_worker_does_not_outlive_its_context():
    with Worker("eager", Job(TINY, "eager", 1, 1e-4)) as worker:
        pass
    assert worker.process.returncode == -9


@pytest.mark.parametrize(("between", "policy"), [(False, "PASSIVE"), (True, None)])
def test_between_other_modules_threads_wait_as_they_do_for_users(monkeypatch, between, policy):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    given = []
    monkeypatch.setattr(rounds.subprocess, "Popen", lambda *command, env, **rest: given.append(env))
    Worker("eager", Job(replace(TINY, between=between), "eager", 2, 1e-4)).said.close()
    assert [(env.get("OMP_WAIT_POLICY"), env["OMP_NUM_THREADS"]) for env in given] == [(policy, "2")]


def test_contenders_start_one_after_another(monkeypatch):
    """The engines of one must not be measured while another starts."""
    events = []
    monkeypatch.setattr(rounds, "_start", lambda name, *rest: events.append(f"start {name}") or Quiet(name))
    monkeypatch.setattr(rounds, "_ready", lambda worker, missing: events.append(f"ready {worker.name}") or {"bytes": 1})
    measure(TINY, QUICK, {})
    assert events == ["start eager", "ready eager", f"start {OURS}", f"ready {OURS}"]


class Quiet:
    """A worker without a process."""

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        pass

    def round(self):
        return 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 0}, "expected --rounds from 1 to 1000; got 0"),
        ({"rounds": 1001}, "expected --rounds from 1 to 1000; got 1001"),
        ({"seconds": 0.0}, "expected --seconds above 0, up to 60; got 0"),
        ({"seconds": -1.0}, "expected --seconds above 0, up to 60; got -1"),
        ({"seconds": 61.0}, "expected --seconds above 0, up to 60; got 61"),
        ({"seconds": float("nan")}, "expected --seconds above 0, up to 60; got nan"),
        ({"threads": 0}, "expected --threads from 1 to this machine's .*; got 0"),
        ({"threads": 1 + (os.cpu_count() or 1)}, "expected --threads from 1 to this machine's .*; got"),
    ],
)
def test_a_setting_out_of_range_is_refused(changes, message):
    with pytest.raises(rounds.SpecError, match=message):
        replace(QUICK, **changes)
