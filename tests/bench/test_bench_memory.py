"""Bytes, against what is known to be kept or taken."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from positionwise.bench import memory
from positionwise.bench.blocks import build
from positionwise.bench.cases import OURS, Case
from positionwise.bench.rounds import RETURNING

TRAIN = Case("train", "train", 8, 16, 4)
HIDDEN = 4 * 16 * 4
"""Bytes of a hidden-sized tensor of that case."""


@pytest.mark.parametrize(
    ("changes", "eager", "ours"),
    [({}, 1, 1), ({"activation": "gelu"}, 2, 1), ({"activation": "silu", "is_gated": True}, 4, 2)],
)
def test_saved_bytes_leave_out_x_and_the_parameters(changes, eager, ours):
    case = replace(TRAIN, **changes)
    assert memory.saved_bytes(*build(case, "eager")) == eager * HIDDEN
    assert memory.saved_bytes(*build(case, OURS)) == ours * HIDDEN


def test_the_peak_is_what_a_call_takes_above_what_it_returns():
    code = (
        "import json, torch\nfrom positionwise.bench.memory import peak_bytes\n"
        "def run():\n    gone = torch.ones(16_000_000)\n    return [gone[:2_000_000].clone()]\n"
        "print(json.dumps(peak_bytes(run)))"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **RETURNING}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    peak = json.loads(done.stdout)
    assert peak is None or peak == pytest.approx(64_000_000, rel=0.05)


def test_a_system_without_the_files_is_not_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_SELF", tmp_path)
    assert memory.peak_bytes(lambda: [torch.ones(1)]) is None
