"""The run around a converted model, so that it translates like one that was trained here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from positionwise.training.run import Run
from positionwise.training.tokenizer import check_size
from positionwise.training.words import read_vocabulary

if TYPE_CHECKING:
    from positionwise.transformer import TransformerForTranslation


def converted_run(
    out: Path, model: TransformerForTranslation, vocabulary_file: Path | None, record: dict[str, Any]
) -> Run:
    """Write a converted model as a finished run.

    Args:
        out: the new folder.
        model: what the conversion gave.
        vocabulary_file: tensor2tensor's, of subwords or of whole words, copied into the folder; without it the folder
            cannot translate until the file is laid there as ``vocabulary.subwords`` or ``vocabulary.words``.
        record: what was converted, as JSON would hold it; kept in ``run.json``.

    Raises:
        RunError: when the folder is taken.
        DataError: for a vocabulary file that cannot be read, or one of another size than the model's.
    """
    # Everything that may refuse comes before the first file is written.
    vocabulary = None if vocabulary_file is None else read_vocabulary(vocabulary_file)
    if vocabulary is not None:
        check_size(vocabulary, model.config)
    run = Run.create(out, {})
    if vocabulary is not None:
        run.save_tokenizer(vocabulary)
    run.save_model(model)
    run.record["results"] = {"converted": record}
    run.save_record()
    return run
