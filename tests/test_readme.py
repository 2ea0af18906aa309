"""The README's Python runs, and what its comments say is printed is printed."""

import contextlib
import io
import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def promised(block: str) -> list[str]:
    """What the comments after print say, and the comment lines that stand for whole printed lines."""
    after = re.findall(r"^print\(.*?\)\s+# ([\d ]+)", block, re.MULTILINE)
    whole = re.findall(r"^# (.*× .*)$", block, re.MULTILINE)
    return [text.strip() for text in [*after, *whole]]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.strip().splitlines()[-1][:40])
def test_block_runs_and_prints_what_it_promises(block: str) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block, "README.md", "exec"), {})
    for text in promised(block):
        assert text in printed.getvalue()


def test_promises_are_found() -> None:
    assert sum(len(promised(block)) for block in BLOCKS) >= 4


def test_commands_exist() -> None:
    from positionwise.cli.app import app

    shell = "".join(re.findall(r"```sh\n(.*?)```", README, re.DOTALL))
    named = set(re.findall(r"^positionwise (\w+)", shell, re.MULTILINE))
    assert {"account", "train", "translate", "evaluate"} <= named
    assert named <= {command.name for command in app.registered_commands}
