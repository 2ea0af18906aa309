"""Scratch memory: its shape, its reuse, and what must not be kept."""

import threading

import pytest
import torch

from positionwise import FeedForward
from positionwise.kernels import workspace
from positionwise.kernels.workspace import scratch


@pytest.mark.parametrize("count", [0, 1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_buffers_lie_side_by_side(count, dtype):
    buffers = scratch(count, 3, 5, torch.empty(0, dtype=dtype))
    assert [tuple(buffer.shape) for buffer in buffers] == [(3, 5)] * count
    for i, buffer in enumerate(buffers):
        buffer.fill_(i)
    assert all((buffer == i).all() and buffer.dtype == dtype for i, buffer in enumerate(buffers))


def test_memory_is_used_again_by_the_same_thread_alone():
    like = torch.empty(0)
    first = scratch(2, 8, 8, like)[0].data_ptr()
    assert scratch(1, 4, 4, like)[0].data_ptr() == first
    other = []
    thread = threading.Thread(target=lambda: other.extend(scratch(1, 8, 8, like)))
    thread.start()
    thread.join()
    assert other[0].data_ptr() != first


def test_what_is_too_large_is_not_kept(monkeypatch):
    monkeypatch.setattr(workspace, "MOST", 10)
    like = torch.empty(0, dtype=torch.float16)
    before = dict(getattr(workspace._held, "memory", {}))
    assert [tuple(buffer.shape) for buffer in scratch(2, 3, 5, like)] == [(3, 5)] * 2
    assert getattr(workspace._held, "memory", {}).keys() == before.keys()


def test_a_training_may_follow_an_inference():
    """Memory that was made in inference mode could not be written to outside of it."""
    workspace._held.memory = {}
    ffn = FeedForward(6, 10, recompute=True)
    with torch.inference_mode():
        scratch(3, 4, 10, torch.empty(0))
        ffn(torch.randn(4, 6))
    ffn(torch.randn(4, 6)).sum().backward()
    assert ffn.layer1.weight.grad.any()


def test_what_is_saved_for_backward_is_not_scratch():
    ffn = FeedForward(6, 10, 0.0, "gelu", is_gated=True)
    inputs = [torch.randn(4, 6, requires_grad=True) for _ in range(3)]
    alone = [torch.autograd.grad(ffn(x).sum(), x)[0] for x in inputs]
    outputs = [ffn(x).sum() for x in inputs]  # three calls are open before the first goes back
    for y, x, expected in zip(reversed(outputs), reversed(inputs), reversed(alone), strict=True):
        assert torch.equal(torch.autograd.grad(y, x)[0], expected)
