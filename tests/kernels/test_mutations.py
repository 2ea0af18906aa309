"""Our tests can fail: a mistake in any kernel is found by the tests that the kernels have.

What is called here are the tests themselves, over a handful of their cases.
"""

import re
from itertools import product
from types import SimpleNamespace

import mutants
import pytest
import test_lean
import test_product
import test_sparse
import torch
from mutants import KINDS, QUICK, SLOW, SPARSE, source
from torch.autograd.gradcheck import GradcheckError

from positionwise.kernels import inference, launch, operators, sparse

FUNCTIONS = {"add_rows", "add_dots", "transpose", "positive", "forward", "backward"}
ACTIVATIONS, GATES = ("relu", "relu2"), (False, True)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    assert launch.is_usable()
    return tmp_path


def check_few_tokens():
    for sizes, threads in product(test_product.SIZES, (1, 2)):
        with pytest.MonkeyPatch.context() as patch:
            test_product.test_our_kernel_writes_every_number_and_no_other(patch, sizes, threads)
    for sizes, bias, threads in product(test_product.NETWORKS, (True, False), (1, 2)):
        with pytest.MonkeyPatch.context() as patch:
            test_product.test_the_network_in_one_call(patch, sizes, bias, threads)
    for sizes, relu in product(test_product.SIZES, (True, False)):
        test_product.test_every_engine_gives_the_product("numba", sizes, True, relu)


def check_sparse():
    """Lists come first: the products would follow wrong ones out of their arrays."""
    for threads in (1, 2):
        with pytest.MonkeyPatch.context() as patch, test_sparse.poison():
            patch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
            for width in (1, 65, 200):
                test_sparse.test_every_place_of_a_word(width)
            test_sparse.test_the_active_units_in_both_orders()
            for shape in ((17, 65), (33, 130)):
                test_sparse.test_panels_of_every_layout(shape)
            for case in product(ACTIVATIONS, GATES, [(5, 64, 33, 65), (66, 3, 70, 200)], [True], (4, 1024)):
                test_sparse.test_errors_are_no_larger_than_the_dense_paths(*case)
            for case in product(ACTIVATIONS, GATES, ["half"], [(3, 4, 129, 64), (5, 4, 70, 65)]):
                test_sparse.test_the_second_map_without_gradients(*case)


def check_dense():
    with test_lean.poison():
        for way, is_gated in product(test_lean.WAYS, GATES):
            test_lean.test_every_number_of_tokens(way, is_gated, (17, 6))
            test_lean.test_a_double_backward_is_right(way, is_gated, "gelu", 0.4)
            for activation in ACTIVATIONS:
                test_lean.test_the_numbers_are_the_references(way, activation, is_gated, (True, True, True))


def plant_few_tokens(monkeypatch, folder, mutant=None):
    _, kernels = mutants.copy(folder, ("vectors", "few"), mutant)
    monkeypatch.setitem(launch._state, "kernels", kernels)


def plant_sparse(monkeypatch, folder, mutant=None):
    """In the place of the mutant's kernel alone, or of all."""
    modules = mutants.copy(folder, SPARSE, mutant)
    names = {name: it for module in modules[-2:] for name, it in vars(module).items()}
    if mutant is not None:
        names = {**vars(sparse._kernels()), mutant.kernel: names[mutant.kernel]}
    monkeypatch.setitem(sparse._state, "kernels", SimpleNamespace(**names))


def plant_around_sparse(monkeypatch, folder, mutant=None):
    (module,) = mutants.copy(folder, ("sparse",), mutant)
    for user in (test_sparse, inference):
        monkeypatch.setattr(user, "sparse", module)


def plant_dense(monkeypatch, folder, mutant=None):
    (module,) = mutants.copy(folder, ("dense",), mutant)
    monkeypatch.setattr(operators, "dense", module)


WAYS = {
    "_linear": (plant_few_tokens, check_few_tokens),
    "sparse": (plant_around_sparse, check_sparse),
    "dense": (plant_dense, check_dense),
}
KERNELS = (plant_sparse, check_sparse)


def name(mutant):
    return f"{mutant.module}, {mutant.kind}: {mutant.old.strip()}"


def slow(*values):
    return [pytest.param(each, marks=pytest.mark.slow) for each in values]


@pytest.mark.parametrize("mutant", QUICK + slow(*SLOW), ids=name)
def test_every_mistake_is_found(monkeypatch, folder, mutant):
    plant, check = WAYS.get(mutant.kernel, KERNELS)
    plant(monkeypatch, folder, mutant)
    with pytest.raises((AssertionError, GradcheckError)):
        check()


@pytest.mark.parametrize("way", [*WAYS.values(), *slow(KERNELS)], ids=lambda way: way[0].__name__)
def test_copies_without_a_mistake_pass(monkeypatch, folder, way):
    plant, check = way
    plant(monkeypatch, folder)
    check()


@pytest.mark.parametrize("mutant", QUICK + SLOW, ids=name)
def test_every_mistake_has_its_place(mutant):
    assert source(mutant.module).count(mutant.old) == 1
    assert mutant.kind in KINDS


def test_every_kernel_has_mistakes_of_two_kinds():
    kernels = {name for module in SPARSE for name in re.findall(r"@kernel\ndef (\w+)", source(module))}
    for name in kernels | WAYS.keys():
        assert len({each.kind for each in QUICK + SLOW if each.kernel == name}) >= 2, name
    for name in FUNCTIONS:
        assert len({each.kind for each in mutants.LLVM_LOOPS + mutants.DENSE if each.function == name}) >= 2, name
