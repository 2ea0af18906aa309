"""docs/equivalence.md says what is measured, and its recipe runs; ``make pages`` writes it."""

import os
import re
from pathlib import Path

import pytest
import torch
from equivalence_page import PORTING, RECIPE, errors, page, rounded

from positionwise.convert import from_tensor2tensor
from shared import shared_file

PAGE = Path(__file__).parents[2] / "docs" / "equivalence.md"
FIGURE = r"(?<=\| )(?:0|\de-\d+)(?= \|)"


@pytest.fixture(scope="module")
def found():
    return errors()


def test_the_page_is_what_is_measured(found):
    """Word for word but for the errors, which differ with the machine: none is more than thrice the page's."""
    text = page(found)
    if os.environ.get("WRITE_PAGES"):
        PAGE.write_text(text, encoding="utf-8")
    written = PAGE.read_text(encoding="utf-8")
    assert re.sub(FIGURE, "…", written) == re.sub(FIGURE, "…", text)
    stated = [float(figure) for figure in re.findall(FIGURE, written)]
    now = [figure for rows in found.values() for _, *figures in rows.values() for figure in figures]
    assert len(stated) == len(now) > 60
    assert [(is_, was) for is_, was in zip(now, stated, strict=True) if is_ > max(3 * was, 1e-15)] == []


@pytest.mark.parametrize(
    ("error", "text"), [(0, "0"), (1.2e-7, "2e-7"), (9.3e-8, "1e-7"), (1e-7, "1e-7"), (3e-5, "3e-5")]
)
def test_errors_are_rounded_up(error, text):
    assert rounded(error) == text


def test_the_example_of_porting_runs():
    code = re.search(r"```python\n(.*?)```", PORTING, re.DOTALL)[1]
    path = shared_file("fixtures/keras/translation.keras")
    names = {}
    exec(compile(code.replace('"translation.keras"', repr(str(path))), "porting", "exec"), names)
    assert names["logits"].shape == (1, 3, 29)
    assert names["written"][0, 0] == 2
    assert names["hidden"].shape == (1, 3, 16)


def test_the_recipe_changes_the_vocabulary():
    code = re.search(r"```python\n(.*?)```", RECIPE, re.DOTALL)[1]
    path = shared_file("fixtures/tensor2tensor/checkpoint_v37_shared") / "model.ckpt-1234"
    names = {}
    exec(compile(code.replace('"model.ckpt-1234"', repr(str(path))), "recipe", "exec"), names)
    model, old = names["model"], from_tensor2tensor(path, num_heads=4, target_space_id=9)
    assert model.config.vocab_size == 40
    assert torch.equal(model.source_embedding.weight[:37], old.source_embedding.weight)
    ids, labels = torch.tensor([[20, 25, 1]]), torch.tensor([[19, 25, 1]])
    new = model(input_ids=ids, labels=labels).logits
    torch.testing.assert_close(new[..., :37], old(input_ids=ids, labels=labels).logits)
    assert model(input_ids=torch.tensor([[39, 1]]), labels=labels).logits.shape == (1, 3, 40)
