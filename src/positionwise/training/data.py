"""Sentence pairs from files, and their split into what is learned from and what is held out."""

from __future__ import annotations

import gzip
import io
import json
import random
import unicodedata
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from positionwise.errors import DataError

MAX_WORDS = 1_000
"""A line of more words is taken for a fault of the file, not for a sentence."""


class Pair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


def read_pairs(paths: Sequence[Path], languages: tuple[str, str] | None = None) -> list[Pair]:
    """Read pairs in their order.

    Args:
        paths: one file of pairs, as tab-separated lines or as JSON lines of the form
            ``{"translation": {"en": "…", "es": "…"}}`` (``.jsonl`` or ``.json``); or two aligned files of a sentence
            a line. Each may be plain, ``.gz``, or a ``.zip`` that holds one text file (members whose name begins
            with ``_`` or ``.`` describe the data and are passed over). Tab-separated fields after the second are not
            read.
        languages: the keys of source and target in JSON lines; without it, the first line's own order.

    Raises:
        DataError: for a file that cannot be read so; the message names file and line.
    """
    if len(paths) == 1:
        lines = list(read_lines(paths[0]))
        name = paths[0].name.removesuffix(".gz").removesuffix(".zip")
        split = _json_pairs if name.endswith((".jsonl", ".json")) else _tab_pairs
        pairs = list(split(paths[0], lines, languages))
    elif len(paths) == 2:
        pairs = _aligned_pairs(paths)
    else:
        raise DataError(f"expected one file of pairs or two aligned files; got {len(paths)}")
    if not pairs:
        raise DataError(f"expected pairs in {' and '.join(map(str, paths))}; got an empty file")
    for number, pair in enumerate(pairs, 1):
        for sentence, path in zip(pair, (paths[0], paths[-1]), strict=True):
            check_sentence(sentence, f"{path}, line {number}")
    return pairs


def check_sentence(sentence: str, where: str) -> None:
    """Refuse what is not a sentence: nothing, or more words than any has."""
    words = len(sentence.split())
    if words == 0:
        raise DataError(f"{where}: expected a sentence; got an empty line or field")
    if words > MAX_WORDS:
        raise DataError(f"{where}: expected at most {MAX_WORDS:,} words; got {words:,}")
    for character in sentence:
        if character in "\t\n\r\ufeff" or "\ud800" <= character <= "\udfff":
            raise DataError(f"{where}: expected one line of text; got the character U+{ord(character):04X} in it")


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a text file, plain, gzipped or the one in a zip, without their ends."""
    try:
        with _open(path) as stream:
            for number, line in enumerate(stream, 1):
                yield _decode(line, f"{path}, line {number}")
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, RuntimeError) as error:
        raise DataError(f"expected a readable file at {path}; got {_reason(error)}") from None


def decode_lines(stream: Iterable[bytes], name: str) -> Iterator[str]:
    """The lines of an open binary stream."""
    for number, line in enumerate(stream, 1):
        yield _decode(line, f"{name}, line {number}")


def _decode(line: bytes, where: str) -> str:
    try:
        return line.decode("utf-8-sig" if line.startswith(b"\xef\xbb\xbf") else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: expected UTF-8; got byte 0x{line[error.start]:02x} at {error.start}") from None


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _open(path: Path) -> io.BufferedIOBase:
    if path.suffix == ".gz":
        return gzip.open(path)
    if path.suffix == ".zip":
        archive = zipfile.ZipFile(path)
        return io.BytesIO(archive.read(_text_member(archive, path)))
    return path.open("rb")


def _text_member(archive: zipfile.ZipFile, path: Path) -> str:
    names = [name for name in archive.namelist() if not name.endswith("/")]
    names = [name for name in names if not Path(name).name.startswith(("_", "."))]
    if len(names) != 1:
        raise DataError(f"expected one text file in {path}; got {', '.join(names) or 'none'}")
    return names[0]


def _tab_pairs(path: Path, lines: Sequence[str], languages: object) -> Iterator[Pair]:
    for number, line in enumerate(lines, 1):
        fields = line.split("\t")
        if len(fields) < 2:
            got = "an empty line" if not line.strip() else "a line without a tab"
            raise DataError(f"{path}, line {number}: expected source, tab, target; got {got}")
        yield Pair(fields[0].strip(), fields[1].strip())


def _json_pairs(path: Path, lines: Sequence[str], languages: tuple[str, str] | None) -> Iterator[Pair]:
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number}"
        try:
            entry = dict.copy(json.loads(line)["translation"])
            languages = languages or tuple(entry)[:2]
            source, target = (entry[language] for language in languages)
        except (ValueError, KeyError, TypeError, RecursionError):
            keys = ", ".join(f'"{key}": "…"' for key in languages or ("en", "es"))
            form = '{"translation": {' + keys + "}}"
            raise DataError(f"{where}: expected {form}; got {line[:60]!r}") from None
        if not isinstance(source, str) or not isinstance(target, str):
            raise DataError(f"{where}: expected two strings; got {source!r} and {target!r}"[:300])
        yield Pair(source.strip(), target.strip())


def _aligned_pairs(paths: Sequence[Path]) -> list[Pair]:
    sources, targets = ([line.strip() for line in read_lines(path)] for path in paths)
    if len(sources) != len(targets):
        raise DataError(
            f"expected as many lines in {paths[0]} as in {paths[1]}; got {len(sources):,} and {len(targets):,}"
        )
    return [Pair(*pair) for pair in zip(sources, targets, strict=True)]


class Split(NamedTuple):
    """Pairs to learn from, to watch while learning, and to judge by; no source stands in two of them."""

    train: list[Pair]
    validation: list[Pair]
    test: list[Pair]


def split_by_source(pairs: Sequence[Pair], validation: int, test: int, seed: int) -> Split:
    """Hold out distinct source sentences with all their translations.

    Two sources are the same when they differ only in case, white space or Unicode form.

    Args:
        pairs: all pairs.
        validation: how many sources to watch.
        test: how many sources to judge by.
        seed: of the draw.

    Raises:
        DataError: when too few sources would be left to learn from.
    """
    keys = sorted({source_key(pair.source) for pair in pairs})
    if len(keys) <= 2 * (validation + test):
        raise DataError(
            f"expected more than {2 * (validation + test):,} distinct sources to hold out {validation + test:,}; "
            f"got {len(keys):,}"
        )
    random.Random(seed).shuffle(keys)
    part = dict.fromkeys(keys[:test], 2) | dict.fromkeys(keys[test : test + validation], 1)
    parts: tuple[list[Pair], list[Pair], list[Pair]] = ([], [], [])
    for pair in pairs:
        parts[part.get(source_key(pair.source), 0)].append(pair)
    return Split(*parts)


def source_key(sentence: str) -> str:
    """A sentence without its case, white space and Unicode form."""
    return " ".join(unicodedata.normalize("NFC", unicodedata.normalize("NFD", sentence).casefold()).split())


def references(pairs: Sequence[Pair]) -> dict[str, list[str]]:
    """Each distinct source with its translations, in order of appearance."""
    grouped: dict[str, list[str]] = {}
    for pair in pairs:
        grouped.setdefault(pair.source, []).append(pair.target)
    return grouped


def write_pairs(path: Path, pairs: Iterable[Pair]) -> None:
    """Write tab-separated lines that `read_pairs` reads."""
    path.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in pairs), encoding="utf-8")
