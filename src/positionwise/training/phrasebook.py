"""The data of ``positionwise demo``: an English-Spanish phrasebook, written as rules and drawn as sentence pairs.

``phrasebook.toml`` holds the words and the sentence patterns; this file reads and checks it, builds every noun phrase,
and draws a fixed sample of the sentences. Their full product is far larger than the sample, so a model must compose.

Two orders run through both files. *Cells* are the persons of a verb: 0 I, 1 she or he, 2 we, 3 they. *Forms* of an
adjective or determiner are: masculine, feminine, masculine plural, feminine plural.
"""

import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import resources
from itertools import chain, permutations
from random import Random
from typing import Any, NamedTuple, TypeVar

import numpy as np

from positionwise.errors import PositionwiseError
from positionwise.training.data import Pair

T = TypeVar("T")
Table = dict[str, Any]  # as tomllib gives it; what is wrong in it comes to light under `_read`
Forms = tuple[list[str], list[str]]  # of a word, English and Spanish, by cell

SLOTS = "subject verb object receiver goal thing where helper adjective time adverb asking us him".split()
STRESSED = {"la": "el", "una": "un"}  # before a feminine noun that begins with a stressed a
TRIES = 60  # a pattern that repeats itself this often has no more sentences to give
COMMON = 25  # a word that occurs in more than one sentence in 25 is part of no combination
LARGEST_SHARE = 20  # a held-out combination fills at most one part in 20 of the held-out sentences


class RuleError(PositionwiseError, ValueError):
    """A rule of the phrasebook that cannot be used; the message names it and says what is wrong."""


class Phrase(NamedTuple):
    """A noun phrase in both languages, with what other words need to agree with it."""

    english: str
    spanish: str
    cell: int
    gender: str
    noun_class: str
    dimension: str = ""  # of its adjective

    @property
    def form(self) -> int:
        """Which of an adjective's four forms agrees with this phrase."""
        return 2 * (self.cell > 1) + (self.gender == "f")


class Adjective(NamedTuple):
    """An adjective, its Spanish forms, and the classes of nouns that it stands beside or is said of."""

    english: str = ""
    spanish: Sequence[str] = ("",) * 4
    dimension: str = ""
    beside: Sequence[str] = ()
    said_of: Sequence[str] = ()
    copula: str = ""
    degree: bool = False


class Verb(NamedTuple):
    """A verb's forms by name, the classes of its objects, and where it happens."""

    forms: dict[str, Forms]
    objects: list[str]
    places: list[str]


class Pattern(NamedTuple):
    """A sentence rule joined with one of its frames: two templates and what may fill their slots."""

    name: str
    count: int
    english: str  # in both templates, {slot[0]} is the English filling and {slot[1]} the Spanish one
    spanish: str
    fields: set[str]  # slots, or a slot and the form of its filling: verb_past
    chains: list[list[Verb]]  # a chain is the verbs that share one object, nearly always a single one
    choices: dict[str, list[str]]


class Rules(NamedTuple):
    """The rule file, checked, with every noun phrase that it can build."""

    table: Table
    persons: list[str]
    adjectives: list[Adjective]
    agreement: dict[str, Forms]
    helpers: dict[str, Forms]
    phrases: dict[str, dict[str, list[list[Phrase]]]]  # by class and determiners: without and with an adjective
    patterns: list[Pattern]


# ------------------------------------------------------------------------------------------------ Reading the rules


def _read(rule: str, read: Callable[..., T], *arguments: object) -> T:
    """Call `read`; what goes wrong becomes an error that names the rule, the innermost one."""
    try:
        return read(*arguments)
    except RuleError:
        raise
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        reason = f"expected a defined name; got {error}" if isinstance(error, KeyError) else error
        raise RuleError(f"phrasebook rule {rule}: {reason}") from error


def _each(table: Table, section: str, read: Callable[[Table, str], T]) -> dict[str, T]:
    return {name: _read(f"{section}.{name}", read, table, name) for name in table[section]}


def _expect(holds: bool, expected: str, got: object) -> None:
    if not holds:
        raise ValueError(f"expected {expected}; got {got!r}")


def _four(text: str) -> list[str]:
    forms = text.split(", ")
    _expect(len(forms) == 4, "four forms separated by commas", text)
    return forms


def _forms(table: Table, name: str, section: str) -> Forms:
    english, spanish = table[section][name]
    return _four(english), _four(spanish)


def _classes(table: Table, names: str) -> list[str]:
    """Expand classes of nouns and groups of classes, separated by blanks, to classes."""
    known = {name: [name] for name in (*table["nouns"], *table["fixed"], "pairs")}
    groups = table["groups"]
    return [*chain(*(_classes(table, groups[name]) if name in groups else known[name] for name in names.split()))]


def _verb(table: Table, base: str) -> Verb:
    third, past, infinitive, objects, places = table["verbs"][base]
    _expect(past not in (base, third), "a past unlike the present, which would be ambiguous", past)
    _expect(set(places.split()) <= set(table["where"]), "places among those of where", places)
    spanish_present, spanish_past = _conjugated(table, infinitive)
    forms = {"present": ([base, third, base, base], spanish_present), "past": ([past] * 4, spanish_past)}
    return Verb({**forms, "base": ([base] * 4, [infinitive] * 4)}, _classes(table, objects), places.split())


def _conjugated(table: Table, infinitive: str) -> list[list[str]]:
    """The four forms of the present and of the past."""
    if infinitive in table["irregular"]:
        return [_four(tense) for tense in table["irregular"][infinitive]]
    return [[infinitive[:-2] + ending for ending in _four(tense)] for tense in table["endings"][infinitive[-2:]]]


def _adjectives(table: Table, dimension: str) -> list[Adjective]:
    entry = table["adjectives"][dimension]
    classes = _classes(table, entry["beside"]), _classes(table, entry.get("said_of", ""))
    rest = dimension, *classes, entry.get("copula", ""), entry.get("degree", False)
    return [Adjective(english, _four(forms), *rest) for english, forms in entry["words"].items()]


def _numbers(noun_class: str, singular: str, entry: list[str]) -> list[tuple[Phrase, dict[str, str]]]:
    """The noun in each number that it has, and the articles that give way to others before it."""
    *words, gender = entry
    _expect(gender in ("m", "f", "f*"), "the gender m, f or f*", gender)
    _expect(len(words) in (1, 3), "[plural, Spanish singular, Spanish plural, gender] or [Spanish, gender]", entry)
    one = Phrase(singular, words[len(words) // 2], 1, gender[0], noun_class)
    many = [one._replace(english=words[0], spanish=words[2], cell=3)] if len(words) == 3 else []
    return [(one, STRESSED if gender == "f*" else {}), *((noun, {}) for noun in many)]


def _described(noun: Phrase, stressed: Table, determiners: Table, adjectives: Iterable[Adjective]) -> Iterator[Phrase]:
    """Yield the noun with every determiner and adjective; the Spanish adjective follows it, and so does an owner."""
    for determiner, articles in determiners.items():
        article, after = articles[noun.form] if noun.form < len(articles) else "-", "".join(articles[4:])
        for adjective in adjectives if article != "-" else ():
            yield noun._replace(
                english=f"{determiner} {adjective.english} {noun.english}",
                spanish=f"{stressed.get(article, article)} {noun.spanish} {adjective.spanish[noun.form]} {after}",
                dimension=adjective.dimension,
            )


def _noun_phrases(table: Table, noun_class: str, adjectives: list[Adjective]) -> dict[str, list[list[Phrase]]]:
    entries = table["nouns"][noun_class].items()
    nouns = [noun for name, entry in entries for noun in _read(f"nouns.{name}", _numbers, noun_class, name, entry)]
    kinds = [[Adjective()], [adjective for adjective in adjectives if noun_class in adjective.beside]]
    groups = {group: table["determiners"][group] for group in table["takes"][noun_class].split()}
    return {
        group: [[phrase for noun in nouns for phrase in _described(*noun, words, kind)] for kind in kinds if kind]
        for group, words in groups.items()
    }


def _fixed_phrases(table: Table) -> dict[str, dict[str, list[list[Phrase]]]]:
    """Names, pairs of names and pronouns, which take no determiner."""
    kinds = {kind: [Phrase(word, *entry, kind) for word, entry in words.items()] for kind, words in table["fixed"].items()}
    kinds["pairs"] = [_couple(*names) for names in permutations(kinds["names"], 2)]
    return {kind: {"none": [phrases]} for kind, phrases in kinds.items()}


def _couple(one: Phrase, other: Phrase) -> Phrase:
    gender = "f" if one.gender == other.gender == "f" else "m"
    return Phrase(f"{one.english} and {other.english}", f"{one.spanish} y {other.spanish}", 3, gender, "pairs")


def _patterns(table: Table, name: str, verbs: dict[str, Verb]) -> list[Pattern]:
    rule = {**table["defaults"], **table["sentences"][name]}
    frames = rule["frames"].split()
    merged = {frame: {**table["defaults"], **table["frames"][frame], **table["sentences"][name]} for frame in frames}
    count = rule["count"] // len(frames)
    return [_pattern(table, f"sentences.{name} {frame}", count, merged[frame], verbs) for frame in frames]


def _pattern(table: Table, name: str, count: int, rule: Table, verbs: dict[str, Verb]) -> Pattern:
    templates = [
        rule[language].replace("{complement}", complement).replace("{clitic}", rule["clitic"])
        for language, complement in zip(("english", "spanish"), rule["complement"], strict=True)
    ]
    fields = set(re.findall(r"{(\w*)}", "".join(templates)))
    english, spanish = (template.replace("}", f"[{language}]}}") for language, template in enumerate(templates))
    chains = [[verbs[verb] for verb in verbs_.split(" > ")] for verbs_ in rule["verbs"].split(", ") if verbs_]
    choices = {key: _classes(table, rule[key]) for key in ("subjects", "things", "receivers", "goals")}
    for key, section in LISTS.items():
        choices[key] = rule[key].split()
        _expect(set(choices[key]) <= set(table[section]), f"{key} among those of {section}", rule[key])
    return Pattern(name, count, english, spanish, fields, chains, choices)
