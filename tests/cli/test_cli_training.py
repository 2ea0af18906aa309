"""``positionwise train``."""

import gzip
import json
import re

import pytest

from positionwise.training.run import Run
from positionwise.training.train import start

FINISHED = "expected a training that has not ended"


def test_a_training_says_where_its_run_is(training):
    path, result = training
    assert result.code == 0
    assert result.out == f"the run is in {path}: positionwise translate {path} < sentences\n"
    assert "165 pairs to learn from" in result.err
    assert re.search(r"held-out: BLEU .* chrF .* exact match .* 10 sentences", result.err)
    assert re.search(r"step \d+: validation bleu \d+\.\d\d, validation chrf \d+\.\d\d", result.err)
    assert re.search(r"step 10  loss \d\.\d{3}  [\d,]+ tokens/s", result.err)


def test_the_options_reach_the_run(training, tsv):
    record = Run.open(training[0]).record
    expected = {
        "minutes": None, "max_steps": 30, "d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1,
        "decoder_layers": 1, "vocab_size": 320, "batch_tokens": 256, "validation": 5, "held_out": 10, "seed": 0,
    }  # fmt: skip
    assert record["options"].items() >= expected.items()
    assert record["data"]["files"] == [str(tsv)]
    assert record["results"]["steps"] == 30


@pytest.fixture
def forms(tmp_path, pairs):
    """The same pairs in every form that --data takes, by name."""
    rows = [line.split("\t") for line in pairs]
    for side, name in enumerate(("en.txt", "es.txt")):
        (tmp_path / name).write_text("".join(f"{row[side]}\n" for row in rows), "utf-8")
    lines = [json.dumps({"translation": {"es": target, "en": source}}) for source, target in rows]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines), "utf-8")
    (tmp_path / "pairs.tsv.gz").write_bytes(gzip.compress("\r\n".join(pairs).encode()))
    return {
        "two options": ["--data", tmp_path / "en.txt", "--data", tmp_path / "es.txt"],
        "one option": ["--data", tmp_path / "en.txt", tmp_path / "es.txt"],
        "json lines": ["--data", tmp_path / "pairs.jsonl", "--languages", "en", "es"],
        "gzip": ["--data", tmp_path / "pairs.tsv.gz"],
    }


@pytest.mark.parametrize("form", ["two options", "one option", "json lines", "gzip"])
def test_pairs_come_in_every_form(train, training, forms, tmp_path, form):
    result = train(tmp_path / "new", steps=1, data=forms[form])
    assert result.code == 0
    data = Run.open(tmp_path / "new").record["data"]
    assert data["sha256"] == Run.open(training[0]).record["data"]["sha256"]


def test_options_override_and_a_seed_is_used(train, training, tmp_path):
    assert train(tmp_path / "new", "--variant", "swiglu", "--seed", "3", steps=1).code == 0
    run = Run.open(tmp_path / "new")
    assert (run.record["options"]["variant"], run.record["options"]["seed"]) == ("swiglu", 3)
    assert run.model().config.is_gated
    assert run.record["data"]["sha256"] != Run.open(training[0]).record["data"]["sha256"]


def test_summaries_are_off_unless_asked_for(train, training, tmp_path):
    assert train(tmp_path / "new", "--summaries", steps=1).code == 0
    assert Run.open(tmp_path / "new").record["options"]["summaries"] is True
    assert Run.open(training[0]).record["options"]["summaries"] is False
    (log,), (plain,) = ((path / "tensorboard").iterdir() for path in (tmp_path / "new", training[0]))
    assert b"hidden_density_logit/encoder.layers.0.feed_forward" in log.read_bytes()
    assert b"hidden_density_logit" not in plain.read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--variant", "swigloo"], "variant.*geglu.*relu.*swiglu.*got 'swigloo'.*'swiglu'"),
        (["--heads", "3"], "d_model to be a multiple of num_heads; got 16 and 3"),
        (["--d-ff", "0"], "d_ff.*got 0"),
        (["--dropout", "1"], "dropout.*below 1; got 1.0"),
        (["--max-steps", "0"], "max_steps to be at least 1; got 0"),
        (["--minutes", "-1"], "minutes to be above 0; got -1"),
        (["--vocab-size", "10"], "vocab_size to be at least 259; got 10"),
        (["--layers", "0", "--summaries"], "FeedForward blocks to write summaries of; got none in 0 layers"),
        (["--held-out", "90"], "more than 190 distinct sources to hold out 95; got 180"),
    ],
)
def test_what_cannot_be_trained_is_refused_and_leaves_no_folder(train, tmp_path, options, message):
    result = train(tmp_path / "new", *options)
    assert re.search(message, result.refused())
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.tsv", b"", "an empty file"),
        ("p.tsv", b"a\tb\nno tab\n", "p.tsv, line 2: .*without a tab"),
        ("p.tsv", b"a\tb\n\xff\tc\n", "p.tsv, line 2: expected UTF-8"),
        ("p.tsv.gz", b"plain", "p.tsv.gz"),
        ("p.jsonl", b'{"en": "a"}', "p.jsonl, line 1: expected .*translation"),
        ("p.jsonl", b'{"translation": {"en": "\\ud800", "es": "b"}}\n' * 60, "p.jsonl, line 1"),
    ],
)
def test_a_file_that_holds_no_pairs_is_refused(train, tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    result = train(tmp_path / "new", data=["--data", tmp_path / name])
    assert re.search(message, result.refused())
    assert not (tmp_path / "new").exists()


def test_three_files_or_one_that_is_missing_are_refused(train, tmp_path, tsv):
    assert "got 3" in train(tmp_path / "new", data=["--data", tsv, tsv, tsv]).refused()
    missing = tmp_path / "missing.tsv"
    assert f"{missing}; got No such file" in train(tmp_path / "new", data=["--data", missing]).refused()


@pytest.mark.parametrize(("place", "got"), [("run", "got a run"), ("folder", "got something else")])
def test_a_taken_folder_is_refused(train, run, tmp_path, place, got):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").write_text("x")
    assert re.search(got, train(run if place == "run" else tmp_path / "folder").refused())
    assert (tmp_path / "folder" / "mine").read_text() == "x"


def test_a_folder_below_a_file_cannot_be_made(train, tmp_path):
    (tmp_path / "file").write_text("x")
    assert str(tmp_path / "file") in train(tmp_path / "file" / "new").refused(1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], f"{FINISHED}; got .*finished, which has its results"),
        (["--max-steps", "40"], FINISHED),
        (["--seed", "1"], "expected a resumed run to keep its options; got seed$"),
        (["--summaries"], "expected a resumed run to keep its options; got summaries$"),
        (["--d-model", "16", "--layers", "2"], "keep its options; got d_model, decoder_layers, encoder_layers$"),
    ],
)
def test_a_finished_run_and_other_options_are_not_resumed(command, run, options, message):
    assert re.search(message, command("train", "--out", run, "--resume", *options).refused())


def test_what_is_no_run_is_not_resumed(command, tmp_path, tsv):
    assert "no run.json" in command("train", "--out", tmp_path, "--resume").refused()
    assert "not there" in command("train", "--out", tmp_path / "x", "--resume", "--data", tsv).refused()


@pytest.mark.parametrize("record", [{}, {"data": {"pairs": 1, "sha256": "x"}}])
def test_a_run_that_does_not_say_where_its_pairs_are_is_not_resumed(command, tmp_path, record):
    path = Run.create(tmp_path / "new", {}).path
    (path / "run.json").write_text(json.dumps(json.loads((path / "run.json").read_text()) | record))
    command("train", "--out", path, "--resume").refused()


def test_a_run_that_was_made_without_files_can_be_resumed_with_them(command, tmp_path, tsv):
    from positionwise.training.data import read_pairs
    from positionwise.training.options import TrainOptions

    sizes = {"d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 320}
    options = TrainOptions(minutes=None, max_steps=2, batch_tokens=256, validation=5, held_out=10, **sizes)
    start(read_pairs([tsv]), tmp_path / "new", options)
    assert FINISHED in command("train", "--out", tmp_path / "new", "--resume", "--data", tsv).refused()
    assert FINISHED in command("train", "--out", tmp_path / "new", "--resume").refused()
