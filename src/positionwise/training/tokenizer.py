"""Vocabularies: byte-pair encoding learned from the user's own sentences, and what any other must do as well."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from positionwise.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from positionwise.transformer import TransformerConfig

PAD, EOS = 0, 1
SPECIAL = ["<pad>", "<eos>"]


class Vocabulary(Protocol):
    """Sentences to ids and back; `PAD` and `EOS` have their places in every vocabulary."""

    file: ClassVar[str]
    """Its name in the folder of a run."""

    @property
    def size(self) -> int:
        """Number of entries."""

    def encode(self, sentences: list[str]) -> list[list[int]]:
        """Sentences as ids, each ending in `EOS`."""

    def decode(self, ids: list[list[int]]) -> list[str]:
        """Ids back to sentences, `PAD` and `EOS` left out."""

    def write(self, path: Path) -> None:
        """Write the file, and beside it what else belongs to it."""


class BytePairs:
    """A byte-pair encoding of the tokenizers library."""

    file: ClassVar[str] = "tokenizer.json"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        tokenizer.encode_special_tokens = True  # a sentence that spells a special entry is text like any other

    @classmethod
    def read(cls, path: Path) -> BytePairs:
        """Read the file; the library raises plain exceptions."""
        from tokenizers import Tokenizer

        return cls(Tokenizer.from_file(str(path)))

    def write(self, path: Path) -> None:
        """Write the file, for us and for transformers' ``PreTrainedTokenizerFast``."""
        from transformers import PreTrainedTokenizerFast

        fast = PreTrainedTokenizerFast(tokenizer_object=self.tokenizer, pad_token="<pad>", eos_token="<eos>")
        fast.save_pretrained(path.parent)

    @property
    def size(self) -> int:
        """Number of entries, the special ones among them."""
        return self.tokenizer.get_vocab_size()

    def encode(self, sentences: list[str]) -> list[list[int]]:
        """Sentences as ids, each ending in ``<eos>``."""
        return [encoding.ids for encoding in self.tokenizer.encode_batch_fast(sentences)]

    def decode(self, ids: list[list[int]]) -> list[str]:
        """Ids back to sentences, special entries left out."""
        return [text.strip() for text in self.tokenizer.decode_batch(ids, skip_special_tokens=True)]


def train_tokenizer(sentences: Iterable[str], vocab_size: int) -> BytePairs:
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
    return BytePairs(tokenizer)


def check_size(vocabulary: Vocabulary, config: TransformerConfig) -> None:
    """Raise a `DataError` where a model does not have the vocabulary's size on both sides."""
    sizes = sorted({config.vocab_size, config.target_size})
    if sizes != [vocabulary.size]:
        raise DataError(
            f"expected a vocabulary of the model's {' and '.join(f'{size:,}' for size in sizes)} entries; "
            f"got one of {vocabulary.size:,}"
        )
