"""Translating sentences with a trained run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from positionwise.errors import DataError
from positionwise.training.batches import cut, pad
from positionwise.training.tokenizer import Vocabulary, check_size

if TYPE_CHECKING:
    from positionwise.transformer import TransformerForTranslation

BATCH_TOKENS = 3_000
"""Source ids in a batch, beams counted: large enough to keep two cores busy, small enough for their caches."""

LENGTH_STEP = 8
"""Sentences are translated together when their lengths, rounded up to a multiple of this, are equal."""


def translate(
    model: TransformerForTranslation,
    tokenizer: Vocabulary,
    sentences: Sequence[str],
    *,
    beams: int = 1,
    progress: Callable[[int], object] = lambda done: None,
) -> list[str]:
    """Translate sentences, in their order.

    Args:
        model: a trained model.
        tokenizer: its vocabulary.
        sentences: of the source language; an empty one is translated by an empty one.
        beams: 1 for greedy search, more for beam search.
        progress: told how many sentences are done after each batch.

    Raises:
        DataError: for a vocabulary of another size than the model's, and for a sentence of more ids than the model
            has positions.
    """
    check_size(tokenizer, model.config)
    encoded = _encode(tokenizer, [sentence.strip() for sentence in sentences])  # as those that were learned from
    rows = [ids if sentence.strip() else [] for sentence, ids in zip(sentences, encoded, strict=True)]
    limit = model.config.max_positions
    for number, row in enumerate(rows, 1):
        if len(row) > limit:
            raise DataError(f"line {number}: expected at most {limit:,} pieces of words; got {len(row):,}")
    out = [""] * len(rows)
    done = sum(not row for row in rows)
    for batch in _batches(rows, BATCH_TOKENS // beams):
        texts = _translate_batch(model, tokenizer, [rows[i] for i in batch], beams)
        for i, text in zip(batch, texts, strict=True):
            out[i] = text
        done += len(batch)
        progress(done)
    return out


def _encode(tokenizer: Vocabulary, sentences: list[str]) -> list[list[int]]:
    """All sentences as ids; one that the vocabulary cannot write is an error that names its line."""
    try:
        return tokenizer.encode(sentences)
    except DataError:
        for number, sentence in enumerate(sentences, 1):
            try:
                tokenizer.encode([sentence])
            except DataError as error:
                raise DataError(f"line {number}: {error}") from None
        raise


def _batches(rows: Sequence[list[int]], tokens: int) -> Iterator[list[int]]:
    """Batches of sentences of one step of lengths, so that a sentence's own length decides how long it may become."""
    steps: dict[int, list[int]] = defaultdict(list)
    for i in sorted((i for i, row in enumerate(rows) if row), key=lambda i: len(rows[i])):
        steps[_step(rows[i])].append(i)
    for order in steps.values():
        yield from cut(order, [(len(row), len(row)) for row in rows], tokens)


def _step(row: list[int]) -> int:
    return -(-len(row) // LENGTH_STEP) * LENGTH_STEP


@torch.inference_mode()
def _translate_batch(
    model: TransformerForTranslation, tokenizer: Vocabulary, rows: list[list[int]], beams: int
) -> list[str]:
    ids = pad(rows).to(model.device)
    longest = min(2 * _step(rows[0]) + 10, model.config.max_positions - 1)
    written = model.generate(ids, num_beams=beams, max_new_tokens=longest, do_sample=False)
    return tokenizer.decode(written.tolist())
