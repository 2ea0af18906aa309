"""tensor2tensor's lists of whole words, and how a vocabulary file of either kind is read.

Source: tensor2tensor v1.0.14, data_generators/text_encoder.py, `TokenTextEncoder`; files as later versions write them,
with the reserved entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from positionwise.errors import DataError
from positionwise.training.subwords import Subwords
from positionwise.training.tokenizer import EOS, PAD, Vocabulary

UNKNOWN = ("<UNK>", "<unk>", "UNK")
"""The entries that may stand for any other word; the first that a vocabulary has does."""


class Words:
    """A vocabulary of whole words, their ids the lines of the file.

    Args:
        words: all entries, the two reserved ones first.
    """

    file: ClassVar[str] = "vocabulary.words"

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self.ids = {word: i for i, word in enumerate(words) if i not in (PAD, EOS)}
        self.unknown = next((self.ids[word] for word in UNKNOWN if word in self.ids), None)

    def write(self, path: Path) -> None:
        """Write a file that `read_vocabulary` and tensor2tensor read."""
        path.write_text("".join(f"{word}\n" for word in self.words), encoding="utf-8", newline="\n")

    @property
    def size(self) -> int:
        """Number of entries, the reserved ones among them."""
        return len(self.words)

    def encode(self, sentences: list[str]) -> list[list[int]]:
        """Sentences as ids, cut at white space, each ending in `EOS`.

        Raises:
            DataError: for a word that is no entry, where none stands for unknown words.
        """
        return [[*map(self._id, text.split()), EOS] for text in sentences]

    def decode(self, ids: list[list[int]]) -> list[str]:
        """Ids back to words, a space between two: up to the first `EOS`, without padding."""
        ends = (row.index(EOS) if EOS in row else len(row) for row in ids)
        return [" ".join(self.words[i] for i in row[:end] if i != PAD) for row, end in zip(ids, ends, strict=True)]

    def _id(self, word: str) -> int:
        found = self.ids.get(word, self.unknown)
        if found is None:
            raise DataError(f"expected words of the vocabulary, or {' or '.join(UNKNOWN)} in it; got {word[:60]!r}")
        return found


def read_vocabulary(path: Path) -> Vocabulary:
    """Read a vocabulary file of tensor2tensor: an entry a line, the two reserved ones first.

    It holds subwords where any entry after the reserved ones has an underscore, the sign that a token ends; otherwise
    it holds whole words.

    Raises:
        DataError: for a file that cannot be read so; the message names file and line.
    """
    read = Subwords.read(path)
    return read if any("_" in entry for entry in read.ids) else Words(read.subtokens)
