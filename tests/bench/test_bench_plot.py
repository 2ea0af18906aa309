"""The picture of a run."""

import pytest

from positionwise.bench import Result
from positionwise.bench.cases import OURS, chosen
from positionwise.bench.plot import plot

pytest.importorskip("matplotlib")


@pytest.mark.parametrize(("ending", "first"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_every_row_becomes_a_panel(tmp_path, ending, first):
    others = {name: [2.0, 3.0, 4.0] for name in ("eager", f"{OURS} lean", f"{OURS} float32")}
    path = tmp_path / f"table.{ending}"
    plot([Result(case, {**others, OURS: [1.0] * 3}, {}) for case in chosen()], path)
    written = path.read_bytes()
    assert written.startswith(first)
    if ending == "svg":
        for words in ("T = 1024, 3 %", "recompute", "GELU 512×2048, forward, against eager", "against the best other"):
            assert words.encode() in written  # as a comment beside the outlines of its letters
