"""What tensor2tensor's variables are decides what is made, whatever scope they stand in; options must have a place."""

import re

import numpy as np
import pytest
import torch
from tensor2tensor_cases import archive

from positionwise import FeedForward
from positionwise.convert import AxisOneFeedForward, from_tensor2tensor
from positionwise.convert.tensor2tensor import convert_tensor2tensor
from positionwise.errors import ConvertError
from positionwise.transformer import DecoderLayer, EncoderLayer, FeedForwardBlock, ParameterAttention
from positionwise.transformer.attention import MultiHeadAttention
from positionwise.transformer.models import Encoder

FULL = "transformer_full_d16_v37_shared"
LEARNED = "transformer_full_d16_v21_paramattn"
OPTIONS = {"num_heads": 4, "target_space_id": 9}
ENCODER, DECODER = "body/encoder/layer_0", "body/decoder/layer_1"


def variables(name=FULL):
    return {key[4:]: value for key, value in archive(name).items() if key.startswith("var/")}


def within(*scopes, of=FULL):
    """The variables under these scopes, as a checkpoint has them."""
    return {name: value for name, value in variables(of).items() if name.startswith(tuple(f"{at}/" for at in scopes))}


def model(name=FULL):
    return from_tensor2tensor(variables(name), **OPTIONS)


# What is taken out of a whole model, the class that it is, and where the whole model has it.
CUTS = {
    "network": (within(f"{ENCODER}/conv_hidden_relu"), FeedForward, "encoder.layers.0.feed_forward"),
    "decoder network": (within(f"{DECODER}/conv_hidden_relu"), FeedForward, "decoder.layers.1.feed_forward"),
    "self-attention": (within(f"{DECODER}/decoder_self_attention"), MultiHeadAttention,
                       "decoder.layers.1.self_attention"),
    "cross-attention": (within(f"{DECODER}/encdec_attention"), MultiHeadAttention, "decoder.layers.1.cross_attention"),
    "encoder layer": (within(ENCODER), EncoderLayer, "encoder.layers.0"),
    "a later layer": (within("body/encoder/layer_1"), EncoderLayer, "encoder.layers.1"),
    "decoder layer": (within(DECODER), DecoderLayer, "decoder.layers.1"),
    "stack": (within("body/encoder"), Encoder, "encoder"),
}  # fmt: skip


@pytest.mark.parametrize("scope", ["", "transformer/", "transformer/body/model/parallel_0/"])
@pytest.mark.parametrize("cut", CUTS)
def test_a_part_under_its_name_in_a_checkpoint_is_that_part(cut, scope):
    arrays, kind, place = CUTS[cut]
    part = from_tensor2tensor({scope + name: value for name, value in arrays.items()}, num_heads=4)
    held = model().get_submodule(place)
    assert type(part) is kind
    assert part.state_dict().keys() == held.state_dict().keys()
    assert all(torch.equal(value, held.state_dict()[name]) for name, value in part.state_dict().items())


def test_the_variables_of_one_layer_need_no_scope():
    for at, kind, place in ((ENCODER, EncoderLayer, "encoder.layers.0"), (DECODER, DecoderLayer, "decoder.layers.1")):
        for scope in ("", "layer_7/", "encoder/", "my/own/"):
            arrays = {scope + name.removeprefix(f"{at}/"): value for name, value in within(at).items()}
            layer = from_tensor2tensor(arrays, num_heads=4)
            assert type(layer) is kind
            held = model().get_submodule(place).state_dict()
            assert all(torch.equal(value, held[name]) for name, value in layer.state_dict().items())


def test_a_block_is_a_network_with_its_norm():
    for at, place in ((f"{ENCODER}/layer_norm_1", "encoder.layers.0"), (f"{DECODER}/layer_norm_2", "decoder.layers.1")):
        block = from_tensor2tensor(within(at, f"{at.rpartition('/')[0]}/conv_hidden_relu"))
        assert type(block) is FeedForwardBlock
        held = model().get_submodule(place).state_dict()
        assert all(torch.equal(value, held[name]) for name, value in block.state_dict().items())


@pytest.mark.parametrize("scope", ["", "parameter_attention/", "parameter_attention_3/", f"{ENCODER}/anything/"])
def test_parameter_attention_is_known_by_its_keys_and_values(scope):
    at = f"{ENCODER}/parameter_attention/"
    arrays = {scope + name.removeprefix(at): value for name, value in within(at[:-1], of=LEARNED).items()}
    learned = from_tensor2tensor(arrays)
    assert type(learned) is ParameterAttention
    held = model(LEARNED).encoder.layers[0].feed_forward.state_dict()
    assert all(torch.equal(value, held[name]) for name, value in learned.state_dict().items())
    renamed = {name.replace("/parameter_attention/", "/other/"): value for name, value in variables(LEARNED).items()}
    whole = from_tensor2tensor(renamed, **OPTIONS).state_dict()
    assert all(torch.equal(value, whole[name]) for name, value in model(LEARNED).state_dict().items())


def numbered(*numbers, side="encoder"):
    at = ENCODER if side == "encoder" else "body/decoder/layer_0"
    return {name.replace("layer_0", f"layer_{i}"): value for i in numbers for name, value in within(at).items()}


def test_several_layers_are_numbered_from_0_without_holes():
    assert type(from_tensor2tensor(numbered(3), num_heads=4)) is EncoderLayer
    assert len(from_tensor2tensor(numbered(1, 0), num_heads=4).layers) == 2
    for numbers, missing in (((1, 2), 0), ((0, 2), 1), ((0, 1, 5), 2)):
        with pytest.raises(ConvertError, match=f"of the encoder; got no layer_{missing}"):
            from_tensor2tensor(numbered(*numbers), num_heads=4)
    for arrays in (numbered(0, 1, side="decoder"), numbered(0) | numbered(0, side="decoder")):
        with pytest.raises(ConvertError, match="without embeddings"):
            from_tensor2tensor(arrays, num_heads=4)


def test_parts_that_are_no_one_thing_are_refused():
    two = within(f"{ENCODER}/conv_hidden_relu", "body/encoder/layer_1/conv_hidden_relu")
    with pytest.raises(ConvertError, match="one part; got feed forward in '.*layer_0/.*' and '.*layer_1/conv_hidden_"):
        from_tensor2tensor(two)
    norms = within(f"{ENCODER}/layer_norm", f"{ENCODER}/layer_norm_1", f"{ENCODER}/conv_hidden_relu")
    with pytest.raises(ConvertError, match=r"expected attention beside the layer norms '.*layer_norm' and '.*_1'"):
        from_tensor2tensor(norms)
    mixed = within(f"{ENCODER}/conv_hidden_relu") | within("body/encoder/layer_1")
    with pytest.raises(ConvertError, match="layer_0/conv_hidden_relu"):
        from_tensor2tensor(mixed, num_heads=4)


def test_layers_of_one_model_have_networks_of_one_kind():
    without = {name: value for name, value in variables().items() if "encoder/layer_1/conv" not in name}
    with pytest.raises(ConvertError, match="network of conv_hidden_relu, as in .*; got none in 'body/encoder/layer_1'"):
        from_tensor2tensor(without, **OPTIONS)


@pytest.mark.parametrize("scope", ["", "transformer/"])
def test_a_foreign_prefix_is_an_unknown_name(scope):
    arrays = {scope + name: value for name, value in variables().items()}
    for name in arrays:
        moved = {f"other/{key}" if key == name else key: value for key, value in arrays.items()}
        with pytest.raises(ConvertError, match=f"expected all of the model's tensors .*; got 'other/{name}'"):
            from_tensor2tensor(moved, **OPTIONS)


SLOTS = ["Adam", "Adam_1", "AdamW", "LazyAdam", "Nadam", "Adadelta", "Adagrad", "ProximalAdagrad", "Momentum",
         "RMSProp", "RMSProp_1", "Ftrl", "Ftrl_1", "GradientDescent", "Adafactor", "ExponentialMovingAverage",
         "AMSGrad", "vr", "vc", "m", "v", "Adam/m", "YellowFin",
         ".OPTIMIZER_SLOT/optimizer/m/.ATTRIBUTES/VARIABLE_VALUE"]  # fmt: skip
COUNTERS = ["beta1_power", "beta2_power_1", "training/beta1_power", "global_step", "train/global_step", "loss_scale",
            "problem_0_steps", "learning_rate", "train_stats/problem_0", "losses_avg/problem_0/total_loss",
            "OptimizeLoss/control_dependency", "current_loss_scale", "good_steps"]  # fmt: skip


@pytest.mark.parametrize("outer", ["", "training/", "OptimizeLoss/", "Adam/"])
def test_an_optimizer_s_slots_are_set_aside_by_whatever_name(outer):
    arrays = variables(LEARNED)
    weights = [name for name in arrays if name.endswith(("conv1_single/kernel", "/k", "/v", "_scale", "weights_0"))]
    slots = {f"{outer}{name}/{slot}": arrays[name] * 0 for name in weights for slot in SLOTS}
    made = convert_tensor2tensor(slots | arrays, **OPTIONS)
    assert set(made.set_aside) == slots.keys()
    assert {row.source for row in made.rows} == arrays.keys()


def test_counters_are_set_aside_and_other_names_are_not():
    arrays = variables(LEARNED)
    assert set(convert_tensor2tensor(arrays | dict.fromkeys(COUNTERS, 3), **OPTIONS).set_aside) == set(COUNTERS)
    for name in ("Variable", f"{ENCODER}/v", f"{ENCODER}/parameter_attention/kernel"):
        with pytest.raises(ConvertError, match=re.escape(name)):
            from_tensor2tensor(arrays | {name: np.ones(3)}, **OPTIONS)


@pytest.mark.parametrize("heads", [0, -1, "4", True, 4.0], ids=repr)
def test_heads_are_a_positive_integer(heads):
    for arrays in (variables(), within(f"{ENCODER}/conv_hidden_relu")):
        with pytest.raises(ConvertError, match=f"num_heads to be an integer of at least 1; got {heads!r}"):
            from_tensor2tensor(arrays, num_heads=heads)


def test_heads_may_not_contradict_parameter_attention():
    for arrays in (variables(LEARNED), within(ENCODER, of=LEARNED), variables("ffn_block_parameter_attention")):
        space = 9 if len(arrays) > 20 else None
        with pytest.raises(ConvertError, match="num_heads=4, as parameter attention has; got 2"):
            from_tensor2tensor(arrays, num_heads=2, target_space_id=space)
    assert from_tensor2tensor(within(ENCODER, of=LEARNED)).self_attention.num_heads == 4


def test_an_option_without_a_place_is_refused():
    wide = variables("ffn_sep_k3_k3_left")
    for arrays in (CUTS["network"][0], CUTS["encoder layer"][0], variables("ffn_block_d16_ff32"), variables(),
                   CUTS["self-attention"][0], variables("ffn_block_conv_hidden_relu_with_sepconv")):  # fmt: skip
        options = OPTIONS if any("symbol_modality" in name for name in arrays) else {"num_heads": 4}
        with pytest.raises(ConvertError, match="expected no padding for anything but .*; got 'left'"):
            from_tensor2tensor(arrays, padding="left", **options)
    for padding in ("full", "LEFT", "", 3):
        with pytest.raises(ConvertError, match=f"padding to be one of same, left, valid; got {padding!r}"):
            from_tensor2tensor(wide, padding=padding)
    assert type(from_tensor2tensor(wide, padding="left")) is AxisOneFeedForward
    spaceless = {name: value for name, value in variables().items() if "target_space" not in name}
    for arrays in (spaceless, CUTS["stack"][0], wide):
        options = {"num_heads": 4, "padding": "left" if arrays is wide else None}
        from_tensor2tensor(arrays, **options)
        with pytest.raises(ConvertError, match="expected no target_space_id .*; got 9"):
            from_tensor2tensor(arrays, target_space_id=9, **options)
