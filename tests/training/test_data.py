"""Pairs from every container and every form of text, what is refused, and the splits."""

import gzip
import json
import unicodedata
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from positionwise.errors import DataError
from positionwise.training.data import (
    MAX_WORDS,
    Pair,
    decode_lines,
    read_lines,
    read_pairs,
    references,
    source_key,
    split_by_source,
    write_pairs,
)

PAIRS = [
    Pair("Go home.", "Vete a casa."),
    Pair("Where is the girl?", "¿Dónde está la niña?"),
    Pair("I saw 日本 and 😀.", "Vi 日本 y 😀."),
]
TABBED = "".join(f"{source}\t{target}\n" for source, target in PAIRS)
JSON = "".join(json.dumps({"translation": {"en": a, "es": b}}, ensure_ascii=False) + "\n" for a, b in PAIRS)
SIDES = ["".join(f"{pair[side]}\n" for pair in PAIRS) for side in (0, 1)]


def saved(path, content, **members):
    """Write text or bytes as the suffix says; ``members`` are further files of a zip."""
    content = content.encode() if isinstance(content, str) else content
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in {"folder/pairs.txt": content, **members}.items():
                archive.writestr(name, data)
    else:
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("suffix", ["", ".gz", ".zip"])
@pytest.mark.parametrize(
    ("name", "content"), [("pairs.tsv", TABBED), ("pairs.txt", TABBED), ("pairs.jsonl", JSON), ("pairs.json", JSON)]
)
def test_a_file_of_pairs_is_read_from_every_container(tmp_path, name, content, suffix):
    assert read_pairs([saved(tmp_path / (name + suffix), content)]) == PAIRS


@pytest.mark.parametrize("suffixes", [("", ""), (".gz", ""), ("", ".zip"), (".gz", ".gz")])
def test_aligned_files_are_read_from_every_container(tmp_path, suffixes):
    assert read_pairs([saved(tmp_path / f"{i}.txt{suffixes[i]}", SIDES[i]) for i in (0, 1)]) == PAIRS


def test_members_that_describe_an_archive_are_passed_over(tmp_path):
    beside = {"_about.txt": "licence", "folder/_license": "x", ".DS_Store": b"\xff", "__MACOSX/folder/._pairs.txt": "y"}
    assert read_pairs([saved(tmp_path / "spa-eng.zip", TABBED, **{"folder/": "", **beside})]) == PAIRS


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.rstrip("\n"),
        lambda text: text.replace("\n", "\r\n").removesuffix("\r\n"),
        lambda text: "\ufeff" + text,
        lambda text: "\ufeff" + text.replace("\n", "\r\n"),
    ],
    ids=["crlf", "no final newline", "crlf, no final newline", "bom", "bom and crlf"],
)
@pytest.mark.parametrize("form", ["tabbed", "json", "aligned"])
def test_line_ends_and_byte_order_marks_do_not_matter(tmp_path, change, form):
    contents = {"tabbed": {"p.tsv": TABBED}, "json": {"p.jsonl": JSON}, "aligned": {"a": SIDES[0], "b": SIDES[1]}}[form]
    assert read_pairs([saved(tmp_path / name, change(text)) for name, text in contents.items()]) == PAIRS


def test_fields_after_the_second_are_not_read(tmp_path):
    lines = "Go home.\tVete a casa.\tCC-BY 2.0 (France)\t#12\nRun!\t¡Corre!\t\nHi.\tHola.\n"
    expected = [Pair("Go home.", "Vete a casa."), Pair("Run!", "¡Corre!"), Pair("Hi.", "Hola.")]
    assert read_pairs([saved(tmp_path / "tatoeba.tsv", lines)]) == expected


def test_white_space_around_a_sentence_is_left_out_and_inside_is_kept(tmp_path):
    path = saved(tmp_path / "pairs.tsv", " Go  home. \t\xa0Vete a\xa0casa.\u2009\n")
    assert read_pairs([path]) == [Pair("Go  home.", "Vete a\xa0casa.")]


def test_only_newlines_end_a_line(tmp_path):
    path = saved(tmp_path / "pairs.tsv", "one\u2028two\x0bthree\tuno\x85dos\n")
    assert read_pairs([path]) == [Pair("one\u2028two\x0bthree", "uno\x85dos")]


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_the_unicode_form_is_kept(tmp_path, form):
    pair = Pair("The café", unicodedata.normalize(form, "El niño comió"))
    assert read_pairs([saved(tmp_path / "pairs.tsv", f"{pair.source}\t{pair.target}\n")]) == [pair]


def test_the_languages_of_json_lines_can_be_chosen(tmp_path):
    lines = ['{"id": 7, "translation": {"es": "gato", "en": "cat", "de": "Katze"}}',
             '{"translation": {"de": "Hund", "en": "dog", "es": "perro"}}']  # fmt: skip
    path = saved(tmp_path / "pairs.jsonl", "\n".join(lines))
    assert read_pairs([path]) == [Pair("gato", "cat"), Pair("perro", "dog")]  # the first line's order holds
    assert read_pairs([path], ("en", "de")) == [Pair("cat", "Katze"), Pair("dog", "Hund")]


def test_the_longest_sentence_is_read(tmp_path):
    longest = " ".join(["word"] * MAX_WORDS)
    assert read_pairs([saved(tmp_path / "pairs.tsv", f"{longest}\tlargo\n")]) == [Pair(longest, "largo")]
    with pytest.raises(DataError, match="line 1.*1,000 words; got 1,001"):
        read_pairs([saved(tmp_path / "pairs.tsv", f"{longest} word\tlargo\n")])


def test_what_is_written_is_read_again(tmp_path):
    write_pairs(tmp_path / "pairs.tsv", PAIRS)
    assert (tmp_path / "pairs.tsv").read_bytes().decode() == TABBED
    assert read_pairs([tmp_path / "pairs.tsv"]) == PAIRS


@pytest.mark.parametrize("inside", ["\n", "\t", "\r\n", "\ufeff"])
def test_what_json_allows_in_a_sentence_survives_the_runs_own_file_or_is_refused(tmp_path, inside):
    path = saved(tmp_path / "p.jsonl", json.dumps({"translation": {"en": f"{inside}a{inside}b", "es": f"c{inside}d"}}))
    try:
        pairs = read_pairs([path])
    except DataError:
        return  # to refuse it is as good
    write_pairs(tmp_path / "held-out.tsv", pairs)
    assert read_pairs([tmp_path / "held-out.tsv"]) == pairs


def test_lines_are_read_from_a_stream_as_from_a_file(tmp_path):
    content = "\ufeffuno\r\n\r\n tres \ncuatro".encode()
    path = saved(tmp_path / "lines.txt", content)
    assert list(decode_lines(iter(content.splitlines(keepends=True)), "standard input")) == list(read_lines(path))
    assert list(read_lines(path)) == ["uno", "", " tres ", "cuatro"]
    with pytest.raises(DataError, match="^standard input, line 2: expected UTF-8; got byte 0xe9 at 3$"):
        list(decode_lines([b"ok\n", b"caf\xe9\n"], "standard input"))


def test_references_are_grouped_by_source_in_order():
    rows = [Pair("by", "2"), Pair("be", "1"), Pair("by", "3"), Pair("by", "2")]
    assert list(references(rows).items()) == [("by", ["2", "3", "2"]), ("be", ["1"])]


def damaged_gzip():
    packed = bytearray(gzip.compress(TABBED.encode() * 100))
    packed[20:40] = b"\xff" * 20
    return bytes(packed)


def row(**translation):
    return json.dumps({"translation": translation}, ensure_ascii=False)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.tsv", "", "an empty file"),
        ("p.jsonl", "", "an empty file"),
        ("p.tsv", "\n", "line 1: .*an empty line"),
        ("p.tsv", "a\tb\n\nc\td\n", "line 2: .*an empty line"),
        ("p.tsv", "a\tb\n\t\n", "line 2: .*empty"),
        ("p.tsv", "a\t\n", "line 1: .*empty line or field"),
        ("p.tsv", "a\tb\n\xa0 \tc\n", "line 2: .*empty line or field"),
        ("p.tsv", "a\tb\nc d\n", "line 2: expected source, tab, target; got a line without a tab"),
        ("p.tsv", "a\tb\n" + "word " * 10_000 + "\tc\n", "line 2: expected at most 1,000 words; got 10,000"),
        ("p.tsv", "a\tb\nc\t" + "word " * 10_000, "line 2: expected at most 1,000 words; got 10,000"),
        ("p.tsv", b"a\tb\ncaf\xe9\td\n", "line 2: expected UTF-8; got byte 0xe9 at 3"),
        ("p.tsv", "a\tb\n".encode("utf-16"), "line 1: expected UTF-8; got byte 0xff at 0"),
        ("p.jsonl", b'{"translation": {"en": "caf\xe9", "es": "b"}}', "line 1: expected UTF-8"),
        ("p.jsonl", row(en="a", es="b") + "\n{", "line 2: expected {.*got '{'"),
        ("p.jsonl", "\n" + row(en="a", es="b"), "line 1: expected {.*got ''"),
        ("p.jsonl", '{"en": "a", "es": "b"}', 'line 1: expected {"translation": {"en": "…", "es": "…"}}; got'),
        ("p.jsonl", '"translation"', "line 1: expected {.*got"),
        ("p.jsonl", "[" * 100_000, "line 1: expected {.*got"),
        ("p.jsonl", '{"translation": ["a", "b"]}', 'line 1: expected {"translation": {"en": "…", "es": "…"}}; got'),
        ("p.jsonl", row(en="a"), "line 1: expected {.*got"),
        ("p.jsonl", row(en="a", es="b") + "\n" + row(en="c", fr="d"), 'line 2: expected {.*"es": "…".*got'),
        ("p.jsonl", row(en="a", es=3), "line 1: expected two strings; got 'a' and 3"),
        ("p.jsonl", row(en=None, es="b"), "line 1: expected two strings; got None and 'b'"),
        ("p.jsonl", row(en="a", es="b") + "\n" + row(en="a", es=" "), "line 2: .*empty"),
        ("p.jsonl", '{"translation": {"en": "\\ud800", "es": "b"}}', "line 1: "),  # a half of a surrogate pair
        ("p.tsv.gz", b"", "an empty file"),
        ("p.tsv.gz", b"not gzip", "expected a readable file at"),
        ("p.tsv.gz", gzip.compress(TABBED.encode() * 100)[:-20], "expected a readable file at"),
        ("p.tsv.gz", damaged_gzip(), "expected a readable file at"),
        ("p.zip", b"not a zip", "expected a readable file at .*zip"),
    ],
)
def test_a_file_that_holds_no_pairs_is_refused_by_file_and_line(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    refused([path], message, path)


def refused(paths, message, named):
    with pytest.raises(DataError, match=message) as caught:
        read_pairs(paths)
    text = str(caught.value)
    assert str(named) in text
    assert len(text) < 600
    assert "\n" not in text


@pytest.mark.parametrize(
    ("members", "got"),
    [
        ({"a.txt": TABBED, "b.txt": TABBED}, "got a.txt, b.txt"),
        ({}, "got none"),
        ({"_about.txt": "x", ".hidden": "y", "folder/": ""}, "got none"),
    ],
)
def test_a_zip_without_exactly_one_text_file_is_refused(tmp_path, members, got):
    with zipfile.ZipFile(tmp_path / "p.zip", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    refused([tmp_path / "p.zip"], f"expected one text file in .*; {got}$", tmp_path / "p.zip")


def overwritten(packed, at, new):
    return packed[:at] + new + packed[at + len(new) :]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda packed: packed[:-30],
        lambda packed: overwritten(packed, 0, b"\0" * 20),
        lambda packed: overwritten(packed, 200, b"\xff" * 20),  # found by the checksum
        lambda packed: overwritten(packed, 200, b"\0" * 20),  # found by zlib
        lambda packed: overwritten(packed, packed.rindex(b"PK\1\2") + 8, b"\1"),  # encrypted
        lambda packed: overwritten(packed, packed.rindex(b"PK\1\2") + 10, b"\x09"),  # deflate64
    ],
    ids=["short", "header", "checksum", "zlib", "encrypted", "deflate64"],
)
def test_a_zip_that_cannot_be_unpacked_is_refused(tmp_path, spoil):
    path = saved(tmp_path / "p.zip", "".join(f"{i}\t{i * i}\n" for i in range(1000)))
    path.write_bytes(spoil(path.read_bytes()))
    refused([path], "expected a readable file at", path)


@pytest.mark.parametrize("name", ["missing.tsv", "missing.tsv.gz", "missing.zip", "folder", "folder.gz", "folder.zip"])
def test_what_is_not_a_file_is_refused(tmp_path, name):
    if name.startswith("folder"):
        (tmp_path / name).mkdir()
    refused([tmp_path / name], "got (No such file|Is a directory)", tmp_path / name)


@pytest.mark.parametrize(
    ("first", "second", "message", "named"),
    [
        ("a\nb\n", "c\n", "expected as many lines in .*a.txt as in .*b.txt; got 2 and 1", "a.txt"),
        ("a\nb\n", "c\nd\n\n", "got 2 and 3", "b.txt"),
        ("", "", "got an empty file", "a.txt"),
        ("a\n\nb\n", "c\nd\ne\n", "a.txt, line 2: .*empty", "a.txt"),
        ("a\nb\n", "c\n \n", "b.txt, line 2: .*empty", "b.txt"),
        ("a\nb\n", "c\n" + "word " * 10_000, "b.txt, line 2: .*10,000", "b.txt"),
    ],
)
def test_aligned_files_that_do_not_fit_are_refused(tmp_path, first, second, message, named):
    refused([saved(tmp_path / "a.txt", first), saved(tmp_path / "b.txt", second)], message, named)


@pytest.mark.parametrize("count", [0, 3])
def test_one_or_two_files_are_expected(tmp_path, count):
    with pytest.raises(DataError, match=f"one file of pairs or two aligned files; got {count}"):
        read_pairs([saved(tmp_path / "p.tsv", TABBED)] * count)


WORDS = ["niño", unicodedata.normalize("NFD", "niño"), "NIÑO", "Straße", "STRASSE", "a", "b", "c", "d", "e", "f"]
SENTENCES = st.builds(
    lambda words, gap, edge: edge + gap.join(words) + edge,
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=3), st.sampled_from([" ", "  ", "\xa0"]),
    st.sampled_from(["", " "]),
)  # fmt: skip
CORPORA = st.lists(st.builds(Pair, SENTENCES, st.sampled_from("uvwxyz")), min_size=30, max_size=60)


def same(sentence):
    """A sentence without case, white space and Unicode form, by another way than the source's."""
    return "".join(unicodedata.normalize("NFKD", " ".join(sentence.split())).upper())


@given(CORPORA, st.integers(0, 9))
def test_no_source_stands_in_two_parts_and_no_pair_is_lost(corpus, seed):
    distinct = {same(pair.source) for pair in corpus}
    validation, test = 1 + seed % 2, 1 + len(distinct) // 5
    if len(distinct) <= 2 * (validation + test):
        return
    split = split_by_source(corpus, validation, test, seed)
    sources = [{same(pair.source) for pair in part} for part in split]
    assert [len(part) for part in sources] == [len(distinct) - validation - test, validation, test]
    assert set.union(*sources) == distinct  # with the sizes: no source in two parts
    for part in split:
        assert part == [pair for pair in corpus if pair in set(part)]  # every translation, in the corpus' order
    assert sum(map(len, split)) == len(corpus)


def test_a_split_follows_its_seed_and_not_the_order_of_the_pairs(pairs):
    split = split_by_source(pairs, 5, 10, 0)
    assert split_by_source(pairs, 5, 10, 0) == split
    assert {*split_by_source(pairs[::-1], 5, 10, 0).test} == {*split.test}
    assert {*split_by_source(pairs, 5, 10, 1).test} != {*split.test}
    assert {*split_by_source(pairs, 5, 10, 1).validation} != {*split.validation}


@pytest.mark.parametrize("word", ["niño", "Straße", "İstanbul", "ΐ", "ǰ", "ﬁn", "ᾳ"])
def test_the_key_of_a_source_knows_no_case_space_or_unicode_form(word):
    sentence = f"The {word} is here."
    for form in ("NFC", "NFD"):
        for changed in (sentence, sentence.upper(), sentence.upper().lower(), f"  {sentence}\t".replace(" ", " \xa0")):
            assert source_key(unicodedata.normalize(form, changed)) == source_key(sentence)
    assert source_key("The nino is here.") != source_key("The niño is here.")


@pytest.mark.parametrize("sources", [1, 4, 5, 6])
def test_too_few_sources_are_refused_as_the_message_says(sources):
    corpus = [Pair(f"s{i}", "t") for i in range(sources)] * 3
    if sources > 4:  # two to hold out: more than 4 are expected
        assert len(split_by_source(corpus, 1, 1, 0).train) == 3 * (sources - 2)
        return
    with pytest.raises(DataError, match=f"more than 4 distinct sources to hold out 2; got {sources}$"):
        split_by_source(corpus, 1, 1, 0)
