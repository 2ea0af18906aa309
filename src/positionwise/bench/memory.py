"""Bytes: what autograd keeps for backward, and what a call needs at its peak."""

from __future__ import annotations

import ctypes
import gc
import platform
import threading
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

_SELF = Path("/proc/self")


def saved_bytes(module: nn.Module, x: Tensor) -> int:
    """Bytes that autograd keeps of ``module(x)``: distinct storages, parameters and x left out."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (x, *module.parameters())}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage  # held, so that its address is not given to another
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        module(x.requires_grad_())
    return sum(storage.nbytes() for storage in kept.values())


def peak_bytes(run: Callable[[], list[Tensor]]) -> int | None:
    """Resident bytes at the peak of a call, above what it was given and what it returns; None where not measured.

    The process must have been started so that glibc hands freed blocks back, as `positionwise.bench.rounds` does. The
    first call, which sets up libraries, is made by a thread that ends: what they keep for a thread is freed with it,
    and counts in the second call.
    """
    if platform.libc_ver()[0] != "glibc" or not (_SELF / "clear_refs").exists():
        return None
    warm_up = threading.Thread(target=run)
    warm_up.start()
    warm_up.join()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    (_SELF / "clear_refs").write_text("5", encoding="ascii")  # the high-water mark becomes what is resident now
    before = _high_water()
    returned = run()
    after = _high_water()
    return max(0, after - before - sum(tensor.untyped_storage().nbytes() for tensor in returned))


def _high_water() -> int:
    """The most bytes that were resident since the mark was set."""
    lines = (_SELF / "status").read_text(encoding="ascii", errors="replace").splitlines()
    (mark,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return 1024 * int(mark)
