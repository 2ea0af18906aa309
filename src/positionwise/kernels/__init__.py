"""How a block is computed: the choice of path and the paths."""

from positionwise.kernels.answers import measured, restore
from positionwise.kernels.choice import Block, Path, choose, compute, is_plain, saved_sparsely, skips
from positionwise.kernels.dropout import keep_mask

__all__ = [
    "Block",
    "Path",
    "choose",
    "compute",
    "is_plain",
    "keep_mask",
    "measured",
    "restore",
    "saved_sparsely",
    "skips",
]
