"""The data of ``positionwise demo``: an English-Spanish phrasebook, written as rules and drawn as sentence pairs.

``phrasebook.toml`` holds the words and the sentence patterns; this file reads and checks it, builds every noun phrase,
and draws a fixed sample of the sentences, whose full product is far larger. Two orders run through both files: *cells*
are the persons of a verb (0 I, 1 she or he, 2 we, 3 they), and the *forms* of an adjective or determiner are
masculine, feminine, masculine plural, feminine plural.
"""

import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import resources
from random import Random
from typing import Any, NamedTuple, TypeVar

import numpy as np

from positionwise.errors import PositionwiseError
from positionwise.training.data import Pair

T = TypeVar("T")
Table = dict[str, Any]  # as tomllib gives it; what is wrong in it comes to light under `_read`
Forms = tuple[list[str], list[str]]  # of a word, English and Spanish, by cell

SLOTS = "subject verb object receiver goal thing where helper adjective time adverb asking us him".split()
LISTS = {"determiners": "determiners", "objects": "determiners", "places": "where", "times": "words"}
STRESSED = {"la": "el", "una": "un"}  # before a feminine noun that begins with a stressed a
TRIES = 60  # a pattern that repeats itself this often has no more sentences to give
COMMON = 25  # a word that occurs in more than one sentence in 25 is part of no combination
LARGEST_SHARE = 100  # a held-out combination fills at most one part in 100 of the held-out sentences


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
        return 2 * (self.cell > 1) + (self.gender != "m")


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
    number: int  # of sentences to draw
    templates: list[str]  # with fields such as {subject[0]} in the English and {verb_past[1]} in the Spanish one
    fields: set[str]
    slots: list[str]
    chains: list[list[Verb]]  # a chain is the verbs that share one object, nearly always a single one
    choices: dict[str, list[str]]
    copula: str


def _read(rule: str, read: Callable[..., T], *arguments: object) -> T:
    """Call `read`; what goes wrong becomes an error that names the rule, the innermost one."""
    try:
        return read(*arguments)
    except RuleError:
        raise
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        reason = f"expected a defined name; got {error}" if isinstance(error, KeyError) else error
        raise RuleError(f"phrasebook rule {rule}: {reason}") from error


def _expect(holds: bool, expected: str, got: object) -> None:
    if not holds:
        raise ValueError(f"expected {expected}; got {got!r}")


def _four(text: str) -> list[str]:
    forms = text.split(", ")
    _expect(len(forms) == 4, "four forms separated by commas", text)
    return forms


class Rules:
    """The rule file, checked, with every noun phrase that it can build; a broken rule raises a `RuleError`."""

    def __init__(self, text: str) -> None:
        self.table: Table = _read("file", tomllib.loads, text)
        _read("file", self._parse)

    def _parse(self) -> None:
        self.persons = self._classes("persons")
        self.verbs = self._each("verbs", self._verb)
        self.adjectives = [word for words in self._each("adjectives", self._dimension).values() for word in words]
        self.agreement = self._each("agreement", self._forms)
        self.helpers = list(self._each("helpers", self._forms).values())
        # By class and group of determiners: the phrases without an adjective, then those with one, if there are any.
        self.phrases = self._each("nouns", self._noun_phrases) | self._each("fixed", self._fixed_phrases)
        self.patterns = [pattern for group in self._each("sentences", self._patterns).values() for pattern in group]

    def _each(self, section: str, read: Callable[[str, Any], T]) -> dict[str, T]:
        return {name: _read(f"{section}.{name}", read, name, entry) for name, entry in self.table[section].items()}

    def _classes(self, names: str) -> list[str]:
        """Expand classes of phrases and groups of classes, separated by blanks, to classes."""
        known = {name: [name] for name in (*self.table["nouns"], *self.table["fixed"])}
        groups = self.table["groups"]
        parts = [self._classes(groups[name]) if name in groups else known[name] for name in names.split()]
        return [noun_class for part in parts for noun_class in part]

    def _forms(self, _: str, entry: list[str]) -> Forms:
        english, spanish = map(_four, entry)
        return english, spanish

    def _verb(self, base: str, entry: list[str]) -> Verb:
        third, past, infinitive, objects, places = entry
        _expect(past not in (base, third), "a past unlike the present, which would be ambiguous", past)
        stem = "" if infinitive in self.table["irregular"] else infinitive[:-2]
        tenses = self.table["irregular"].get(infinitive) or self.table["endings"][infinitive[-2:]]
        spanish = [[stem + form for form in _four(tense)] for tense in tenses]
        forms = {"present": ([base, third, base, base], spanish[0]), "past": ([past] * 4, spanish[1])}
        return Verb({**forms, "base": ([base] * 4, [infinitive] * 4)}, self._classes(objects), places.split())

    def _dimension(self, name: str, entry: Table) -> list[Adjective]:
        beside, said_of = self._classes(entry["beside"]), self._classes(entry.get("said_of", ""))
        rest = name, beside, said_of, entry.get("copula", ""), entry.get("degree", False)
        return [Adjective(english, _four(forms), *rest) for english, forms in entry["words"].items()]

    def _fixed_phrases(self, noun_class: str, entry: Table) -> dict[str, list[list[Phrase]]]:
        return {"none": [[Phrase._make((word, *features, noun_class, "")) for word, features in entry.items()]]}

    def _noun_phrases(self, noun_class: str, entry: Table) -> dict[str, list[list[Phrase]]]:
        kinds = [[Adjective()], [word for word in self.adjectives if noun_class in word.beside]]
        nouns = [noun for item in entry.items() for noun in _read(f"nouns.{item[0]}", _numbers, noun_class, *item)]
        groups = {group: self.table["determiners"][group] for group in self.table["takes"][noun_class].split()}
        return {
            group: [[phrase for noun in nouns for phrase in _described(noun, words, kind)] for kind in kinds if kind]
            for group, words in groups.items()
        }

    def _patterns(self, name: str, entry: Table) -> list[Pattern]:
        """The patterns of a sentence rule, one for each of its frames; the rule overrides what a frame says."""
        defaults, frames = self.table["defaults"], entry.get("frames", "plain").split()
        rules = {f"sentences.{name} {frame}": {**defaults, **self.table["frames"][frame], **entry} for frame in frames}
        return [_read(title, self._pattern, title, rule["count"] // len(frames), rule) for title, rule in rules.items()]

    def _pattern(self, name: str, number: int, rule: Table) -> Pattern:
        templates = [
            rule[key].replace("{complement}", complement).replace("{clitic}", rule["clitic"])
            for key, complement in zip(("english", "spanish"), rule["complement"], strict=True)
        ]
        fields = set(re.findall(r"{(\w*)}", "".join(templates)))
        slots = [slot for slot in SLOTS if any(field.partition("_")[0] == slot for field in fields)]
        templates = [template.replace("}", f"[{language}]}}") for language, template in enumerate(templates)]
        chains = [[self.verbs[verb] for verb in verbs.split(" > ")] for verbs in rule["verbs"].split(", ") if verbs]
        choices = {key: rule[key].split() for key in LISTS}
        for key, section in LISTS.items():
            _expect(set(choices[key]) <= set(self.table[section]), f"{key} among those of {section}", rule[key])
        choices |= {key: self._classes(rule[key]) for key in ("subjects", "things", "receivers", "goals")}
        return Pattern(name, number, templates, fields, slots, chains, choices, rule["copula"])


def _numbers(noun_class: str, singular: str, entry: list[str]) -> list[Phrase]:
    """The noun, without a determiner, in each number that it has."""
    *words, gender = entry
    fits = gender in ("m", "f", "f*") and len(words) in (1, 3)
    _expect(fits, "[plural, Spanish singular, Spanish plural, m | f | f*] or [Spanish, m | f | f*]", entry)
    one = Phrase(singular, words[len(words) // 2], 1, gender, noun_class)
    return [one] if len(words) == 1 else [one, one._replace(english=words[0], spanish=words[2], cell=3)]


def _described(noun: Phrase, determiners: Table, adjectives: Iterable[Adjective]) -> Iterator[Phrase]:
    """Yield the noun with every determiner and adjective; in Spanish the adjective follows it, and so does an owner."""
    others = STRESSED if noun.gender == "f*" and noun.cell == 1 else {}
    for determiner, articles in determiners.items():
        article, after = articles[noun.form] if noun.form < len(articles) else "-", "".join(articles[4:])
        for adjective in adjectives if article != "-" else ():
            english = f"{determiner} {adjective.english} {noun.english}"
            spanish = f"{others.get(article, article)} {noun.spanish} {adjective.spanish[noun.form]} {after}"
            yield noun._replace(english=english, spanish=spanish, dimension=adjective.dimension)


class _Misfit(Exception):
    """The words drawn so far leave nothing to choose from."""


class _Draw:
    """One sentence while it is drawn: the words that fill its slots; a method fill_x fills a slot x that is special."""

    def __init__(self, rules: Rules, pattern: Pattern, random: Callable[[], float]) -> None:
        self.rules, self.pattern, self.random = rules, pattern, random
        self.words: dict[str, tuple[str, str]] = {}
        self.phrases: dict[str, Phrase] = {}
        self.chain = self.pick(pattern.chains) if pattern.chains else []

    def pair(self) -> Pair:
        for slot in self.pattern.slots:
            usual = self.fill_word if slot in self.rules.table["words"] else self.fill_phrase
            getattr(self, f"fill_{slot}", usual)(slot)
        english, spanish = (template.format_map(self.words) for template in self.pattern.templates)
        english, spanish = re.sub(r"\ba +(?=[aeiou])", "an ", english), re.sub(r"\b(a|de) +el\b", r"\1l", spanish)
        return Pair(_tidy(english), _tidy(spanish))

    def pick(self, options: Sequence[T]) -> T:
        """Choose evenly, in a way that no Python version changes."""
        if not options:
            raise _Misfit
        return options[int(self.random() * len(options))]

    def agree(self, slot: str, words: dict[str, Forms], cell: int) -> None:
        """Fill those fields of the pattern, such as subject_do or verb_past, whose words agree with a phrase."""
        for name, (english, spanish) in words.items():
            if (field := f"{slot}_{name}") in self.pattern.fields:
                self.words[field] = english[cell], spanish[cell]

    def fill_phrase(self, slot: str, classes: Sequence[str] = (), determiners: Sequence[str] = ()) -> Phrase:
        """Choose evenly a class, then a group of its determiners, then whether with an adjective, then a phrase."""
        kinds = self.rules.phrases[self.pick(classes or self.pattern.choices[f"{slot}s"])]
        groups = [kinds[name] for name in determiners or self.pattern.choices["determiners"] if name in kinds]
        phrase = self.phrases[slot] = self.pick(self.pick(self.pick(groups)))
        self.words[slot] = phrase.english, phrase.spanish
        self.agree(slot, self.rules.agreement, phrase.cell)
        return phrase

    def fill_word(self, slot: str, table: str = "") -> None:
        self.words[slot] = self.pick(list(self.rules.table["words"][table or slot].items()))

    def fill_time(self, slot: str) -> None:
        self.fill_word(slot, self.pick(self.pattern.choices["times"]))

    def fill_verb(self, slot: str) -> None:
        for name, verb in zip((slot, "then"), self.chain, strict=False):
            self.agree(name, verb.forms, self.phrases["subject"].cell)

    def fill_helper(self, slot: str) -> None:
        english, spanish = self.pick(self.rules.helpers)
        self.words[slot] = english[self.phrases["subject"].cell], spanish[self.phrases["subject"].cell]

    def fill_object(self, slot: str) -> None:
        """Fill a direct object, with the personal a before people, and the pronoun that may stand for it."""
        shared = [name for name in self.chain[0].objects if all(name in verb.objects for verb in self.chain)]
        phrase = self.fill_phrase(slot, shared, self.pattern.choices["objects"])
        person, it = phrase.noun_class in self.rules.persons, self.rules.table["it"]
        self.words[slot] = phrase.english, f"a {phrase.spanish}" if person else phrase.spanish
        self.words[f"{slot}_it"] = it["persons" if person else "things"][phrase.form], it["spanish"][phrase.form]

    def fill_where(self, slot: str) -> None:
        place = self.rules.table["where"][self.pick(self.pattern.choices["places"] or self.chain[0].places)]
        phrase = self.fill_phrase(slot, place["nouns"].split())
        if phrase.cell > 1:
            raise _Misfit  # nothing is at several places
        english, spanish = self.pick(list(place["words"].items()))
        self.words[slot] = f"{english} {phrase.english}", f"{spanish} {phrase.spanish}"

    def fill_adjective(self, slot: str) -> None:
        """Fill a predicate that the subject can have, of which neither it nor what it is compared with speaks."""
        subject, compared = self.phrases["subject"], "other" in self.pattern.fields
        spoken_of = [subject.dimension, self.fill_phrase("other", [subject.noun_class]).dimension if compared else ""]
        fitting = [word for word in self.rules.adjectives if subject.noun_class in word.said_of]
        fitting = [word for word in fitting if word.dimension not in spoken_of and word.degree >= compared]
        word = self.pick([word for word in fitting if word.copula == self.pattern.copula])
        self.words[slot] = word.english, word.spanish[subject.form]
        self.fill_word("degree", "degree" if word.degree else "none")


def _tidy(text: str) -> str:
    """Close the gaps that empty slots leave, and begin with a capital letter."""
    text = " ".join(text.split()).replace(" .", ".").replace(" ?", "?").replace("¿ ", "¿")
    start = text.startswith("¿")
    return text[:start] + text[start].upper() + text[start + 1 :]


def _words(sentence: str) -> list[str]:
    return re.findall(r"[\w']+", sentence.lower())


def _acceptable(sentence: str, drawing: Table) -> bool:
    """Whether a sentence has a good length and says no word twice, except some small ones."""
    words, (least, most), repeatable = _words(sentence), drawing["words"], drawing["repeatable"].split()
    stems = [word.removesuffix("'s").removesuffix("s") for word in words if word not in repeatable]
    return least <= len(words) <= most and len(stems) == len(set(stems))


def _add_pairs(rules: Rules, pattern: Pattern, found: dict[str, str]) -> None:
    """Draw the new pairs of a pattern. It has a seed of its own: to change one leaves the others as they are."""
    random, goal = Random(pattern.name).random, len(found) + pattern.number
    for _ in range(TRIES * pattern.number):
        try:
            source, target = _Draw(rules, pattern, random).pair()
        except _Misfit:
            continue
        if _acceptable(source, rules.table["drawing"]):
            _expect(found.setdefault(source, target) == target, f"{source!r} to mean {found[source]!r} only", target)
        if len(found) == goal:
            return
    raise ValueError(f"expected {pattern.number} new sentences; got {pattern.number - goal + len(found)}")


def expand(rules: Rules) -> list[Pair]:
    """Draw the pairs of all sentence rules, in the order of the rule file."""
    found: dict[str, str] = {}
    for pattern in rules.patterns:
        _read(pattern.name, _add_pairs, rules, pattern, found)
    return [Pair(*item) for item in found.items()]


def phrasebook() -> list[Pair]:
    """Return every pair of the phrasebook, always the same and in the same order; no English sentence occurs twice."""
    return expand(Rules(resources.files(__package__).joinpath("phrasebook.toml").read_text("utf-8")))


def _neighbours(sentence: str) -> list[str]:
    words = _words(sentence)
    return list(dict.fromkeys(f"{word} {following}" for word, following in zip(words, words[1:], strict=False)))


def _index(groups: Iterable[Iterable[str]]) -> dict[str, list[int]]:
    """In which groups each item occurs."""
    at = defaultdict(list)
    for index, group in enumerate(groups):
        for item in group:
            at[item].append(index)
    return at


def _tokens(pair: Pair) -> set[str]:
    """The words of both languages as they are written, punctuation and all."""
    return {*pair.source.split()} | {f"target {word}" for word in pair.target.split()}


def split_by_combination(pairs: Sequence[Pair], held_out: int = 1000, seed: int = 0) -> tuple[list[Pair], list[Pair]]:
    """Split pairs into training and held-out ones such that the latter combine words as no training sentence does.

    A combination is two neighbouring words of an English sentence, neither of them common, such as "ripe melons" or
    "sister repaired". Every held-out sentence has one that no training sentence has. Its words all occur in training,
    however, in the same spelling and even with the same punctuation, and so do those of its translation. No held-out
    source or target is in the training part; pairs that would break one of these promises are in neither part.
    """
    by_word, by_target = _index(set(_words(pair.source)) for pair in pairs), _index([pair.target] for pair in pairs)
    common = {word for word, indices in by_word.items() if len(indices) * COMMON > len(pairs)}
    combinations = _index([two for two in _neighbours(pair.source) if common.isdisjoint(two.split())] for pair in pairs)
    rare = [indices for indices in combinations.values() if len(indices) <= max(1, held_out // LARGEST_SHARE)]
    random, left = Random(seed).random, Counter(token for pair in pairs for token in _tokens(pair))
    chosen, gone = list[int](), set[int]()
    for indices in sorted(rare, key=lambda _: random()):
        if len(chosen) >= held_out:
            break
        leaving = {twin for index in indices for twin in by_target[pairs[index].target]} - gone
        lost = Counter(token for index in leaving for token in _tokens(pairs[index]))
        if all(left[token] > number for token, number in lost.items()):
            chosen += [index for index in indices if index not in gone]
            gone |= leaving
            left.subtract(lost)
    _expect(len(chosen) >= held_out, f"at most {len(chosen)} pairs to hold out", held_out)
    train = [pair for index, pair in enumerate(pairs) if index not in gone]
    return train, [pairs[index] for index in sorted(chosen[:held_out])]


def nearest_training_sentence(train: Sequence[Pair], sources: Iterable[str]) -> list[str]:
    """Translate each source by the target of the training sentence that is nearest to it: the baseline of the demo.

    Nearest means the largest Jaccard similarity of the sets of words and of neighbouring words, without regard to case
    and punctuation; ties go to the first training sentence. As no target that `split_by_combination` holds out is
    among the training targets, this baseline never translates a held-out sentence exactly; BLEU shows how near it is.
    """
    features = [{*_words(pair.source), *_neighbours(pair.source)} for pair in train]
    containing = {feature: np.array(indices) for feature, indices in _index(features).items()}
    sizes, targets = np.array([len(group) for group in features]), []
    for source in sources:
        own = {*_words(source), *_neighbours(source)}
        shared = np.zeros(len(train), dtype=np.float32)
        for feature in own & containing.keys():
            shared[containing[feature]] += 1
        targets.append(train[int(np.argmax(shared / (sizes + len(own) - shared)))].target)
    return targets
