"""How a block is computed: the choice of path and the paths."""

from positionwise.kernels.choice import Block, Path, choose, compute, is_plain
from positionwise.kernels.dropout import keep_mask

__all__ = ["Block", "Path", "choose", "compute", "is_plain", "keep_mask"]
