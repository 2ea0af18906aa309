"""``positionwise account``."""

import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout

import pytest

from positionwise import account
from positionwise.cli import main


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
