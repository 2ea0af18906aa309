"""labml's state dicts in all their files, and what is refused."""

import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from positionwise import FeedForward
from positionwise.convert import from_labml
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
