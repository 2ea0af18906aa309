"""Our block on the 52 cases of labml's: every number to 1e-9 in float64, on every path, and what that catches."""

from dataclasses import replace

import pytest
import torch
from labml_cases import DROPPED, GATED, NAMES, block, cases, check, errors, index, measured
from labml_mutants import MUTANTS, network

WAYS = ["auto", "reference", "lean", "layers"]
OWN_MASKS = ("auto", "lean", "layers")  # the reference alone asks PyTorch's dropout
AT_REST = [name for name in NAMES if name not in DROPPED]
SYMMETRIC = {"gate_on_V", "act_over_product", "act_on_both"}  # the same network where f is the identity

every_case = pytest.mark.parametrize("name", NAMES)
every_way = pytest.mark.parametrize("way", WAYS)


def test_the_cases_are_all_that_the_files_hold():
    assert "feed_forward.FeedForward @" in index()["oracle"]
    assert sorted(cases()) == sorted(NAMES)
    assert len(NAMES) == 52
    parameters = [{key for key in case.tensors if f"grad_{key}" in case.tensors} for case in cases().values()]
    assert parameters == [{*case.state, "x"} for case in cases().values()]
    assert [name for name, case in cases().items() if case.mask is not None] == DROPPED


@every_case
@every_way
def test_every_number_is_that_of_labml(name, way):
    got, _ = measured(cases()[name], way)
    expected = cases()[name].expected
    assert expected.keys() - got.keys() == ({"hidden"} if way in OWN_MASKS else set())
    for quantity, numbers in got.items():
        check(numbers, expected[quantity])


@pytest.mark.parametrize("name", [name for name in NAMES if "relu" in name or "reglu" in name or name in DROPPED])
@every_way
def test_what_is_exactly_zero_there_is_exactly_zero_here(name, way):
    got, _ = measured(cases()[name], way)
    for quantity in got.keys() & {"hidden", "entering"}:
        assert torch.equal(got[quantity] == 0, cases()[name].expected[quantity] == 0)
    assert got["entering"].count_nonzero() < 0.75 * got["entering"].numel()


@pytest.mark.parametrize("quantity", ["out", "entering"])
@every_way
def test_sums_of_small_integers_are_the_same_to_the_last_bit(quantity, way):
    got, _ = measured(cases()["int_reglu"], way)
    assert torch.equal(got[quantity], cases()["int_reglu"].expected[quantity])


@every_case
@every_way
def test_dropout_is_asked_once_and_of_the_hidden_units(name, way):
    case = cases()[name]
    _, calls = measured(case, way)
    rate = case.index["dropout_p"]
    if way == "reference":
        assert calls == [((3, 7, 40), rate, name in DROPPED)]
    elif way == "layers":
        assert calls == [((3, 7, 40), rate, True)] * (name in DROPPED)
    else:  # in forward, and again in backward where the dropped units are not told by their zeros
        times = {"traindrop_relu": 1}.get(name, 3)  # for the hidden units, and for what comes back to them
        assert calls == [((21, 40), rate, True)] * (times if name in DROPPED else 0)


@pytest.mark.parametrize("name", DROPPED)
def test_the_masks_are_of_the_cases_rate(name):
    case = cases()[name]
    live, p = case.tensors["hidden"] != 0, case.index["dropout_p"]  # of a unit that was zero no mask is known
    assert set(case.mask.unique().tolist()) == {0.0, 1 / (1 - p)}
    assert (case.mask[live] == 0).double().mean().item() == pytest.approx(p, abs=0.1)  # four deviations of 420 draws


@every_case
def test_the_state_dict_goes_in_and_comes_out_unchanged(name):
    case = cases()[name]
    state = block(case).state_dict()
    assert list(state) == case.index["params"]
    assert all(torch.equal(state[key], case.state[key]) for key in state)


@every_case
def test_the_parameters_are_as_many(name):
    case, ffn = cases()[name], block(cases()[name])
    stored = case.index["n_params"]
    assert ffn.spec.parameters == sum(p.numel() for p in ffn.parameters()) == case.tensors["n_params"] == stored


@every_case
@every_way
def test_the_largest_error_is_a_few_roundings(name, way):
    found = errors(cases()[name], way)
    assert cases()[name].expected.keys() - found.keys() == ({"hidden"} if way in OWN_MASKS else set())
    assert all(error < 1e-14 for error in found.values())


@pytest.mark.parametrize("quantity", ["out", "hidden", "grad_x", "grad_linear_v.bias"])
def test_a_number_that_is_off_shows_in_the_errors_and_only_there(quantity):
    case = cases()["geglu_111"]
    shifted = case.tensors[quantity].clone()
    largest = shifted.abs().argmax()
    shifted.flatten()[largest] *= 1 + 1e-6
    found = errors(replace(case, tensors={**case.tensors, quantity: shifted}), "reference")
    affected = {"hidden", "entering"} if quantity == "hidden" else {quantity}
    assert {name for name, error in found.items() if error > 1e-14} == affected
    assert found[quantity] == pytest.approx(1e-6, rel=1e-5)


@pytest.mark.parametrize("name", AT_REST)
def test_the_network_that_the_mistakes_are_made_in_is_right(name):
    check(network(cases()[name]), cases()[name].expected["out"])


@pytest.mark.parametrize("name", AT_REST)
def test_every_mistake_that_can_be_seen_is_caught(name):
    case = cases()[name]
    out, distances = case.expected["out"], case.index["mutant_max_abs_err"]
    seen = {mutant: distance for mutant, distance in distances.items() if distance}
    assert seen.keys() == distances.keys() - (SYMMETRIC if "bilinear" in name else set())
    for mutant, distance in seen.items():
        wrong = MUTANTS[mutant](case)
        assert (wrong - out).abs().max().item() == pytest.approx(distance, rel=1e-9), mutant  # it is the one meant
        with pytest.raises(AssertionError, match="not close"):
            check(wrong, out)


@pytest.mark.parametrize("name", [name for name in GATED if "bilinear" in name])
@pytest.mark.parametrize("mutant", sorted(SYMMETRIC))
def test_mistakes_about_the_gate_cannot_be_seen_where_f_is_the_identity(name, mutant):
    case = cases()[name]
    assert case.index["mutant_max_abs_err"][mutant] == 0
    assert torch.equal(MUTANTS[mutant](case), network(case))


def test_every_mistake_of_the_index_is_made():
    stored = [row.get("mutant_max_abs_err", {}) for row in index()["cases"].values()]
    assert set().union(*stored) == MUTANTS.keys()
    assert sum(map(len, stored)) == 319
