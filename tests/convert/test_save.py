"""Parts of models in folders: every kind is written and read again bit for bit."""

import json

import pytest
import torch
from keras_cases import archive as keras_archive
from tensor2tensor_cases import archive

from positionwise import FeedForward
from positionwise.convert import AxisOneFeedForward, load_part
from positionwise.convert.keras import convert_keras
from positionwise.convert.labml import convert_labml
from positionwise.convert.save import _PARTS, save_part
from positionwise.convert.tensor2tensor import convert_tensor2tensor
from positionwise.errors import ConvertError

FULL = "transformer_full_d16_v37_shared"


def side(start, name=FULL):
    return {key[4:]: value for key, value in archive(name).items() if key.startswith(f"var/body/{start}")}


PARTS = {
    "FeedForward": lambda: convert_tensor2tensor(archive("ffn_k1_d8_ff32")),
    "AxisOneFeedForward": lambda: convert_tensor2tensor(archive("ffn_sep_k3_k31_left"), padding="left"),
    "ParameterAttention": lambda: convert_tensor2tensor(side("encoder/layer_0/parameter_attention/",
                                                             "transformer_full_d16_v21_paramattn")),
    "MultiHeadAttention": lambda: convert_tensor2tensor(archive("mha_self_pad"), num_heads=4),
    "FeedForwardBlock": lambda: convert_tensor2tensor(archive("ffn_block_conv_hidden_relu_with_sepconv")),
    "EncoderLayer": lambda: convert_tensor2tensor(side("encoder/layer_0/"), num_heads=4),
    "DecoderLayer": lambda: convert_tensor2tensor(side("decoder/layer_1/"), num_heads=4),
    "Encoder": lambda: convert_tensor2tensor(side("encoder/"), num_heads=4),
}  # fmt: skip


def inputs(kind, width):
    x = torch.randn(2, 5, width)
    return (x, torch.randn(2, 3, width)) if kind == "DecoderLayer" else (x,)


@pytest.mark.parametrize("kind", PARTS)
def test_every_kind_is_read_as_it_was_written(tmp_path, kind):
    made = PARTS[kind]()
    save_part(made, tmp_path / "part")
    read = load_part(tmp_path / "part")
    assert type(read) is type(made.module)
    assert type(read).__name__ == kind
    assert not read.training
    given = inputs(kind, made.config.d_model)
    assert torch.equal(read(*given), made.module(*given))
    state = made.module.state_dict()
    assert {name: (value.dtype, value.shape) for name, value in read.state_dict().items()} == {
        name: (value.dtype, value.shape) for name, value in state.items()
    }
    assert all(torch.equal(value, state[name]) for name, value in read.state_dict().items())


def test_no_kind_is_left_out():
    assert PARTS.keys() == _PARTS.keys()


def test_the_axes_of_wide_kernels_are_kept(tmp_path):
    made = PARTS["AxisOneFeedForward"]()
    save_part(made, tmp_path / "part")
    x = torch.randn(2, 7, 8)
    others = [block.from_spec(load_part(tmp_path / "part").spec).eval() for block in (AxisOneFeedForward, FeedForward)]
    for other in others:
        other.load_state_dict(made.module.state_dict())
    assert torch.equal(others[0](x), made.module(x))
    assert not torch.allclose(others[1](x), made.module(x))  # the two axes before d_model: what the docstring warns of


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_the_dtype_is_kept(tmp_path, dtype):
    made = convert_labml(FeedForward(4, 6, is_gated=True, bias2=False, d_out=3).to(dtype).state_dict(),
                         activation=torch.nn.GELU("tanh"), dropout=0.3)  # fmt: skip
    save_part(made, tmp_path)
    read = load_part(str(tmp_path))
    assert {parameter.dtype for parameter in read.parameters()} == {dtype}
    assert (read.spec.activation, read.dropout, read.spec.d_out, read.spec.bias2) == ("gelu_tanh", 0.3, 3, False)
    x = torch.randn(2, 4, dtype=dtype)
    assert torch.equal(read(x), made.module(x))


def test_a_layer_of_keras_keeps_its_choices(tmp_path):
    weights = {name: value for name, value in keras_archive("encoder").items() if name.startswith("w:")}
    made = convert_keras(weights, norm_first=True, epsilon=1e-4, activation="gelu")
    save_part(made, tmp_path)
    x = torch.randn(2, 5, made.config.d_model)
    assert load_part(tmp_path).norm_first
    assert torch.equal(load_part(tmp_path)(x), made.module(x))


def test_an_activation_without_a_name_is_not_written(tmp_path):
    made = convert_labml(FeedForward(4, 6).state_dict(), activation=torch.nn.Softplus())
    with pytest.raises(ConvertError, match="activation of a known name.*Softplus"):
        save_part(made, tmp_path / "part")
    assert not (tmp_path / "part").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda said: said.update({"class": "Sequential"}), "one of the classes FeedForward, .*; got 'Sequential'"),
        (lambda said: said.update({"class": ["x"]}), r"one of the classes .*; got \['x'\]"),
        (lambda said: said.pop("class"), "one of the classes .*; got None"),
        (lambda said: said.pop("config"), "class and its config in .*; got neither .*from_pretrained"),
        (lambda said: said["config"].update({"d_ff": 0}), "fields of a FeedForward in .*d_ff"),
        (lambda said: said["config"].update({"d_fff": 3}), "fields of a FeedForward in .*d_fff"),
        (lambda said: said["config"].pop("d_model"), "fields of a FeedForward in .*d_model"),
        (lambda said: said["config"].update({"d_ff": 33}), r"layer1.weight of shape \(33, 8\)"),
        (lambda said: said["config"].update({"is_gated": True}), "'linear_v.weight'"),
        (lambda said: said["config"].update({"bias2": False}), "known name; got 'layer2.bias'"),
    ],
    ids=["class", "no class's name", "no class", "no config", "size", "unknown", "missing", "other size", "gate",
         "bias"],
)  # fmt: skip
def test_a_configuration_that_is_wrong_is_refused(tmp_path, change, message):
    save_part(PARTS["FeedForward"](), tmp_path / "part")
    path = tmp_path / "part" / "config.json"
    said = json.loads(path.read_text())
    change(said)
    path.write_text(json.dumps(said))
    with pytest.raises(ConvertError, match=message):
        load_part(tmp_path / "part")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_or_damaged_file_is_named(tmp_path, name):
    save_part(PARTS["FeedForward"](), tmp_path / "part")
    (tmp_path / "part" / name).write_bytes(b"\xff\x00")
    with pytest.raises(ConvertError, match=name):
        load_part(tmp_path / "part")
    (tmp_path / "part" / name).unlink()
    with pytest.raises(ConvertError, match=name):
        load_part(tmp_path / "part")
