"""labml's state dicts in all their files, and what is refused."""

import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from positionwise import FeedForward
from positionwise.convert import from_labml
from positionwise.convert.labml import convert_labml
from positionwise.errors import ConvertError

SIZES = (6, 10)


def state(dtype=torch.float32, **options):
    return FeedForward(*SIZES, **options).to(dtype).state_dict()


@pytest.mark.parametrize("is_gated", [False, True], ids=["ungated", "gated"])
@pytest.mark.parametrize("biases", [(True, True, True), (False, True, False), (False, False, False)], ids=str)
def test_a_state_dict_says_its_gate_and_its_biases(is_gated, biases):
    names = dict(zip(("bias1", "bias2", "bias_gate"), biases, strict=True))
    weights = state(is_gated=is_gated, **names)
    ffn = from_labml(weights)
    assert all(torch.equal(value, weights[name]) for name, value in ffn.state_dict().items())
    assert ffn.state_dict().keys() == weights.keys()
    assert (ffn.spec.is_gated, ffn.spec.bias1, ffn.spec.bias2) == (is_gated, *biases[:2])
    assert (ffn.spec.activation, ffn.dropout, ffn.training) == ("relu", 0.1, False)
    assert ffn.layer1.weight.data_ptr() != weights["layer1.weight"].data_ptr()


def test_what_the_state_dict_does_not_say():
    ffn = from_labml(state(is_gated=True), activation=torch.nn.GELU(), dropout=0.3)
    assert (ffn.spec.activation.approximate, ffn.dropout) == ("none", 0.3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_the_dtype_stays(dtype):
    assert {p.dtype for p in from_labml(state(dtype)).parameters()} == {dtype}


def test_every_file_is_read(tmp_path):
    weights = state(is_gated=True)
    torch.save(weights, tmp_path / "a.pt")
    save_file(weights, tmp_path / "a.safetensors")
    np.savez(tmp_path / "a.npz", **{name: value.numpy() for name, value in weights.items()})
    torch.save({f"encoder.feed_forward.{name}": value for name, value in weights.items()}, tmp_path / "prefix.pth")
    for name in ("a.pt", "a.safetensors", "a.npz", "prefix.pth"):
        ffn = from_labml(tmp_path / name)
        assert all(torch.equal(value, weights[key]) for key, value in ffn.state_dict().items())


class Harm:
    def __reduce__(self):
        return print, ("executed",)


@pytest.mark.parametrize(
    "write", [torch.save, lambda it, path: path.write_bytes(pickle.dumps(it))], ids=["torch", "pickle"]
)
def test_nothing_but_tensors_is_unpickled(tmp_path, capsys, write):
    for name, content in (
        ("state.pt", {"layer1.weight": Harm()}),
        ("module.pt", FeedForward(*SIZES)),
        ("h.pt", Harm()),
    ):
        write(content, tmp_path / name)
        with pytest.raises(ConvertError, match=f"expected a state dict of tensors in .*{name}"):
            from_labml(tmp_path / name)
    assert "executed" not in capsys.readouterr().out


def test_damaged_files(tmp_path):
    torch.save(state(), tmp_path / "a.pt")
    save_file(state(), tmp_path / "a.safetensors")
    for name in ("a.pt", "a.safetensors"):
        data = (tmp_path / name).read_bytes()
        for length in (0, 10, len(data) // 2, len(data) - 3):
            (tmp_path / f"cut-{name}").write_bytes(data[:length])
            with pytest.raises(ConvertError, match=f"cut-{name}"):
                from_labml(tmp_path / f"cut-{name}")
        with pytest.raises(ConvertError, match=f"none-{name}"):
            from_labml(tmp_path / f"none-{name}")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ConvertError, match="expected a state dict in .*list.pt; got list"):
        from_labml(tmp_path / "list.pt")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("layer1.weight"), "'layer1.weight'"),
        (lambda s: s.pop("layer2.weight"), "'layer2.weight'"),
        (lambda s: s.pop("linear_v.weight"), "'linear_v.weight'"),
        (lambda s: s.update({"layer3.weight": torch.ones(2)}), "'layer3.weight'"),
        (lambda s: s.update({"layer1.weights": s.pop("layer1.weight")}), "'layer1.weight'.*there is 'layer1.weights'"),
        (lambda s: s.update({"layer1.bias": torch.ones(9)}), "layer1.bias"),
        (lambda s: s.update({"linear_v.weight": torch.ones(9, 6)}), "linear_v.weight"),
        (lambda s: s.update({"layer2.weight": torch.ones(6)}), "layer2.weight"),
        (lambda s: s.update({"layer2.bias": torch.full((6,), torch.nan)}), "'layer2.bias'"),
        (lambda s: s.update({"layer2.bias": torch.ones(6, dtype=torch.int64)}), "'layer2.bias'"),
        (lambda s: s.update({"layer2.bias": "six"}), "'layer2.bias'"),
    ],
    ids=["no first", "no second", "no gate", "extra", "renamed", "short bias", "short gate", "vector", "nan",
         "integers", "text"],
)  # fmt: skip
def test_what_is_wrong_is_named(change, message):
    weights = dict(state(is_gated=True))
    change(weights)
    with pytest.raises(ConvertError, match=message):
        from_labml(weights)


def altered(weights, name, how):
    """The weights with one of them spoilt."""
    changed = {
        "a column short": lambda v: v[..., :-1], "a row more": lambda v: torch.cat([v, v[:1]]),
        "no axes": lambda v: v.sum(), "an axis more": lambda v: v[None], "empty": lambda v: v[:0],
        "a string": lambda v: "x", "None": lambda v: None, "booleans": lambda v: v > 0,
    }[how](weights[name])  # fmt: skip
    return {**weights, name: changed}


@pytest.mark.parametrize("prefix", ["", "layers.0.feed_forward."])
@pytest.mark.parametrize("how", ["a column short", "a row more", "no axes", "an axis more", "empty", "a string", "None",
                                 "booleans"])  # fmt: skip
def test_the_tensor_that_is_wrong_is_the_one_that_is_named(prefix, how):
    weights = {prefix + name: value for name, value in state(is_gated=True).items()}
    for name in weights:
        with pytest.raises(ConvertError, match=f"'{prefix}{name.removeprefix(prefix)}'"):
            from_labml(altered(weights, name, how))


def test_several_blocks_are_told_apart_by_their_prefix():
    blocks = {f"layers.{i}.ffn": state(is_gated=True) for i in range(3)}
    model = {f"{at}.{name}": value for at, block in blocks.items() for name, value in block.items()}
    model["norm.weight"] = torch.ones(6)
    with pytest.raises(ConvertError, match="got 3 blocks, of the prefixes 'layers.0.ffn', 'layers.1.ffn', 'layers.2."):
        from_labml(model)
    for at, block in blocks.items():
        for prefix in (at, f"{at}."):
            made = convert_labml(model, prefix=prefix)
            assert all(torch.equal(value, block[name]) for name, value in made.module.state_dict().items())
            assert len(made.set_aside) == len(model) - 6
    with pytest.raises(ConvertError, match="'layers.9.ffn.layer1.weight'; got none"):
        from_labml(model, prefix="layers.9.ffn")
    with pytest.raises(ConvertError, match="'layer1.weight'; got none"):
        from_labml(model, prefix="")


def test_a_foreign_prefix_is_an_unknown_name():
    weights = {f"ffn.{name}": value for name, value in state(is_gated=True).items()}
    for name in [*weights]:
        moved = {f"other.{key}" if key == name else key: value for key, value in weights.items()}
        with pytest.raises(ConvertError, match=name.removeprefix("ffn.")):
            from_labml(moved)


@pytest.mark.parametrize("key", ["state_dict", "model"])
def test_a_training_s_checkpoint_says_where_the_state_dict_lies(tmp_path, key):
    checkpoint = {"epoch": 3, key: dict(state()), "best": {}}
    torch.save(checkpoint, tmp_path / "a.pt")
    for source in (checkpoint, tmp_path / "a.pt"):
        with pytest.raises(ConvertError, match=f"expected a state dict; got a dict under '{key}': pass that$"):
            from_labml(source)


def test_an_activation_with_parameters_takes_its_own():
    given = torch.nn.PReLU()
    weights = FeedForward(*SIZES, activation=torch.nn.PReLU(init=0.5)).state_dict()
    ffn = from_labml(weights, activation=given)
    assert (ffn.activation.weight.item(), given.weight.item()) == (0.5, 0.25)
    with pytest.raises(ConvertError, match="'activation.weight'"):
        from_labml(state(), activation=given)
    with pytest.raises(ConvertError, match="known name; got 'activation.weight'"):
        from_labml(weights)


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (b"these are words\n", "got no state dict"),
        (b"", "got no state dict"),
        (b"\x80\x02K\x00.", "got (no state dict|int)"),
        (b"\x80\x02h\x05.", "got no state dict"),
        (b"0", "got no state dict"),
        (b"PK\x03\x04 no archive", "got no state dict"),
    ],
    ids=["text", "empty", "a number", "a reference to nothing", "an empty stack", "half an archive"],
)
def test_a_file_of_another_kind_is_no_state_dict(tmp_path, content, got):
    (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(ConvertError, match=f"expected a state dict .*a.pt.*{got}") as error:
        from_labml(tmp_path / "a.pt")
    assert "\n" not in str(error.value)


def test_names_that_are_no_strings_are_refused_in_a_file_too(tmp_path):
    torch.save({0: torch.ones(2)}, tmp_path / "a.pt")
    with pytest.raises(ConvertError, match="expected names as the mapping's keys; got 0"):
        from_labml(tmp_path / "a.pt")


def test_a_saved_module_says_what_to_save(tmp_path):
    torch.save(FeedForward(*SIZES), tmp_path / "module.pt")
    with pytest.raises(ConvertError, match=r"save module.state_dict\(\)"):
        from_labml(tmp_path / "module.pt")
