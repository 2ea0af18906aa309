"""Starting our compiled kernels: when they may run, on how many threads, and what the first call says."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

_process = os.getpid()
_state: dict[str, Any] = {"kernels": None, "failed": find_spec("numba") is None}
_lock = threading.Lock()
_followed = threading.local()


def may_run() -> bool:
    """Whether our kernels are not known to be unusable: nothing is compiled to find out."""
    return not _state["failed"] and os.getpid() == _process


def is_usable(*tensors: Tensor) -> bool:
    """Whether a kernel may run on these tensors: whole rows, and no forked child, which OpenMP would end."""
    return may_run() and all(tensor.is_contiguous() for tensor in tensors) and _kernels() is not None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool, out: Tensor | None = None) -> Tensor:
    """W·x + b for few tokens, by `positionwise.kernels.few`; into ``out`` if that is given."""
    out = x.new_empty(len(x), len(weight)) if out is None else out
    _few().linear_(x, weight, _bias(bias, weight), out, relu)
    return out


def network(x: Tensor, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor | None) -> Tensor:
    """The network with ReLU for few tokens, by `positionwise.kernels.few`."""
    hidden, out = x.new_empty(len(x), len(w1)), x.new_empty(len(x), len(w2))
    _few().network_(x, w1, _bias(b1, w1), hidden, w2, _bias(b2, w2), out)
    return out


def _bias(bias: Tensor | None, weight: Tensor) -> Tensor:
    return weight.new_zeros(len(weight)) if bias is None else bias.contiguous()


def _few() -> Any:
    """The kernels, set to as many threads as PyTorch takes."""
    few = _kernels()
    follow_threads(few.numba)
    return few


def follow_threads(numba: Any) -> None:
    """Have this thread's Numba take as many threads as PyTorch; Numba's own call is slow, so only on a change."""
    threads = torch.get_num_threads()
    if getattr(_followed, "threads", None) != threads:
        numba.set_num_threads(min(threads, numba.config.NUMBA_NUM_THREADS))
        _followed.threads = threads


def _kernels() -> Any:
    """The compiled kernels; None where they cannot be had."""
    if _state["kernels"] is None and not _state["failed"]:
        with _lock:
            if _state["kernels"] is None:
                _start()
    return _state["kernels"]


def _start() -> None:
    """Import Numba, choose its OpenMP threads, and compile or read from the cache."""
    with told_when_slow("compiling kernels for few tokens, once for this machine"):
        import numba

        if "NUMBA_THREADING_LAYER" not in os.environ:
            numba.config.THREADING_LAYER = "omp"  # type: ignore[attr-defined]  # keeps its speed between PyTorch's own OpenMP regions
        threads = torch.get_num_threads()
        try:
            few = load("few")
            w = torch.zeros(8, 8, dtype=torch.float32, device="cpu")
            few.linear_(w[:1], w, w[0], torch.empty_like(w[:1]), False)
            _state["kernels"] = few
        except (ValueError, OSError, RuntimeError):  # no OpenMP here: PyTorch's products do the work
            _state["failed"] = True
        torch.set_num_threads(threads)  # Numba's start sets OpenMP's own number, which is PyTorch's


def load(name: str) -> Any:
    """A module of kernels, compiled or read from Numba's cache; where that is damaged, compiled into another."""
    try:
        return import_module(f"positionwise.kernels.{name}")
    except (EOFError, IndexError, KeyError, TypeError, UnpicklingError) as error:
        import numba

        sys.stderr.write(f"positionwise: compiling anew: expected Numba's cache of kernels; got {error!r}\n")
        numba.config.CACHE_DIR = tempfile.mkdtemp(prefix="positionwise-")  # type: ignore[attr-defined]
        return import_module(f"positionwise.kernels.{name}")


@contextmanager
def told_when_slow(text: str) -> Iterator[None]:
    """A line on standard error when something takes more than a second."""
    timer = threading.Timer(1.0, lambda: sys.stderr.write(f"positionwise: {text} …\n"))  # one write: no lines mixed
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
