"""What a run was measured on."""

import torch

import positionwise
from positionwise.bench import describe, machine


def test_the_machine_is_described_with_its_versions():
    found = describe()
    assert found["processor"]
    assert found["cores"] >= 1
    assert found["versions"]["positionwise"] == positionwise.__version__
    assert found["versions"]["torch"] == torch.__version__


def test_the_first_processors_features_are_read(monkeypatch):
    text = "processor: 0\nmodel name\t: A: B\nflags\t\t: fpu avx2 avx512f\n\nprocessor: 1\nmodel name: C\nflags: sve\n"
    monkeypatch.setattr(machine.Path, "read_text", lambda path, encoding: text)
    assert (describe()["processor"], describe()["features"]) == ("A: B", ["avx2", "avx512f"])


def test_a_system_that_does_not_tell_has_no_features(monkeypatch):
    def refuse(path, encoding):
        raise FileNotFoundError

    monkeypatch.setattr(machine.Path, "read_text", refuse)
    assert describe()["features"] == []
    assert describe()["processor"]


def test_a_package_that_is_not_there_has_no_version(monkeypatch):
    monkeypatch.setattr(machine, "ENGINES", ("no-such-engine",))
    assert "no-such-engine" not in describe()["versions"]
