"""Translating: order, empty lines, batches, beams and lengths."""

import pytest
import torch

from positionwise.errors import DataError
from positionwise.training import translate as module
from positionwise.training.batches import pad
from positionwise.training.tokenizer import train_tokenizer
from positionwise.training.translate import translate

SENTENCES = [
    "I see the red cat.", "", "I sell the old book and I buy the small horse, the clean glass and the shoe.", "I.",
    "I want the clean glass.", " ", "¿Qué? 😀", "I see the red cat.", "I take the old shoe and I have the dog.",
]  # fmt: skip


@pytest.fixture(scope="module")
def babbler(finished):
    """A model that does not know where to end, after 30 steps."""
    return finished[0].model(), finished[0].tokenizer()


@pytest.fixture(scope="module")
def speaker(finished, pairs):
    """A model that has learned something of the tiny language in a hundred steps."""
    torch.manual_seed(0)
    model, tokenizer = finished[0].model(), finished[0].tokenizer()
    sources, targets = (pad(tokenizer.encode([pair[side] for pair in pairs[::3]])) for side in (0, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(100):
        optimizer.zero_grad()
        model(input_ids=sources, labels=targets).loss.backward()
        optimizer.step()
    return model, tokenizer


def test_the_speakers_translations_are_worth_comparing(speaker):
    translations = translate(*speaker, SENTENCES)
    assert len({*translations}) > 5
    assert max(len(text.split()) for text in translations) < 20


@pytest.mark.parametrize("beams", [1, 4])
def test_translations_come_in_the_order_of_the_sentences(speaker, beams):
    forwards, backwards = (translate(*speaker, order, beams=beams) for order in (SENTENCES, SENTENCES[::-1]))
    assert forwards == backwards[::-1]
    assert forwards[0] == forwards[7]


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("tokens", [1, 40, 100])
def test_the_batching_does_not_change_a_translation(speaker, monkeypatch, beams, tokens):
    together = translate(*speaker, SENTENCES, beams=beams)
    monkeypatch.setattr(module, "BATCH_TOKENS", tokens)
    assert translate(*speaker, SENTENCES, beams=beams) == together


@pytest.mark.parametrize("beams", [1, 4])
def test_a_sentence_is_translated_the_same_alone(speaker, beams):
    together = translate(*speaker, SENTENCES, beams=beams)
    assert [translate(*speaker, [sentence], beams=beams)[0] for sentence in SENTENCES] == together


@pytest.mark.parametrize("beams", [1, 4])
def test_a_translation_without_an_end_is_as_long_alone_as_beside_others(babbler, beams):
    together = translate(*babbler, SENTENCES, beams=beams)
    assert [translate(*babbler, [sentence], beams=beams)[0] for sentence in SENTENCES] == together


def test_batches_keep_their_limit(speaker, monkeypatch):
    sizes = []
    generate = speaker[0].generate
    monkeypatch.setattr(speaker[0], "generate", lambda ids, **options: sizes.append(ids) or generate(ids, **options))
    monkeypatch.setattr(module, "BATCH_TOKENS", 120)
    translate(*speaker, SENTENCES, beams=2)
    assert sum(len(ids) for ids in sizes) == 7  # two lines are empty
    assert all(len(ids) == 1 or ids.numel() * 2 <= 120 for ids in sizes)
    assert len(sizes) > 1


@pytest.mark.parametrize("sentence", ["", " ", "\t\xa0"])
def test_an_empty_sentence_is_translated_by_an_empty_one(speaker, sentence):
    assert translate(*speaker, [sentence, "I see the red cat.", sentence])[::2] == ["", ""]
    assert translate(*speaker, [sentence]) == [""]
    assert translate(*speaker, []) == []


@pytest.mark.parametrize("beams", [1, 4])
def test_a_translation_is_what_generate_writes(speaker, beams):
    model, tokenizer = speaker
    (ids,) = tokenizer.encode(["I see the red cat."])
    written = model.generate(
        torch.tensor([ids]), num_beams=beams, max_new_tokens=2 * len(ids) + 10, do_sample=False, use_cache=False
    )
    expected = tokenizer.tokenizer.decode(written[0].tolist(), skip_special_tokens=True).strip()
    assert translate(model, tokenizer, ["I see the red cat."], beams=beams) == [expected]


def test_spaces_at_the_ends_do_not_change_a_translation(speaker):
    """What is learned from has none."""
    padded = [f" \t{sentence}  " for sentence in SENTENCES]
    assert translate(*speaker, padded) == translate(*speaker, SENTENCES)


def test_a_vocabulary_of_another_size_than_the_models_is_refused(speaker, pairs):
    other = train_tokenizer([pair.source for pair in pairs], 300)
    with pytest.raises(DataError, match=r"^expected a vocabulary of the model's 320 entries; got one of 300$"):
        translate(speaker[0], other, ["I see the red cat."])


def test_beams_search_further_than_greed(speaker):
    assert translate(*speaker, SENTENCES, beams=4) != translate(*speaker, SENTENCES)


def test_progress_counts_sentences_to_the_last(speaker, monkeypatch):
    monkeypatch.setattr(module, "BATCH_TOKENS", 40)
    told = []
    translate(*speaker, SENTENCES, progress=told.append)
    assert told[-1] == len(SENTENCES)
    assert told == sorted(told)
    assert len(told) > 1


def test_a_sentence_of_too_many_pieces_is_refused_by_its_line(speaker):
    limit = speaker[0].config.max_positions
    (ids,) = speaker[1].encode(["x" * (limit - 2)])
    assert len(ids) == limit
    long = "x" * (limit - 1)
    with pytest.raises(DataError, match=r"^line 2: expected at most 1,024 pieces of words; got 1,025$"):
        translate(*speaker, ["I see the red cat.", long])
