"""The block as data: what it refuses, what it counts, and whether the counts are true of the block."""

import copy
import pickle
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from positionwise import FeedForward, FFNSpec
from positionwise.errors import PositionwiseError, SpecError
from positionwise.variants import variant
from reference import ACTIVATIONS, VARIANTS

SEPARABLE = {"kernel_size": (3, 1), "second_kernel_size": (31, 1)}  # tensor2tensor's sepconv layer
KERNELS = [{"kernel_size": 3}, {"second_kernel_size": 5}, {"kernel_size": 3, "second_kernel_size": 31}, SEPARABLE,
           {"kernel_size": (3, 5), "second_kernel_size": (1, 3)}]  # fmt: skip
UNGATED_AND_GATED = ["relu", "gelu", "swiglu", "bilinear"]

sizes, flags = st.integers(1, 40), st.booleans()
odd = st.sampled_from([1, 3, 5])
kernels = odd | st.tuples(odd, odd)


@st.composite
def options(draw):
    """The keyword arguments of any block that can be built."""
    return {
        "d_model": draw(sizes), "d_ff": draw(sizes), "dropout": draw(st.sampled_from([0.0, 0.1, 1])),
        "activation": draw(st.sampled_from(sorted(ACTIVATIONS))), "is_gated": draw(flags), "bias1": draw(flags),
        "bias2": draw(flags), "bias_gate": draw(flags), "d_out": draw(st.none() | sizes),
        "kernel_size": draw(kernels), "second_kernel_size": draw(kernels),
        "padding": draw(st.sampled_from(["same", "left", "valid"])), "dilation": draw(kernels),
        "init": draw(st.sampled_from(["xavier_uniform", "pytorch"])),
        "backend": draw(st.sampled_from(["auto", "reference"])),
        "dtype": draw(st.sampled_from([None, torch.float32, torch.float64, torch.bfloat16])),
    }  # fmt: skip


def evaluate(calculation):
    return eval(calculation.replace("×", "*").replace(",", ""))


@given(options())
def test_the_components_add_up_to_the_parameters_of_the_block(options):
    spec = FFNSpec(**options)
    assert [evaluate(part.calculation) for part in spec.components] == [part.parameters for part in spec.components]
    assert spec.parameters == sum(p.numel() for p in FeedForward.from_spec(spec).parameters())


@given(options())
def test_options_build_the_same_spec_and_the_same_block_again(options):
    spec = FFNSpec(**options)
    assert spec.options() == {"recompute": False, "chunk_size": None, "device": None, **options}
    assert FFNSpec(**spec.options()) == spec
    assert FeedForward.from_spec(spec).spec == spec
    assert pickle.loads(pickle.dumps(spec)) == copy.deepcopy(spec) == spec


@pytest.mark.parametrize(
    ("options", "parts", "total"),
    [
        ({}, [1_050_624, 1_049_088], 2_099_712),  # Vaswani et al. 2017, section 3.3
        (SEPARABLE, [3 * 512, 1_050_624, 31 * 2048, 1_049_088], 2_164_736),
        ({"is_gated": True}, [1_050_624, 1_050_624, 1_049_088], 3_150_336),
        ({"is_gated": True, "bias1": False, "bias2": False, "bias_gate": False}, [1_048_576] * 3, 3_145_728),
        ({"activation": nn.PReLU(2048)}, [1_050_624, 1_049_088, 2048], 2_101_760),
    ],
    ids=["base", "separable", "gated", "gated without biases", "learned activation"],
)
def test_known_counts(options, parts, total):
    spec = FFNSpec(512, 2048, **options)
    assert [part.parameters for part in spec.components] == parts
    assert spec.parameters == total == sum(p.numel() for p in FeedForward.from_spec(spec).parameters())


def test_the_calculation_is_written_out():
    (first, second) = FFNSpec(512, 2048).components
    assert first.to_dict() == {
        "name": "First linear map", "calculation": "512 × 2,048 + 2,048", "parameters": 1_050_624,
    }  # fmt: skip
    assert second.calculation == "2,048 × 512 + 512"


@pytest.mark.parametrize("name", UNGATED_AND_GATED)
@pytest.mark.parametrize("options", [{}, {"d_out": 5}, *KERNELS], ids=str)
def test_flops_are_those_pytorch_counts(name, options):
    ffn = FeedForward.variant(name, 16, 24, **options)
    with FlopCounterMode(display=False) as counter:
        ffn(torch.randn(2, 9, 3, 16))
    assert ffn.spec.flops(2 * 9 * 3) == counter.get_total_flops()


@pytest.mark.parametrize("name", sorted(VARIANTS))
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("dtype", [None, torch.float64, torch.bfloat16], ids=str)
def test_bytes_saved_for_backward_are_those_autograd_keeps(saved_bytes, name, dropout, dtype):
    ffn = FeedForward.variant(name, 16, 24, dropout=dropout, dtype=dtype)
    assert ffn.spec.saved_for_backward(14) == saved_bytes(ffn, torch.randn(2, 7, 16, dtype=dtype))


@pytest.mark.parametrize("name", UNGATED_AND_GATED)
def test_dropout_of_everything_keeps_no_mask(saved_bytes, name):
    ffn = FeedForward.variant(name, 16, 24, dropout=1.0)
    scalar = 8  # PyTorch multiplies by one zero, which it may keep
    assert abs(ffn.spec.saved_for_backward(14) - saved_bytes(ffn, torch.randn(2, 7, 16))) <= scalar


@pytest.mark.parametrize("name", UNGATED_AND_GATED)
@pytest.mark.parametrize(
    "options", [*KERNELS, {"kernel_size": 4}, {"second_kernel_size": 2}, {"kernel_size": 5, "padding": "left"}], ids=str
)
def test_bytes_saved_by_wide_kernels_are_those_autograd_keeps(saved_bytes, name, options):
    ffn = FeedForward.variant(name, 16, 24, **options)
    assert ffn.spec.saved_for_backward(54) == saved_bytes(ffn, torch.randn(2, 9, 3, 16))


@pytest.mark.parametrize(
    "options",
    [{"activation": torch.sin}, {"kernel_size": 3, "padding": "valid"}],
)
def test_bytes_that_the_tokens_alone_do_not_tell_are_refused(options):
    with pytest.raises(SpecError, match="expected"):
        FFNSpec(16, 24, **options).saved_for_backward(8)


@pytest.mark.parametrize(
    ("spec", "equation"),
    [
        (FFNSpec(8, 32), r"y = W_2 \left(\max(0,\, W_1 x + b_1)\right) + b_2"),
        (FFNSpec(8, 32, bias1=False, bias2=False), r"y = W_2 \left(\max(0,\, W_1 x)\right)"),
        (variant("swiglu", 8, 32),
         r"y = W_2 \left(\mathrm{SiLU}(W_1 x + b_1) \odot \left(V x + c\right)\right) + b_2"),
        (variant("bilinear", 8, 32, bias1=False, bias_gate=False),
         r"y = W_2 \left(\left(W_1 x\right) \odot \left(V x\right)\right) + b_2"),
        (FFNSpec(8, 32, kernel_size=3, second_kernel_size=5),
         r"y = W_2 \left(K_2 * \left(\max(0,\, W_1 (K_1 * x) + b_1)\right)\right) + b_2"),
    ],
)  # fmt: skip
def test_the_equation_shows_what_the_block_has(spec, equation):
    assert spec.equation == equation


NO_SIZES = [0, -1, 1.5, 512.0, "512", True, None, (3, 1), float("nan")]
REFUSED = [
    *(("d_model", value) for value in NO_SIZES), *(("d_ff", value) for value in NO_SIZES),
    *(("d_out", value) for value in NO_SIZES if value is not None),
    *(("dropout", value) for value in [-0.1, 1.1, "x", "0.1", float("nan"), float("inf"), None, True, 1j]),
    *(("activation", value) for value in ["ReLU", "swiglu", "", None, 3, nn.ReLU]),
    *((flag, value) for flag in ["is_gated", "bias1", "bias2", "bias_gate"] for value in [1, 0, None, "yes"]),
    *((name, value) for name in ["kernel_size", "second_kernel_size", "dilation"]
      for value in [0, -3, 1.5, "3", True, None, (3,), (3, 0), (3, 1, 1), [3, 1], (3, True)]),
    *(("padding", value) for value in ["causal", "SAME", "", None, 1]),
    *(("init", value) for value in ["xavier", "normal", None]),
    *(("backend", value) for value in ["cuda", "Auto", None]),
    *(("dtype", value) for value in ["half", "int8", torch.int64, torch.bool, torch.complex64, 4]),
    ("recompute", 1), ("chunk_size", 128), ("chunk_size", 0),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), REFUSED, ids=lambda value: str(value))
def test_a_wrong_field_is_an_error_that_names_it_and_what_came(field, value):
    options = {"d_model": 8, "d_ff": 32, field: value}
    for build in (FFNSpec, FeedForward):
        with pytest.raises(SpecError, match=f"expected {field}") as caught:
            build(**options)
        assert repr(value) in str(caught.value)
        assert isinstance(caught.value, PositionwiseError)


@pytest.mark.parametrize("field", ["kernel_size", "second_kernel_size"])
@pytest.mark.parametrize("kernel", [2, 4, (3, 2), (2, 3), (2, 1)])
def test_an_even_kernel_cannot_be_causal(field, kernel):
    with pytest.raises(SpecError, match="odd kernel sizes with padding 'left'"):
        FFNSpec(8, 32, padding="left", **{field: kernel})
    assert FFNSpec(8, 32, padding="same", **{field: kernel}).padding == "same"


def test_names_that_are_not_known_are_answered_with_the_known_ones():
    for field, known in [("padding", "left, same, valid"), ("backend", "auto"), ("init", "pytorch, xavier_uniform")]:
        with pytest.raises(SpecError, match=known):
            FFNSpec(8, 32, **{field: "unheard-of"})


@pytest.mark.parametrize("dtype", ["float32", "torch.float64", torch.float16], ids=repr)
def test_every_dtype_that_the_spec_takes_can_be_built(dtype):
    spec = FFNSpec(8, 32, dtype=dtype)
    assert str(FeedForward.from_spec(spec).layer1.weight.dtype).endswith(str(dtype).removeprefix("torch."))


@pytest.mark.parametrize("integer", [np.int64, np.int32])
def test_numpy_integers_are_integers(integer):
    for options in ({"kernel_size": integer(3)}, {"kernel_size": (integer(3), integer(1))}, {"d_out": integer(5)}):
        spec = FFNSpec(integer(8), integer(32), **options)
        assert spec.parameters == sum(p.numel() for p in FeedForward.from_spec(spec).parameters())


def test_a_spec_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        FFNSpec(8, 32).d_ff = 64
