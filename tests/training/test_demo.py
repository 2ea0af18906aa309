"""The demonstration's pieces, on a small part of the phrasebook and a budget of seconds."""

import pytest

from positionwise.training import demo
from positionwise.training.data import Pair, Split, references
from positionwise.training.options import TrainOptions
from positionwise.training.run import Run
from positionwise.training.scoring import score
from positionwise.training.train import score_model


@pytest.fixture(scope="module")
def parts(pairs):
    return Split(pairs[:150], pairs[150:155], [*pairs[155:], Pair(pairs[155].source, "Otra.")])


@pytest.fixture(scope="module")
def told(listen):
    return listen()


@pytest.fixture(scope="module")
def outcome(parts, tiny, told, tmp_path_factory):
    path = tmp_path_factory.mktemp("demo") / "new"
    return demo.demonstrate(path, parts, tiny(held_out=1000, validation=100), told)


def test_the_run_is_one_that_can_be_used(outcome, parts):
    run = Run.open(outcome.run.path)
    assert run.pairs("test") == parts.test
    assert run.pairs("validation") == parts.validation
    assert run.record["results"]["steps"] == 30


def test_the_models_scores_are_those_of_the_held_out_pairs(outcome, parts):
    scores = score_model(outcome.run.model(), outcome.run.tokenizer(), references(parts.test))
    assert outcome.model == scores
    assert scores.sentences == 25  # sources, one of which has two translations


def test_the_baseline_repeats_the_nearest_training_sentence(outcome, parts):
    assert outcome.baseline.sentences == 25
    assert outcome.baseline.exact_match == 0  # no held-out sentence was learned from
    assert outcome.baseline.chrf > 50  # but one that differs by a word was
    learned = {pair.target for pair in parts.train}
    nearest = demo.nearest_training_sentence(parts.train, list(references(parts.test)))
    assert learned.issuperset(nearest)
    assert outcome.baseline == score(nearest, list(references(parts.test).values()))


def test_the_examples_are_held_out_sentences_with_their_translations(outcome, parts):
    shown = [(example.source, example.reference) for example in outcome.examples]
    assert len(set(shown)) == 10
    assert shown == [pair for pair in parts.test if pair in shown]
    alone = demo.translate(outcome.run.model(), outcome.run.tokenizer(), [source for source, _ in shown])
    assert [example.translation for example in outcome.examples] == alone
    assert all(example.translation for example in outcome.examples)


def test_the_listener_is_told(outcome, told):
    assert [step for step, _ in told.losses] == [10, 20, 30]
    assert told.notes[0].startswith("150 pairs to learn from")


@pytest.mark.parametrize(("seed", "minutes"), [(0, 1.75), (7, 0.5)])
def test_the_options_carry_the_seed_and_the_minutes(seed, minutes):
    options = demo.options(seed, minutes)
    assert isinstance(options, TrainOptions)
    assert (options.seed, options.minutes, options.max_steps) == (seed, minutes, None)
    assert options.model_config(options.vocab_size).d_model == options.d_model


def test_the_split_watches_some_combinations_and_judges_by_the_others(monkeypatch):
    asked = []

    def split_by_combination(pairs, held_out, seed):
        asked.append((held_out, seed))
        return pairs[held_out:], pairs[:held_out]

    everything = [Pair(f"s{i}", f"t{i}") for i in range(3000)]
    monkeypatch.setattr(demo, "phrasebook", lambda: everything)
    monkeypatch.setattr(demo, "split_by_combination", split_by_combination)
    split = demo.split(5)
    assert asked == [(1100, 5)]
    assert (len(split.train), len(split.validation), len(split.test)) == (1900, 100, 1000)
    assert sorted([*split.train, *split.validation, *split.test]) == sorted(everything)


@pytest.mark.slow
def test_the_phrasebooks_own_split_leaks_nothing():
    split = demo.split(0)
    sources = [{pair.source for pair in part} for part in split]
    assert [len(part) for part in split[1:]] == [100, 1000]
    assert len(set.union(*sources)) == sum(map(len, sources))
    assert len(split.train) > 10 * len(split.test)
    assert demo.split(0) == split
