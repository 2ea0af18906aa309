"""Byte-pair encoding learned from the user's own sentences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PAD, EOS = 0, 1
SPECIAL = ["<pad>", "<eos>"]


def train_tokenizer(sentences: Iterable[str], vocab_size: int) -> Tokenizer:
    """Learn one vocabulary for both languages.

    Byte-level, so that any text can be written and is given back unchanged (in Unicode form NFC).

    Args:
        sentences: of both languages.
        vocab_size: at most this many entries, the 2 special ones and the 256 bytes among them.

    Source: Sennrich et al. 2016, arXiv 1508.07909.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", EOS)])
    return tokenizer


def encode(tokenizer: Tokenizer, sentences: list[str]) -> list[list[int]]:
    """Sentences as ids, each ending in ``<eos>``; a sentence that spells a special entry is text like any other."""
    tokenizer.encode_special_tokens = True
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(sentences)]


def decode(tokenizer: Tokenizer, ids: list[list[int]]) -> list[str]:
    """Ids back to sentences, special entries left out."""
    return [text.strip() for text in tokenizer.decode_batch(ids, skip_special_tokens=True)]
