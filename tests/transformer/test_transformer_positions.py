"""Positions and embeddings against their formulas."""

import numpy as np
import pytest
import torch
import translation_reference as ref
from torch import nn

from positionwise.errors import InputError
from positionwise.transformer.embedding import Positions, embed, sinusoids
from reference import array
from shared import config, shared_file


@pytest.mark.parametrize(("start", "length", "width"), [(0, 40, 16), (0, 9, 2), (5, 12, 6), (100, 20, 32), (0, 7, 3),
                                                         (3, 8, 15), (0, 0, 4)])  # fmt: skip
def test_sinusoids_are_the_formula(start, length, width):
    table = sinusoids(start, length, width)
    assert (table.shape, table.dtype) == ((length, width), torch.float32)
    np.testing.assert_allclose(table, ref.sinusoids(start, length, width), rtol=0, atol=2e-5)


def test_sinusoids_are_a_half_of_sines_and_then_a_half_of_cosines():
    first, second = sinusoids(0, 2, 6)
    assert first.tolist() == [0, 0, 0, 1, 1, 1]
    np.testing.assert_allclose(second[:3], np.sin([1, 1e-2, 1e-4]), rtol=1e-5)
    np.testing.assert_allclose(second[3:], np.cos([1, 1e-2, 1e-4]), rtol=1e-6)


@pytest.mark.parametrize("width", [3, 7, 15])
def test_an_odd_width_ends_in_a_channel_of_zeros(width):
    table = sinusoids(0, 5, width)
    assert (table[:, -1] == 0).all()
    assert torch.equal(table[:, :-1], sinusoids(0, 5, width - 1))


@pytest.mark.parametrize("width", [8, 9])
def test_an_offset_is_a_slice_of_a_longer_table(width):
    torch.testing.assert_close(sinusoids(30, 10, width), sinusoids(0, 50, width)[30:40], rtol=0, atol=1e-6)


def test_sinusoids_of_tensor2tensor():
    data = np.load(shared_file("fixtures/tensor2tensor/timing_signal_d16.npz"))
    x = torch.from_numpy(data["in/x"])
    y = Positions(config())(x)
    np.testing.assert_allclose(y, data["out/y"], rtol=0, atol=2e-6)


@pytest.mark.parametrize("kind", ["sinusoidal", "learned", "none"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_positions_are_added_from_the_start_on(kind, dtype):
    added = Positions(config(positions=kind, max_positions=9))
    if kind == "learned":
        nn.init.normal_(added.weight)
    added = added.to(dtype)
    x = torch.randn(2, 4, 16).to(dtype)
    rows = {
        "sinusoidal": lambda: ref.sinusoids(5, 4, 16), "learned": lambda: array(added.weight)[5:9],
        "none": lambda: np.zeros((4, 16)),
    }[kind]()  # fmt: skip
    y = added(x, start=5)
    assert y.dtype == dtype
    np.testing.assert_allclose(array(y), array(x) + rows, rtol=0, atol=0.04 if dtype == torch.bfloat16 else 1e-6)
    assert [tuple(p.shape) for p in added.parameters()] == ([(9, 16)] if kind == "learned" else [])


@pytest.mark.parametrize(("start", "length"), [(0, 10), (9, 1), (6, 4)])
def test_beyond_the_last_learned_position_is_an_error(start, length):
    added = Positions(config(positions="learned", max_positions=9))
    with pytest.raises(InputError, match=f"at most 9 positions; got {start + length}"):
        added(torch.zeros(1, length, 16), start)
    assert added(torch.zeros(1, 9, 16)).shape == (1, 9, 16)


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("pad", [0, 3])
def test_embeddings_are_scaled_and_the_pads_row_is_zero(scale, masked, pad):
    table, ids = nn.Embedding(23, 16).double(), torch.tensor([[1, 0, 3], [3, 22, 0]])
    made = config(embedding_scale=scale, mask_pad_embedding=masked, pad_token_id=pad)
    rows = array(table.weight)[ids.numpy()] * (4.0 if scale else 1.0)
    rows[(ids.numpy() == pad) & masked] = 0.0
    np.testing.assert_allclose(array(embed(table, ids, made)), rows, rtol=1e-15)
    assert (table.weight[pad] != 0).all()
