r"""tensor2tensor's subword vocabulary, read from the file that its `SubwordTextEncoder` wrote.

A text is cut into tokens: runs of letters and numbers (Unicode's L* and N*) alternate with runs of everything else, and
a single space between two runs is left out, since two neighbouring words imply it. Each token is escaped and ends in
``_``, then cut from left to right into the longest subtokens that the vocabulary has:

    Dude - that's so cool.  →  Dude_| - _|that_|'_|s_|so_|cool_|._

Source: tensor2tensor v1.0.14, data_generators/text_encoder.py and tokenizer.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import ClassVar

from positionwise.errors import DataError
from positionwise.training.data import read_lines
from positionwise.training.tokenizer import EOS, PAD

RESERVED = (("", "<pad>", "<pad>_"), ("", "<eos>", "<eos>_"))
"""How the entries 0 and 1 are written, small or capital; v1.0.14 leaves both empty."""
_ESCAPE = re.compile(r"\\(u|\\|[0-9]{1,7};)?")


class Subwords:
    r"""A vocabulary of subtokens, their ids the lines of the file.

    Decoding undoes encoding. The original does so too, but for an underscore where the vocabulary has no ``u``: there
    it writes what it does not read back, and we write the underscore's number. With an entry for each of
    ``\_;0123456789`` any text can be written; without, a character may have neither entry nor number. There the
    original fails, and we look for longer subtokens that hold the character.

    Args:
        subtokens: all entries, the two reserved ones first.
    """

    file: ClassVar[str] = "vocabulary.subwords"

    def __init__(self, subtokens: Sequence[str]) -> None:
        self.subtokens = list(subtokens)
        self.ids = {subtoken: i for i, subtoken in enumerate(subtokens) if i not in (PAD, EOS)}
        self.longest = max(map(len, self.ids))
        # What a token's characters are written as; any other becomes its number, as \10; for the end of a line.
        self.written = {c: c for c in self.ids if len(c) == 1 and c != "_"} | {"\\": r"\\"}
        if "u" in self.ids:
            self.written["_"] = r"\u"

    @classmethod
    def read(cls, path: Path) -> Subwords:
        """Read a vocabulary file: a subtoken a line, in quotes (as tensor2tensor writes it) or all without.

        Raises:
            DataError: for a file that cannot be read so; the message names file and line.
        """
        subtokens = _unquote(path, list(read_lines(path)))
        _check(path, subtokens)
        return cls(subtokens)

    def write(self, path: Path) -> None:
        """Write a file that `read` and tensor2tensor read."""
        path.write_text("".join(f"'{subtoken}'\n" for subtoken in self.subtokens), encoding="utf-8", newline="\n")

    @property
    def size(self) -> int:
        """Number of entries, the reserved ones among them."""
        return len(self.subtokens)

    def encode(self, sentences: list[str]) -> list[list[int]]:
        """Sentences as ids, each ending in `EOS`.

        Raises:
            DataError: for a character that the vocabulary cannot write.
        """
        return [[*(i for token in _split(text) for i in self._encode_token(token)), EOS] for text in sentences]

    def decode(self, ids: list[list[int]]) -> list[str]:
        """Ids back to sentences: up to the first `EOS`, without padding."""
        return [self._decode_row(row) for row in ids]

    def _encode_token(self, token: str) -> list[int]:
        rest = "".join(map(self._escape, token)) + "_"
        ids = []
        while rest:
            length = next((n for n in range(min(self.longest, len(rest)), 0, -1) if rest[:n] in self.ids), 0)
            if not length:
                raise self._unwritable(token, rest)
            ids.append(self.ids[rest[:length]])
            rest = rest[length:]
        return ids

    def _escape(self, character: str) -> str:
        if character in self.written:
            return self.written[character]
        number = rf"\{ord(character)};"
        # A bare underscore would end the token.
        return number if character == "_" or self.ids.keys() >= set(number) else character

    def _unwritable(self, token: str, rest: str) -> DataError:
        """The error for a token of which ``rest``, escaped, has no subtoken to begin with."""
        got = f"the end of {token[:60]!r}, which is written '_'"
        if rest != "_":
            # Each character as often as it has characters when escaped, so that the places are those of the escaped.
            sources = [character for character in token for _ in self._escape(character)] + ["_"]
            got = f"{sources[-len(rest)]!r} in {token[:60]!r}"
        return DataError(f"expected characters that the vocabulary can write; got {got}")

    def _decode_row(self, row: list[int]) -> str:
        end = row.index(EOS) if EOS in row else len(row)
        escaped = "".join(self.subtokens[i] for i in row[:end] if i != PAD).split("_")
        return _join([token for part in escaped if (token := _ESCAPE.sub(_unescape, part))])


def _unquote(path: Path, lines: list[str]) -> list[str]:
    if not lines or not _is_quoted(lines[0]):
        return lines
    for number, line in enumerate(lines, 1):
        if not _is_quoted(line):
            raise DataError(f"{path}, line {number}: expected an entry in quotes, as in line 1; got {line[:60]!r}")
    return [line[1:-1] for line in lines]


def _is_quoted(line: str) -> bool:
    return len(line) > 1 and line[0] == line[-1] and line[0] in "'\""


def _check(path: Path, subtokens: list[str]) -> None:
    """Refuse entries whose places are not clear, and a file without any."""
    lines: dict[str, int] = {}
    for number, subtoken in enumerate(subtokens, 1):
        where, got = f"{path}, line {number}", f"got {subtoken[:60]!r}"
        if number <= len(RESERVED):
            if subtoken.lower() not in (known := RESERVED[number - 1]):
                raise DataError(f"{where}: expected {' or '.join(map(repr, known))}; {got}")
        elif not subtoken:
            raise DataError(f"{where}: expected an entry; got an empty one")
        elif lines.setdefault(subtoken, number) != number:
            raise DataError(f"{where}: expected another entry than in line {lines[subtoken]:,}; {got}")
    if not lines:
        raise DataError(f"expected entries after the two reserved ones in {path}; got none")


def _split(text: str) -> list[str]:
    # `str.isalnum` is true for Unicode's letters and numbers, the categories L* and N*, and for nothing else.
    runs = ["".join(run) for _, run in groupby(text, str.isalnum)]
    return [run for i, run in enumerate(runs) if run != " " or i in (0, len(runs) - 1)]


def _join(tokens: list[str]) -> str:
    text = "".join(tokens[:1])
    for before, token in pairwise(tokens):
        text += f" {token}" if before[0].isalnum() and token[0].isalnum() else token
    return text


def _unescape(match: re.Match[str]) -> str:
    r"""The character of an escape; where there is none, as in \x or \1114112;, the backslash is dropped."""
    escape = match[1] or ""
    if not escape.endswith(";"):
        return {"u": "_", "\\": "\\", "": ""}[escape]
    code = int(escape[:-1])
    return chr(code) if code < 0xD800 or 0xDFFF < code < 0x110000 else escape
