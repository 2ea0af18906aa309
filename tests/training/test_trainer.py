"""What is ours in the trainer: the budget's rate, checkpoints, validation, signals and reports."""

import errno
import json
import os
import signal
from types import SimpleNamespace

import pytest
import torch
from transformers import TrainerControl, TrainerState

from positionwise.kernels.answers import BREAK_EVEN, PRODUCTS
from positionwise.training.batches import Examples
from positionwise.training.data import split_by_source
from positionwise.training.run import Run, WriteError
from positionwise.training.train import resume, start
from positionwise.training.trainer import Progress, TranslationTrainer, Watcher
from positionwise.transformer import TransformerForTranslation


@pytest.fixture
def made(tmp_path, finished, pairs, tiny):
    """Makes a trainer of a fresh model, whose validation only counts its calls."""

    def make(**changes):
        options = tiny(**changes)
        tokenizer = finished[0].tokenizer()
        rows = split_by_source(pairs, 5, 10, 0).train
        examples = Examples(*(tokenizer.encode([pair[side] for pair in rows]) for side in (0, 1)))
        torch.manual_seed(0)
        model = TransformerForTranslation(options.model_config(320))
        run = Run.create(tmp_path / "new", options.to_dict())
        calls = []
        validate = lambda model: calls.append(model.training) or {"validation_bleu": float(len(calls))}  # noqa: E731
        trainer = TranslationTrainer(model, examples, options, run, validate, lambda report: None)
        trainer.validations = calls
        return trainer

    return make


def test_the_learning_rate_follows_the_budget(made):
    trainer = made(max_steps=20, warmup=0.25)
    rates = []
    trainer.watcher.on_pre_optimizer_step = lambda *a, **rest: rates.append(trainer.optimizer.param_groups[0]["lr"])
    trainer.start(None)
    expected = [1e-3] + [step / 5 for step in range(1, 5)] + [(20 - step) / 15 for step in range(5, 20)]
    assert rates == pytest.approx([2e-3 * share for share in expected])


def test_the_clock_ends_a_training_at_a_rate_of_zero(made):
    trainer = made(minutes=1.5 / 60, max_steps=None)
    trainer.start(None)
    assert 1.5 <= trainer.budget.seconds < 6
    assert trainer.state.global_step > 2
    # The last rate is drawn a moment before the clock is asked whether it has run out.
    assert 0 <= max(trainer.lr_scheduler.get_last_lr()) < 0.05 * trainer.options.learning_rate
    assert trainer.watcher.stopped_by is None


def test_validation_is_asked_for_four_times(made):
    trainer = made(max_steps=8)
    trainer.start(None)
    assert len(trainer.validations) == 4
    logged = [(log["step"], log["validation_bleu"]) for log in trainer.state.log_history if "validation_bleu" in log]
    assert logged == [(2, 1.0), (4, 2.0), (6, 3.0), (8, 4.0)]


def test_the_seconds_of_earlier_sittings_count(made, stopped):
    checkpoint = stopped / "checkpoint-11"
    state = json.loads((checkpoint / "budget.json").read_text()) | {"seconds": 3600.0}
    (checkpoint / "budget.json").write_text(json.dumps(state))
    trainer, rates = made(minutes=61, max_steps=13), []
    trainer.watcher.on_pre_optimizer_step = lambda *a, **rest: rates.append(trainer.optimizer.param_groups[0]["lr"])
    trainer.start(checkpoint)
    assert 3600 < trainer.budget.seconds < 3660
    assert trainer.tokens > state["tokens"]
    assert trainer.state.global_step == 13
    assert rates[-1] == pytest.approx(2e-3 / 61 / 0.9, rel=0.1)


def test_what_kernels_measured_goes_with_the_checkpoint(made, stopped, monkeypatch):
    """So that a resumed run takes the paths that the undisturbed one would."""
    path = stopped / "checkpoint-11" / "budget.json"
    state = json.loads(path.read_text())
    assert state["kernels"].keys() == {"products", "densities"}
    state["kernels"] = {"products": {"1x2": "onednn"}, "densities": {"1x0": 0.125}}
    path.write_text(json.dumps(state))
    for each in (PRODUCTS, BREAK_EVEN):
        monkeypatch.setattr(each, "held", {})
    made(max_steps=12).start(stopped / "checkpoint-11")
    assert PRODUCTS.known((1, 2)) == "onednn"
    assert BREAK_EVEN.known((1, 0)) == 0.125


def test_a_checkpoint_holds_everything(stopped):
    checkpoint = stopped / "checkpoint-11"
    assert {path.name for path in checkpoint.iterdir()} >= {
        "model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", "budget.json"
    }  # fmt: skip
    state = json.loads((checkpoint / "budget.json").read_text())
    assert state["seconds"] > 0
    assert state["tokens"] > 1000
    moments = torch.load(checkpoint / "optimizer.pt", weights_only=True)["state"]
    assert {int(moment["step"]) for moment in moments.values()} == {11}
    assert TransformerForTranslation.from_pretrained(checkpoint).config.d_model == 16


def test_only_the_newest_checkpoint_is_kept(tmp_path, pairs, tiny, listen):
    found = []

    class Looker(listen):
        def progress(self, progress):
            found.append((progress.step, sorted(path.name for path in (tmp_path / "new").glob("*checkpoint*"))))

    start(pairs, tmp_path / "new", tiny(max_steps=21, checkpoint_minutes=1e-9), Looker())
    # A step is reported before its checkpoint is written; validations come after steps 6, 11, 16 and 21.
    assert dict(found) == {step: [f"checkpoint-{step - 1}"] for step in (6, 10, 11, 16, 20, 21)}
    assert not list((tmp_path / "new").glob("checkpoint-*"))  # the training has ended


@pytest.mark.parametrize("name", ["optimizer.pt", "budget.json"])
def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(
    tmp_path, pairs, tiny, monkeypatch, finished, listen, name
):
    whole = TranslationTrainer._write_checkpoint

    def failing(self, path, model, trial):
        whole(self, path, model, trial)
        if self.state.global_step == 5:
            (path / name).unlink()
            raise OSError(errno.ENOSPC, "No space left on device", str(path / name))

    monkeypatch.setattr(TranslationTrainer, "_write_checkpoint", failing)
    with pytest.raises(WriteError, match="could not write checkpoint-5 in .*: No space left on device; what was there"):
        start(pairs, tmp_path / "new", tiny(checkpoint_minutes=1e-9), listen())
    assert [path.name for path in (tmp_path / "new").glob("*checkpoint*")] == ["checkpoint-4"]
    assert not (tmp_path / "new" / ".partial").exists()
    monkeypatch.setattr(TranslationTrainer, "_write_checkpoint", whole)
    run = resume(pairs, tmp_path / "new")
    expected = finished[0].model().state_dict()
    assert all(torch.equal(weight, expected[key]) for key, weight in run.model().state_dict().items())


def watched(done, *, last=0.0, seconds=0.0, validations=0, stopped_by=None):
    """What a watcher asks for after a step: (stop, save, evaluate)."""
    budget = SimpleNamespace(done=lambda step: done, seconds=seconds)
    watcher = Watcher(SimpleNamespace(budget=budget, options=SimpleNamespace(checkpoint_minutes=5.0)), print)
    watcher.last_checkpoint, watcher.validations, watcher.stopped_by = last, validations, stopped_by
    control = TrainerControl()
    watcher.on_step_end(None, TrainerState(global_step=7), control)
    return control.should_training_stop, control.should_save, control.should_evaluate


@pytest.mark.parametrize(
    ("state", "asked"),
    [
        ({"done": 0.1}, (False, False, False)),
        ({"done": 0.1, "seconds": 300.0}, (False, False, False)),
        ({"done": 0.1, "seconds": 300.1}, (False, True, False)),
        ({"done": 0.1, "seconds": 500.0, "last": 300.0}, (False, False, False)),
        ({"done": 0.25}, (False, False, True)),
        ({"done": 0.3, "validations": 1}, (False, False, False)),
        ({"done": 0.8, "validations": 1}, (False, False, True)),
        ({"done": 1.0, "validations": 3}, (True, True, True)),
        ({"done": 0.3, "stopped_by": "SIGINT"}, (True, True, False)),
    ],
)
def test_what_is_due_after_a_step(state, asked):
    assert watched(**state) == asked


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_a_wish_and_the_second_acts(first):
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    watcher = Watcher(SimpleNamespace(), print)
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that a second one does not end the tests
        with pytest.raises(KeyboardInterrupt), watcher.signals():  # noqa: PT012
            os.kill(os.getpid(), first)
            assert watcher.stopped_by == first.name
            os.kill(os.getpid(), first)
        assert signal.getsignal(first) is signal.default_int_handler
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), handlers, strict=True):
            signal.signal(number, handler)


def test_a_report_says_where_a_training_stands():
    budget = SimpleNamespace(done=lambda step: step / 40, seconds=20.0)
    trainer = SimpleNamespace(state=TrainerState(global_step=10), budget=budget, tokens=5000)
    report = Progress(trainer, 2.5, {})
    assert (report.step, report.done, report.seconds, report.loss) == (10, 0.25, 20.0, 2.5)
    assert report.seconds_left == 60
    assert report.tokens_per_second == 250
    trainer.state.global_step = 0
    assert Progress(trainer, None, {}).seconds_left is None
