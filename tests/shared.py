"""What tests of whole models share: the files of ../shared, and Transformers small enough for one core."""

import os
from pathlib import Path

import pytest
import torch

from positionwise.transformer import TransformerConfig, TransformerForTranslation

FOLDER = Path(__file__).resolve().parents[2] / "shared"
SIZES = {"vocab_size": 23, "d_model": 16, "d_ff": 24, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 2}
STILL = {"dropout": 0.0, "embedding_dropout": 0.0}
SEPARATE = {"share_embeddings": False, "target_vocab_size": 19}


def shared_file(name):
    """A file of ../shared; without the folder the test is skipped, and fails where CI is set."""
    if FOLDER.is_dir():
        return FOLDER / name
    reason = "the folder ../shared with the fixtures is not here"
    if os.environ.get("CI"):
        pytest.fail(reason)
    return pytest.skip(reason)


def config(**fields):
    """A tiny configuration; dropout only where it is asked for."""
    return TransformerConfig(**{**SIZES, **STILL, **fields})


def model(dtype=torch.float64, **fields):
    """A tiny model in evaluation, every one of its numbers drawn anew: biases and norms too, so that each counts."""
    built = TransformerForTranslation(config(**fields)).to(dtype).eval()
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            norm = name.endswith("norm.weight")
            parameter.copy_(torch.randn(parameter.shape, dtype=torch.float64) * 0.3 + (1 if norm else 0))
    return built


def sentences(*lengths, vocabulary=19, width=None):
    """Ids from 2 on, one row for each length, zeros behind."""
    ids = torch.zeros(len(lengths), width or max(lengths), dtype=torch.long)
    for row, length in zip(ids, lengths, strict=True):
        row[:length] = torch.randint(2, vocabulary, (length,))
    return ids
