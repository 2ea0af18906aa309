"""transformers' trainer with token batches, a budget, whole checkpoints and an orderly stop.

What is ours stands in the hooks that the trainer offers; the loop, the optimizer's step, clipping, mixed precision,
random states and TensorBoard are the trainer's.
"""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, cast

import torch
from torch.utils.data import DataLoader
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from positionwise import kernels
from positionwise.errors import RunError, Stopped
from positionwise.training.batches import Examples, TokenBatches, collate
from positionwise.training.budget import Budget
from positionwise.training.options import TrainOptions
from positionwise.training.run import Run
from positionwise.training.summaries import Summaries
from positionwise.training.tokenizer import PAD
from positionwise.transformer import TransformerForTranslation

STATE = "budget.json"
MANY_EPOCHS = 1_000_000
"""Epochs when only the clock ends a training."""
VALIDATIONS = 4
"""How often validation is scored in a training."""


def arguments(options: TrainOptions, run: Run) -> TrainingArguments:
    """The trainer's own options."""
    return TrainingArguments(
        output_dir=str(run.path / ".partial"),
        max_steps=options.max_steps or -1,
        num_train_epochs=MANY_EPOCHS,
        learning_rate=options.learning_rate,
        weight_decay=options.weight_decay,
        adam_beta2=0.98,
        optim="adamw_torch_fused",
        seed=options.seed,
        logging_steps=10,
        logging_nan_inf_filter=False,
        save_strategy="no",
        eval_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )


class TranslationTrainer(Trainer):
    """The trainer of a run."""

    def __init__(
        self,
        model: TransformerForTranslation,
        examples: Examples,
        options: TrainOptions,
        run: Run,
        validate: Callable[[TransformerForTranslation], dict[str, float]],
        report: Callable[[Progress], object],
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from transformers.integrations.integration_utils import TensorBoardCallback

        self.options = options
        self.run_folder = run
        self.budget = Budget(options.minutes, options.max_steps)
        self.tokens = 0
        self.validate = validate
        watcher = Watcher(self, report)
        writer = SummaryWriter(str(run.path / "tensorboard"))
        callbacks = [watcher, TensorBoardCallback(writer), *([Summaries(model, writer)] if options.summaries else [])]
        super().__init__(model, arguments(options, run), callbacks=callbacks, train_dataset=examples)
        self.remove_callback(PrinterCallback)
        self.watcher = watcher

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Batches of about equally many tokens."""
        assert isinstance(self.train_dataset, Examples)
        batches = TokenBatches(self.train_dataset, self.options.batch_tokens, self.options.seed)
        loader: DataLoader[Any] = DataLoader(self.train_dataset, batch_sampler=batches, collate_fn=collate)
        prepared: DataLoader[Any] = self.accelerator.prepare(loader)
        return prepared

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The learning rate as a share of the budget."""

        def rate(step: int) -> float:
            return self.budget.rate(step, self.options.warmup)

        if self.lr_scheduler is None:
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or cast(Any, self.optimizer), rate)
        return self.lr_scheduler

    def evaluate(self, *unused: Any, **options: Any) -> dict[str, float]:
        """Score the validation sentences by translating them."""
        scores = self.validate(cast(TransformerForTranslation, self.model))
        self.log(scores)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, scores)
        return scores

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """Count the tokens of a step and take it."""
        self.tokens += sum(int((inputs[side] != PAD).sum()) for side in ("input_ids", "labels"))
        return super().training_step(model, inputs, num_items_in_batch)

    def start(self, checkpoint: Path | None) -> None:
        """Train until the budget is spent or a signal comes."""
        earlier = 0.0
        if checkpoint is not None:
            with _whole(checkpoint):
                state = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
                earlier, self.tokens = state["seconds"], state["tokens"]
                kernels.restore(state.get("kernels", {}))  # so that every step is what it would have been
        self.budget.start(earlier)
        with self.watcher.signals():
            self.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        with _whole(Path(resume_from_checkpoint)):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with _whole(Path(checkpoint or "")):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with _whole(Path(checkpoint or "")):
            super()._load_rng_state(checkpoint)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Write a checkpoint beside the others, rename it when it is whole, then delete the others."""
        name = f"checkpoint-{self.state.global_step}"
        if (self.run_folder.path / name).exists():
            return
        self.run_folder.write(name, lambda path: self._write_checkpoint(path, model, trial))
        self.run_folder.keep_only(name)

    def _write_checkpoint(self, path: Path, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        state = {"seconds": self.budget.seconds, "tokens": self.tokens, "kernels": kernels.measured()}
        (path / STATE).write_text(json.dumps(state), encoding="utf-8")


@contextmanager
def _whole(checkpoint: Path) -> Iterator[None]:
    """Turn whatever a damaged checkpoint raises into an error that names it."""
    try:
        yield
    except Exception as error:
        got = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunError(f"expected a whole checkpoint at {checkpoint}; got {got}") from None


class Progress:
    """Where a training stands, for whoever shows it."""

    def __init__(self, trainer: TranslationTrainer, loss: float | None, scores: dict[str, float]) -> None:
        self.step = int(trainer.state.global_step)
        self.done = trainer.budget.done(self.step)
        self.seconds = trainer.budget.seconds
        self.seconds_left = self.seconds * (1 - self.done) / self.done if self.done else None
        self.tokens_per_second = trainer.tokens / max(self.seconds, 1e-9)
        self.loss = loss
        self.scores = scores
        """Of the latest validation, when it has just been made."""


class Watcher(TrainerCallback):
    """Ends a training with its budget or a signal, asks for checkpoints and validation, and reports."""

    def __init__(self, trainer: TranslationTrainer, report: Callable[[Progress], object]) -> None:
        self.trainer = trainer
        self.report = report
        self.stopped_by: str | None = None
        self.last_checkpoint = 0.0
        self.validations = 0

    def signals(self) -> Any:
        """A context in which Ctrl-C and SIGTERM end the training after the step in hand."""
        return _Signals(self)

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **rest: Any) -> None:
        """Do not repeat at once what an earlier sitting has done."""
        self.last_checkpoint = self.trainer.budget.seconds
        self.validations = int(self.trainer.budget.done(state.global_step) * VALIDATIONS)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **rest: Any) -> None:
        """Ask for what is due after a step."""
        budget = self.trainer.budget
        done = budget.done(state.global_step)
        control.should_training_stop = done >= 1 or self.stopped_by is not None
        checkpoint_due = budget.seconds - self.last_checkpoint > 60 * self.trainer.options.checkpoint_minutes
        control.should_save = control.should_training_stop or checkpoint_due
        if control.should_save:
            self.last_checkpoint = budget.seconds
        if not self.stopped_by and int(done * VALIDATIONS) > self.validations:
            self.validations = int(done * VALIDATIONS)
            control.should_evaluate = True

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, logs: Any = None, **rest: Any) -> None:
        """Report a loss or a validation; a loss that is no number ends the training."""
        if not math.isfinite(logs.get("loss", 0.0)):
            raise Stopped(
                f"stopped after {state.global_step:,} steps: the loss is {logs['loss']}; try a lower learning rate"
            )
        scores = {key: value for key, value in logs.items() if key.startswith("validation")}
        if "loss" in logs or scores:
            self.report(Progress(self.trainer, logs.get("loss"), scores))


class _Signals:
    """Turns the first Ctrl-C or SIGTERM into a wish to stop; a second one acts as it always does."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher

    def __enter__(self) -> None:
        self.before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number in self.before:
            signal.signal(number, self._note)

    def __exit__(self, *failure: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.watcher.stopped_by = signal.Signals(number).name
        signal.signal(number, self.before[signal.Signals(number)])
