"""``positionwise demo`` on a few sentences and a budget of seconds."""

import re
from pathlib import Path

import pytest

from positionwise.cli import demonstration
from positionwise.training.data import Pair, Split
from positionwise.training.options import TrainOptions
from positionwise.training.run import Run

SEED = 3


@pytest.fixture(scope="module")
def small(pairs):
    """Replaces the phrasebook by 180 pairs and the minutes by 30 steps; gives the seeds that were asked for."""
    rows = [Pair(*line.split("\t")) for line in pairs]
    parts, seeds = Split(rows[:150], rows[150:155], rows[155:]), []

    def options(seed, minutes):
        sizes = {"d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
        return TrainOptions(
            minutes=None, max_steps=30, vocab_size=320, batch_tokens=256, held_out=25, validation=5, seed=seed, **sizes
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demonstration, "split", lambda seed: seeds.append(seed) or parts)
        patch.setattr(demonstration, "options", options)
        yield parts, seeds


@pytest.fixture(scope="module")
def shown(small, command, tmp_path_factory):
    """What the command left and the folder of its run."""
    path = tmp_path_factory.mktemp("demo") / "a folder of a long name, so that lines which are broken are seen"
    return command("demo", "--out", path, "--seed", SEED), path


def test_the_run_is_left_where_it_was_asked_for(shown, small):
    result, path = shown
    assert result.code == 0
    assert small[1][0] == SEED
    run = Run.open(path)
    assert run.record["results"]["steps"] == 30
    assert run.record["options"]["seed"] == SEED
    assert "Traceback" not in result.err


def test_everything_is_printed(shown):
    out = shown[0].out
    assert "150 pairs to learn from, 25 held out" in out
    assert "First linear map" in out
    assert "16 × 32 + 32" in out
    assert re.search(r"loss by step: 10: \d\.\d\d  20: \d\.\d\d  30: \d\.\d\d", out)
    assert re.search(r"the model +│ +\d+\.\d % +│ +\d+\.\d +│ +\d+\.\d", out)
    assert re.search(r"nearest training +│ +0\.0 % +│ +\d+\.\d +│ +\d+\.\d", re.sub(r"\s*sentence", "", out))


def test_the_examples_are_held_out_sentences(shown, small):
    table = shown[0].out.partition("reference")[2]
    words = set(re.findall(r"\w+", table))
    assert sum({*re.findall(r"\w+", pair.source + pair.target)} <= words for pair in small[0].test) >= 10


def test_the_last_line_can_be_typed(shown, command):
    result, path = shown
    last = result.out.splitlines()[-1]
    sentence, folder = re.fullmatch(r'the run is in .*: echo "(.*)" \| positionwise translate (.*)', last).groups()
    assert folder.strip("'\"") == str(path)
    assert command("translate", path, stdin=f"{sentence}\n").code == 0


def test_a_taken_folder_is_refused_before_anything_is_learned(shown, command):
    result = command("demo", "--out", shown[1])
    assert result.code == 2
    assert re.search(r"error: expected .* to be a new or empty folder; got a run", result.err)
    assert "Traceback" not in result.err


@pytest.mark.parametrize("text", ["[bold]", "[/bold]", "a [b] c", "\\[x", "[link=x]"])
def test_brackets_in_a_translation_are_printed_as_they_are(small, command, tmp_path, monkeypatch, text):
    demonstrate = demonstration.demonstrate

    def bracketed(*arguments):
        outcome = demonstrate(*arguments)
        return outcome._replace(examples=[example._replace(translation=text) for example in outcome.examples])

    options = demonstration.options
    monkeypatch.setattr(demonstration, "options", lambda *a: TrainOptions(**options(*a).to_dict() | {"max_steps": 1}))
    monkeypatch.setattr(demonstration, "demonstrate", bracketed)
    result = command("demo", "--out", tmp_path / "new")
    assert result.code == 0
    assert text in result.out


def test_a_free_folder_is_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert demonstration.free_folder() == Path("runs/demo")
    for taken, free in (("demo", "demo-2"), ("demo-3", "demo-2"), ("demo-2", "demo-4")):
        (tmp_path / "runs" / taken).mkdir(parents=True)
        assert demonstration.free_folder() == Path("runs", free)


def test_the_demonstration_stays_under_two_minutes():
    assert 1 <= demonstration.MINUTES < 2
