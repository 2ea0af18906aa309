"""The literature's names, and the widths that make a fair comparison."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from positionwise import FeedForward, FFNSpec
from positionwise.errors import SpecError
from positionwise.variants import VARIANTS, llama_width, variant
from reference import VARIANTS as PUBLISHED

GATED = sorted(name for name, (_, gated) in PUBLISHED.items() if gated)
PLAIN = sorted(set(PUBLISHED) - set(GATED))
NO_BIASES = {"bias1": False, "bias2": False, "bias_gate": False}


def test_the_names_are_those_of_the_literature():
    assert VARIANTS == PUBLISHED


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_a_variant_is_its_activation_and_its_gate_on_the_defaults(name):
    activation, is_gated = PUBLISHED[name]
    assert variant(name, 8, 32) == FFNSpec(8, 32, activation=activation, is_gated=is_gated)
    assert FeedForward.variant(name, 8, 32).spec == variant(name, 8, 32)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_a_variant_takes_the_options_of_the_block(name):
    options = {"dropout": 0.3, "bias1": False, "d_out": 5, "kernel_size": 3, "padding": "left", "init": "pytorch"}
    spec = FeedForward.variant(name, 8, 32, **options).spec
    assert {key: spec.options()[key] for key in options} == options


def test_swish_is_silu():
    assert variant("swish", 8, 32) == variant("silu", 8, 32)


@pytest.mark.parametrize("name", ["sigmoid", "SwiGLU", "swiglu ", "leaky_relu", "", None])
def test_an_unknown_name_is_an_error_that_lists_the_names(name):
    with pytest.raises(SpecError, match="expected variant to be one of") as caught:
        FeedForward.variant(name, 8, 32)
    assert all(known in str(caught.value) for known in [*PUBLISHED, repr(name)])


@pytest.mark.parametrize("option", [{"activation": "gelu"}, {"is_gated": True}])
def test_an_option_that_the_name_decides_is_an_error(option):
    with pytest.raises(SpecError, match=next(iter(option))):
        variant("relu", 8, 32, **option)


@pytest.mark.parametrize("name", GATED)
@pytest.mark.parametrize(("biases", "parameters"), [({}, 2_099_882), (NO_BIASES, 2_096_640)])
def test_the_matched_width_of_the_base_model(name, biases, parameters):
    spec = variant(name, 512, 2048, match_parameters=True, **biases)
    assert (spec.d_ff, spec.parameters) == (1365, parameters)
    assert sum(p.numel() for p in FeedForward.from_spec(spec).parameters()) == parameters


@pytest.mark.parametrize("name", PLAIN)
def test_an_ungated_variant_keeps_its_width_when_matched(name):
    assert variant(name, 512, 2048, match_parameters=True) == variant(name, 512, 2048)


sizes, flags = st.integers(1, 500), st.booleans()


@given(st.sampled_from(GATED), sizes, sizes, st.none() | sizes, flags, flags, flags, st.sampled_from([1, 3, (3, 5)]))
def test_no_other_width_is_closer(name, d_model, d_ff, d_out, bias1, bias2, bias_gate, kernel):
    options = {"bias1": bias1, "bias2": bias2, "bias_gate": bias_gate, "d_out": d_out, "kernel_size": kernel}
    goal = FFNSpec(d_model, d_ff, **options).parameters
    matched = variant(name, d_model, d_ff, match_parameters=True, **options)

    def distance(width):
        return abs(replace(matched, d_ff=width).parameters - goal)

    assert all(distance(matched.d_ff) <= distance(width) for width in range(max(1, matched.d_ff - 2), d_ff + 2))
    assert matched.d_ff == 1 or distance(matched.d_ff) < distance(matched.d_ff - 1)  # of two as close, the smaller


@pytest.mark.parametrize("name", GATED)
@pytest.mark.parametrize("d_model", [1, 7, 512])
def test_the_matched_width_of_one_hidden_unit_is_one(name, d_model):
    assert variant(name, d_model, 1, match_parameters=True).d_ff == 1


@pytest.mark.parametrize(
    ("d_model", "multiplier", "multiple_of", "d_ff"),
    [
        (4096, 1, 256, 11_008), (5120, 1, 256, 13_824), (6656, 1, 256, 17_920), (8192, 1, 256, 22_016),  # LLaMA 7B–65B
        (8192, 1.3, 4096, 28_672), (4096, 1.3, 1024, 14_336),  # Llama 2 70B, Llama 3 8B: their params.json
        (3, 1, 8, 8), (3, 1, 9, 9),
    ],
)  # fmt: skip
def test_llama_widths(d_model, multiplier, multiple_of, d_ff):
    assert llama_width(d_model, multiple_of=multiple_of, multiplier=multiplier) == d_ff
