"""A converted model's folder: it translates with tensor2tensor's vocabulary, or says what it lacks."""

import json

import pytest
import torch

import positionwise
from positionwise.errors import DataError, RunError
from positionwise.training.converted import converted_run
from positionwise.training.data import Pair, references
from positionwise.training.run import FORMAT, Run
from positionwise.training.subwords import Subwords
from positionwise.training.train import resume, score_model
from positionwise.training.translate import translate
from positionwise.training.words import Words
from positionwise.transformer import TransformerConfig, TransformerForTranslation

SUBTOKENS = ["<pad>_", "<EOS>_", "the_", "cat_", ", _", ",", "t", "h", "e", "c", "a", *"\\_; u0123456789"]
RECORD = {"from": "tensor2tensor", "file": "model.ckpt-9"}


@pytest.fixture
def vocabulary_file(tmp_path):
    path = tmp_path / "vocab.translate"
    path.write_text("".join(f"'{subtoken}'\n" for subtoken in SUBTOKENS), "utf-8")
    return path


def model_of(size, **changes):
    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1, "max_positions": 40}
    return TransformerForTranslation(TransformerConfig(vocab_size=size, **(sizes | changes))).eval()


@pytest.fixture
def model():
    return model_of(len(SUBTOKENS))


def test_the_folder_is_a_finished_run(tmp_path, model, vocabulary_file):
    made = converted_run(tmp_path / "new", model, vocabulary_file, RECORD)
    record = {"format": FORMAT, "version": positionwise.__version__, "options": {}, "results": {"converted": RECORD}}
    assert json.loads((made.path / "run.json").read_text("utf-8")) == record
    assert Run.open(made.path) == made
    names = ["config.json", "generation_config.json", "model.safetensors", "run.json", "vocabulary.subwords"]
    assert sorted(path.name for path in made.path.iterdir()) == names
    weights = made.model().state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())
    assert (made.path / "vocabulary.subwords").read_bytes() == vocabulary_file.read_bytes()


@pytest.mark.parametrize("beams", [1, 4])
def test_it_translates_with_its_vocabulary(tmp_path, model, vocabulary_file, beams):
    made = converted_run(tmp_path / "new", model, vocabulary_file, RECORD)
    tokenizer = made.tokenizer()
    assert isinstance(tokenizer, Subwords)
    written = model.generate(torch.tensor([[2, 4, 3, 1]]), num_beams=beams, max_new_tokens=26, do_sample=False)
    (expected,) = Subwords(SUBTOKENS).decode(written.tolist())
    assert expected
    assert translate(made.model(), tokenizer, [" the, cat", ""], beams=beams) == [expected, ""]
    scores = score_model(made.model(), tokenizer, references([Pair("the, cat", expected)]), beams=beams)
    assert scores.exact_match == 100


@pytest.mark.parametrize("beams", [1, 4])
def test_it_translates_with_a_list_of_whole_words(tmp_path, beams):
    path = tmp_path / "vocab.words"
    path.write_text("<pad>\n<EOS>\nthe\ncat\nsat\ndown\n<UNK>\n", "utf-8")
    model = model_of(7)
    made = converted_run(tmp_path / "new", model, path, RECORD)
    assert (made.path / "vocabulary.words").read_bytes() == path.read_bytes()
    tokenizer = Run.open(made.path).tokenizer()
    assert isinstance(tokenizer, Words)
    written = model.generate(torch.tensor([[2, 3, 6, 5, 1]]), num_beams=beams, max_new_tokens=26, do_sample=False)
    (expected,) = tokenizer.decode(written.tolist())
    assert set(expected.split()) & {"the", "cat", "sat", "down", "<UNK>"}
    assert translate(made.model(), tokenizer, ["the cat fell down"], beams=beams) == [expected]


def test_without_a_vocabulary_it_says_what_is_missing_until_it_is_there(tmp_path, model, vocabulary_file):
    made = converted_run(tmp_path / "new", model, None, RECORD)
    assert "vocabulary.subwords" not in {path.name for path in made.path.iterdir()}
    place = made.path / "vocabulary.subwords"
    message = rf"expected the model's vocabulary; got none \(put tensor2tensor's vocabulary file at {place}\)"
    with pytest.raises(RunError, match=message):
        Run.open(made.path).tokenizer()
    place.write_bytes(vocabulary_file.read_bytes())
    assert Run.open(made.path).tokenizer().subtokens == SUBTOKENS
    place.rename(made.path / "vocabulary.words")
    assert Run.open(made.path).tokenizer().subtokens == SUBTOKENS


def test_a_vocabulary_laid_there_by_hand_is_checked(tmp_path, model, vocabulary_file):
    made = converted_run(tmp_path / "new", model, None, RECORD)
    vocabulary_file.replace(made.path / "vocabulary.subwords")
    with (made.path / "vocabulary.subwords").open("a") as file:
        file.write("'dog_'\n")
    with pytest.raises(DataError, match=r"^expected a vocabulary of the model's 26 entries; got one of 27$"):
        translate(model, made.tokenizer(), ["the cat"])
    (made.path / "vocabulary.subwords").write_text("''\n")
    with pytest.raises(DataError, match=r"expected entries after the two reserved ones in .*vocabulary.subwords"):
        made.tokenizer()


def test_it_has_no_pairs_to_judge_by(tmp_path, model, vocabulary_file):
    made = converted_run(tmp_path / "new", model, vocabulary_file, RECORD)
    with pytest.raises(RunError, match=r"got no .*/new/test.tsv \(evaluate --data gives them\)"):
        made.pairs("test")
    made.save_pairs("test", [Pair("the cat", "the")])
    assert made.pairs("test") == [Pair("the cat", "the")]


def test_it_cannot_be_trained_further(tmp_path, model, vocabulary_file, pairs):
    made = converted_run(tmp_path / "new", model, vocabulary_file, RECORD)
    with pytest.raises(RunError, match="expected a training that has not ended"):
        resume(pairs, made.path)


@pytest.mark.parametrize(
    ("size", "changes", "message"),
    [
        (25, {}, "the model's 25 entries; got one of 26"),
        (2600, {}, "the model's 2,600 entries; got one of 26"),
        (26, {"target_vocab_size": 30, "share_embeddings": False}, "the model's 26 and 30 entries; got one of 26"),
    ],
)
def test_a_vocabulary_of_another_size_is_refused_before_anything_is_written(
    tmp_path, vocabulary_file, size, changes, message
):
    with pytest.raises(DataError, match=message):
        converted_run(tmp_path / "new", model_of(size, **changes), vocabulary_file, RECORD)
    assert not (tmp_path / "new").exists()


def test_a_vocabulary_that_cannot_be_read_is_refused_before_anything_is_written(tmp_path, model):
    with pytest.raises(DataError, match="none; got No such file"):
        converted_run(tmp_path / "new", model, tmp_path / "none", RECORD)
    assert not (tmp_path / "new").exists()


def test_a_taken_folder_is_left_as_it_is(run, model, vocabulary_file):
    before = {path.name for path in run.path.iterdir()}
    with pytest.raises(RunError, match="a run that has ended"):
        converted_run(run.path, model, vocabulary_file, RECORD)
    assert {path.name for path in run.path.iterdir()} == before
