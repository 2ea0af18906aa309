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
from itertools import permutations
from random import Random
from typing import Any, NamedTuple, TypeVar

import numpy as np

from positionwise.errors import PositionwiseError
from positionwise.training.data import Pair

T = TypeVar("T")
Table = dict[str, Any]  # as tomllib gives it; what is wrong in it comes to light under `_read`
Forms = tuple[list[str], list[str]]  # of a word, English and Spanish, by cell
Phrases = dict[str, dict[str, list[list["Phrase"]]]]  # by class and determiners: without and with an adjective

TRIES = 60  # a pattern that repeats itself this often has no more sentences to give
LARGEST_SHARE = 20  # a held-out combination fills at most one part in 20 of the held-out sentences
STRESSED = {"la": "el", "una": "un"}  # before a feminine noun that begins with a stressed a
WORD_SLOTS = ["time", "adverb", "asking", "us", "him"]  # filled from the word lists
SLOTS = "subject verb object receiver goal thing where helper adjective".split() + WORD_SLOTS
DEFAULTS = {
    **dict.fromkeys(("subjects", "things", "places", "frames", "verbs", "clitic", "copula", "time"), ""),
    **{"receivers": "persons", "goals": "goals", "determiners": "none definite counting owner", "complement": ["", ""]},
    **{"objects": "none definite counting owner bare mass"},
}


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
    """A verb's forms by name, language and cell, the classes of its objects, and where it happens."""

    forms: dict[str, Forms]
    objects: list[str]
    places: list[str]


class Pattern(NamedTuple):
    """A sentence rule joined with one of its frames: two templates and what may fill their slots."""

    name: str
    count: int
    english: str  # in the templates, slots hold (English, Spanish)
    spanish: str
    fields: set[str]
    slots: list[str]
    chains: list[list[Verb]]  # a chain is the verbs that share one object, nearly always a single one
    choices: dict[str, list[str]]
    copula: str


class Rules(NamedTuple):
    """The rule file, checked, with every noun phrase that it can build."""

    table: Table
    persons: list[str]
    adjectives: list[Adjective]
    agreement: dict[str, Forms]
    helpers: list[Forms]
    phrases: Phrases
    patterns: list[Pattern]


# ------------------------------------------------------------------------------------------------ Reading the rules


def _read(rule: str, read: Callable[..., T], *arguments: object) -> T:
    """Call `read`; what goes wrong becomes an error that names the rule, the innermost one."""
    try:
        return read(*arguments)
    except RuleError:
        raise
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        reason = f"{error} is not defined" if isinstance(error, KeyError) else error
        raise RuleError(f"phrasebook rule {rule}: {reason}") from error


def _each(table: Table, section: str, read: Callable[[Table, str], T]) -> dict[str, T]:
    return {name: _read(f"{section}.{name}", read, table, name) for name in table[section]}


def _expect(holds: bool, expected: str, received: object) -> None:
    if not holds:
        raise ValueError(f"expected {expected}; got {received!r}")


def _four(text: str) -> list[str]:
    forms = text.split(", ")
    _expect(len(forms) == 4, "four forms separated by commas", text)
    return forms


def _forms(english: str, spanish: str) -> Forms:
    return _four(english), _four(spanish)


def _classes(table: Table, names: str) -> list[str]:
    """Expand classes of nouns and groups of classes, separated by blanks, to classes."""
    known = {name: [name] for name in (*table["nouns"], *table["fixed"], "pairs")}
    groups = table["groups"]
    parts = [_classes(table, groups[name]) if name in groups else known[name] for name in names.split()]
    return [noun_class for part in parts for noun_class in part]


def _verb(table: Table, base: str) -> Verb:
    third, past, infinitive, objects, places = table["verbs"][base]
    _expect(past not in (base, third), "a past unlike the present, which would be ambiguous", past)
    _expect(all(place in table["where"] for place in places.split()), "places among those of where", places)
    present, preterite = _conjugated(table, infinitive)
    forms = {"present": ([base, third, base, base], present), "past": ([past] * 4, preterite)}
    return Verb({**forms, "base": ([base] * 4, [infinitive] * 4)}, _classes(table, objects), places.split())


def _conjugated(table: Table, infinitive: str) -> list[list[str]]:
    """Conjugate in the present and in the past."""
    if infinitive in table["irregular"]:
        return [_four(tense) for tense in table["irregular"][infinitive]]
    return [[infinitive[:-2] + ending for ending in _four(tense)] for tense in table["endings"][infinitive[-2:]]]


def _adjectives(table: Table, dimension: str) -> list[Adjective]:
    entry = table["adjectives"][dimension]
    rest = dimension, _classes(table, entry["beside"]), _classes(table, entry.get("said_of", ""))
    uses = entry.get("copula", ""), entry.get("degree", False)
    return [Adjective(english, _four(forms), *rest, *uses) for english, forms in entry["words"].items()]


def _numbers(noun_class: str, singular: str, entry: list[str]) -> list[tuple[Phrase, dict[str, str]]]:
    """The noun in each number that it has, and the articles that give way to others before it."""
    *words, gender = entry
    _expect(gender in ("m", "f", "f*"), "the gender m, f or f*", gender)
    _expect(len(words) in (1, 3), "[plural, Spanish singular, Spanish plural, gender] or [Spanish, gender]", entry)
    one = Phrase(singular, words[len(words) // 2], 1, gender[0], noun_class)
    many = [one._replace(english=words[0], spanish=words[2], cell=3)] if len(words) == 3 else []
    return [(one, STRESSED if gender == "f*" else {}), *((noun, {}) for noun in many)]


def _described(noun: Phrase, stressed: Table, determiners: Table, adjectives: Iterable[Adjective]) -> Iterator[Phrase]:
    """Yield the noun with every determiner and adjective; the Spanish adjective follows, and so does an owner."""
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


def _fixed_phrases(table: Table) -> Phrases:
    """Names and pronouns by class, and pairs of names."""
    kinds = {
        kind: [Phrase(word, *rest, kind) for word, rest in words.items()] for kind, words in table["fixed"].items()
    }
    kinds["pairs"] = [_couple(*both) for both in permutations(kinds["names"], 2)]
    return {kind: {"none": [phrases]} for kind, phrases in kinds.items()}


def _couple(one: Phrase, other: Phrase) -> Phrase:
    gender = "f" if one.gender == other.gender == "f" else "m"
    return Phrase(f"{one.english} and {other.english}", f"{one.spanish} y {other.spanish}", 3, gender, "pairs")


def _patterns(table: Table, name: str, verbs: dict[str, Verb]) -> list[Pattern]:
    sentence = table["sentences"][name]
    frames = sentence.get("frames", "plain").split()
    merged = ((frame, {**DEFAULTS, **sentence, **table["frames"][frame]}) for frame in frames)
    return [
        _pattern(table, f"sentences.{name} {frame}", rule, rule["count"] // len(frames), verbs)
        for frame, rule in merged
    ]


def _pattern(table: Table, name: str, rule: Table, count: int, verbs: dict[str, Verb]) -> Pattern:
    templates = [
        rule[language].replace("{complement}", complement).replace("{clitic}", rule["clitic"])
        for language, complement in zip(("english", "spanish"), rule["complement"], strict=True)
    ]
    fields = set(re.findall(r"{(\w*)}", "".join(templates)))
    used = {field.partition("_")[0] for field in fields} - {"then", "degree", "other"}
    _expect(used <= set(SLOTS), f"slots among {SLOTS}", sorted(used - set(SLOTS)))
    english, spanish = (template.replace("}", f"[{language}]}}") for language, template in enumerate(templates))
    choices = {key: _classes(table, rule[key]) for key in ("subjects", "things", "receivers", "goals")}
    for key, section in (
        ("determiners", "determiners"),
        ("objects", "determiners"),
        ("places", "where"),
        ("time", "words"),
    ):
        choices[key] = rule[key].split()
        _expect(set(choices[key]) <= set(table[section]), f"{key} among those of {section}", rule[key])
    chains = [[verbs[verb] for verb in chain.split(" > ")] for chain in rule["verbs"].split(", ") if chain]
    return Pattern(
        name, count, english, spanish, fields, [slot for slot in SLOTS if slot in used], chains, choices, rule["copula"]
    )


def _rules(text: str) -> Rules:
    table = tomllib.loads(text)
    verbs = _each(table, "verbs", _verb)
    adjectives = [word for words in _each(table, "adjectives", _adjectives).values() for word in words]
    phrases = _fixed_phrases(table) | _each(table, "nouns", partial(_noun_phrases, adjectives=adjectives))
    agreement, helpers = (
        _each(table, section, lambda table, name, section=section: _forms(*table[section][name]))
        for section in ("agreement", "helpers")
    )
    patterns = [
        pattern
        for patterns in _each(table, "sentences", partial(_patterns, verbs=verbs)).values()
        for pattern in patterns
    ]
    return Rules(table, _classes(table, "persons"), adjectives, agreement, list(helpers.values()), phrases, patterns)


def read_rules(text: str) -> Rules:
    """Read and check a rule file; a broken rule raises a `RuleError` that names it."""
    return _read("file", _rules, text)


# ---------------------------------------------------------------------------------------------- Drawing the sentences


class _Misfit(Exception):
    """The words drawn so far leave nothing to choose from."""


class _Draw:
    """One sentence while it is drawn: the words that fill its slots so far, and what later words must fit."""

    def __init__(self, rules: Rules, pattern: Pattern, random: Callable[[], float]) -> None:
        self.rules, self.pattern, self.random = rules, pattern, random
        self.words: dict[str, tuple[str, str]] = {}
        self.phrases = {"subject": Phrase("", "", 1, "", "")}
        self.chain = self.pick(pattern.chains) if pattern.chains else []

    def pair(self) -> Pair:
        """Fill every slot of the pattern; filling methods are named after their slots."""
        for slot in self.pattern.slots:
            fill = self.fill_word if slot in WORD_SLOTS else self.fill_phrase
            getattr(self, f"fill_{slot}", fill)(slot)
        english, spanish = self.pattern.english.format_map(self.words), self.pattern.spanish.format_map(self.words)
        return Pair(_english(english), _spanish(spanish))

    def pick(self, options: Sequence[T]) -> T:
        """Choose evenly, and in a way that no Python version changes."""
        if not options:
            raise _Misfit
        return options[int(self.random() * len(options))]

    def phrase(self, slot: str, classes: list[str], determiners: list[str]) -> Phrase:
        """Fill a slot, each time choosing evenly a class, a group of its determiners, with or without adjective."""
        kinds = self.rules.phrases[self.pick(classes)]
        phrase = self.pick(self.pick(self.pick([kinds[group] for group in determiners if group in kinds])))
        self.phrases[slot], self.words[slot] = phrase, (phrase.english, phrase.spanish)
        self.agree(slot, self.rules.agreement, phrase)
        return phrase

    def agree(self, slot: str, words: dict[str, Forms], phrase: Phrase) -> None:
        """Fill the fields such as subject_do or verb_past that the pattern has, as they agree with a phrase."""
        for name, (english, spanish) in words.items():
            if (field := f"{slot}_{name}") in self.pattern.fields:
                self.words[field] = english[phrase.cell], spanish[phrase.cell]

    def fill_phrase(self, slot: str) -> None:
        self.phrase(slot, self.pattern.choices[f"{slot}s"], self.pattern.choices["determiners"])

    def fill_word(self, slot: str) -> None:
        table = self.pick(self.pattern.choices["time"]) if slot == "time" else slot
        self.words[slot] = self.pick(list(self.rules.table["words"][table].items()))

    def fill_verb(self, slot: str) -> None:
        for name, verb in zip((slot, "then"), self.chain):
            self.agree(name, verb.forms, self.phrases["subject"])

    def fill_helper(self, slot: str) -> None:
        english, spanish = self.pick(self.rules.helpers)
        self.words[slot] = english[self.phrases["subject"].cell], spanish[self.phrases["subject"].cell]

    def fill_object(self, slot: str) -> None:
        """Fill a direct object, with the personal a before people, and the pronoun that may stand for it."""
        shared = [name for name in self.chain[0].objects if all(name in verb.objects for verb in self.chain)]
        phrase = self.phrase(slot, shared, self.pattern.choices["objects"])
        person = phrase.noun_class in self.rules.persons
        if person:
            self.words[slot] = phrase.english, f"a {phrase.spanish}"
        it = self.rules.table["it"]
        self.words[f"{slot}_it"] = it["persons" if person else "things"][phrase.form], it["spanish"][phrase.form]

    def fill_where(self, slot: str) -> None:
        place = self.rules.table["where"][self.pick(self.pattern.choices["places"] or self.chain[0].places)]
        phrase = self.phrase(slot, place["nouns"].split(), self.pattern.choices["determiners"])
        if phrase.cell > 1:
            raise _Misfit  # nothing is at several places
        english, spanish = self.pick(list(place["words"].items()))
        self.words[slot] = f"{english} {phrase.english}", f"{spanish} {phrase.spanish}"

    def fill_adjective(self, slot: str) -> None:
        """Fill a predicate that the subject can have and its own adjective does not speak of."""
        subject, compared = self.phrases["subject"], "other" in self.pattern.fields
        fitting = [word for word in self.rules.adjectives if word.copula == self.pattern.copula
                   and subject.noun_class in word.said_of and word.dimension != subject.dimension]  # fmt: skip
        word = self.pick([word for word in fitting if word.degree or not compared])
        self.words[slot] = word.english, word.spanish[subject.form]
        self.words["degree"] = self.pick(list(self.rules.table["words"]["degree"].items())) if word.degree else ("", "")
        if (
            compared
            and self.phrase("other", [subject.noun_class], self.pattern.choices["determiners"]).dimension
            == word.dimension
        ):
            raise _Misfit


def _tidy(text: str) -> str:
    """Close the gaps that empty slots leave, and begin with a capital letter."""
    text = " ".join(text.split()).replace(" .", ".").replace(" ?", "?").replace("¿ ", "¿")
    start = text.startswith("¿")
    return text[:start] + text[start].upper() + text[start + 1 :]


def _english(text: str) -> str:
    return _tidy(re.sub(r"\ba +(?=[aeiou])", "an ", text))


def _spanish(text: str) -> str:
    return _tidy(re.sub(r"\b(a|de) +el\b", lambda both: {"a": "al", "de": "del"}[both[1]], text))


def _acceptable(sentence: str, drawing: Table) -> bool:
    """Whether a sentence has a good length and says no word twice, except some small ones."""
    words, (least, most), repeatable = _words(sentence), drawing["words"], drawing["repeatable"].split()
    stems = [word.removesuffix("'s").removesuffix("s") for word in words if word not in repeatable]
    return least <= len(words) <= most and len(stems) == len(set(stems))


def _draw(rules: Rules, pattern: Pattern, found: dict[str, str]) -> None:
    """Add new pairs to `found`. Each pattern has a seed of its own: a change of one leaves the others as they are."""
    random, goal = Random(pattern.name).random, len(found) + pattern.count
    for _ in range(TRIES * pattern.count):
        try:
            source, target = _Draw(rules, pattern, random).pair()
        except _Misfit:
            continue
        if _acceptable(source, rules.table["drawing"]):
            _expect(found.setdefault(source, target) == target, f"{source!r} to mean {found[source]!r} only", target)
        if len(found) == goal:
            return
    raise ValueError(f"expected {pattern.count} sentences; got {pattern.count - goal + len(found)}")


def expand(rules: Rules) -> list[Pair]:
    """Draw the pairs of all sentence rules, in the order of the rule file."""
    found: dict[str, str] = {}
    for pattern in rules.patterns:
        _read(pattern.name, _draw, rules, pattern, found)
    return [Pair(*item) for item in found.items()]


def phrasebook() -> list[Pair]:
    """Return every pair of the phrasebook, always the same and in the same order; no English sentence occurs twice."""
    rules = resources.files(__package__).joinpath("phrasebook.toml").read_text("utf-8")
    return expand(read_rules(rules))


# ------------------------------------------------------------------------------------------- The split, the baseline


def _words(sentence: str) -> list[str]:
    return re.findall(r"[\w']+", sentence.lower())


def _neighbours(sentence: str) -> list[str]:
    """The pairs of neighbouring words, each once, in order."""
    words = _words(sentence)
    return list(dict.fromkeys(f"{word} {following}" for word, following in zip(words, words[1:], strict=False)))


def _tokens(pair: Pair) -> set[tuple[str, str]]:
    """The words of both languages as they are written, punctuation and all."""
    return {("source", word) for word in pair.source.split()} | {("target", word) for word in pair.target.split()}


def _index(features: Iterable[Iterable[str]]) -> dict[str, list[int]]:
    """Where each feature occurs."""
    at = defaultdict(list)
    for index, group in enumerate(features):
        for feature in group:
            at[feature].append(index)
    return at


def split_by_combination(pairs: Sequence[Pair], held_out: int = 1000, seed: int = 0) -> tuple[list[Pair], list[Pair]]:
    """Split pairs into training and held-out ones such that the latter combine words as no training sentence does.

    A combination is two neighbouring words of an English sentence, such as "red hats" or "sister sang". Every held-out
    sentence has one that no training sentence has. Its words all occur in training, however, in the same spelling and
    even with the same punctuation, and so do those of its translation. No held-out source or target is in the
    training part; pairs that would break one of these promises are in neither part.
    """
    containing = _index(_neighbours(pair.source) for pair in pairs)
    translating = _index([pair.target] for pair in pairs)
    left = Counter(token for pair in pairs for token in _tokens(pair))
    chosen: list[int] = []
    gone: set[int] = set()
    for combination in _in_random_order(containing, max(1, held_out // LARGEST_SHARE), seed):
        if len(chosen) >= held_out:
            break
        joined = [index for index in containing[combination] if index not in gone]
        leaving = {twin for index in joined for twin in translating[pairs[index].target]} - gone
        lost = Counter(token for index in leaving for token in _tokens(pairs[index]))
        if all(left[token] > number for token, number in lost.items()):
            chosen, gone = chosen + joined, gone | leaving
            left -= lost
    _expect(len(chosen) >= held_out, f"enough rare combinations for {held_out} held-out pairs", len(chosen))
    train = [pair for index, pair in enumerate(pairs) if index not in gone]
    return train, [pairs[index] for index in sorted(chosen[:held_out])]


def _in_random_order(containing: dict[str, list[int]], largest: int, seed: int) -> list[str]:
    random = Random(seed).random
    return sorted((name for name, indices in containing.items() if len(indices) <= largest), key=lambda _: random())


def nearest_training_sentence(train: Sequence[Pair], sources: Iterable[str]) -> list[str]:
    """Translate each source by the target of the training sentence that is nearest to it: the baseline of the demo.

    Nearest means the largest Jaccard similarity of the sets of words and of neighbouring words, without regard to case
    and punctuation; ties go to the first training sentence.
    """
    features = [{*_words(pair.source), *_neighbours(pair.source)} for pair in train]
    containing = {feature: np.array(indices) for feature, indices in _index(features).items()}
    sizes = np.array([len(group) for group in features])

    def nearest(source: str) -> str:
        own = {*_words(source), *_neighbours(source)}
        shared = np.zeros(len(train), dtype=np.float32)
        for feature in own & containing.keys():
            shared[containing[feature]] += 1
        return train[int(np.argmax(shared / (sizes + len(own) - shared)))].target

    return [nearest(source) for source in sources]
