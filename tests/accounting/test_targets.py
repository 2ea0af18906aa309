"""From a path or a configuration to a model on the meta device, and one clear line for everything else."""

import json
import logging
import os
import re
import socket
import subprocess
import sys
import warnings
from pathlib import Path

import huggingface_hub
import pytest
import transformers

from positionwise.accounting import guarding, targets
from positionwise.errors import AccountError, PositionwiseError
from positionwise.transformer import TransformerConfig, TransformerForTranslation
from shared import config as translation

LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 40,
    "transformers_version": "5.1.0",
}  # fmt: skip
MIXTRAL = {**LLAMA, "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 4,
           "num_experts_per_tok": 2}  # fmt: skip
# Two attention maps of 16 × 16 and two of 16 × 8, three maps of 16 × 24, two norms; twice, with the embedding, the
# output map and the last norm.
LLAMA_TOTAL = 2 * (2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 24 + 2 * 16) + 2 * 40 * 16 + 16


@pytest.fixture
def write(tmp_path):
    """Writes a configuration, or any bytes in its place, to the folder's config.json."""

    def make(content, name="config.json"):
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    return make


def refused(path, build=True):
    """The one line that a path is answered with."""

    def go():
        target = targets.read(path)
        if build:
            targets.build(target)

    with pytest.raises(AccountError) as caught:
        go()
    said = str(caught.value)
    assert isinstance(caught.value, PositionwiseError)
    assert "\n" not in said
    assert said.startswith("expected ")
    assert "; got " in said
    return said


def numbers(model):
    return sum(parameter.numel() for parameter in model.parameters())


def built_by(name):
    return f"Counted as transformers {transformers.__version__} builds {name}."


def test_a_backbone_of_timm_is_counted_without_it():
    """DETR's own total, with the library's ResNet-50 in the place of timm's."""
    target = targets.from_config(transformers.DetrConfig(architectures=["DetrForObjectDetection"]))
    assert numbers(targets.build(target)) == 41_501_895
    assert any("resnet50, the backbone, is counted as transformers' ResNet" in note for note in target.notes)


def test_a_folder_and_its_file_are_one_target(write):
    file = write(LLAMA)
    for path in (file, file.parent):
        target = targets.read(path)
        assert (target.name, target.folder, target.notes) == (
            file.parent.name,
            file.parent,
            (built_by("LlamaForCausalLM"),),
        )
        assert target.model_class is transformers.LlamaForCausalLM
        model = targets.build(target)
        assert type(model) is transformers.LlamaForCausalLM
        assert numbers(model) == LLAMA_TOTAL
        assert all(parameter.is_meta for parameter in model.parameters())


def test_a_file_of_another_name_has_no_folder_of_weights(write):
    target = targets.read(write(LLAMA, "tiny.json"))
    assert (target.name, target.folder) == ("tiny.json", None)


def test_a_folder_is_named_wherever_it_is_read_from(write, monkeypatch):
    monkeypatch.chdir(write(LLAMA).parent)
    assert targets.read(Path()).name == targets.read(Path("config.json")).name == Path.cwd().name


def test_a_configuration_is_a_target_and_is_left_as_it_was():
    config = transformers.LlamaConfig(**LLAMA)
    before = dict(vars(config))
    target = targets.from_config(config)
    assert (target.name, target.folder, target.config) == ("llama", None, config)
    targets.build(target)
    assert vars(config) == before


def test_without_an_architecture_the_base_model_is_counted():
    target = targets.from_config(transformers.GPT2Config())
    assert target.model_class is transformers.GPT2Model
    named = "The configuration names no architecture: the base model, GPT2Model, is counted."
    assert target.notes == (named, built_by("GPT2Model"))


@pytest.mark.parametrize(
    ("model_type", "name", "others"),
    [
        ("mllama_text_model", "MllamaTextModel", "MllamaForCausalLM"),
        ("pix2struct", "Pix2StructForConditionalGeneration", ""),
        ("rag", "RagModel", "RagTokenForGeneration, RagSequenceForGeneration"),
        ("qwen2_5_omni", "Qwen2_5OmniForConditionalGeneration", ""),
        ("blip_text_model", "BlipTextModel", "BlipTextLMHeadModel"),
    ],
)
def test_a_model_type_without_a_base_model(model_type, name, others):
    target = targets.from_config(transformers.CONFIG_MAPPING[model_type]())
    assert target.model_class.__name__ == name
    assert f"has no base model: {name} is counted" in target.notes[0]
    assert not others or f"not {others}." in target.notes[0]


def test_a_part_that_is_no_model(write):
    said = refused(write({"model_type": "sam_mask_decoder"}))
    assert "expected a model type with a model in" in said
    assert "got 'sam_mask_decoder', only a part" in said


def test_our_own_configuration(tmp_path):
    config = translation()
    config.save_pretrained(tmp_path)
    target = targets.read(tmp_path)
    assert type(target.config) is TransformerConfig
    assert target.model_class is TransformerForTranslation
    assert target.config.d_model == config.d_model
    assert numbers(targets.build(target)) == numbers(TransformerForTranslation(config))
    assert targets.from_config(config).model_class is TransformerForTranslation


def test_our_own_configuration_with_a_wrong_field(tmp_path):
    translation().save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**fields, "d_ff": 0}))
    assert "got SpecError: expected d_ff to be an integer of at least 1; got 0" in refused(tmp_path)


def test_a_missing_model_type_is_that_of_the_class(write):
    target = targets.read(write({name: value for name, value in LLAMA.items() if name != "model_type"}))
    assert target.config.hidden_size == 16
    said = "The file has no model_type; LlamaForCausalLM says that it is llama."
    assert target.notes == (said, built_by("LlamaForCausalLM"))


def test_another_version_of_the_library_is_said(write):
    (note,) = targets.read(write({**LLAMA, "transformers_version": "4.41.0"})).notes
    assert note == built_by("LlamaForCausalLM; the configuration was written by 4.41.0")


def test_remote_code_of_a_known_type_is_not_run(write, tmp_path):
    (tmp_path / "modeling_own.py").write_text("raise SystemExit('run')")
    (tmp_path / "configuration_own.py").write_text("raise SystemExit('run')")
    auto = {"AutoConfig": "configuration_own.Own", "AutoModelForCausalLM": "modeling_own.Own"}
    target = targets.read(write({**LLAMA, "auto_map": auto}))
    assert "auto_map is not run" in target.notes[0]
    assert numbers(targets.build(target)) == LLAMA_TOTAL


def test_infinity_as_the_library_writes_it(tmp_path):
    transformers.Mamba2Config(architectures=["Mamba2ForCausalLM"]).save_pretrained(tmp_path)
    assert "__float__" in (tmp_path / "config.json").read_text()
    assert targets.read(tmp_path).config.time_step_limit[1] == float("inf")


def test_attention_that_is_not_installed_does_not_matter(write):
    fields = {**LLAMA, "attn_implementation": "flash_attention_2", "_attn_implementation": "flash_attention_3"}
    assert numbers(targets.build(targets.read(write(fields)))) == LLAMA_TOTAL


def test_a_list_of_no_tokens_is_no_mistake():
    config = transformers.DINOv3ViTConfig(num_hidden_layers=1)
    assert config.num_register_tokens == 0
    assert targets.build(targets.from_config(config)).embeddings.register_tokens.shape == (1, 0, 384)


# What is no configuration.


def test_a_path_that_is_not_there(tmp_path):
    assert "got nothing there" in refused(tmp_path / "gone")
    assert "got nothing there" in refused(Path("bert-base-uncased"))


def test_a_folder_without_a_configuration(tmp_path):
    assert refused(tmp_path) == f"expected a config.json in {tmp_path}; got a folder without one"
    (tmp_path / "config.json").mkdir()
    assert "got a folder without one" in refused(tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    assert "got another kind of file" in refused(tmp_path / "config.json")
    assert "got a folder without one" in refused(tmp_path)


def test_a_link_to_itself(tmp_path):
    (tmp_path / "config.json").symlink_to("config.json")
    refused(tmp_path / "config.json")


def test_a_path_that_no_file_can_have():
    refused(Path("a\0b"))
    refused(Path("a" * 5000))


def test_a_file_of_five_gigabytes_is_measured_and_not_read(write, monkeypatch):
    file = write(b"{")
    with file.open("r+b") as opened:
        opened.truncate(5_000_000_000)  # sparse
    monkeypatch.setattr(Path, "open", lambda *_: pytest.fail("read"))
    assert refused(file) == f"expected at most 16,777,216 bytes of configuration in {file}; got 5,000,000,000"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "expected JSON in .*; got an empty file"),
        (b" \n", "expected JSON in .*; got an empty file"),
        (b"{", "expected JSON in .*; got JSONDecodeError: Expecting property name"),
        (b'{"model_type": "llama",}', "got JSONDecodeError"),
        (b"{} {}", "got JSONDecodeError: Extra data"),
        (b"\x89PNG\r\n\x1a\n\x00", "got UnicodeDecodeError: .* 0x89 in position 0"),
        (b'{"model_type": "\xff"}', "got UnicodeDecodeError"),
        (b"\xef\xbb\xbf{}", "got JSONDecodeError: Unexpected UTF-8 BOM"),
        ('{"model_type": "llama"}'.encode("utf-16"), "got UnicodeDecodeError"),
        (b"\0" * 100, "got JSONDecodeError"),
        (b"[1, 2]", "expected a JSON object in .*; got a list"),
        (b'"llama"', "expected a JSON object in .*; got a string"),
        (b"5", "expected a JSON object in .*; got a number"),
        (b"true", "expected a JSON object in .*; got true or false"),
        (b"null", "expected a JSON object in .*; got null"),
        (b"[" * 100_000, "expected JSON in .*; got RecursionError"),
        (b'{"a":' * 900 + b"1" + b"}" * 900, "got "),
        (b'{"model_type": "llama", "hidden_size": ' + b"1" * 5000 + b"}", "got ValueError: Exceeds the limit"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_file_that_is_no_configuration(write, content, said):
    assert re.search(said, refused(write(content)))


# What names no model.


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, r"expected model_type or architectures in .*; got neither \(its fields: none\)"),
        ({"_class_name": "UNet", "sample_size": 64}, r"got neither \(its fields: _class_name, sample_size\)"),
        ({"model_type": None, "architectures": []}, "got neither"),
        ({"model_type": None, "architectures": ["Nothing"]}, "to name a model class of .*; got 'Nothing'"),
        ({"model_type": 5}, "expected model_type in .* to be a string; got 5"),
        ({"model_type": ["llama"]}, r"to be a string; got \['llama'\]"),
        ({"model_type": ""}, "expected a model type of transformers 5.*; got ''"),
        ({"model_type": "lama"}, r"got 'lama' \(near it: llama, "),
        ({"model_type": "zzzzzz"}, "got 'zzzzzz'$"),
        ({"model_type": "own", "auto_map": {"AutoConfig": "x.Own"}}, "got 'own', .*remote code is never run"),
        ({**LLAMA, "architectures": ["OwnForCausalLM"]}, "expected architectures in .* to name a model class"),
        ({**LLAMA, "architectures": ["OwnLM"], "auto_map": {}}, "got 'OwnLM', .*remote code is never run"),
        ({**LLAMA, "architectures": ["MistralForCausalLM"]},
         "to name a class of llama; got MistralForCausalLM, a class of mistral"),
        ({**LLAMA, "architectures": ["TransformerForTranslation"]}, "a class of positionwise_transformer"),
        ({**LLAMA, "architectures": "LlamaForCausalLM"}, "to be a list of names; got 'LlamaForCausalLM'"),
        ({**LLAMA, "architectures": [None]}, "to be a list of names"),
        ({**LLAMA, "architectures": {"0": "LlamaForCausalLM"}}, "to be a list of names|got Strict"),
        ({**LLAMA, "architectures": ["LlamaConfig"]}, "got 'LlamaConfig'"),
        ({**LLAMA, "architectures": ["PreTrainedModel"]}, "got 'PreTrainedModel'"),
        ({**LLAMA, "architectures": ["AutoModel"]}, "got 'AutoModel'"),
        ({**LLAMA, "architectures": ["models"]}, "got 'models'"),
        ({**LLAMA, "architectures": ["__file__"]}, "got '__file__'"),
        ({**LLAMA, "architectures": [""]}, "got ''"),
    ],
    ids=lambda value: repr(value)[-40:],
)  # fmt: skip
def test_a_configuration_without_a_known_model(write, fields, said):
    assert re.search(said, refused(write(fields), build=False))


# What no model can be built from.


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"hidden_size": 15}, "15"),
        ({"hidden_size": "16"}, "hidden_size"),
        ({"hidden_size": 16.5}, "hidden_size"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": [16]}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size|bool"),
        ({"hidden_size": 0}, "expected hidden_size in .* to be at least 1; got 0"),
        ({"hidden_size": -16}, "expected hidden_size in .* to be at least 1; got -16"),
        ({"intermediate_size": -24}, "negative dimension"),
        ({"intermediate_size": 0}, "expected sizes of at least 1 in .*; got model.layers.0.mlp.gate_proj.weight of"),
        ({"vocab_size": 0}, "expected vocab_size in .* to be at least 1; got 0"),
        ({"hidden_size": 2**62}, "RuntimeError|OverflowError"),
        ({"hidden_size": 10**30}, "RuntimeError|OverflowError|TypeError"),
        ({"num_attention_heads": 0}, "expected num_attention_heads in .* to be at least 1"),
        ({"num_attention_heads": 8, "num_key_value_heads": 3}, "num_key_value_heads in .* to divide 8 heads; got 3"),
        ({"num_key_value_heads": -1}, "expected num_key_value_heads in .* to be at least 0; got -1"),
        ({"num_hidden_layers": 0}, "expected num_hidden_layers in .* to be at least 1; got 0"),
        ({"num_hidden_layers": -1}, "expected num_hidden_layers in .* to be at least 1; got -1"),
        ({"num_hidden_layers": 10**9}, "expected num_hidden_layers in .* to be at most 1,000,000; got 1,000,000,000"),
        ({"num_labels": 10**9}, "expected num_labels in .* to be at most 1,000,000"),
        ({"hidden_act": "nothing"}, "nothing"),
        ({"rms_norm_eps": float("nan")}, "expected rms_norm_eps in .* to be a number; got NaN"),
        ({"vocab_size": float("nan")}, "expected vocab_size in .* to be a number; got NaN"),
        ({"vocab_size": float("inf")}, "vocab_size"),
        ({"rms_norm_eps": {"__float__": "what"}}, "rms_norm_eps"),
        ({"rope_parameters": {"rope_type": "what", "rope_theta": 1.0}}, "got "),
        ({"dtype": "float17"}, "float17"),
        ({"torch_dtype": 5}, "got "),
    ],
    ids=str,
)
def test_a_field_that_is_wrong(write, fields, said):
    file = write({**LLAMA, **fields})
    answer = refused(file)
    assert re.search(said, answer)
    assert file.parent.name in answer or str(file) in answer


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({**MIXTRAL, "num_experts_per_tok": 5}, "expected num_experts_per_tok in .* to be 1 to 4, its experts; got 5"),
        ({**MIXTRAL, "num_experts_per_tok": 0}, "to be 1 to 4, its experts; got 0"),
        ({**MIXTRAL, "num_local_experts": -4}, "expected num_local_experts in .* to be at least 0; got -4"),
        ({**MIXTRAL, "intermediate_size": 0}, "expected sizes of at least 1 in .*; got model.layers.0.mlp.experts"),
        ({"model_type": "gpt2", "n_layer": -3}, "expected n_layer in .* to be at least 1; got -3"),
        ({"model_type": "bart", "encoder_layers": -1}, "expected encoder_layers in .* to be at least 0; got -1"),
        ({"model_type": "swin", "depths": [2, -2, 6, 2]}, "expected depths in .* to be at least 0; got -2"),
        ({"model_type": "swin", "num_heads": [3, 6]}, r"IndexError.*\(at: "),
        ({"model_type": "llava", "text_config": {**LLAMA, "num_hidden_layers": -1}}, "num_hidden_layers"),
        ({"model_type": "llava", "text_config": {**MIXTRAL, "num_experts_per_tok": 5}}, "num_experts_per_tok"),
        ({"model_type": "llava", "text_config": 5}, "got "),
        ({"model_type": "llava", "text_config": {"model_type": "nothing"}}, "nothing"),
        ({"model_type": "clip", "text_config": ["llama"]}, "got "),
        ({"model_type": "qwen3", "layer_types": ["full_attention"]}, "num_hidden_layers|layer_types"),
        ({"model_type": "qwen3", "layer_types": ["nothing"] * 32}, "layer_types"),
        ({"model_type": "dbrx"}, r"rope_theta.*\(at: "),
        ({"model_type": "timm_backbone", "backbone": "resnet50", "use_pretrained_backbone": True}, "timm"),
        ({"model_type": "time_series_transformer"}, "prediction_length"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_fields_that_contradict_each_other(write, fields, said):
    assert re.search(said, refused(write(fields)))


def test_a_model_of_too_many_modules_is_stopped(monkeypatch, write):
    monkeypatch.setattr(guarding, "MOST_MODULES", 30)
    file = write({**LLAMA, "num_hidden_layers": 1000})
    assert re.search("expected at most 30 modules in .*; got more, and stopped", refused(file))
    monkeypatch.undo()
    assert numbers(targets.build(targets.read(write(LLAMA)))) == LLAMA_TOTAL


@pytest.mark.parametrize(
    "error", [RecursionError, MemoryError, KeyError, AssertionError, ZeroDivisionError, ImportError]
)
def test_whatever_is_raised_while_building_is_one_line(monkeypatch, write, error):
    target = targets.read(write(LLAMA))

    def fail(*_):
        raise error("first\nsecond")

    monkeypatch.setattr(transformers.LlamaForCausalLM, "__init__", fail)
    with pytest.raises(AccountError, match=f"; got {error.__name__}: .*first(\\\\n| )second") as caught:
        targets.build(target)
    assert "\n" not in str(caught.value)


# What must not be touched.


def test_nothing_is_asked_of_a_network(monkeypatch, write):
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("a connection"))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("a look-up"))
    offline = huggingface_hub.constants.HF_HUB_OFFLINE
    seen = []

    def look(self, config):
        seen.append(huggingface_hub.constants.HF_HUB_OFFLINE)
        transformers.AutoConfig.from_pretrained("someone/a-model-that-is-not-here")

    target = targets.read(write(LLAMA))
    monkeypatch.setattr(transformers.LlamaForCausalLM, "__init__", look)
    with pytest.raises(AccountError, match="got OSError"):
        targets.build(target)
    assert seen == [True]
    assert huggingface_hub.constants.HF_HUB_OFFLINE == offline


def test_warnings_and_log_lines_come_back_afterwards(monkeypatch, write):
    target = targets.read(write(LLAMA))
    logger, lines, handler = logging.getLogger("transformers"), [], logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: lines.append(record.getMessage()))
    monkeypatch.setattr(logger, "handlers", [handler])
    whole = transformers.LlamaForCausalLM.__init__

    def noisy(self, config):
        warnings.warn("unseen", UserWarning, stacklevel=2)
        logger.error("unseen")
        whole(self, config)

    monkeypatch.setattr(transformers.LlamaForCausalLM, "__init__", noisy)
    targets.build(target)
    logger.error("seen")
    assert lines == ["seen"]
    with pytest.warns(UserWarning, match="seen"):
        warnings.warn("seen", UserWarning, stacklevel=1)


def test_a_fresh_process_says_nothing_and_imports_only_the_model_asked_for(write):
    file = write({**LLAMA, "bos_token_id": 50_000})  # the library warns of an id beyond the vocabulary
    code = (
        "import json, sys; from pathlib import Path; from positionwise.accounting import targets\n"
        f"targets.build(targets.read(Path({str(file)!r})))\n"
        "print(json.dumps([name for name in sys.modules if '.modeling_' in name and '.models.' in name]))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stderr == ""
    assert set(json.loads(run.stdout)) <= {
        "transformers.models.llama.modeling_llama",
        "transformers.models.auto.modeling_auto",
    }
