"""Seven faults of labml's FeedForward and of the experiments around it, and that ours has none of them.

labml_nn.transformers.feed_forward and configs, at e6b3c8a6. Beside these: cases 1–10 (test_cases_block.py), which hold
the same of every block; tests/convert holds the numbers.
"""

import dataclasses
import inspect
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from positionwise import FeedForward, FFNSpec, account, explain
from positionwise.errors import SpecError
from positionwise.spec import INITIALISATIONS
from positionwise.training.options import TrainOptions
from positionwise.transformer import TransformerConfig, TransformerForTranslation, variant_fields
from positionwise.variants import VARIANTS, variant
from shared import config

LABML = ["d_model", "d_ff", "dropout", "activation", "is_gated", "bias1", "bias2", "bias_gate"]
NO_BIASES = {"bias1": False, "bias2": False, "bias_gate": False}


def networks(model):
    return [module for module in model.modules() if isinstance(module, FeedForward)]


# The call

GEGLU = (256, 1024, 0.1, nn.GELU(), True, False, False, False)
CALLS = {
    f"{count} positional": (GEGLU[:count], dict(zip(LABML[count:], GEGLU[count:], strict=True))) for count in range(9)
}
CALLS["dropout left out"] = (GEGLU[:2], {"activation": nn.GELU(), "is_gated": True, **NO_BIASES})


def test_the_first_parameters_are_those_of_labml_with_its_defaults():
    parameters = [*inspect.signature(FeedForward).parameters.values()]
    positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [p.name for p in positional] == LABML
    assert [p.default for p in positional[2:]] == [0.1, "relu", False, True, True, True]


@pytest.mark.parametrize("form", CALLS)
def test_a_call_of_labml_means_what_it_means_there(form):
    arguments, keywords = CALLS[form]
    ffn = FeedForward(*arguments, **keywords).double()
    assert list(ffn.state_dict()) == ["layer1.weight", "layer2.weight", "linear_v.weight"]
    assert ffn.spec.parameters == 3 * 256 * 1024
    x = torch.randn(2, 3, 256, dtype=torch.float64)
    z, v = x @ ffn.layer1.weight.T, x @ ffn.linear_v.weight.T
    hidden = 0.5 * z * (1 + torch.erf(z / 2**0.5)) * v
    with mock.patch.object(F, "dropout", side_effect=lambda hidden, p, training: hidden) as dropout:
        torch.testing.assert_close(ffn(x), hidden @ ffn.layer2.weight.T, rtol=1e-10, atol=1e-14)
    assert dropout.call_args.args[1:] == (0.1, True)


@pytest.mark.parametrize("activation", [nn.ReLU(inplace=True), nn.LeakyReLU(0.1), nn.Mish(), torch.sin, nn.PReLU()])
def test_whatever_labml_can_call_is_an_activation(activation):
    ffn, x = FeedForward(6, 10, 0.0, activation).double(), torch.randn(4, 6, dtype=torch.float64)
    torch.testing.assert_close(ffn(x), ffn.layer2(activation(ffn.layer1(x))), rtol=1e-12, atol=1e-14)


def test_what_an_activation_learns_has_labmls_name():
    names = {"layer1.weight", "layer1.bias", "layer2.weight", "layer2.bias"}
    assert set(FeedForward(6, 10, 0.1, nn.PReLU()).state_dict()) == names | {"activation.weight"}
    assert set(FeedForward(6, 10, 0.1, nn.ReLU()).state_dict()) == names


# 1. The default activation is one object that all instances share.


def test_fault_1_nothing_done_to_one_default_block_reaches_another():
    first, second = FeedForward(4, 8), FeedForward(4, 8)
    for module in first.eval().modules():
        module.register_forward_hook(lambda *_: pytest.fail("a hook of the other block was called"))
    assert second.training
    assert second(torch.randn(3, 4)).shape == (3, 4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.activation.function = torch.sin


def test_fault_1_no_default_is_a_module():
    defaults = [p.default for p in inspect.signature(FeedForward).parameters.values()]
    assert not any(isinstance(default, nn.Module) for default in defaults)


# 2. The gate's bias is on in the class and off in its configuration.


def test_fault_2_class_spec_and_configuration_have_the_same_defaults():
    block = {name: p.default for name, p in inspect.signature(FeedForward).parameters.items()}
    spec = {field.name: field.default for field in dataclasses.fields(FFNSpec)}
    del block["d_model"], block["d_ff"], spec["d_model"], spec["d_ff"]
    assert block == spec
    configured = TransformerConfig()
    shared = ["activation", "is_gated", "bias1", "bias2", "bias_gate", "init"]
    assert {name: getattr(configured, name) for name in shared} == {name: block[name] for name in shared}


@pytest.mark.parametrize(
    "build",
    [
        lambda: FeedForward(16, 24, is_gated=True),
        lambda: FeedForward.from_spec(FFNSpec(16, 24, is_gated=True)),
        lambda: FeedForward.variant("reglu", 16, 24),
        lambda: FeedForward.from_spec(config(is_gated=True).feed_forward_spec()),
        lambda: FeedForward.from_spec(config(**variant_fields("reglu", 16, 24)).feed_forward_spec()),
        lambda: FeedForward.from_spec(TrainOptions(variant="reglu").model_config(400).feed_forward_spec()),
    ],
    ids=["class", "spec", "variant", "config", "config of a variant", "training"],
)
def test_fault_2_a_gated_block_has_the_gates_bias_by_whatever_door(build):
    ffn = build()
    assert ffn.linear_v.bias.shape == ffn.layer1.bias.shape == (ffn.spec.d_ff,)


@pytest.mark.parametrize("bias_gate", [True, False])
def test_fault_2_the_models_gates_have_the_bias_that_is_configured(bias_gate):
    model = TransformerForTranslation(config(is_gated=True, bias_gate=bias_gate))
    assert [ffn.linear_v.bias is not None for ffn in networks(model)] == [bias_gate] * 4


# 3. A misspelled variant builds an ungated ReLU network.

BY_VARIANT = {
    "FeedForward.variant": lambda name: FeedForward.variant(name, 16, 24),
    "variant": lambda name: variant(name, 16, 24),
    "variant_fields": lambda name: variant_fields(name, 16, 24),
    "TrainOptions": lambda name: TrainOptions(variant=name).model_config(400),
}


@pytest.mark.parametrize("door", BY_VARIANT)
@pytest.mark.parametrize("name", ["swigloo", "SwiGLU", "Bilinear", "GeGLU", "none", "glu ", ""])
def test_fault_3_a_misspelled_variant_is_an_error_that_lists_the_names(door, name):
    with pytest.raises(SpecError, match="expected variant to be one of") as caught:
        BY_VARIANT[door](name)
    assert all(known in str(caught.value) for known in [*VARIANTS, f"got {name!r}"])


@pytest.mark.parametrize("door", BY_VARIANT)
def test_fault_3_the_nearest_name_is_proposed(door):
    with pytest.raises(SpecError, match="did you mean 'swiglu'"):
        BY_VARIANT[door]("swigloo")


def test_fault_3_a_misspelled_option_is_an_error():
    for build in (FeedForward, FFNSpec, lambda *_, **options: TransformerConfig(**options)):
        with pytest.raises((TypeError, SpecError), match="gated"):
            build(16, 24, gated=True)


# 4. An unknown activation fails at the first forward pass.

BY_ACTIVATION = {
    "FeedForward": lambda name: FeedForward(16, 24, 0.1, name),
    "FFNSpec": lambda name: FFNSpec(16, 24, activation=name),
    "TransformerConfig": lambda name: config(activation=name),
}


@pytest.mark.parametrize("door", BY_ACTIVATION)
@pytest.mark.parametrize("name", ["ReLU", "GELU", "mish", "gelu_new", "gelu_pytorch_tanh", "swiglu", ""])
def test_fault_4_an_unknown_activation_fails_at_construction(door, name):
    with pytest.raises(SpecError, match="expected activation to be one of gelu, gelu_tanh.*got") as caught:
        BY_ACTIVATION[door](name)
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize("door", BY_ACTIVATION)
@pytest.mark.parametrize("activation", [None, 1, nn.GELU])
def test_fault_4_so_does_what_is_no_function(door, activation):
    with pytest.raises(SpecError, match="expected activation"):
        BY_ACTIVATION[door](activation)


# 5. The initialisation that scales with depth passes linear_v over.


def limits(d_model, d_ff, init):
    """The bounds of a uniform draw of the first map's weights and biases, and of the gate's."""
    return ((6 / (d_model + d_ff)) ** 0.5, 0.0) if init == "xavier_uniform" else (d_model**-0.5, d_model**-0.5)


def assert_drawn(layer, weight, bias):
    """A layer's draws fill their bounds, and spread as uniform ones do (of 8,192, within half a percent or so)."""
    assert layer.weight.numel() >= 8192
    assert 0.99 * weight < layer.weight.abs().max() <= weight
    assert layer.weight.std().item() == pytest.approx(weight / 3**0.5, rel=0.03)
    assert 0.97 * bias <= layer.bias.abs().max() <= bias


@pytest.mark.parametrize("init", INITIALISATIONS)
@pytest.mark.parametrize("again", [False, True])
def test_fault_5_the_gate_is_drawn_as_the_first_map_is(init, again):
    ffn = FeedForward(64, 512, is_gated=True, init=init)
    if again:
        for parameter in ffn.parameters():
            nn.init.constant_(parameter, 9.0)
        ffn.reset_parameters()
    for layer in (ffn.layer1, ffn.linear_v):
        assert_drawn(layer, *limits(64, 512, init))
    assert not torch.equal(ffn.layer1.weight, ffn.linear_v.weight)


@pytest.mark.parametrize("init", INITIALISATIONS)
@pytest.mark.parametrize("depth", [1, 4])
def test_fault_5_so_it_is_in_a_model_of_any_depth(init, depth):
    sizes = {"d_model": 32, "d_ff": 256, "encoder_layers": depth, "decoder_layers": depth}
    model = TransformerForTranslation(config(**sizes, is_gated=True, init=init))
    assert len(networks(model)) == 2 * depth
    for ffn in networks(model):
        for layer in (ffn.layer1, ffn.linear_v):
            assert_drawn(layer, *limits(32, 256, init))


# 6. A gated variant keeps d_ff, so it is half as large again, and is compared as if it were not. (test_variants.py: no
# name changes a width or a bias unasked; training/test_options.py: a training matches its widths.)

WIDTHS = [
    ("relu", False, True, 2048, 2_099_712),
    ("relu", False, False, 2048, 2_097_152),
    ("reglu", False, True, 2048, 3_150_336),
    ("reglu", False, False, 2048, 3_145_728),
    ("reglu", True, True, 1365, 2_099_882),
    ("reglu", True, False, 1365, 2_096_640),
    ("relu", True, True, 2048, 2_099_712),
]


@pytest.mark.parametrize(("name", "match", "biased", "d_ff", "parameters"), WIDTHS)
def test_fault_6_the_width_stays_unless_a_match_is_asked_for_and_the_account_states_it(
    name, match, biased, d_ff, parameters
):
    options = {**({"match_parameters": True} if match else {}), **({} if biased else NO_BIASES)}
    ffn = FeedForward.variant(name, 512, 2048, device="meta", **options)
    (group,) = account(ffn).feed_forward.groups
    assert (ffn.spec.d_ff, ffn.spec.parameters) == (group.d_ff, group.per_instance) == (d_ff, parameters)
    assert ffn.layer2.in_features == d_ff
    assert sum(p.numel() for p in ffn.parameters()) == parameters
    assert f"512 × {d_ff:,}" in str(account(ffn))


def test_fault_6_the_configuration_keeps_d_ff_and_the_account_of_the_model_states_it():
    gated = account(TransformerConfig(vocab_size=100, is_gated=True))
    assert {(group.d_ff, group.per_instance) for group in gated.feed_forward.groups} == {(2048, 3_150_336)}


# 7. Weights that were trained with the tanh form of GELU are run with the exact one.

AT_ONE = {"gelu": 0.8413447461, "gelu_tanh": 0.8411919906}  # Φ(1), and its approximation
FORMS = [("gelu", "gelu"), ("gelu", nn.GELU()), ("gelu", F.gelu), ("gelu_tanh", "gelu_tanh"),
         ("gelu_tanh", nn.GELU(approximate="tanh"))]  # fmt: skip
EQUATIONS = {"gelu": r"\mathrm{GELU}(W_1 x", "gelu_tanh": r"\mathrm{GELU}_{\tanh}(W_1 x"}


@pytest.mark.parametrize(("name", "given"), FORMS)
@pytest.mark.parametrize("is_gated", [False, True])
def test_fault_7_each_form_is_what_it_says_everywhere(name, given, is_gated):
    ffn = FeedForward(1, 1, 0.0, given, is_gated, False, False, False, dtype=torch.float64)
    for parameter in ffn.parameters():
        nn.init.ones_(parameter)
    one = torch.ones(1, 1, dtype=torch.float64)
    assert ffn(one).item() == pytest.approx(AT_ONE[name], abs=1e-10)
    (group,) = account(ffn).feed_forward.groups
    assert group.activation == name
    for equation in (ffn.spec.equation, explain(ffn, one).equation, group.equation):
        assert EQUATIONS[name] in equation


def test_fault_7_a_model_has_the_form_that_is_configured():
    outputs = {}
    for activation in AT_ONE:
        model = TransformerForTranslation(config(activation=activation))
        (ffn, *_) = networks(model.double())
        assert {ffn.spec.activation for ffn in networks(model)} == {activation}
        for layer in (ffn.layer1, ffn.layer2):
            nn.init.eye_(layer.weight)
        outputs[activation] = ffn(torch.ones(1, 16, dtype=torch.float64))
    assert (outputs["gelu"] - outputs["gelu_tanh"]).min() > 1e-4
