"""Keeping freed memory for the next step."""

from __future__ import annotations

import ctypes
import platform

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Ask glibc to keep large freed blocks instead of handing them back to the kernel; say whether it was done.

    Every step allocates the same large tensors. By default glibc maps each anew, and the page faults cost 10 to 40 %
    of a small model's step on a CPU. The price is that the process keeps its peak memory. Other C libraries are left
    alone.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(M_MMAP_THRESHOLD, 2**30) and mallopt(M_TRIM_THRESHOLD, LARGEST))
