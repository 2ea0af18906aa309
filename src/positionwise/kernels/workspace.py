"""Scratch memory that is used again from call to call.

Fresh memory of some megabytes comes from the kernel page by page, each of which costs a fault and is cleared.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

MOST = 1 << 25
"""Numbers that a thread keeps for a dtype; what a call needs beyond that is its own."""

_held = threading.local()


def scratch(count: int, rows: int, width: int, like: Tensor) -> list[Tensor]:
    """So many buffers (rows, width), with whatever numbers; valid until this thread asks again.

    ``like`` has their dtype; they are on the CPU.
    """
    need = count * rows * width
    if need > MOST or not like.is_cpu:
        return [like.new_empty(rows, width) for _ in range(count)]
    if not hasattr(_held, "memory"):
        _held.memory = {}
    memory = _held.memory.get(like.dtype)
    if memory is None or len(memory) < need:
        with torch.inference_mode(False), torch.no_grad():  # usable in either mode later
            memory = _held.memory[like.dtype] = torch.empty(need, dtype=like.dtype, device="cpu")
    return list(memory[:need].view(count, rows, width).unbind(0)) if count else []
