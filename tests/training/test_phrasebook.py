"""The phrasebook of the demo: its Spanish, its split, its baseline, and what a broken rule file says."""

import hashlib
import re
import subprocess
import sys
from importlib import resources

import pytest

from positionwise.training import phrasebook as book
from positionwise.training.data import Pair

RULES = resources.files("positionwise.training").joinpath("phrasebook.toml").read_text("utf-8")

# Written by hand, each for a point of grammar. A change of the rules may make the sample miss one: take another then.
SENTENCES = {
    "The cold water is expensive.": "El agua fría es cara.",  # stressed a; adjective after the noun
    "I ran to a classroom last week.": "Corrí a un aula la semana pasada.",
    "I sleep in another classroom in the morning.": "Duermo en otra aula por la mañana.",
    "Paul worked behind the bridge.": "Pablo trabajó detrás del puente.",  # de + el
    "Their aunt looked for Paul's brother last week.": "Su tía buscó al hermano de Pablo la semana pasada.",  # a + el
    "She saw the queen in this square.": "Ella vio a la reina en esta plaza.",  # personal a
    "He saw her at that big beach.": "Él la vio en esa playa grande.",  # pronoun before the verb
    "I washed strawberries and ate them.": "Lavé fresas y las comí.",
    "They looked for Peter's uncles and found them.": "Buscaron a los tíos de Pedro y los encontraron.",
    "I like John's red bicycles.": "Me gustan las bicicletas rojas de Juan.",  # gustar agrees with what is liked
    "Our sons like the tea.": "A nuestros hijos les gusta el té.",
    "She does not like these red bicycles.": "A ella no le gustan estas bicicletas rojas.",
    "Where did my sister find Anna?": "¿Dónde encontró mi hermana a Ana?",  # verb before the subject
    "Who sent the trumpets to Maria?": "¿Quién le envió las trompetas a María?",
    "Our older daughters are quite tired.": "Nuestras hijas mayores están bastante cansadas.",  # estar
    "Our daughters are kind.": "Nuestras hijas son amables.",  # ser
    "Paul and Anna are very tired.": "Pablo y Ana están muy cansados.",  # one of them is a man
    "We went to another beach.": "Fuimos a otra playa.",  # ir
    "Three big dogs slept in a square.": "Tres perros grandes durmieron en una plaza.",  # dormir
    "There were some kind women in a square.": "Había unas mujeres amables en una plaza.",
    "There are many new guitars on a bed.": "Hay muchas guitarras nuevas sobre una cama.",
    "Anna is as kind as Maria.": "Ana es tan amable como María.",
    "I am going to see Anna.": "Voy a ver a Ana.",
    "We never buy expensive tea.": "Nunca compramos té caro.",
    "We did not give apples to Anna.": "No le dimos manzanas a Ana.",
    "Many young waitresses showed Peter's old flute to Anna.": (
        "Muchas camareras jóvenes le mostraron la flauta vieja de Pedro a Ana."
    ),
}

PHRASES = {
    "the cold water": "el agua fría",
    "this water": "esta agua",
    "a big classroom": "un aula grande",
    "the long poems": "los poemas largos",  # masculine in spite of its ending
    "three young actresses": "tres actrices jóvenes",
    "our green trucks": "nuestros camiones verdes",
    "Maria's old guitar": "la guitarra vieja de María",
    "his younger sons": "sus hijos menores",
    "those old kings": "esos reyes viejos",
    "some black bicycles": "unas bicicletas negras",
}


@pytest.fixture(scope="module")
def pairs():
    return book.phrasebook()


@pytest.fixture(scope="module")
def parts(pairs):
    return book.split_by_combination(pairs)


@pytest.fixture(scope="module")
def rules():
    return book.Rules(RULES)


def digest():
    """A fingerprint of the first patterns' pairs and of their split."""
    rules = book.Rules(RULES)
    del rules.patterns[8:]
    pairs = book.expand(rules)
    return hashlib.sha256(repr([pairs, book.split_by_combination(pairs, 100)]).encode()).hexdigest()


def tokens(sentences):
    return {token for sentence in sentences for token in sentence.split()}


def neighbours(sentence):
    words = re.sub(r"[.?]", "", sentence.lower()).split()
    return {(words[at], words[at + 1]) for at in range(len(words) - 1)}


def test_there_are_tens_of_thousands_of_pairs_and_no_sentence_has_two_translations(pairs):
    assert 30_000 <= len(pairs) <= 60_000
    assert len({pair.source for pair in pairs}) == len(pairs)


def test_every_process_draws_and_splits_the_same():
    environment = {"PYTHONPATH": ":".join([__file__.rpartition("/")[0], *sys.path]), "PYTHONHASHSEED": "1"}
    command = [sys.executable, "-c", "from test_phrasebook import digest; print(digest())"]
    other = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.strip()
    assert other == digest()


@pytest.mark.parametrize(("english", "spanish"), SENTENCES.items())
def test_a_sentence_is_translated_as_by_hand(pairs, english, spanish):
    assert dict(pairs)[english] == spanish


@pytest.mark.parametrize(("english", "spanish"), PHRASES.items())
def test_a_noun_phrase_is_translated_as_by_hand(rules, english, spanish):
    kinds = [kind for groups in rules.phrases.values() for kinds in groups.values() for kind in kinds]
    known = {" ".join(phrase.english.split()): " ".join(phrase.spanish.split()) for kind in kinds for phrase in kind}
    assert known[english] == spanish


def test_every_sentence_is_well_formed(pairs):
    for english, spanish in pairs:
        assert re.fullmatch(r"[A-Z][A-Za-z' ]+[.?]", english)
        assert re.fullmatch(r"¿?[A-ZÁÉ][a-záéíóúñA-Z ]+[.?]", spanish)
        assert 4 <= len(english.split()) <= 14
        assert english.endswith("?") == spanish.startswith("¿") == spanish.endswith("?")


def test_no_sentence_breaks_a_rule_of_sound_or_agreement(pairs):
    wrong_english = re.compile(r"\b(a [aeiou]|an [^aeiou])")
    stems = "(alt|ric|viej|cansad|content|enferm|pequeñ|nuev|car|barat|roj|negr|madur|fresc|frí|limpi|suci|rot|larg)"
    wrong_spanish = re.compile(
        r"\b(a el|de el|la agua|la aula|una aula)\b"
        r"|\b(los|unos|estos|esos|otros|muchos|nuestros) (?!poemas)\w+as\b"
        r"|\b(unas|estas|esas|otras|muchas|nuestras) \w+os\b"
        rf"|\b(?!poemas)\w+as {stems}os\b|\b\w+os {stems}as\b|\bpoemas {stems}as\b"
    )
    assert [pair for pair in pairs if wrong_spanish.search(pair.target.lower().replace("los días", "diario"))] == []
    assert [pair for pair in pairs if wrong_english.search(pair.source)] == []


def test_the_split_leaks_no_sentence_and_no_combination(pairs, parts):
    train, held_out = parts
    assert len(held_out) == 1000
    assert len(train) > 0.95 * len(pairs)
    assert {*train, *held_out} <= {*pairs}
    assert {pair.source for pair in train}.isdisjoint(pair.source for pair in held_out)
    assert {pair.target for pair in train}.isdisjoint(pair.target for pair in held_out)
    seen = {both for pair in train for both in neighbours(pair.source)}
    assert all(neighbours(pair.source) - seen for pair in held_out)
    assert len({both for pair in held_out for both in neighbours(pair.source)} - seen) >= book.LARGEST_SHARE


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_held_out_word_is_known_from_training(pairs, parts, seed):
    train, held_out = parts if seed == 0 else book.split_by_combination(pairs, 1000, seed)
    assert tokens(pair.source for pair in held_out) <= tokens(pair.source for pair in train)
    assert tokens(pair.target for pair in held_out) <= tokens(pair.target for pair in train)
    assert (held_out == parts[1]) == (seed == 0)


def test_a_split_passes_over_words_seen_once_and_takes_shared_translations_along():
    twins = [Pair(f"noun{i} verb{j}.", f"nombre{i} verbo{j // 2}.") for i in range(30) for j in range(30)]
    once = [Pair(f"noun{i} once{i}.", f"nombre{i} solo{i}.") for i in range(30)]
    train, held_out = book.split_by_combination(twins + once, 100)
    assert len(held_out) == 100
    assert len(train) < len(twins + once) - 120  # most twins of held-out pairs are in neither part
    assert {pair.target for pair in train}.isdisjoint(pair.target for pair in held_out)
    assert set(once) <= set(train)


def test_a_split_that_the_pairs_cannot_give_is_refused(pairs):
    with pytest.raises(ValueError, match="expected at most 0 pairs to hold out; got 5"):
        book.split_by_combination(pairs[:10], 5)


def test_the_baseline_takes_the_nearest_sentence_and_the_first_of_equals():
    train = [Pair("She eats ripe pears.", "1"), Pair("He sold ripe pears.", "2"), Pair("He sold a red car.", "3"),
             Pair("Ripe pears he sold?", "4")]  # fmt: skip
    sources = ["He sold three pears.", "He sold a blue car.", "he SOLD ripe pears?", "Ripe pears he sold.", "Who?"]
    assert book.nearest_training_sentence(train, sources) == ["2", "3", "2", "4", "1"]


def test_the_baseline_fails_on_held_out_combinations_though_it_comes_near(parts):
    train, held_out = parts
    guesses = book.nearest_training_sentence(train, [pair.source for pair in held_out])
    shared = [len(tokens([guess]) & tokens([pair.target])) for guess, pair in zip(guesses, held_out, strict=True)]
    assert sum(guess == pair.target for guess, pair in zip(guesses, held_out, strict=True)) < 100
    assert sum(shared) > 0.4 * sum(len(pair.target.split()) for pair in held_out)


@pytest.mark.parametrize(
    ("rule", "broken", "message"),
    [
        ('"hermana", "hermanas", "f"]', '"hermana", "hermanas", "n"]', r"nouns\.sister: expected .*m \| f \| f\*"),
        ('["pan", "m"]', '["panes", "pan", "m"]', r"nouns\.bread: expected \[plural"),
        ('"alto, alta, altos, altas"', '"alto, alta, altos"', r"adjectives\.height: expected four forms .*got 'alto"),
        ('["buys", "bought"', '["buys", "buy"', r"verbs\.buy: expected a past unlike the present.*got 'buy'"),
        ('"comprar", "goods"', '"comprar", "ghosts"', r"verbs\.buy: expected a defined name; got 'ghosts'"),
        ('"vender", ', '"vendor", ', r"verbs\.sell: expected a defined name; got 'or'"),
        (
            'takes]\nsiblings = "owner"',
            'takes]\nsiblings = "none!"',
            r"nouns\.siblings: expected a defined name; .*'none!",
        ),
        ('"am, is, are, are", "soy', '"am, is, are", "soy', r"agreement\.ser: expected four forms"),
        (
            '"buy, sell, eat',
            '"bye, sell, eat',
            r"sentences\.question_word local_deed: expected a defined name; got 'bye'",
        ),
        (
            'times = "habit"',
            'times = "habits"',
            r"sentences\.habit routine: expected times among those of words; got 'habits'",
        ),
        ("[helpers]", "[helper]", "file: expected a defined name; got 'helpers'"),
        ("[helpers]", "[helpers", "file: .*line"),
    ],
)
def test_a_broken_rule_file_raises_an_error_that_names_the_rule(rule, broken, message):
    assert rule in RULES
    with pytest.raises(book.RuleError, match=f"^phrasebook rule {message}"):
        book.Rules(RULES.replace(rule, broken, 1))


def test_a_template_with_an_unknown_field_is_named():
    rules = book.Rules(RULES.replace("{subject} {verb_past}", "{subject} {verb_future}", 1))
    with pytest.raises(book.RuleError, match=r"sentences\.past deed: expected a defined name; got 'verb_future'"):
        book.expand(rules)


def test_a_sentence_with_two_translations_is_refused():
    rules = book.Rules(RULES.replace("this = [", "my = [", 1))
    rules.patterns[:] = [pattern for pattern in rules.patterns if pattern.name.startswith("sentences.like_dropped")]
    with pytest.raises(book.RuleError, match=r"sentences\.like_dropped plain: expected '.* my .*' to mean '.*' only"):
        book.expand(rules)


def test_a_pattern_that_has_too_few_sentences_is_named(monkeypatch):
    monkeypatch.setattr(book, "TRIES", 1)
    with pytest.raises(book.RuleError, match=r"sentences\.past deed: expected \d+ new sentences; got \d+"):
        book.expand(book.Rules(RULES))
