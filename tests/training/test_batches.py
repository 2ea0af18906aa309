"""Token batches: each sentence once, the limit kept, the draw repeatable."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from positionwise.training.batches import Example, Examples, TokenBatches, collate, cut, pad

LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=80)


def examples(lengths):
    return Examples([[2] * s for s, _ in lengths], [[3] * t for _, t in lengths])


def padded(batch, lengths, side):
    """Ids of a batch's source or target when it is padded."""
    return len(batch) * max(lengths[i][side] for i in batch)


@given(LENGTHS, st.integers(1, 100), st.integers(0, 3), st.integers(0, 3))
def test_each_index_stands_in_one_batch_and_no_batch_is_too_large(lengths, tokens, seed, epoch):
    sampler = TokenBatches(examples(lengths), tokens, seed)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    assert len(sampler) == len(batches)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        too_long = len(batch) == 1 and max(lengths[batch[0]]) > tokens
        assert too_long or max(padded(batch, lengths, 0), padded(batch, lengths, 1)) <= tokens


@given(LENGTHS, st.integers(1, 100))
def test_a_batch_is_cut_only_where_the_next_sentence_does_not_fit(lengths, tokens):
    batches = list(cut(range(len(lengths)), lengths, tokens))
    for batch, following in zip(batches, batches[1:], strict=False):
        grown = [*batch, following[0]]
        assert max(padded(grown, lengths, 0), padded(grown, lengths, 1)) > tokens


@pytest.mark.parametrize(
    ("lengths", "tokens", "batches"),
    [
        ([(2, 2)] * 5, 4, [[0, 1], [2, 3], [4]]),
        ([(2, 2)] * 5, 5, [[0, 1], [2, 3], [4]]),
        ([(1, 9), (1, 1), (1, 1)], 3, [[0], [1, 2]]),  # the target alone is too long
        ([(1, 1), (9, 1), (1, 1)], 3, [[0], [1], [2]]),
        ([(1, 3), (3, 1), (1, 1)], 6, [[0, 1], [2]]),  # the third would make three rows of three
        ([], 3, []),
    ],
)
def test_cutting_by_hand(lengths, tokens, batches):
    assert list(cut(range(len(lengths)), lengths, tokens)) == batches


@pytest.fixture
def many():
    return examples([(1 + i % 13, 1 + i % 7) for i in range(300)])


def drawn(many, seed, epoch):
    sampler = TokenBatches(many, 64, seed)
    sampler.set_epoch(epoch)
    return list(sampler)


def test_a_draw_is_repeated_by_its_seed_and_epoch_alone(many):
    sampler = TokenBatches(many, 64, 0)
    first = list(sampler)
    assert list(sampler) == first == drawn(many, 0, 0)
    sampler.set_epoch(5)
    assert list(sampler) == drawn(many, 0, 5)
    sampler.set_epoch(0)
    assert list(sampler) == first


@pytest.mark.parametrize(("one", "other"), [((0, 0), (0, 1)), ((0, 0), (1, 0)), ((1, 10), (11, 0))])
def test_another_seed_or_epoch_draws_other_batches(many, one, other):
    met, others = ({frozenset(batch) for batch in drawn(many, *key)} for key in (one, other))
    assert len(met & others) < len(met) / 2  # other sentences meet, not only in another order


def test_batches_come_in_no_order_of_length(many):
    batches = drawn(many, 0, 0)
    lengths = [sum(len(many[i].source) + len(many[i].target) for i in batch) / len(batch) for batch in batches]
    steps = [abs(before - after) for before, after in zip(lengths, lengths[1:], strict=False)]
    assert sum(steps) > 5 * (max(lengths) - min(lengths))  # once in order, they would sum to this range


def test_sentences_of_about_equal_length_meet(many):
    spans = []
    for batch in drawn(many, 0, 0):
        sums = [len(many[i].source) + len(many[i].target) for i in batch]
        spans.append(max(sums) - min(sums))
    assert max(spans) <= 4
    assert sum(spans) / len(spans) < 2.5


def test_a_batch_is_padded_on_the_right():
    batch = collate([Example([5, 6, 1], [7, 1]), Example([8, 1], [9, 9, 9, 1])])
    assert {name: tensor.tolist() for name, tensor in batch.items()} == {
        "input_ids": [[5, 6, 1], [8, 1, 0]],
        "labels": [[7, 1, 0, 0], [9, 9, 9, 1]],
    }
    assert pad([[5]]).dtype == torch.int64


def test_examples_are_pairs_of_as_many_sources_as_targets():
    rows = Examples([[2, 1], [3, 1]], [[4, 1], [5, 6, 1]])
    assert len(rows) == 2
    assert rows[1] == Example([3, 1], [5, 6, 1])
    with pytest.raises(ValueError, match="zip"):
        Examples([[1]], [])
