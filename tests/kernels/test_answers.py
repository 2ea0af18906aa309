"""What was measured is asked once, kept in a file, and carried to a run that resumes another."""

import json
import threading

import pytest

from positionwise import kernels
from positionwise.kernels.answers import BREAK_EVEN, PRODUCTS, Answers


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "positionwise"


def test_an_answer_is_measured_once(folder):
    answers, asked = Answers("tests", (int, float)), []
    for kind in ((1, 2), (1, 2), (3,)):
        assert answers.get(kind, lambda kind=kind: asked.append(kind) or sum(kind)) == 3
    assert asked == [(1, 2), (3,)]
    (path,) = folder.iterdir()
    assert path.name.startswith("tests-")
    assert json.loads(path.read_text("utf-8")) == {"1x2": 3, "3": 3}
    assert Answers("tests", (int, float)).get((1, 2), pytest.fail) == 3


def test_an_answer_of_zero_is_an_answer(folder):
    answers = Answers("tests", (int, float))
    assert answers.get((1,), lambda: 0.0) == 0.0
    assert answers.get((1,), pytest.fail) == 0.0


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"a": 3}', "null"])
def test_a_damaged_file_is_as_good_as_none(folder, content):
    folder.mkdir()
    Answers("tests", (int, float)).file().write_text(content, "utf-8")
    assert Answers("tests", (int, float)).get((1,), lambda: 5) == 5
    assert Answers("tests", (int, float)).get((1,), pytest.fail) == 5


def test_threads_wait_for_the_one_that_measures(folder):
    answers, asked, found = Answers("tests", (int, float)), [], []

    def measure():
        asked.append(threading.get_ident())
        threading.Event().wait(0.05)
        return 7

    threads = [threading.Thread(target=lambda: found.append(answers.get((1,), measure))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [7] * 4
    assert len(asked) == 1


def test_answers_go_from_one_process_to_another(folder, monkeypatch):
    for each, held in ((PRODUCTS, {(2, 3): "onednn"}), (BREAK_EVEN, {(1, 0): 0.2})):
        monkeypatch.setattr(each, "held", held)
    carried = json.loads(json.dumps(kernels.measured()))
    assert carried == {"products": {"2x3": "onednn"}, "densities": {"1x0": 0.2}}
    for each in (PRODUCTS, BREAK_EVEN):
        monkeypatch.setattr(each, "held", {(2, 3): "torch", (9, 9): "numba"})
    kernels.restore(carried)
    assert PRODUCTS.get((2, 3), pytest.fail) == "onednn"
    assert PRODUCTS.get((9, 9), pytest.fail) == "numba"
    assert BREAK_EVEN.get((1, 0), pytest.fail) == 0.2
    assert not folder.exists()
    kernels.restore({})
