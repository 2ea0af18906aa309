"""What a result was measured on."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path


def describe() -> dict[str, object]:
    """Processor, cores, Python and the versions that matter."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("positionwise", "torch", "transformers", "tokenizers")},
        "command": " ".join(["python", *sys.argv]),
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    names = {key.strip(): value.strip() for key, value in facts.items()}
    flags = [flag for flag in ("avx2", "avx512f", "amx_tile") if flag in names.get("flags", "").split()]
    return f"{names.get('model name', platform.machine())} ({', '.join(flags) or 'no vector flags'})"
