"""Lists of whole words: ids and back, words that are no entries, and which kind of vocabulary a file is."""

import pytest

from positionwise.errors import DataError
from positionwise.training.subwords import Subwords
from positionwise.training.tokenizer import EOS, PAD
from positionwise.training.words import Words, read_vocabulary

WORDS = ["<pad>", "<EOS>", "the", "cat", "sat", ",", "don't"]


@pytest.fixture
def written(tmp_path):
    """Writes lines as a vocabulary file."""

    def write(lines):
        path = tmp_path / "vocab"
        path.write_bytes("".join(f"{line}\n" for line in lines).encode())
        return path

    return write


@pytest.mark.parametrize(
    ("text", "ids", "back"),
    [
        ("the cat sat", [2, 3, 4], "the cat sat"),
        (" the\tcat ,\xa0don't\n", [2, 3, 5, 6], "the cat , don't"),
        ("", [], ""),
    ],
)
def test_words_become_ids_and_come_back(text, ids, back):
    words = Words(WORDS)
    assert words.encode([text, "cat"]) == [[*ids, EOS], [3, EOS]]
    assert words.decode([[*ids, EOS], [3]]) == [back, "cat"]


def test_a_row_ends_at_its_end_and_padding_is_left_out():
    assert Words(WORDS).decode([[PAD, 2, PAD, 3, EOS, 4, EOS, PAD], [EOS], [PAD], []]) == ["the cat", "", "", ""]


@pytest.mark.parametrize("word", ["dog", "The", "<pad>", "<EOS>", "cat,"])
def test_a_word_that_is_no_entry_is_named(word):
    with pytest.raises(DataError) as caught:
        Words(WORDS).encode(["the cat", f"the {word} sat"])
    assert str(caught.value) == f"expected words of the vocabulary, or <UNK> or <unk> or UNK in it; got {word!r}"


@pytest.mark.parametrize("unknown", ["<UNK>", "<unk>", "UNK"])
def test_an_entry_for_unknown_words_stands_for_them(unknown):
    words = Words([*WORDS, unknown, "sits"])
    assert words.encode(["the dog sits", "<pad> <EOS>"]) == [[2, 7, 8, EOS], [7, 7, EOS]]
    assert words.decode([[2, 7, 8, EOS]]) == [f"the {unknown} sits"]


def test_of_several_entries_for_unknown_words_the_capital_one_is_taken():
    assert Words([*WORDS, "UNK", "<unk>", "<UNK>"]).encode(["dog UNK"]) == [[9, 7, EOS]]


@pytest.mark.parametrize("reserved", [["", ""], ["<pad>", "<EOS>"], ["<PAD>_", "<eos>_"]])
@pytest.mark.parametrize(
    ("entries", "kind"),
    [(["the", "cat"], Words), (["the_", "cat"], Subwords), (["the", "cat", "_"], Subwords), (["a", "\\u"], Words)],
)
@pytest.mark.parametrize("mark", ["", "'"])
def test_an_underscore_after_the_reserved_entries_tells_subwords(written, reserved, entries, kind, mark):
    read = read_vocabulary(written([f"{mark}{entry}{mark}" for entry in [*reserved, *entries]]))
    assert type(read) is kind
    assert read.size == 2 + len(entries)
    assert read.decode([[3]]) == [entries[1].strip("_")]


@pytest.mark.parametrize("reserved", [["", ""], ["<pad>", "<EOS>"]])
def test_what_is_written_is_the_file_that_was_read(written, tmp_path, reserved):
    path = written([*reserved, *WORDS[2:], "'", "'quoted'", "\u2028", "é"])
    read_vocabulary(path).write(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (WORDS[2:], r"vocab, line 1: expected '' or '<pad>' or '<pad>_'; got 'the'"),
        ([*WORDS, "cat"], r"vocab, line 8: expected another entry than in line 4; got 'cat'"),
        ([*WORDS, ""], r"vocab, line 8: expected an entry; got an empty one"),
        (WORDS[:2], r"expected entries after the two reserved ones in .*vocab; got none"),
    ],
)
def test_a_file_that_is_no_such_list_is_refused_by_its_line(written, lines, message):
    with pytest.raises(DataError, match=message):
        read_vocabulary(written(lines))
