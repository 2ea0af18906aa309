"""Progress on standard error: lines where there is no terminal, a bar on one."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from positionwise.cli import progress


def report(step=10, done=0.25, loss=2.5, scores=None, left=90.4):
    return SimpleNamespace(
        step=step, done=done, loss=loss, scores=scores or {}, seconds=30.0, seconds_left=left, tokens_per_second=12345.6
    )


@pytest.fixture
def console(monkeypatch, request):
    """The console that progress writes to; a terminal where the test asks for one."""
    made = Console(file=io.StringIO(), force_terminal=getattr(request, "param", False), width=100, highlight=False)
    monkeypatch.setattr(progress, "Console", lambda **options: made)
    return made


def lines(console):
    return [line for line in console.file.getvalue().splitlines() if line]


def test_a_report_is_a_line():
    assert progress.describe(report()) == "step 10  loss 2.500  12,346 tokens/s  1:30 left"
    assert progress.describe(report(step=12345, loss=None, left=None)) == "step 12,345  12,346 tokens/s"
    assert progress.describe(report(left=3661)).endswith("  61:01 left")


def test_where_there_is_no_terminal_a_line_comes_now_and_then(console, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.TrainingProgress(every=30) as told:
        for step in (10, 20, 30, 40):
            told.progress(report(step=step))
            now[0] += 16
    assert lines(console) == [f" 25.0 %  step {step}  loss 2.500  12,346 tokens/s  1:30 left" for step in (10, 30)]
    assert told.losses == [(step, 2.5) for step in (10, 20, 30, 40)]


def test_a_validation_is_always_told(console):
    with progress.TrainingProgress() as told:
        told.progress(report(step=1200, loss=None, scores={"validation_bleu": 12.345, "validation_chrf": 50.0}))
    assert lines(console) == ["step 1,200: validation bleu 12.35, validation chrf 50.00"]
    assert told.losses == []


def test_a_note_is_one_line_as_it_is(console):
    with progress.TrainingProgress() as told:
        told.note("[bold]3 pairs[/bold] " + "word " * 40)
    assert lines(console) == ["[bold]3 pairs[/bold] " + "word " * 40]


def test_silence_stays_silence(console):
    with progress.TrainingProgress():
        pass
    assert console.file.getvalue() == ""


@pytest.mark.parametrize("console", [True], indirect=True)
def test_a_terminal_gets_a_bar(console):
    with progress.TrainingProgress() as told:
        told.progress(report())
    assert "loss 2.500" in console.file.getvalue()
    assert " 25%" in console.file.getvalue()


def test_sentences_are_counted_on_a_terminal_only(console):
    with progress.sentences(10) as done:
        done(3)
    assert console.file.getvalue() == ""


@pytest.mark.parametrize("console", [True], indirect=True)
def test_a_terminal_gets_a_bar_of_sentences(console):
    with progress.sentences(10) as done:
        done(3)
    assert "translating" in console.file.getvalue()
