"""Dependency groups that are not installed: a line that names the command which installs them."""

import re

import pytest

from positionwise.cli import groups
from positionwise.errors import MissingGroupError


@pytest.mark.parametrize(
    ("missing", "arguments"),
    [
        ("typer", ["--version"]),
        ("transformers", ["account", "transformer-base"]),
        ("sacrebleu", ["evaluate", "RUN"]),
        ("tokenizers", ["translate", "RUN"]),
        ("tensorboard", ["train", "--data", "TSV", "--out", "NEW", "SIZES", "--max-steps", "1"]),
    ],
)
def test_a_missing_package_is_a_line_that_names_the_command(
    process, finish, run, tsv, sizes, tmp_path, missing, arguments
):
    known = {"RUN": [run], "TSV": [tsv], "NEW": [tmp_path / "new"], "SIZES": sizes}
    line = [part for argument in arguments for part in known.get(argument, [argument])]
    (tmp_path / "sentences.txt").write_text("I see the red cat.\n")
    with (tmp_path / "sentences.txt").open() as stdin:
        result = finish(process(*line, code=f"import sys; sys.modules[{missing!r}] = None", stdin=stdin))
    message = result.refused(1)
    assert missing in message
    assert re.search(r"pip install 'positionwise\[(models|train|all)\]'", message)
    assert len(result.err.splitlines()) == 1
    assert not (tmp_path / "new").exists()


def test_a_module_is_imported_on_use(monkeypatch):
    assert groups.load("json", "models").dumps([1]) == "[1]"
    monkeypatch.setitem(groups.PACKAGES, "train", ("json", "nothing_here"))
    with pytest.raises(MissingGroupError, match=r"needs nothing_here: pip install 'positionwise\[train\]'") as caught:
        groups.load("json", "train")
    assert caught.value.name == "nothing_here"


def test_a_fault_of_the_package_is_not_taken_for_a_missing_group():
    with pytest.raises(ModuleNotFoundError, match="positionwise.nowhere") as caught:
        groups.load("positionwise.nowhere", "train")
    assert not isinstance(caught.value, MissingGroupError)
