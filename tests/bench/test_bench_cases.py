"""The cases of each row, the choice among them, and their way to a worker."""

from collections import Counter
from dataclasses import replace

import pytest

from positionwise.bench import cases
from positionwise.bench.cases import OURS, Job, chosen
from positionwise.errors import SpecError

ALL = (1, 4, 16, 64, 256, 1024, 4096)


def test_the_rows_hold_what_the_table_shows():
    assert Counter(case.row for case in chosen()) == {
        "forward": 14, "activations": 14, "between": 21, "train": 9, "recompute": 2, "sparse": 4, "bfloat16": 2,
    }  # fmt: skip
    assert len(set(chosen())) == 66


@pytest.mark.parametrize(
    ("row", "blocks", "tokens"),
    [
        ("forward", ["ReLU 512×2048", "ReLU 1024×4096"], ALL),
        ("activations", ["GELU 512×2048", "SwiGLU 512×1365"], ALL),
        ("between", ["ReLU 512×2048", "GELU 512×2048", "SwiGLU 512×1365"], ALL),
        ("train", ["ReLU 512×2048", "GELU 512×2048", "SwiGLU 512×1365"], (256, 1024, 4096)),
        ("recompute", ["GELU 512×2048", "SwiGLU 512×1365"], (4096,)),
        ("bfloat16", ["ReLU 512×2048"], (256,)),
    ],
)
def test_a_row_has_each_block_at_each_number_of_tokens(row, blocks, tokens):
    found = [(case.label, case.tokens) for case in chosen([row])]
    assert list(dict.fromkeys(found)) == [(block, number) for block in blocks for number in tokens]


def test_the_sparse_row_names_its_densities_and_what_it_is_held_against():
    found = [(c.label, c.work, c.tokens, c.density, c.backend, c.against[0]) for c in chosen(["sparse"])]
    train = ("forward and backward", 1024)
    assert found == [
        ("ReLU 512×2048", *train, 0.1, "sparse", "eager"),
        ("ReLU 512×2048", *train, 0.03, "sparse", "eager"),
        ("ReGLU 512×2048", *train, 0.1, "sparse", "eager"),
        ("ReLU 1024×4096", "forward", 1, 0.1, "sparse", f"{OURS} lean"),
    ]


def test_every_case_measures_ours_and_what_it_is_held_against():
    for case in chosen():
        assert case.contenders[-1] == OURS
        assert set(case.against) - {"best"} <= set(case.contenders)
    assert {case.memory for case in chosen(["train"])} == {"saved"}
    assert {(case.memory, case.recompute) for case in chosen(["recompute"])} == {("peak", True)}


def test_a_contender_that_is_ours_with_other_options_changes_the_case():
    forward = chosen(["bfloat16"])[0]
    assert forward.as_of(f"{OURS} float32") == (OURS, replace(forward, dtype="float32"))
    assert forward.as_of("eager") == ("eager", forward)
    assert chosen(["sparse"])[-1].as_of(f"{OURS} lean")[1].backend == "lean"


def test_rows_keep_the_tables_order_and_tokens_restrict_them():
    assert [case.row for case in chosen(["bfloat16", "recompute"])] == ["recompute"] * 2 + ["bfloat16"] * 2
    assert [(case.row, case.tokens) for case in chosen(["train", "sparse"], [1])] == [("sparse", 1)]
    assert {case.tokens for case in chosen([], [1, 256])} == {1, 256}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["forwards"],), "expected --rows to be one of activations, .*; got 'forwards' .did you mean 'forward'"),
        ((["recompute"], [1]), r"expected --tokens of the chosen rows \(4096\); got 1"),
        (([], [2, 1]), r"expected --tokens of the chosen rows \(1, 4, 16, .*\); got 2"),
    ],
)
def test_an_unknown_row_or_number_of_tokens_is_refused(arguments, message):
    with pytest.raises(SpecError, match=message):
        chosen(*arguments)


@pytest.mark.parametrize("case", [cases.chosen([row])[-1] for row in cases.ROWS], ids=lambda case: case.row)
def test_a_job_survives_the_command_line(case):
    job = Job(case, "eager", 2, 0.25, "peak")
    assert Job.from_json(job.to_json()) == job
