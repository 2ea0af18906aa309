"""positionwise convert: what it prints, what it writes, and that the folder works."""

import io
import json
import re

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from positionwise import FeedForward, FFNSpec
from positionwise.cli import tables
from positionwise.convert import from_keras, from_tensor2tensor
from positionwise.convert.keras import convert_keras
from positionwise.transformer import EncoderLayer, TransformerConfig, TransformerForTranslation
from shared import shared_file

CHECKPOINT = "fixtures/tensor2tensor/checkpoint_v37_shared"
BIAS = "body/decoder/layer_0/conv_hidden_relu/conv1_single/bias"
MODEL = ("--from", "tensor2tensor", "--num-heads", 4, "--target-space-id", 9)


def fixture(name):
    return shared_file(f"fixtures/{name}")


@pytest.fixture
def vocabulary(tmp_path):
    path = tmp_path / "vocab.37"
    characters = ["<pad>_", "<EOS>_", *"\\_;0123456789", *"abcdefghijklmnopqrstuv"]
    path.write_text("".join(f"'{each}'\n" for each in characters), "utf-8")
    assert len(characters) == 37
    return path


def test_a_checkpoint_becomes_a_run_that_translates(command, tmp_path, vocabulary):
    out = tmp_path / "run"
    done = command("convert", shared_file(CHECKPOINT), *MODEL, "--out", out, "--vocabulary", vocabulary)
    assert (done.code, done.err) == (0, "")
    aside, used = done.out.splitlines()[-2:]
    assert aside == f"set aside, no weights of the module: 163, such as {BIAS}/Adam"
    assert used == "81 of 81 tensors used"
    model = TransformerForTranslation.from_pretrained(out)
    direct = from_tensor2tensor(shared_file(CHECKPOINT), num_heads=4, target_space_id=9)
    assert all(torch.equal(value, direct.state_dict()[name]) for name, value in model.state_dict().items())
    assert model.config.target_space_id == 9
    translated = command("translate", out, stdin="a cab\n\nbad\n")
    assert (translated.code, len(translated.out.splitlines())) == (0, 3)
    record = json.loads((out / "run.json").read_text("utf-8"))["results"]["converted"]
    assert record == {"from": "tensor2tensor", "source": "checkpoint_v37_shared", "num_heads": 4, "target_space_id": 9}


def test_every_tensor_stands_in_the_table_whole(command, tmp_path):
    done = command("convert", fixture("keras/decoder.weights.h5"), "--from", "keras", "--out", tmp_path / "new")
    rows = [line.split("\t") for line in done.out.splitlines() if "\t" in line]  # no terminal: plain columns
    assert len(rows) == 26
    for part in ("self_attention", "cross_attention"):
        name = f"layers/transformer_decoder/{part}/query_dense/vars/0"
        assert [name, "16 × 4 × 4", f"{part}.query.weight"] in rows
    assumed = [line for line in done.out.splitlines() if line.startswith("assumed, as the file does not say: ")]
    assert [line.split(": ")[1].split("=")[0] for line in assumed] == ["epsilon", "norm_first", "activation", "dropout"]
    assert done.out.splitlines()[-1] == "26 of 26 tensors used"


def test_on_a_terminal_the_table_folds_names_and_loses_nothing(monkeypatch):
    made = convert_keras(fixture("keras/decoder.weights.h5"))
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=60, color_system=None)
    monkeypatch.setattr(tables, "Console", lambda **options: console)
    tables.show_conversion(made)
    cells = [line.split("│") for line in written.getvalue().splitlines() if line.startswith("│")]
    text = "".join(cell[1].strip() for cell in cells)
    assert all(row.source in text for row in made.rows)


def test_a_part_of_a_model_becomes_its_weights(command, tmp_path):
    done = command("convert", fixture("keras/hub_encoder_prenorm_gelu.keras"), "--from", "keras", "--out",
                   tmp_path / "layer")  # fmt: skip
    assert (done.code, done.err) == (0, "")
    written = json.loads((tmp_path / "layer" / "config.json").read_text("utf-8"))
    assert written["class"] == "EncoderLayer"
    layer = EncoderLayer(TransformerConfig(**written["config"])).eval()
    layer.load_state_dict(load_file(tmp_path / "layer" / "model.safetensors"), strict=True)
    x = torch.randn(2, 3, 16)
    assert torch.equal(layer(x), from_keras(fixture("keras/hub_encoder_prenorm_gelu.keras"))(x))


def test_a_state_dict_becomes_a_block(command, tmp_path):
    ffn = FeedForward(6, 10, 0.2, "silu", is_gated=True, bias2=False).eval()
    torch.save(ffn.state_dict(), tmp_path / "ffn.pt")
    done = command("convert", tmp_path / "ffn.pt", "--from", "labml", "--activation", "silu", "--out", tmp_path / "new")
    assert (done.code, done.out.splitlines()[-1]) == (0, "5 of 5 tensors used")
    written = json.loads((tmp_path / "new" / "config.json").read_text("utf-8"))
    block = FeedForward.from_spec(FFNSpec(**written["config"])).eval()
    block.load_state_dict(load_file(tmp_path / "new" / "model.safetensors"), strict=True)
    x = torch.randn(2, 6)
    assert torch.equal(block(x), ffn(x))


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (CHECKPOINT, ("--from", "tensorflow"), "expected --from to be one of keras, labml, tensor2tensor"),
        (CHECKPOINT, ("--from", "tensor2tensor", "--target-space-id", 9), "expected num_heads"),
        (CHECKPOINT, ("--from", "tensor2tensor", "--heads", 4), "expected target_space_id"),
        (CHECKPOINT, (*MODEL, "--epsilon", 1e-3), "expected options of tensor2tensor .*; got epsilon"),
        ("fixtures/keras/decoder.keras", ("--from", "keras", "--padding", "left"), "options of keras .*; got padding"),
        ("fixtures/keras/decoder.keras", ("--from", "keras", "--vocabulary", "v.txt"), "a whole model to go with"),
        ("fixtures/keras/decoder.npz", ("--from", "labml"), "expected"),
        ("fixtures/keras/none.keras", ("--from", "keras"), "expected a file at .*none.keras"),
        ("fixtures/keras", ("--from", "tensor2tensor"), "expected a TensorFlow checkpoint .*a folder without"),
    ],
)  # fmt: skip
def test_what_is_wrong_takes_a_line_and_leaves_nothing(command, tmp_path, source, options, message):
    refused = command("convert", shared_file(source), *options, "--out", tmp_path / "new").refused()
    assert re.search(message, refused), refused
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("source", "options"),
    [(CHECKPOINT, MODEL), ("fixtures/tensor2tensor/ffn_k1_d8_ff32.npz", ("--from", "tensor2tensor"))],
)
def test_nothing_is_written_over(command, tmp_path, source, options):
    (tmp_path / "kept").write_text("mine", "utf-8")
    assert "new or empty folder" in command("convert", shared_file(source), *options, "--out", tmp_path).refused()
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_vocabulary_of_another_size_leaves_nothing(command, tmp_path, vocabulary):
    vocabulary.write_text(vocabulary.read_text("utf-8") + "'w'\n", "utf-8")
    refused = command("convert", shared_file(CHECKPOINT), *MODEL, "--out", tmp_path / "new", "--vocabulary", vocabulary)
    assert "37 entries; got one of 38" in refused.refused()
    assert not (tmp_path / "new").exists()
