"""Start-up times: processes in turn, each figure the median of its rounds, ratios taken round by round.

python benchmarks/imports.py [--rounds 9]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

import machine

COMMANDS = {
    "python": [sys.executable, "-c", "pass"],
    "import torch": [sys.executable, "-c", "import torch"],
    "import positionwise": [sys.executable, "-c", "import positionwise"],
    "import positionwise, FeedForward": [sys.executable, "-c", "from positionwise import FeedForward"],
    "positionwise --help": [sys.executable, "-c", "from positionwise.cli import main; main(['--help'])"],
}


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    for command in COMMANDS.values():
        seconds(command)
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, command in COMMANDS.items():
            times[name].append(seconds(command))
    base = times["import torch"]
    rows = {
        name: {
            "seconds": round(statistics.median(row), 3),
            "of import torch": round(statistics.median(a / b for a, b in zip(row, base, strict=True)), 3),
        }
        for name, row in times.items()
    }
    for name, row in rows.items():
        print(f"{name:<34} {row['seconds']:6.3f} s  {row['of import torch']:6.3f} of import torch")
    print(json.dumps({**machine.describe(), "rounds": rounds, "results": rows}))


if __name__ == "__main__":
    main()
