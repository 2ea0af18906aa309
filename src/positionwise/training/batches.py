"""Batches of about equally many tokens, of sentences of about equal length."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, Sampler

from positionwise.training.tokenizer import PAD


class Example(NamedTuple):
    """A pair as ids, each side ending in ``<eos>``."""

    source: list[int]
    target: list[int]


class Examples(Dataset[Example]):
    """Encoded pairs."""

    def __init__(self, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> None:
        self.rows = [Example(*row) for row in zip(sources, targets, strict=True)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Example:
        return self.rows[index]


class TokenBatches(Sampler[list[int]]):
    """Indices of batches whose padded source and target each hold at most ``tokens`` ids.

    Every epoch draws anew which sentences meet: they are sorted by length with a little noise, cut, and the batches
    shuffled, all from ``seed`` and the epoch, so that a resumed run meets the same batches.
    """

    def __init__(self, examples: Examples, tokens: int, seed: int) -> None:
        self.lengths = [(len(row.source), len(row.target)) for row in examples.rows]
        self.tokens = tokens
        self.seed = seed
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Draw the batches of an epoch."""
        draw = random.Random(f"{self.seed} {epoch}")
        order = sorted(range(len(self.lengths)), key=lambda i: (sum(self.lengths[i]) + 2 * draw.random(), i))
        self.batches = list(cut(order, self.lengths, self.tokens))
        draw.shuffle(self.batches)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)


def cut(order: Sequence[int], lengths: Sequence[tuple[int, int]], tokens: int) -> Iterator[list[int]]:
    """Cut an order of sentences into batches; a sentence longer than ``tokens`` is a batch by itself."""
    batch: list[int] = []
    widest = 0
    for index in order:
        widest = max(widest, *lengths[index])
        if batch and widest * (len(batch) + 1) > tokens:
            yield batch
            batch, widest = [], max(lengths[index])
        batch.append(index)
    if batch:
        yield batch


def collate(rows: Sequence[Example]) -> dict[str, Tensor]:
    """Pad a batch: ``input_ids`` (B, S) and ``labels`` (B, T)."""
    return {
        "input_ids": pad([row.source for row in rows]),
        "labels": pad([row.target for row in rows]),
    }


def pad(rows: Sequence[Sequence[int]]) -> Tensor:
    """Rows of ids as one tensor (B, longest), padded on the right."""
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD)
