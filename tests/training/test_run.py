"""The run's folder: made once, written whole or not at all, read only when it fits."""

import errno
import json

import pytest
import torch
from safetensors import SafetensorError
from transformers import PreTrainedTokenizerFast

import positionwise
from positionwise.errors import RunError
from positionwise.training.data import Pair
from positionwise.training.run import FORMAT, Run, WriteError
from positionwise.training.tokenizer import train_tokenizer
from positionwise.transformer import TransformerForTranslation


@pytest.mark.parametrize("place", ["new", "a/b/new", "empty"])
def test_a_run_is_made_in_a_new_or_empty_folder(tmp_path, place):
    (tmp_path / "empty").mkdir()
    made = Run.create(tmp_path / place, {"seed": 3})
    assert made.record == {"format": FORMAT, "version": positionwise.__version__, "options": {"seed": 3}, "results": {}}
    assert Run.open(tmp_path / place) == made
    assert [path.name for path in made.path.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    ("names", "got"),
    [
        ([""], "something else"),
        (["notes.txt"], "something else"),
        (["run.json"], "a run that never reached a checkpoint"),
        (["run.json", "checkpoint-7"], r"a run that can be continued \(--resume\)"),
        (["run.json", "model.safetensors"], "a run that has ended"),
    ],
)
def test_a_taken_place_is_refused_and_left_as_it_is(tmp_path, names, got):
    place = tmp_path / "taken"
    if names != [""]:
        place.mkdir()
    for name in names:
        (place / name).write_text("mine")
    with pytest.raises(RunError, match=f"expected .*taken to be a new or empty folder; got {got}"):
        Run.create(place, {})
    assert [(place / name).read_text() for name in names] == ["mine"] * len(names)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (None, "which has no run.json"),
        ("", "expected run.json in .* to hold a run's record"),
        ('{"format": 1', "expected run.json in .* to hold a run's record"),
        (b"\xff\xfe", "expected run.json in .* to hold a run's record"),
        ("[1, 2]", "expected run.json in .* to hold a run's record"),
        ('"text"', "expected run.json in .* to hold a run's record"),
        ('{"version": "0.1.0"}', "expected run.json in .* to hold a run's record.*format"),
        ('{"format": 1}', "expected run.json in .* to hold a run's record.*version"),
        ('{"format": 99, "version": "7.5.2"}', "expected a run of format 1; got format 99 of positionwise 7.5.2 in"),
    ],
)
def test_a_folder_that_holds_no_run_is_refused(tmp_path, record, message):
    if record is not None:
        (tmp_path / "run.json").write_bytes(record if isinstance(record, bytes) else record.encode())
    with pytest.raises(RunError, match=message) as caught:
        Run.open(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_what_is_not_a_folder_is_refused(tmp_path):
    with pytest.raises(RunError, match="expected the folder of a run; got .*missing, which is not there"):
        Run.open(tmp_path / "missing")
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="expected the folder of a run; got .*file, which is a file"):
        Run.open(tmp_path / "file")


FULL = OSError(errno.ENOSPC, "No space left on device")
FAILURES = [
    (FULL, WriteError, "could not write model.bin in .*: No space left on device; what was there is kept"),
    (OSError(errno.EFBIG, "File too large"), WriteError, "File too large"),
    (
        RuntimeError("[enforce fail at inline_container.cc:664] . PytorchStreamWriter failed writing file data/3"),
        WriteError,
        "No space left on device",
    ),
    (
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        WriteError,
        "No space left on device",
    ),
    (RuntimeError("shapes do not match"), RuntimeError, "shapes do not match"),
    (KeyboardInterrupt("by hand"), KeyboardInterrupt, "by hand"),
]


@pytest.mark.parametrize(("failure", "kind", "message"), FAILURES, ids=lambda value: str(value)[:30])
def test_a_writer_that_fails_half_way_leaves_what_was_there(tmp_path, failure, kind, message):
    made = Run.create(tmp_path / "new", {})
    made.write("model.bin", lambda path: path.write_text("old"))

    def half(path):
        (path.parent / "beside.bin").write_text("half")
        path.write_text("half")
        raise failure

    with pytest.raises(kind, match=message) as caught:
        made.write("model.bin", half)
    assert type(caught.value) is kind
    assert (made.path / "model.bin").read_text() == "old"
    assert sorted(path.name for path in made.path.iterdir()) == ["model.bin", "run.json"]
    made.write("model.bin", lambda path: path.write_text("new"))  # and the next one succeeds
    assert (made.path / "model.bin").read_text() == "new"


def test_nothing_is_in_its_place_before_it_is_whole(tmp_path):
    made = Run.create(tmp_path / "new", {})

    def writer(path):
        path.mkdir()
        (path / "weights").write_text("x")
        assert not (made.path / "checkpoint-7").exists()

    made.write("checkpoint-7", writer)
    assert (made.path / "checkpoint-7" / "weights").read_text() == "x"
    assert not (made.path / ".partial").exists()


def test_what_an_interrupted_process_left_behind_is_written_over(tmp_path):
    made = Run.create(tmp_path / "new", {})
    (made.path / ".partial" / "checkpoint-3").mkdir(parents=True)
    made.save_record()
    assert sorted(path.name for path in made.path.iterdir()) == ["run.json"]


def test_the_last_checkpoint_is_the_one_of_most_steps(tmp_path):
    made = Run.create(tmp_path / "new", {})
    assert made.checkpoint() is None
    for name in ("checkpoint-9", "checkpoint-100", "checkpoint-20", "checkpoint-best", "checkpoint-"):
        (made.path / name).mkdir()
    assert made.checkpoint() == made.path / "checkpoint-100"
    made.keep_only("checkpoint-100")
    assert [path.name for path in made.path.glob("checkpoint-*")] == ["checkpoint-100"]


def test_pairs_and_records_are_read_as_they_were_written(tmp_path):
    made = Run.create(tmp_path / "new", {"files": ["ñandú.tsv"]})
    rows = [Pair("Where is the girl?", "¿Dónde está la niña?")]
    made.save_pairs("test", rows)
    made.record["results"] = {"note": "¡Olé!"}
    made.save_record()
    assert Run.open(made.path) == made
    assert Run.open(made.path).pairs("test") == rows
    assert "ñandú" in (made.path / "run.json").read_text("utf-8")


def test_the_tokenizer_is_read_here_and_by_transformers(tmp_path, pairs):
    made = Run.create(tmp_path / "new", {})
    tokenizer = train_tokenizer([text for pair in pairs for text in pair], 320)
    made.save_tokenizer(tokenizer)
    sentences = ["I see the red cat.", "¿El niño?", "😀"]
    ids = tokenizer.encode(sentences)
    assert made.tokenizer().encode(sentences) == ids
    fast = PreTrainedTokenizerFast.from_pretrained(made.path)
    assert fast(sentences)["input_ids"] == ids
    assert fast.batch_decode(ids, skip_special_tokens=True) == [f" {text}" for text in tokenizer.decode(ids)]
    assert (fast.pad_token_id, fast.eos_token_id) == (0, 1)


def test_the_model_is_read_here_and_by_transformers(finished):
    path = finished[0].path
    model, other = Run.open(path).model(), TransformerForTranslation.from_pretrained(path)
    assert not model.training
    weights = other.state_dict()
    assert weights.keys() == model.state_dict().keys()
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())
    ids = torch.tensor(finished[0].tokenizer().encode(["I see the red cat."]))
    assert torch.equal(model.generate(ids, max_new_tokens=9), other.eval().generate(ids, max_new_tokens=9))


def shortened(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def altered(**changes):
    return lambda path: path.write_text(json.dumps(json.loads(path.read_text()) | changes))


SPOILT = [
    ("model.safetensors", shortened),
    ("model.safetensors", lambda path: path.write_bytes(b"")),
    ("model.safetensors", lambda path: path.write_bytes(b"\xff" * 2000)),
    ("model.safetensors", lambda path: path.unlink()),
    ("config.json", lambda path: path.unlink()),
    ("config.json", shortened),
    ("config.json", altered(d_model=32)),
    ("config.json", altered(vocab_size=400)),
    ("config.json", altered(encoder_layers=2)),
    ("config.json", altered(decoder_layers=0)),
    ("config.json", altered(is_gated=True)),
    ("config.json", altered(num_heads=3)),
    ("config.json", altered(d_model="wide")),
    ("config.json", altered(another_field=1)),
]


@pytest.mark.parametrize(("name", "spoil"), SPOILT, ids=lambda value: value if isinstance(value, str) else "")
def test_a_model_that_does_not_fit_is_refused(run, name, spoil):
    spoil(run.path / name)
    with pytest.raises(RunError, match="expected .* in ") as caught:
        run.model()
    assert str(run.path) in str(caught.value)
    assert len(str(caught.value)) < 600
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("spoil", [lambda path: path.unlink(), shortened, lambda path: path.write_text("[]")])
def test_a_tokenizer_that_cannot_be_read_is_refused(run, spoil):
    spoil(run.path / "tokenizer.json")
    with pytest.raises(RunError, match=f"expected a tokenizer at {run.path}/tokenizer.json; got "):
        run.tokenizer()


def test_a_training_that_has_not_ended_says_how_to_continue(stopped):
    with pytest.raises(RunError, match=r"got no model.safetensors \(training has not ended: train --resume"):
        Run.open(stopped).model()
