"""tensor2tensor's subwords: the original's ids, any text back, and files that are refused by their line."""

import gzip
import sys
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from positionwise.errors import DataError
from positionwise.training.subwords import Subwords
from positionwise.training.tokenizer import EOS, PAD

SUBTOKENS = ["", "", "the_", "th", "e_", "e", "t", "h", "cat_", "c", "a", "u", " ", ", _", ",", "\\", "_", ";",
             *"0123456789"]  # fmt: skip


@pytest.fixture(scope="module")
def subwords():
    return Subwords(SUBTOKENS)


@pytest.fixture
def written(tmp_path):
    """Writes lines as a vocabulary file."""

    def write(lines, name="vocab"):
        path = tmp_path / name
        path.write_bytes(b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines))
        return path

    return write


def quoted(subtokens, mark="'"):
    return [f"{mark}{subtoken}{mark}" for subtoken in subtokens]


# The ids are those of tensor2tensor v1.0.14's own encoder with this vocabulary.
ENCODED = [
    ("", [], ""),
    ("the cat", [2, 8], "the_|cat_"),
    ("the  cat", [2, 12, 12, 16, 8], "the_| | |_|cat_"),
    ("the, cat", [2, 13, 8], "the_|, _|cat_"),
    ("the,the", [2, 14, 16, 2], "the_|,|_|the_"),
    (" the ", [12, 16, 2, 12, 16], " |_|the_| |_"),
    ("thee", [3, 5, 4], "th|e|e_"),
    ("a 1", [10, 16, 19, 16], "a|_|1|_"),
    ("cat_u", [8, 15, 11, 16, 11, 16], r"cat_|\|u|_|u|_"),
    ("a\\b", [10, 16, 15, 15, 16, 15, 27, 26, 17, 16], r"a|_|\|\|_|\|9|8|;|_"),
    ("a\nb", [10, 16, 15, 19, 18, 17, 16, 15, 27, 26, 17, 16], r"a|_|\|1|0|;|_|\|9|8|;|_"),
    ("é", [15, 20, 21, 21, 17, 16], r"\|2|3|3|;|_"),
    (". ", [15, 22, 24, 17, 12, 16], r"\|4|6|;| |_"),
]


@pytest.mark.parametrize(("text", "ids", "pieces"), ENCODED, ids=[repr(row[0]) for row in ENCODED])
def test_the_ids_are_the_originals(subwords, text, ids, pieces):
    assert subwords.encode([text]) == [[*ids, EOS]]
    assert "|".join(subwords.subtokens[i] for i in ids) == pieces
    assert subwords.decode([ids]) == [text]


TEXTS = st.text() | st.text("the cat,_\\u;0123456789é\n\xa0.")


@given(st.lists(TEXTS, max_size=3))
@example(["Dude - that's so cool.", "Łukasz est né en 1981.", " Spaces at the ends ", "802.11b", "two. \nlines"])
@example([r"\u", r"\_", "_", "__ _", r"\95;", r"\\9;_", "<pad>", "<EOS>_", "'quoted'"])
@example(["", " ", "  ", "a b", "a  b", "½ ①Ⅷ", "日本語 テキスト", "e\u0301 x", "\x00\r\u2028\x85", "\U0010ffff"])
def test_any_text_comes_back_in_its_order(subwords, texts):
    rows = subwords.encode(texts)
    assert subwords.decode(rows) == texts
    assert all(row.index(EOS) == len(row) - 1 and PAD not in row for row in rows)
    assert max(map(max, rows), default=0) < subwords.size == len(SUBTOKENS) == 28


@given(TEXTS)
@example("a_a")
def test_any_text_comes_back_from_the_smallest_vocabulary(text):
    """Where the original writes an underscore as \\117; behind a backslash, and does not read it back."""
    smallest = Subwords(["<pad>", "<EOS>", *r"\_;0123456789"])
    assert smallest.decode(smallest.encode([text])) == [text]


@given(st.lists(st.integers(2, 27)))
@example([15])
@example([15, *[27] * 5000, 17])
def test_whatever_a_model_writes_is_text(subwords, ids):
    (text,) = subwords.decode([ids])
    assert text.encode("utf-8").decode("utf-8") == text


@pytest.mark.parametrize(
    ("escaped", "text"),
    [("\\", ""), ("\\c", "c"), ("\\12", "12"), ("\\1114111;", "\U0010ffff"), ("\\1114112;", "1114112;"),
     ("\\55295;", "\ud7ff"), ("\\55296;", "55296;"), ("\\57343;", "57343;"), ("\\57344;", "\ue000"),
     ("a_\\_t", "a t"), ("a__t", "a t"), ("\\\\\\", "\\")],
)  # fmt: skip
def test_what_is_no_escape_loses_its_backslash(subwords, escaped, text):
    assert subwords.decode([[subwords.ids[c] for c in escaped]]) == [text]


def test_a_row_ends_at_its_end_and_padding_is_left_out(subwords):
    assert subwords.decode([[PAD, 2, PAD, 8, EOS, 2, EOS, PAD], [EOS], [PAD], []]) == ["the cat", "", "", ""]
    named = Subwords(["<pad>_", "<EOS>_", *SUBTOKENS[2:]])
    assert named.decode([[PAD, 2, 8, PAD]]) == ["the cat"]


def test_letters_and_numbers_are_unicodes():
    characters = map(chr, range(sys.maxunicode + 1))
    assert all(c.isalnum() == (unicodedata.category(c)[0] in "LN") for c in characters)


@pytest.mark.parametrize("reserved", [["", ""], ["<pad>", "<EOS>"], ["<pad>_", "<EOS>_"], ["<PAD>", "<eos>"]])
@pytest.mark.parametrize("form", [quoted, lambda entries: quoted(entries, '"'), list], ids=["single", "double", "bare"])
def test_a_file_is_read_as_it_was_written(written, reserved, form):
    entries = [*reserved, *SUBTOKENS[2:], "'", '"', "''", "\u2028_", "é_"]
    read = Subwords.read(written(form(entries)))
    assert read.subtokens == entries
    assert read.encode(["the cat"]) == [[2, 8, EOS]]


def test_a_file_may_be_compressed_and_of_another_system(written):
    path = written([])
    path = path.with_suffix(".gz")
    path.write_bytes(gzip.compress("\r\n".join(quoted(SUBTOKENS)).encode()))
    assert Subwords.read(path).subtokens == SUBTOKENS


def test_what_is_written_is_the_originals_form(written, tmp_path):
    path = written(quoted([*SUBTOKENS, "'", "\r", "é_"]))
    Subwords.read(path).write(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


SMALL = ["", "", "the_", "café_", "ca", "t_", "t", "a"]


@pytest.mark.parametrize(("text", "ids"), [("the café", [2, 3]), ("cat at tat", [4, 5, 7, 5, 6, 7, 5]), ("", [])])
def test_a_small_file_writes_what_its_entries_hold(written, text, ids):
    small = Subwords.read(written(SMALL))
    assert small.encode([text]) == [[*ids, EOS]]
    assert small.decode([ids]) == [text]


@pytest.mark.parametrize(
    ("more", "text", "got"),
    [
        ("", "the cafét", "'f' in 'cafét'"),
        ("", " ", "' ' in ' '"),
        ("f", "cafés", "'é' in 'cafés'"),
        ("\\;12_", "té", "'é' in 'té'"),  # 233 has a digit that is no entry
        ("", "ta", "the end of 'ta', which is written '_'"),
        ("_", "t\\", r"'\\' in '\\'"),
        ("u", "_", "'_' in '_'"),
        ("\\u", "t_ ", "' ' in '_ '"),
        ("\\;0123456789", "é", "the end of 'é', which is written '_'"),
        ("", "a" * 90 + "x" * 30, f"'x' in '{'a' * 60}'"),
    ],
)
def test_what_a_small_file_cannot_write_is_named(written, more, text, got):
    small = Subwords.read(written([*SMALL, *more]))
    with pytest.raises(DataError) as caught:
        small.encode(["", text])
    assert str(caught.value) == f"expected characters that the vocabulary can write; got {got}"


def test_a_file_without_a_digit_writes_the_numbers_that_need_none(written):
    """What has a number is written by it, as the original does; only the rest stands for itself."""
    small = Subwords.read(written([*SMALL, *r"\_;23"]))
    assert [small.subtokens[i] for i in small.encode(["é"])[0][:-1]] == ["\\", "2", "3", "3", ";", "_"]
    with pytest.raises(DataError, match="got 'ê' in 'ê'"):
        small.encode(["ê"])


@given(TEXTS, st.sets(st.sampled_from(range(2, len(SUBTOKENS))), min_size=1))
@example("the cat", {2, 8})
@example("a_a", {10, 15, 16})
def test_whatever_is_missing_a_text_comes_back_or_is_refused(text, kept):
    small = Subwords(["", "", *(SUBTOKENS[i] for i in sorted(kept))])
    try:
        rows = small.encode([text])
    except DataError:
        return
    assert small.decode(rows) == [text]


REST = quoted(SUBTOKENS[2:])
REFUSED = [
    ([], r"expected entries after the two reserved ones in .*vocab; got none"),
    (["<pad>", "<EOS>"], r"expected entries after the two reserved ones in .*vocab; got none$"),
    (["''", "''", *REST, b"'caf\xe9_'"], r"vocab, line 29: expected UTF-8; got byte 0xe9"),
    (["''", "''", *REST, "'cat_'"], r"vocab, line 29: expected another entry than in line 9; got 'cat_'"),
    (["''", "''", *REST, "''"], r"vocab, line 29: expected an entry; got an empty one"),
    (["''", "''", *REST, ""], r"vocab, line 29: expected an entry in quotes, as in line 1; got ''"),
    (["''", "''", *REST, "'"], r"vocab, line 29: expected an entry in quotes, as in line 1; got \"'\""),
    (["''", "''", "\"the'", *REST], r"vocab, line 3: expected an entry in quotes, as in line 1; got "),
    (REST, r"vocab, line 1: expected '' or '<pad>' or '<pad>_'; got 'the_'"),
    (["''", *REST], r"vocab, line 2: expected '' or '<eos>' or '<eos>_'; got 'the_'"),
    (["<EOS>", "<pad>", *REST], r"vocab, line 1: expected '' or '<pad>' or '<pad>_'; got '<EOS>'"),
]


@pytest.mark.parametrize(("lines", "message"), REFUSED, ids=[row[1][:40] for row in REFUSED])
def test_a_file_that_is_no_such_vocabulary_is_refused_by_its_line(written, lines, message):
    with pytest.raises(DataError, match=message) as caught:
        Subwords.read(written(lines))
    assert len(str(caught.value)) < 400


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(DataError, match=f"expected a readable file at {tmp_path}/none; got No such file"):
        Subwords.read(tmp_path / "none")
