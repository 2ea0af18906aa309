"""``positionwise translate`` and ``positionwise evaluate``."""

import json
import re
import shutil

import pytest

from positionwise.training.converted import converted_run
from positionwise.training.run import Run
from positionwise.training.scoring import Scores
from positionwise.training.translate import translate
from positionwise.transformer import TransformerConfig, TransformerForTranslation

SENTENCES = ["I see the red cat.", "I sell the old book.", "¿Qué? 😀"]


@pytest.fixture(scope="module")
def translated(run):
    """Translates lines together, as the command must."""
    opened = Run.open(run)
    return lambda lines, beam=1: translate(opened.model(), opened.tokenizer(), lines, beams=beam)


@pytest.mark.parametrize(("options", "beam"), [([], 1), (["--beam", "4"], 4)])
def test_sentences_from_standard_input_are_translated_in_order(command, run, translated, options, beam):
    result = command("translate", run, *options, stdin="\n".join(SENTENCES) + "\n")
    assert (result.code, result.err) == (0, "")
    assert result.out == "".join(f"{line}\n" for line in translated(SENTENCES, beam))


def test_sentences_from_a_file_are_translated(command, run, translated, tmp_path):
    (tmp_path / "sentences.txt").write_bytes("\ufeff".encode() + "\r\n".join(SENTENCES).encode())
    result = command("translate", run, tmp_path / "sentences.txt")
    assert result == (0, "".join(f"{line}\n" for line in translated(SENTENCES)), "")


def test_an_empty_line_stays_empty_and_is_noted(command, run, translated):
    first, second = translated(SENTENCES[:2])
    result = command("translate", run, stdin=f"{SENTENCES[0]}\n\n{SENTENCES[1]}\n  \n")
    assert (result.code, result.out) == (0, f"{first}\n\n{second}\n\n")
    assert result.err.splitlines() == [
        "note: standard input, line 2 is empty, and so is its translation",
        "note: standard input, line 4 is empty, and so is its translation",
    ]


def test_the_order_of_the_lines_does_not_change_a_translation(command, run):
    lines = [*SENTENCES, "I.", "I buy the small horse and I take the clean glass and the black shoe."]
    forwards, backwards = (command("translate", run, stdin="\n".join(order)).out for order in (lines, lines[::-1]))
    alone = [command("translate", run, stdin=line).out for line in lines]
    assert forwards.splitlines() == backwards.splitlines()[::-1]
    assert forwards == "".join(alone)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (b"", "expected sentences, one a line, in standard input; got nothing"),
        (b"good\ncaf\xe9\n", "standard input, line 2: expected UTF-8; got byte 0xe9"),
        (b"good\n" + b"word " * 10_000, "standard input, line 2: expected at most 1,000 words; got 10,000"),
        (b"good\n" + b"x" * 3000, "line 2: expected at most 1,024 pieces of words; got 3,0"),
        (b"good\n\n" + b"x" * 3000, "line 3: expected at most 1,024 pieces of words; got 3,0"),
    ],
)
def test_what_cannot_be_translated_is_refused_by_its_line(command, run, given, message):
    result = command("translate", run, stdin=given)
    lines = [line for line in result.err.splitlines() if not line.startswith("note: ")]
    assert re.search(message, result._replace(err="\n".join(lines)).refused())


@pytest.mark.parametrize("name", ["missing.txt", "folder"])
def test_a_file_that_cannot_be_read_is_refused(command, run, tmp_path, name):
    (tmp_path / "folder").mkdir()
    assert f"a readable file at {tmp_path / name}; got " in command("translate", run, tmp_path / name).refused()


SPOILT = [
    ("model.safetensors", lambda path: path.write_bytes(path.read_bytes()[:999]), "expected a model in"),
    ("model.safetensors", lambda path: path.unlink(), "got no model.safetensors"),
    ("config.json", lambda path: path.write_text(path.read_text().replace('"d_model": 16', '"d_model": 32')), "model"),
    ("tokenizer.json", lambda path: path.unlink(), "expected a tokenizer at"),
    ("run.json", lambda path: path.write_text("{"), "expected run.json in"),
    ("run.json", lambda path: path.write_text('{"format": 9, "version": "8.7"}'), "got format 9 of positionwise 8.7"),
    ("run.json", lambda path: path.unlink(), "which has no run.json"),
]


@pytest.mark.parametrize("name", ["translate", "evaluate"])
@pytest.mark.parametrize(("file", "spoil", "message"), SPOILT, ids=[f"{i}-{row[0]}" for i, row in enumerate(SPOILT)])
def test_a_run_that_cannot_be_read_is_refused(command, run, tmp_path, name, file, spoil, message):
    copy = shutil.copytree(run, tmp_path / "copy")
    spoil(copy / file)
    line = command(name, copy, stdin="I see the red cat.\n").refused()
    assert message in line
    assert str(copy) in line


@pytest.mark.parametrize("name", ["translate", "evaluate"])
def test_what_is_no_run_is_refused(command, tmp_path, name):
    assert "which is not there" in command(name, tmp_path / "x", stdin="a\n").refused()
    assert "no run.json" in command(name, tmp_path, stdin="a\n").refused()


def test_evaluation_prints_scores_with_their_signatures(command, run):
    result = command("evaluate", run)
    assert (result.code, result.err) == (0, "")
    assert result.out == f"{Scores(**Run.open(run).record['results']['test'])}\n"
    first, bleu, chrf = result.out.splitlines()
    assert re.match(
        r"BLEU \d+\.\d\d \(all references \d+\.\d\d\)  chrF \d+\.\d\d  exact match \d+\.\d %  10 sent", first
    )
    assert re.match(r"BLEU\|nrefs:1\|.*version:", bleu)
    assert re.match(r"chrF\|nrefs:1\|.*version:", chrf)


def test_evaluation_prints_json(command, run):
    result = command("evaluate", run, "--json")
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out) == Run.open(run).record["results"]["test"]
    beams = json.loads(command("evaluate", run, "--json", "--beam", "4").out)
    assert beams["sentences"] == 10
    assert beams["chrf"] != json.loads(result.out)["chrf"]


def test_evaluation_takes_other_pairs(command, run, translated, tmp_path):
    rows = [f"{SENTENCES[0]}\tNada.\n", f"{SENTENCES[1]}\t{translated(SENTENCES[:2])[1]}\n", f"{SENTENCES[0]}\tAlgo.\n"]
    (tmp_path / "pairs.tsv").write_text("".join(rows), "utf-8")
    for side, name in enumerate(("en", "es")):
        (tmp_path / name).write_text("".join(row.rstrip("\n").split("\t")[side] + "\n" for row in rows), "utf-8")
    scores = json.loads(command("evaluate", run, "--data", tmp_path / "pairs.tsv", "--json").out)
    assert (scores["sentences"], scores["exact_match"]) == (2, 50)
    aligned = command("evaluate", run, "--data", tmp_path / "en", "--data", tmp_path / "es", "--json")
    assert json.loads(aligned.out) == scores


@pytest.fixture
def converted(tmp_path):
    """Makes the folder of a converted model, with its vocabulary or without."""
    entries = ["", "", "the_", "cat_", *"\\_; u0123456789"]
    (tmp_path / "vocab").write_text("".join(f"'{entry}'\n" for entry in entries))
    sizes = {"d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    model = TransformerForTranslation(TransformerConfig(vocab_size=len(entries), **sizes))
    return lambda file: converted_run(tmp_path / "model", model, file and tmp_path / file, {}).path


def test_a_converted_model_translates_and_is_scored(command, converted, tmp_path):
    path = converted("vocab")
    result = command("translate", path, stdin="the cat\nthe dog\n")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines == translate(Run.open(path).model(), Run.open(path).tokenizer(), ["the cat", "the dog"])
    (tmp_path / "pairs.tsv").write_text(f"the cat\t{lines[0]}\n", "utf-8")
    scored = command("evaluate", path, "--data", tmp_path / "pairs.tsv", "--json")
    assert json.loads(scored.out)["exact_match"] == 100
    assert f"got no {path / 'test.tsv'} (evaluate --data gives them)" in command("evaluate", path).refused()


def test_a_converted_model_without_its_vocabulary_says_where_to_put_it(command, converted):
    path = converted(None)
    place = path / "vocabulary.subwords"
    assert f"(put tensor2tensor's vocabulary file at {place})" in command("translate", path, stdin="the cat").refused()


def test_evaluation_refuses_pairs_that_cannot_be_read(command, run, tmp_path):
    (tmp_path / "p.tsv").write_text("a\tb\nc\n")
    assert "p.tsv, line 2" in command("evaluate", run, "--data", tmp_path / "p.tsv").refused()
    assert "missing.tsv" in command("evaluate", run, "--data", tmp_path / "missing.tsv").refused()
