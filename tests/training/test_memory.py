"""Keeping freed memory: asked of glibc alone, and no number changes."""

import platform

import pytest
import torch

from positionwise.training.memory import keep_freed_memory


def computed():
    torch.manual_seed(0)
    layer = torch.nn.Linear(300, 400)
    y = layer(torch.randn(200, 300)).relu()
    y.square().sum().backward()
    return y.detach(), layer.weight.grad


def test_it_says_whether_it_was_done():
    expected = platform.libc_ver()[0] == "glibc"
    assert keep_freed_memory() is expected
    assert keep_freed_memory() is expected  # twice does no harm


def test_the_computation_is_unchanged():
    before = computed()
    keep_freed_memory()
    assert all(torch.equal(a, b) for a, b in zip(before, computed(), strict=True))


@pytest.mark.parametrize("library", [("", ""), ("musl", "1.2")])
def test_other_c_libraries_are_left_alone(monkeypatch, library):
    monkeypatch.setattr(platform, "libc_ver", lambda: library)
    monkeypatch.setattr("ctypes.CDLL", lambda name: pytest.fail("the C library was opened"))
    assert keep_freed_memory() is False


def test_a_refusal_is_told(monkeypatch):
    class Library:
        def __init__(self, name):
            self.mallopt = lambda option, value: int(option == -3)  # glibc answers 0 for what it refuses

    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr("ctypes.CDLL", Library)
    assert keep_freed_memory() is False
