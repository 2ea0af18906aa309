"""A training from files to a finished run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import set_seed
from transformers.utils import logging as transformers_logging

from positionwise.errors import DataError, RunError, Stopped
from positionwise.training.batches import Examples
from positionwise.training.data import Pair, Split, references, split_by_source
from positionwise.training.memory import keep_freed_memory
from positionwise.training.options import TrainOptions
from positionwise.training.run import Run, refuse_taken
from positionwise.training.scoring import Scores, score
from positionwise.training.tokenizer import Vocabulary, train_tokenizer
from positionwise.training.trainer import Progress, TranslationTrainer
from positionwise.training.translate import translate
from positionwise.transformer import TransformerForTranslation


class Listener:
    """What a training tells while it goes on; this one listens in silence."""

    def note(self, text: str) -> None:
        """A line about the data, the model or an event."""

    def progress(self, progress: Progress) -> None:
        """Where the training stands, every few steps."""


def start(
    pairs: Sequence[Pair],
    out: Path,
    options: TrainOptions,
    listener: Listener | None = None,
    origin: dict[str, Any] | None = None,
) -> Run:
    """Train on pairs into a new folder.

    Args:
        pairs: all of them; some are held out by source sentence and written into the folder.
        out: the new folder.
        options: sizes, schedule and budget.
        listener: told what happens.
        origin: where the pairs come from, kept in ``run.json``.

    Raises:
        RunError: when the folder is taken.
        DataError: when too few sources are left to learn from.
        Stopped: when a signal ended it early; the folder can be resumed.
    """
    options.model_config(options.vocab_size)  # a wrong option is told before a wrong size of the data
    split = split_by_source(pairs, options.validation, options.held_out, options.seed)
    return start_split(split, out, options, listener, origin)


def start_split(
    split: Split,
    out: Path,
    options: TrainOptions,
    listener: Listener | None = None,
    origin: dict[str, Any] | None = None,
) -> Run:
    """Train on pairs that are split already; see `start`."""
    listener = listener or Listener()
    # Everything that may refuse comes before the first file is written.
    refuse_taken(out)
    options.model_config(options.vocab_size)
    tokenizer = train_tokenizer((text for pair in split.train for text in pair), options.vocab_size)
    if tokenizer.size < options.vocab_size:
        listener.note(f"the pairs give {tokenizer.size:,} entries, fewer than the {options.vocab_size:,} asked for")
    examples = _examples(tokenizer, split.train, options.max_length, listener)
    run = Run.create(out, options.to_dict())
    run.save_pairs("validation", split.validation)
    run.save_pairs("test", split.test)
    run.record["data"] = {**(origin or {}), "pairs": len(split.train), "sha256": fingerprint(split.train)}
    run.save_record()
    run.save_tokenizer(tokenizer)
    return _fit(run, examples, options, None, listener)


def resume(pairs: Sequence[Pair], out: Path, listener: Listener | None = None, **budget: Any) -> Run:
    """Continue a training from its last checkpoint, with its own options.

    Args:
        pairs: all pairs, as `start` got them.
        out: the folder.
        listener: told what happens.
        **budget: ``minutes`` or ``max_steps``, instead of the run's own.

    Raises:
        RunError: when the folder is not a run, has ended, has no checkpoint, or was trained on other pairs.
    """
    run = Run.open(out)
    checkpoint = run.unfinished()
    try:
        options = replace(TrainOptions(**run.record["options"]), **budget)
        learned_from = run.record["data"]["sha256"]
    except (KeyError, TypeError) as error:
        raise RunError(f"expected options and data in run.json of {out}; got {error!r}") from None
    train = split_by_source(pairs, options.validation, options.held_out, options.seed).train
    if fingerprint(train) != learned_from:
        raise RunError(f"expected the pairs that {out} was trained on; got others")
    listener = listener or Listener()
    examples = _examples(run.tokenizer(), train, options.max_length, listener)
    return _fit(run, examples, options, checkpoint, listener)


def fingerprint(pairs: Sequence[Pair]) -> str:
    """A digest of pairs in their order."""
    digest = hashlib.sha256()
    for pair in pairs:
        digest.update(f"{pair.source}\t{pair.target}\n".encode())
    return digest.hexdigest()


def _fit(run: Run, examples: Examples, options: TrainOptions, checkpoint: Path | None, listener: Listener) -> Run:
    keep_freed_memory()
    transformers_logging.disable_progress_bar()
    set_seed(options.seed)
    tokenizer = run.tokenizer()
    model = TransformerForTranslation(options.model_config(tokenizer.size))
    listener.note(f"{len(examples):,} pairs to learn from, {model.num_parameters():,} parameters")
    watched = references(run.pairs("validation"))

    def validate(model: TransformerForTranslation) -> dict[str, float]:
        scores = score_model(model, tokenizer, watched)
        return {"validation_bleu": scores.bleu, "validation_chrf": scores.chrf}

    trainer = TranslationTrainer(model, examples, options, run, validate, listener.progress)
    trainer.start(checkpoint)
    if trainer.watcher.stopped_by:
        steps = f"{trainer.state.global_step:,} steps"
        raise Stopped(f"stopped by {trainer.watcher.stopped_by} after {steps}; train --resume --out {run.path} goes on")
    run.save_model(model)
    return _judge(run, model, tokenizer, trainer, listener)


def _examples(tokenizer: Vocabulary, pairs: Sequence[Pair], max_length: int, listener: Listener) -> Examples:
    sources, targets = (tokenizer.encode([pair[side] for pair in pairs]) for side in (0, 1))
    kept = [i for i in range(len(pairs)) if max(len(sources[i]), len(targets[i])) <= max_length]
    if not kept:
        raise DataError(
            f"expected pairs of at most max_length={max_length} pieces of words; got none in {len(pairs):,}"
        )
    if len(kept) < len(pairs):
        listener.note(f"{len(pairs) - len(kept):,} pairs longer than {max_length} pieces of words are not learned from")
    return Examples([sources[i] for i in kept], [targets[i] for i in kept])


def _judge(
    run: Run, model: TransformerForTranslation, tokenizer: Vocabulary, trainer: TranslationTrainer, listener: Listener
) -> Run:
    scores = score_model(model, tokenizer, references(run.pairs("test")))
    run.record["results"] = {
        "steps": trainer.state.global_step,
        "seconds": round(trainer.budget.seconds, 1),
        "tokens": trainer.tokens,
        "test": scores.to_dict(),
    }
    run.save_record()
    run.keep_only("")
    listener.note(f"held-out: {scores}")
    return run


def score_model(
    model: TransformerForTranslation,
    tokenizer: Vocabulary,
    held_out: dict[str, list[str]],
    *,
    beams: int = 1,
    progress: Callable[[int], object] = lambda done: None,
) -> Scores:
    """Translate held-out sources and score them against their references."""
    model.eval()
    translations = translate(model, tokenizer, list(held_out), beams=beams, progress=progress)
    return score(translations, list(held_out.values()))
