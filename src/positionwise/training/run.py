"""The folder that a training leaves and that translate, evaluate and ``from_pretrained`` read."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import positionwise
from positionwise.errors import PositionwiseError, RunError
from positionwise.training.data import Pair, read_pairs, write_pairs
from positionwise.training.subwords import Subwords
from positionwise.training.tokenizer import BytePairs, Vocabulary
from positionwise.training.words import Words, read_vocabulary

if TYPE_CHECKING:
    from positionwise.transformer import TransformerForTranslation

FORMAT = 1
"""Changes when an older version could no longer read the folder."""


class WriteError(PositionwiseError, OSError):
    """A file that could not be written; what was there before is untouched."""


@dataclass
class Run:
    """A training's folder.

    ``run.json`` holds the format, the version, the options, the data's figures and the results; ``checkpoint-N`` the
    state after N steps; the model and the tokenizer lie beside them once training has ended.
    """

    path: Path
    record: dict[str, Any]

    @classmethod
    def create(cls, path: Path, options: dict[str, Any]) -> Run:
        """Make a new folder for a run.

        Raises:
            RunError: when the folder holds a run already, or anything else.
        """
        refuse_taken(path)
        path.mkdir(parents=True, exist_ok=True)
        run = cls(path, {"format": FORMAT, "version": positionwise.__version__, "options": options, "results": {}})
        run.save_record()
        return run

    @classmethod
    def open(cls, path: Path) -> Run:
        """Open an existing run.

        Raises:
            RunError: for a folder that is not a run, or one of another format.
        """
        if not path.is_dir():
            raise RunError(f"expected the folder of a run; got {path}, which is {_what(path)}")
        try:
            record = json.loads((path / "run.json").read_text(encoding="utf-8"))
            written, version = record["format"], record["version"]
        except FileNotFoundError:
            raise RunError(f"expected the folder of a run; got {path}, which has no run.json") from None
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"expected run.json in {path} to hold a run's record; got {error!r}") from None
        if written != FORMAT:
            raise RunError(
                f"expected a run of format {FORMAT}; got format {written} of positionwise {version} in {path}"
            )
        if missing := {"options", "results"} - record.keys():
            raise RunError(
                f"expected options and results in run.json of {path}; got no {' and no '.join(sorted(missing))}"
            )
        return cls(path, record)

    def unfinished(self) -> Path:
        """The checkpoint that a training can go on from.

        Raises:
            RunError: when the training has ended, or never reached a checkpoint.
        """
        if self.record["results"]:
            raise RunError(f"expected a training that has not ended; got {self.path}, which has its results")
        checkpoint = self.checkpoint()
        if checkpoint is None:
            raise RunError(f"expected a checkpoint in {self.path}; got none")
        return checkpoint

    def save_record(self) -> None:
        """Write ``run.json``."""
        text = json.dumps(self.record, indent=1, ensure_ascii=False) + "\n"
        self.write("run.json", lambda path: path.write_text(text, encoding="utf-8"))

    def write(self, name: str, writer: Callable[[Path], object]) -> None:
        """Write a file or folder beside its place, then rename it.

        Raises:
            WriteError: when it cannot be written; what was there before is untouched.
        """
        partial = self.path / ".partial"
        try:
            _remove(partial)
            partial.mkdir()
            writer(partial / name)
            for written in sorted(partial.iterdir()):
                os.replace(written, self.path / written.name)
        except Exception as error:
            if not _is_write_failure(error):
                raise
            raise WriteError(
                f"could not write {name} in {self.path}: {_reason(error)}; what was there is kept"
            ) from None
        finally:
            _remove(partial)

    def save_pairs(self, name: str, pairs: list[Pair]) -> None:
        """Write held-out pairs."""
        self.write(f"{name}.tsv", lambda path: write_pairs(path, pairs))

    def pairs(self, name: str) -> list[Pair]:
        """Read held-out pairs.

        Raises:
            RunError: for a converted model's folder, which has none.
        """
        path = self.path / f"{name}.tsv"
        if "converted" in self.record["results"] and not path.exists():
            raise RunError(f"expected pairs to judge a converted model by; got no {path} (evaluate --data gives them)")
        return read_pairs([path])

    def save_tokenizer(self, tokenizer: Vocabulary) -> None:
        """Write the vocabulary under the name of its kind."""
        self.write(tokenizer.file, tokenizer.write)

    def tokenizer(self) -> Vocabulary:
        """Read the vocabulary: tensor2tensor's file where there is one, else the tokenizer that training learned.

        Raises:
            RunError: when there is none, or it is no tokenizer.
            DataError: for a vocabulary file that cannot be read.
        """
        place = self.path / Subwords.file
        for path in (place, self.path / Words.file):
            if path.exists():
                return read_vocabulary(path)
        if "converted" in self.record["results"]:
            raise RunError(
                f"expected the model's vocabulary; got none (put tensor2tensor's vocabulary file at {place})"
            )
        path = self.path / BytePairs.file
        try:
            return BytePairs.read(path)
        except Exception as error:  # the library raises plain exceptions
            raise RunError(f"expected a tokenizer at {path}; got {error}") from None

    def save_model(self, model: TransformerForTranslation) -> None:
        """Write the model."""
        from transformers.utils import logging

        logging.disable_progress_bar()
        self.write("model.safetensors", lambda path: model.save_pretrained(path.parent))

    def model(self) -> TransformerForTranslation:
        """Read the model, ready to translate.

        Raises:
            RunError: before training has ended, and for files that do not hold this model.
        """
        from safetensors import SafetensorError
        from transformers.utils import logging

        from positionwise.transformer import TransformerForTranslation

        if not (self.path / "model.safetensors").exists():
            hint = " (training has not ended: train --resume continues it)" if self.checkpoint() else ""
            raise RunError(f"expected a model in {self.path}; got no model.safetensors{hint}")
        logging.disable_progress_bar()
        try:
            loaded: Any = TransformerForTranslation.from_pretrained(self.path, output_loading_info=True)
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise RunError(f"expected a model in {self.path}; got {str(error).splitlines()[0]}") from None
        model: TransformerForTranslation = loaded[0]
        if wrong := {key: names for key, names in loaded[1].items() if names}:
            raise RunError(f"expected the tensors of config.json in {self.path}; got {wrong}"[:300])
        model.eval()
        return model

    def checkpoint(self) -> Path | None:
        """The last complete checkpoint."""
        found = [path for path in self.path.glob("checkpoint-*") if path.name.rpartition("-")[2].isdigit()]
        return max(found, key=lambda path: int(path.name.rpartition("-")[2]), default=None)

    def keep_only(self, checkpoint: str) -> None:
        """Delete every checkpoint but this one."""
        for path in self.path.glob("checkpoint-*"):
            if path.name != checkpoint:
                _remove(path)


def refuse_taken(path: Path) -> None:
    """Raise a `RunError` when a folder holds a run already, or anything else."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RunError(f"expected {path} to be a new or empty folder; got {_occupant(path)}")


def _occupant(path: Path) -> str:
    if not (path / "run.json").exists():
        return "something else"
    if any(path.glob("checkpoint-*")):
        return "a run that can be continued (--resume)"
    if (path / "model.safetensors").exists():
        return "a run that has ended"
    return "a run that never reached a checkpoint (delete the folder to start again)"


def _what(path: Path) -> str:
    return "a file" if path.exists() else "not there"


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


def _is_write_failure(error: Exception) -> bool:
    """Whether an exception is a failed write: PyTorch and safetensors have their own for a full disk."""
    if isinstance(error, OSError):
        return True
    text = str(error)
    return any(sign in text for sign in ("PytorchStreamWriter", "I/O error", "iostream error", "os error"))


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    full = os.strerror(errno.ENOSPC)
    return full if full in str(error) or "PytorchStreamWriter" in str(error) else str(error).splitlines()[0]
