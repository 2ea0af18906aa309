"""Trainings of seconds: they learn, end, stop, go on as if nothing had happened, and refuse what does not fit."""

import itertools
import json
import math
import signal

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from positionwise import FeedForward
from positionwise.errors import DataError, RunError, SpecError, Stopped
from positionwise.training.batches import Examples, TokenBatches
from positionwise.training.data import Pair, references, split_by_source
from positionwise.training.run import Run
from positionwise.training.scoring import Scores
from positionwise.training.train import Listener, fingerprint, resume, score_model, start

LEFT = {"config.json", "generation_config.json", "model.safetensors", "run.json", "tensorboard", "test.tsv",
        "tokenizer.json", "tokenizer_config.json", "validation.tsv"}  # fmt: skip


def equal(run, other):
    """Whether two runs hold the same weights, bit by bit."""
    weights = other.model().state_dict()
    return all(torch.equal(weight, weights[name]) for name, weight in run.model().state_dict().items())


def test_the_loss_falls(finished):
    losses = [loss for _, loss in finished[1].losses]
    assert all(map(math.isfinite, losses))
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] - 0.3


def test_steps_end_a_training(finished, pairs):
    run, told = finished
    assert [step for step, _ in told.losses] == [10, 20, 30]
    assert run.record["results"]["steps"] == 30
    assert {path.name for path in run.path.iterdir()} == LEFT
    assert Run.open(run.path) == run


def test_every_batch_of_every_epoch_is_the_samplers(finished, pairs, tiny):
    train = split_by_source(pairs, 5, 10, 0).train
    examples = Examples(*(finished[0].tokenizer().encode([pair[side] for pair in train]) for side in (0, 1)))
    sampler, tokens, taken = TokenBatches(examples, 256, 0), 0, 0
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        for batch in itertools.islice(sampler, 30 - taken):
            tokens += sum(len(examples[i].source) + len(examples[i].target) for i in batch)
            taken += 1
        if taken == 30:
            break
    assert epoch > 1
    assert finished[0].record["results"]["tokens"] == tokens


def test_what_is_held_out_is_kept_and_scored(finished, pairs):
    run, told = finished
    split = split_by_source(pairs, 5, 10, 0)
    assert (run.pairs("validation"), run.pairs("test")) == (split.validation, split.test)
    assert (run.record["data"]["pairs"], run.record["data"]["sha256"]) == (165, fingerprint(split.train))
    scores = score_model(run.model(), run.tokenizer(), references(split.test))
    assert scores == Scores(**run.record["results"]["test"])
    assert scores.sentences == 10
    assert told.notes[-1] == f"held-out: {scores}"


def test_validation_is_scored_four_times(finished):
    steps, scores = zip(*finished[1].scores, strict=True)
    assert steps == (8, 15, 23, 30)
    for figures in scores:
        assert figures.keys() == {"validation_bleu", "validation_chrf"}
        assert 0 < figures["validation_chrf"] < 100


def test_tensorboard_holds_the_curves(finished):
    (path,) = (finished[0].path / "tensorboard").iterdir()
    board = EventAccumulator(str(path)).Reload()
    curves = {tag: [(event.step, event.value) for event in board.Scalars(tag)] for tag in board.Tags()["scalars"]}
    assert curves["train/loss"] == [(step, pytest.approx(loss)) for step, loss in finished[1].losses]
    for name in ("validation_bleu", "validation_chrf"):
        assert curves[f"train/{name}"] == [(step, pytest.approx(s[name])) for step, s in finished[1].scores]
    rates = [rate for _, rate in curves["train/learning_rate"]]
    assert rates == [pytest.approx(2e-3 * (1 - step / 30) / 0.9) for step in (9, 19, 29)]


def test_a_seed_repeats_a_training(finished, trained):
    again, told = trained()
    assert equal(again, finished[0])
    assert told.losses == finished[1].losses


def test_a_seed_draws_the_first_weights(trained):
    name = "encoder.layers.0.feed_forward.layer1.weight"
    runs = [trained(seed=seed, max_steps=1, learning_rate=1e-12, weight_decay=0.0)[0] for seed in (0, 1)]
    one, other = (run.model().state_dict()[name] for run in runs)
    assert (one - other).abs().mean() > 0.1


def test_a_stopped_training_goes_on_as_if_nothing_had_happened(finished, stopped, pairs, listen):
    assert [path.name for path in stopped.glob("checkpoint-*")] == ["checkpoint-11"]
    seconds = json.loads((stopped / "checkpoint-11" / "budget.json").read_text())["seconds"]
    told = listen()
    run = resume(pairs, stopped, told)
    assert equal(run, finished[0])
    results, expected = run.record["results"], finished[0].record["results"]
    assert (results["steps"], results["tokens"], results["test"]) == (30, expected["tokens"], expected["test"])
    assert results["seconds"] > seconds
    assert told.scores == [entry for entry in finished[1].scores if entry[0] > 11]
    assert {path.name for path in stopped.iterdir()} == LEFT


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_training_with_a_checkpoint(tmp_path, pairs, tiny, listen, number):
    before = [signal.getsignal(either) for either in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(Stopped, match=f"^stopped by {number.name} after 11 steps.*--resume"):
        start(pairs, tmp_path / "new", tiny(max_steps=1000), listen(stop_at=10, signal=number))
    assert [signal.getsignal(either) for either in (signal.SIGINT, signal.SIGTERM)] == before
    run = Run.open(tmp_path / "new")
    assert run.checkpoint().name == "checkpoint-11"
    assert not run.record["results"]
    assert {path.name for path in run.path.iterdir()} == LEFT - {
        "config.json", "generation_config.json", "model.safetensors"
    } | {"checkpoint-11"}  # fmt: skip


def test_a_resumed_training_may_get_another_budget(stopped, pairs):
    run = resume(pairs, stopped, max_steps=14)
    assert run.record["results"]["steps"] == 14


def test_a_second_stop_keeps_the_second_checkpoint(stopped, pairs, listen):
    with pytest.raises(Stopped, match="after 21 steps"):
        resume(pairs, stopped, listen(stop_at=20))
    assert [path.name for path in stopped.glob("checkpoint-*")] == ["checkpoint-21"]


@pytest.mark.parametrize(
    "change",
    [lambda pairs: pairs[:-1], lambda pairs: pairs[::-1], lambda pairs: [*pairs[:-1], Pair(pairs[-1].source, "No.")]],
)
def test_other_pairs_are_not_resumed_with(stopped, pairs, change):
    with pytest.raises(RunError, match="expected the pairs that .* was trained on; got others"):
        resume(change(pairs), stopped)
    assert Run.open(stopped).checkpoint().name == "checkpoint-11"


def test_what_has_ended_or_has_no_checkpoint_is_not_resumed(finished, stopped, pairs, tmp_path):
    with pytest.raises(RunError, match="expected a training that has not ended; got .*, which has its results"):
        resume(pairs, finished[0].path)
    with pytest.raises(RunError, match="which has no run.json"):
        resume(pairs, tmp_path)
    Run.open(stopped).keep_only("")
    with pytest.raises(RunError, match="expected a checkpoint in .*; got none"):
        resume(pairs, stopped)


@pytest.mark.parametrize("change", [{"options": None}, {"options": {"colour": 3}}, {"results": None}, {"data": None}])
def test_a_record_that_lacks_what_resuming_needs_is_refused(stopped, pairs, change):
    record = json.loads((stopped / "run.json").read_text()) | change
    record = {name: value for name, value in record.items() if value is not None}
    (stopped / "run.json").write_text(json.dumps(record))
    with pytest.raises(RunError, match=str(stopped)):
        resume(pairs, stopped)


@pytest.mark.parametrize("name", ["budget.json", "model.safetensors", "optimizer.pt"])
def test_a_damaged_checkpoint_is_refused(stopped, pairs, name):
    path = stopped / "checkpoint-11" / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(RunError, match="checkpoint-11"):
        resume(pairs, stopped)


def test_a_gated_variant_is_trained_with_its_matched_width(trained, finished):
    gated = trained(variant="swiglu", max_steps=2)[0].model()
    block = FeedForward.variant("swiglu", 16, 32, match_parameters=True)
    assert (gated.config.activation, gated.config.is_gated, gated.config.d_ff) == ("silu", True, block.spec.d_ff)
    assert gated.state_dict()["encoder.layers.0.feed_forward.linear_v.weight"].shape == (block.spec.d_ff, 16)
    plain = finished[0].model()
    assert abs(gated.num_parameters() - plain.num_parameters()) <= 2 * (2 * 16 + 16 + 2) / 2  # of two blocks


@pytest.mark.parametrize(
    "options",
    [{"variant": "swigloo"}, {"num_heads": 3}, {"dropout": 1.5}, {"d_model": 0}, {"d_ff": 0}, {"encoder_layers": -1}],
)
def test_options_that_give_no_model_leave_no_folder(tmp_path, pairs, tiny, options):
    with pytest.raises(SpecError):
        start(pairs, tmp_path / "new", tiny(**options))
    assert not (tmp_path / "new").exists()


def test_too_few_pairs_leave_no_folder(tmp_path, pairs, tiny):
    with pytest.raises(DataError, match="more than 30 distinct sources to hold out 15; got 20$"):
        start(pairs[:20], tmp_path / "new", tiny())
    assert not (tmp_path / "new").exists()


def test_pairs_that_are_too_long_are_counted_and_left_out(tmp_path, pairs, tiny, listen):
    long = [Pair("I see " + "the red cat " * 20 + ".", "Yo."), Pair("I.", "Yo " * 40)]
    told = listen()
    start(pairs + long, tmp_path / "new", tiny(max_steps=1, max_length=40), told)
    assert "2 pairs longer than 40 pieces of words are not learned from" in told.notes
    assert any(note.startswith("165 pairs to learn from") for note in told.notes)


def test_a_length_that_leaves_nothing_to_learn_from_is_refused(tmp_path, pairs, tiny):
    with pytest.raises(DataError, match="max_length|longer than 2"):
        start(pairs, tmp_path / "new", tiny(max_steps=1, max_length=2))


def test_where_the_pairs_come_from_is_recorded(tmp_path, pairs, tiny):
    run = start(pairs, tmp_path / "new", tiny(max_steps=1), Listener(), {"files": ["a.tsv"], "languages": None})
    assert run.record["data"].items() >= {"files": ["a.tsv"], "languages": None, "pairs": 165}.items()
    assert run.record["options"] == tiny(max_steps=1).to_dict()


def test_a_fingerprint_knows_pairs_and_their_order():
    rows = [Pair("a", "b"), Pair("c", "d")]
    assert fingerprint(rows) == fingerprint(list(rows))
    assert len({fingerprint(other) for other in (rows, rows[::-1], rows[:1], [Pair("a", "b"), Pair("c", "e")])}) == 4


@pytest.mark.slow
def test_a_tiny_language_is_learned(trained):
    run, _ = trained(max_steps=600, d_model=32, d_ff=64, learning_rate=1e-2, dropout=0.0)
    assert run.record["results"]["test"]["bleu"] > 70
