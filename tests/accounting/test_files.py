"""What a folder and a file of configuration tell before a model is built."""

import json

import pytest

from positionwise import account
from positionwise.accounting import targets
from positionwise.errors import AccountError

TINY = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 50,
}  # fmt: skip


def notes(folder, **fields):
    (folder / "config.json").write_text(json.dumps({**TINY, **fields}))
    return " ".join(targets.read(folder).notes)


def test_a_field_that_is_nearly_another_is_named(tmp_path):
    said = notes(tmp_path, max_position_embedings=64)
    assert "max_position_embedings is no field of LlamaConfig (did you mean max_position_embeddings?)" in said
    assert "is no field" not in notes(tmp_path, max_position_embeddings=64, of_my_own=1)


def test_weights_that_are_not_compared_and_quantised_ones_are_said(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert "Weights in pytorch_model.bin are not compared" in notes(tmp_path)
    assert "quantised (gptq)" in notes(tmp_path, quantization_config={"quant_method": "gptq", "bits": 4})
    (tmp_path / "pytorch_model.bin").unlink()
    assert "not compared" not in notes(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "model.gguf", "pytorch_model.bin"])
def test_a_file_of_weights_is_no_configuration(name, tmp_path):
    (tmp_path / name).write_bytes(b"\x00" * 16)
    with pytest.raises(AccountError, match="a file of weights: give the folder"):
        account(tmp_path / name)


def test_an_adapters_folder_is_told_from_one_without_a_model(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(AccountError, match="count the model that it adapts"):
        account(tmp_path)


@pytest.mark.parametrize(
    ("name", "near"), [("LLaMAForCausalLM", "LlamaForCausalLM"), ("BertForMaskedLMM", "BertForMaskedLM")]
)
def test_a_class_of_nearly_the_name_is_suggested(name, near, tmp_path):
    with pytest.raises(AccountError, match=f"did you mean '{near}'"):
        notes(tmp_path, architectures=[name])
