"""``positionwise account``."""

import gc
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout

import pytest
from transformers import BertConfig, DeepseekV3Config

from positionwise import account
from positionwise.accounting import difference
from positionwise.cli import main

BERT = {"hidden_size": 16, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A small BERT, one that differs, and what is wrong in one way each; all only to be read."""
    place = tmp_path_factory.mktemp("models")

    def write(name, **changes):
        (place / name).mkdir()
        config = BertConfig(**BERT, architectures=["BertForMaskedLM"]).to_dict() | changes
        (place / name / "config.json").write_text(json.dumps(config))
        return place / name

    write("bert"), write("wide", intermediate_size=48, hidden_act="relu")
    write("unknown", model_type="berd")
    write("class", architectures=["BertForNothing"])
    write("remote", model_type="mine", auto_map={"AutoModel": "modeling_mine.Mine"})
    write("contradiction", num_hidden_layers=-1)
    (write("cut") / "model.safetensors").write_bytes((1000).to_bytes(8, "little") + b'{"weight": {"dtype"')
    (place / "empty").mkdir()
    (place / "broken.json").write_text('{"model_type": "bert", ')
    DeepseekV3Config(architectures=["DeepseekV3ForCausalLM"]).save_pretrained(place / "[red]deepseek :fire:")
    return place


def test_json_is_the_accounts_dictionary(command):
    result = command("account", "transformer-base", "--json")
    assert (result.code, result.err) == (0, "")
    entry = json.loads(result.out)
    assert entry["total"] == 63098880
    assert entry["feed_forward"]["total"] == 25196544
    assert [group["per_instance"] for group in entry["feed_forward"]["groups"]] == [2099712, 2099712]
    assert entry == json.loads(json.dumps(account("transformer-base").to_dict()))


def test_the_table_shows_every_figure(command):
    result = command("account", "transformer-base")
    assert (result.code, result.err) == (0, "")
    for figure in ("2,099,712", "25,196,544", "63,098,880", "512 × 2,048 + 2,048", "1,050,624"):
        assert figure in result.out
    assert "512 d_model]" in result.out
    assert r"\[" not in result.out
    assert max(map(len, result.out.splitlines())) <= 80


@pytest.mark.parametrize("target", ["transformer-base", "keras-translation"])
def test_a_vocabulary_of_ones_own_is_counted(command, target):
    total = json.loads(command("account", target, "--json", "--vocab-size", "1000").out)["total"]
    assert total == account(target, vocab_size=1000).total != account(target).total


def test_flops_are_counted_for_a_batch(command):
    entry = json.loads(command("account", "transformer-base", "--json", "--batch", "2", "--sequence", "8").out)
    assert entry["flops"] == account("transformer-base", batch=2, sequence=8).flops
    assert entry["feed_forward"]["groups"][0]["flops"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "got 'nonsense'"),
        (["transformer-bas"], "got 'transformer-bas' .did you mean 'transformer-base'"),
        ([""], "got ''"),
        (["transformer-base", "--vocab-size", "0"], "vocab_size.*at least 2; got 0"),
        (["transformer-base", "--vocab-size", "-7"], "vocab_size.*at least 2; got -7"),
        (["transformer-base", "--batch", "0", "--sequence", "4"], "batch.*at least 1.*got 0"),
        (["transformer-base", "--batch", "2"], "batch.*sequence"),
    ],
)
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_what_cannot_be_counted_is_refused(command, arguments, message, form):
    assert re.search(message, command("account", *arguments, *form).refused())


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere", "at .*nowhere; got nothing there"),
        ("nowhere/config.json", "at .*nowhere/config.json; got nothing there"),
        ("empty", "a config.json in .*empty; got a folder without one"),
        ("broken.json", "JSON in .*broken.json; got"),
        ("unknown", "model type.*got 'berd' .near it: bert"),
        ("class", "got 'BertForNothing'"),
        ("remote", "got 'mine'.*remote code is never run"),
        ("contradiction", "num_hidden_layers.*at least 1; got -1"),
        ("cut", "header of 1,000 bytes in .*model.safetensors; got a file of 27 bytes"),
    ],
)
def test_a_wrong_place_is_refused_on_either_side(command, folders, target, message):
    for line in ([folders / target], [folders / "bert", "--against", folders / target, "--json"]):
        assert re.search(message, command("account", *line).refused(2))


def test_a_name_that_is_nothing_is_told_what_it_could_be(command):
    for line in (["transformer_base"], ["transformer-tiny", "--against", "transformer_base"]):
        message = command("account", *line).refused(2)
        assert re.search("preset.*did you mean .transformer-base", message)
        assert "a folder or a file" in message


@pytest.mark.parametrize("options", [["--batch", "2"], ["--sequence", "2"], ["--vocab-size", "100"]])
def test_options_that_do_not_fit_are_refused(command, folders, options):
    name = options[0].strip("-").replace("-", "_")
    for line in ([folders / "bert"], [folders / "bert", "--against", folders / "wide"]):
        assert name in command("account", *line, *options).refused(2)


def test_an_error_ends_a_process_of_its_own(process, finish, folders):
    finish(process("account", folders / "cut")).refused(2)


@pytest.mark.parametrize("target", ["bert", "bert/config.json"])
def test_a_folder_and_its_file_are_counted(command, folders, target):
    entry = json.loads(command("account", folders / target, "--json").out)
    assert (entry["name"], entry["total"]) == (
        "bert",
        account(BertConfig(**BERT, architectures=["BertForMaskedLM"])).total,
    )
    assert [group["d_ff"] for group in entry["feed_forward"]["groups"]] == [40]


@pytest.mark.parametrize(
    ("target", "other"), [("bert", "wide"), ("bert", "transformer-tiny"), ("transformer-base", "transformer-big")]
)
def test_a_difference_is_the_dictionary_of_two_accounts(command, folders, target, other):
    a, b = (folders / name if (folders / name).exists() else name for name in (target, other))
    options = ["--batch", "2", "--sequence", "8"]
    result = command("account", a, "--against", b, "--json", *options)
    assert (result.code, result.err) == (0, "")
    entry = json.loads(result.out)
    one, two = account(a, batch=2, sequence=8), account(b, batch=2, sequence=8)
    assert entry == json.loads(json.dumps(difference(one, two).to_dict()))
    assert (entry["a"], entry["b"], entry["same"]) == (one.name, two.name, False)
    assert sum(row["difference"] for row in entry["rows"]) == two.total - one.total


def test_a_difference_is_printed_row_by_row(command, folders):
    result = command("account", folders / "bert", "--against", folders / "wide")
    assert (result.code, result.err) == (0, "")
    lines = [line.split() for line in result.out.splitlines()]
    assert ["d_ff", "40", "48", "+8"] in lines
    assert ["Activation", "gelu", "relu", "≠"] in lines
    assert ["d_model", "16", "16", "="] in lines
    assert "a: bert, b: wide" in result.out
    assert max(map(len, result.out.splitlines())) <= 80


def test_a_model_against_itself_does_not_differ(command, folders):
    result = command("account", folders / "bert", "--against", folders / "bert" / "config.json")
    assert result.out.startswith("Nothing differs between a (bert) and b (bert).")


def test_six_hundred_billion_parameters_fit_into_eighty_columns(command, folders):
    """Nothing is cut, the sums come first, and a name is data: neither markup nor an emoji."""
    out = command("account", folders / "[red]deepseek :fire:").out
    assert out.startswith("[red]deepseek :fire:")
    assert "…" not in out.replace("[… positions", "")
    assert max(map(len, out.splitlines())) <= 80
    head = "\n".join(out.splitlines()[:12])
    for figure in ("671,026,404,352", "37,552,282,624", "98.02 %", "2,684.11 GB", "1,342.05 GB", "335.51 GB"):
        assert figure in head
    parts = {line.split()[0] for line in out.splitlines() if line.strip()}
    assert {"post_attention_layernorm.", "kv_a_proj_with_mqa", "q_a_layernorm.weight"} <= parts


def test_where_the_output_is_no_terminal_no_name_is_broken(process, finish, folders):
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"OMP_NUM_THREADS": "1"}
    out = finish(process("account", folders / "[red]deepseek :fire:", env=environment)).out
    (row,) = [line for line in out.splitlines() if "post_attention_layernorm" in line]
    assert row.split()[0] == "model.layers.*.post_attention_layernorm.weight"
    assert row.split()[-1] == "437,248"


def test_the_collector_is_left_as_it_was(command, folders):
    for target in (folders / "bert", "nonsense"):
        command("account", target)
        assert gc.isenabled()


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_reader_that_has_gone_is_no_traceback(form, capsys):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", encoding="utf-8") as pipe, redirect_stdout(pipe):
        with pytest.raises(SystemExit) as end:
            main(["account", "transformer-base", *form])
    assert end.value.code in (0, 1)
    assert capsys.readouterr().err == ""


def test_head_may_close_the_pipe():
    line = f'{sys.executable} -c "from positionwise.cli import main; main()" account transformer-base | head -1'
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=environment, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1
