"""Ratios, spreads and sentences, worked by hand on made-up times."""

import json
from dataclasses import replace

import pytest

from positionwise.bench import Case, Result, recommend, report
from positionwise.bench.cases import OURS, chosen

CASE = Case("forward", "forward", 512, 2048, 1, contenders=("eager", "openvino", OURS), against=("best", "eager"))
NOISE = "of 1 ratios are within the noise of this run's rounds: no difference seen."


def result(ours, case=CASE, bytes=None, **others):
    """A result; keywords are other contenders' rounds, in units that cancel."""
    return Result(case, {name.replace("_", " "): times for name, times in others.items()} | {OURS: ours}, bytes or {})


def steady(ratio, case):
    """A case that is exactly so many times as fast as whatever it is held against, in three rounds."""
    other = {"eager": [ratio] * 3} if case.against[0] == "best" else {name: [ratio] * 3 for name in case.against}
    return Result(case, {**other, OURS: [1.0] * 3}, {})


def test_a_ratio_is_the_median_of_the_rounds_ratios():
    figure = result([1.0, 2.0, 4.0], eager=[3.0, 4.0, 6.0], openvino=[9.0, 9.0, 9.0]).figures[1]
    assert (figure.base, figure.ratio, figure.low, figure.high) == ("eager", 2.0, 1.5, 3.0)  # 3, 2, 1.5


def test_the_best_other_has_the_lowest_median():
    best, eager = result([1.0] * 3, eager=[2.0, 2.0, 9.0], openvino=[3.0, 3.0, 1.0]).figures
    assert (best.against, best.base, best.ratio) == ("best", "eager", 2.0)
    assert replace(best, against="eager") == eager


def test_a_missing_contender_is_not_the_best():
    assert [figure.base for figure in result([1.0], eager=[2.0]).figures] == ["eager", "eager"]


@pytest.mark.parametrize(
    ("theirs", "seen"),
    [
        ([1.1, 1.2, 1.3], 1), ([0.9, 0.8, 0.7], -1), ([0.9, 1.2, 1.3], 0), ([1.0, 1.2, 1.3], 0), ([0.7, 0.8, 1.0], 0),
        ([1.0, 1.0, 1.0], 0), ([2.0, 2.0], 0), ([0.5], 0),
    ],
)  # fmt: skip
def test_a_difference_is_seen_where_three_rounds_agree(theirs, seen):
    assert result([1.0] * len(theirs), eager=theirs).figures[0].seen == seen


def test_tokens_are_told_apart_by_what_to_take():
    at = [replace(CASE, tokens=tokens) for tokens in (1, 4, 1024, 4096)]
    said = recommend(
        [
            result([1.0] * 3, at[0], eager=[1.5] * 3, openvino=[9.0] * 3),
            result([1.0] * 3, at[1], eager=[9.0] * 3, openvino=[2.0] * 3),
            result([1.0] * 3, at[2], eager=[9.0] * 3, openvino=[0.5] * 3),
            result([1.0] * 3, at[3], eager=[0.9, 1.0, 1.1], openvino=[9.0] * 3),
        ]
    )
    assert said == [
        "ReLU 512×2048, forward: positionwise is ahead of eager, openvino at T = 1, 4 (1.50 to 2.00 ×); "
        "keep openvino at T = 1,024 (0.50 ×); no difference seen at T = 4,096.",
        "2 of 8 ratios are within the noise of this run's rounds: no difference seen.",
    ]


@pytest.mark.parametrize(
    ("ratio", "held", "words"),
    [
        (1.2, {"eager": 100e6, OURS: 20e6}, "pays where memory is short, 20.0 MB instead of 100.0 MB at the peak; and"),
        (1.2, {"eager": 100e6, OURS: 20e6}, "costs no time (1.20 × as fast)"),
        (0.9, {"eager": 100e6, OURS: 20e6}, "at a cost in time (0.90 × as fast)"),
        (1.0, {"eager": 20e6, OURS: 20e6}, "does not pay, it saves no memory here (20.0 MB instead of 20.0 MB"),
        (1.0, {"eager": None, OURS: None}, "memory not measured here; no difference in time from eager seen"),
        (1.0, {}, "memory not measured here"),
    ],
)
def test_recomputation_is_weighed(ratio, held, words):
    case = chosen(["recompute"])[0]
    said = recommend([result([1.0] * 3, case, held, eager=[ratio] * 3)])
    assert said[0].startswith("Recompute, GELU 512×2048, forward and backward, T = 4,096: ")
    assert words in said[0]


@pytest.mark.parametrize(
    ("ratios", "words"),
    [
        ((1.5, 2.0), "pays at a density of 10 %, 3 % (1.50 to 2.00 ×); of the densities measured, from 10 % down."),
        ((0.5, 2.0), "does not pay at a density of 10 % (0.50 ×); pays at a density of 3 % (2.00 ×); "
                     "of the densities measured, from 3 % down."),
        ((2.0, 1.0), "pays at a density of 10 % (2.00 ×); no difference seen at a density of 3 % (1.00 ×)."),
        ((0.5, 0.6), "does not pay at a density of 10 %, 3 % (0.50 to 0.60 ×)."),
    ],
)  # fmt: skip
def test_the_sparse_path_pays_from_a_density_down(ratios, words):
    results = [steady(ratio, case) for ratio, case in zip(ratios, chosen(["sparse"])[:2], strict=True)]
    said = recommend(results)
    assert said[0] == f"Exact sparsity, ReLU 512×2048, forward and backward, T = 1,024, against eager: {words}"
    assert recommend(results[::-1])[0] == said[0]


@pytest.mark.parametrize(
    ("own", "theirs", "words"),
    [
        (0.5, 2.0, "costs time here (0.50 × float32's speed); ahead of PyTorch's own (2.00 ×)."),
        (2.0, 0.5, "gains time (2.00 × float32's speed); behind PyTorch's own (0.50 ×)."),
        (1.0, 1.0, "no difference in time from float32 seen (1.00 × float32's speed); "
                   "no difference from PyTorch's own seen (1.00 ×)."),
    ],
)  # fmt: skip
def test_bfloat16_is_held_against_both(own, theirs, words):
    case = chosen(["bfloat16"])[0]
    times = {"positionwise_float32": [own] * 3, "eager": [theirs] * 3}
    assert recommend([result([1.0] * 3, case, **times)])[0] == f"bfloat16, ReLU 512×2048, forward, T = 256: {words}"


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_too_few_rounds_are_told(rounds):
    said = recommend([result([1.0] * rounds, replace(CASE, against=("eager",)), eager=[2.0] * rounds)])
    few = "Fewer than 3 rounds show no spread, so that no difference counts as seen: take more."
    assert len(said) == 2
    assert said[0 if rounds < 3 else 1] == (few if rounds < 3 else f"0 {NOISE}")


def test_every_row_has_its_sentences():
    said = recommend([steady(2.0, case) for case in chosen()])
    assert [line.split(",")[0] for line in said[:-1]] == [
        "ReLU 512×2048", "ReLU 1024×4096", "GELU 512×2048", "SwiGLU 512×1365",
        "ReLU 512×2048 between a LayerNorm and a linear map", "GELU 512×2048 between a LayerNorm and a linear map",
        "SwiGLU 512×1365 between a LayerNorm and a linear map", "ReLU 512×2048", "GELU 512×2048", "SwiGLU 512×1365",
        "Recompute", "Recompute", "Exact sparsity", "Exact sparsity", "Exact sparsity", "bfloat16", "bfloat16",
    ]  # fmt: skip
    assert said[-1].startswith("0 of ")


def test_the_record_holds_everything():
    one = result([1.0, 2.0], bytes={"eager": 7, OURS: None}, eager=[2.0, 8.0])
    entry = json.loads(json.dumps(report({"cores": 2}, {"command": "c", "rounds": 2}, [one], {"x": "why"}, ["so"])))
    (held,) = entry.pop("results")
    assert entry == {
        "machine": {"cores": 2}, "command": "c", "rounds": 2, "not_measured": {"x": "why"}, "recommendation": ["so"],
    }  # fmt: skip
    assert (held["seconds"], held["bytes"]) == ({"eager": [2.0, 8.0], OURS: [1.0, 2.0]}, {"eager": 7, OURS: None})
    assert held["ratios"][1] == {
        "against": "eager", "base": "eager", "ratio": 3.0, "low": 2.0, "high": 4.0, "rounds": 2,
    }  # fmt: skip
    assert (held["row"], held["d_ff"], held["density"]) == ("forward", 2048, 0.5)
