"""The demonstration: learn a phrasebook's grammar and translate combinations that were never seen."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from positionwise.training.data import Pair, Split, references
from positionwise.training.options import TrainOptions
from positionwise.training.phrasebook import nearest_training_sentence, phrasebook, split_by_combination
from positionwise.training.run import Run
from positionwise.training.scoring import Scores, score
from positionwise.training.train import Listener, start_split
from positionwise.training.translate import translate

HELD_OUT, WATCHED = 1_000, 100


class Example(NamedTuple):
    """A held-out sentence with what was expected and what came."""

    source: str
    reference: str
    translation: str


class Outcome(NamedTuple):
    """What a demonstration shows at its end."""

    run: Run
    model: Scores
    baseline: Scores
    examples: list[Example]


def options(seed: int, minutes: float) -> TrainOptions:
    """Sizes and schedule that learn the phrasebook."""
    return TrainOptions(
        minutes=minutes, d_model=128, d_ff=512, num_heads=4, encoder_layers=2, decoder_layers=2, vocab_size=2000,
        batch_tokens=2048, learning_rate=3e-3, dropout=0.05, seed=seed, held_out=HELD_OUT, validation=WATCHED,
    )  # fmt: skip


def split(seed: int) -> Split:
    """The phrasebook with combinations held out: some to watch, the others to judge by."""
    train, held_out = split_by_combination(phrasebook(), HELD_OUT + WATCHED, seed)
    return Split(train, held_out[:WATCHED], held_out[WATCHED:])


def demonstrate(out: Path, parts: Split, chosen: TrainOptions, listener: Listener) -> Outcome:
    """Train on the phrasebook, and set the model beside the nearest training sentence's translation."""
    run = start_split(parts, out, chosen, listener)
    test = references(parts.test)
    baseline = score(nearest_training_sentence(parts.train, list(test)), list(test.values()))
    shown = parts.test[:: len(parts.test) // 10][:10]
    return Outcome(run, Scores(**run.record["results"]["test"]), baseline, _examples(run, shown))


def _examples(run: Run, pairs: list[Pair]) -> list[Example]:
    translations = translate(run.model(), run.tokenizer(), [pair.source for pair in pairs])
    return [Example(pair.source, pair.target, text) for pair, text in zip(pairs, translations, strict=True)]
