"""What a run was measured on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from positionwise import __version__
from positionwise.bench.cases import ENGINES

FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")
"""Of a processor, those that change which product is fastest."""


def describe() -> dict[str, Any]:
    """Processor, its features, cores, and the versions of whatever is measured."""
    facts = _facts()
    flags = (facts.get("flags") or facts.get("Features") or "").split()
    return {
        "processor": facts.get("model name") or platform.processor() or platform.machine(),
        "features": [name for name in FEATURES if name in flags],
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {"positionwise": __version__, **_versions("torch", "onnx", *ENGINES)},
    }


def _facts() -> dict[str, str]:
    """What Linux says of its first processor; nothing elsewhere."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _versions(*names: str) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
