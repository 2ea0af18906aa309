"""The vocabulary: any text comes back, every sentence ends, and the size is kept."""

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from positionwise.training.tokenizer import EOS, PAD, SPECIAL, train_tokenizer


@pytest.fixture(scope="module")
def sentences(pairs):
    return [sentence for pair in pairs for sentence in pair]


@pytest.fixture(scope="module")
def tokenizer(sentences):
    return train_tokenizer(sentences, 320)


@given(st.lists(st.text(max_size=30), max_size=3))
@example(["😀 👩‍👩‍👧 🇪🇸", "日本語のテキスト", "שלום עולם", "\u0301 alone", "a\x00b\x7f", "\ufffd\U0010ffff"])
@example(["two  spaces", "¿Qué?", "tab\tinside", "Don't!  ...", "1,234.5 %", "UPPER lower"])
@example(["El niño comió", unicodedata.normalize("NFD", "El niño comió"), "ﬁ ﬀ ½ Å"])
def test_any_text_comes_back_in_its_order(tokenizer, texts):
    expected = [unicodedata.normalize("NFC", text).strip() for text in texts]
    assert tokenizer.decode(tokenizer.encode([text.strip() for text in texts])) == expected


@pytest.mark.parametrize("text", ["<pad>", "<eos>", "a <eos> b", "<pad>x", "the <eos>"])
def test_what_looks_like_a_special_entry_is_text(tokenizer, text):
    (ids,) = tokenizer.encode([text])
    assert PAD not in ids
    assert ids.index(EOS) == len(ids) - 1
    assert tokenizer.decode([ids]) == [text]


@given(st.text(max_size=40))
def test_a_sentence_ends_once_and_is_not_padded(tokenizer, text):
    (ids,) = tokenizer.encode([text.replace("<", "")])
    assert ids[-1] == EOS
    assert ids.count(EOS) == 1
    assert PAD not in ids
    assert max(ids) < tokenizer.size


def test_special_entries_have_their_places(tokenizer):
    assert (PAD, EOS) == (0, 1)
    assert [tokenizer.tokenizer.id_to_token(i) for i in (PAD, EOS)] == SPECIAL == ["<pad>", "<eos>"]
    assert tokenizer.encode([""]) == [[EOS]]


def test_padding_and_end_are_left_out_of_what_is_written(tokenizer):
    (ids,) = tokenizer.encode(["I see the red cat."])
    assert tokenizer.decode([[PAD, *ids, PAD, PAD], [EOS], [PAD]]) == ["I see the red cat.", "", ""]


@pytest.mark.parametrize("size", [259, 300, 320])
def test_the_vocabulary_has_the_size_asked_for_where_there_is_enough_text(sentences, size):
    assert train_tokenizer(sentences, size).size == size


def test_the_vocabulary_may_be_smaller_than_asked_for():
    tokenizer = train_tokenizer(["ab ab", "once"], 4000)
    assert tokenizer.size == 2 + 256 + 2  # special ones, bytes, and " a" and " ab", which occur twice


def test_more_vocabulary_gives_shorter_sentences(sentences):
    lengths = [sum(map(len, train_tokenizer(sentences, size).encode(sentences))) for size in (259, 300, 340)]
    assert lengths[0] > lengths[1] > lengths[2]


def test_every_byte_has_an_entry(tokenizer):
    unseen = "".join(map(chr, range(0x20, 0x500))) + "😀"
    (ids,) = tokenizer.encode([unseen])
    (english,) = tokenizer.encode(["I see the red cat."])
    assert len(ids) > len(unseen) > len(english)
    assert tokenizer.tokenizer.token_to_id("<unk>") is None
    assert tokenizer.decode([ids]) == [unicodedata.normalize("NFC", unseen).strip()]


def test_a_word_has_the_same_pieces_at_the_start_and_inside(tokenizer):
    (alone,), (inside,) = tokenizer.encode(["red cat"]), tokenizer.encode(["the red cat"])
    assert inside[-len(alone) :] == alone


def test_learning_is_repeatable(sentences, tokenizer):
    assert train_tokenizer(iter(sentences), 320).tokenizer.to_str() == tokenizer.tokenizer.to_str()
