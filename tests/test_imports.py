"""What an import costs, which names the package shows, and which parts may import which."""

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import positionwise

SOURCE = Path(positionwise.__file__).parent
# Each part imports only parts above it: the layout of shared/design.md.
ORDER = [
    "errors", "activations", "spec", "functional", "variants", "kernels", "feedforward", "hidden_density",
    "transformer", "adapters", "accounting", "convert", "parallel", "training", "atlas", "bench", "cli",
]  # fmt: skip
HEAVY = {"torch", "transformers", "numba", "typer", "rich", "numpy"}
FILES = sorted(SOURCE.rglob("*.py"))


def after(code):
    """What a fresh interpreter prints as JSON after running the code."""
    return json.loads(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


@pytest.mark.parametrize(
    ("code", "forbidden"),
    [
        ("import positionwise", HEAVY),
        ("import positionwise; dir(positionwise)", HEAVY),
        ("from positionwise import FFNSpec; FFNSpec(512, 2048).parameters; FFNSpec(512, 2048).equation", HEAVY),
        ("from positionwise import PositionwiseError", HEAVY),
        ("import positionwise.variants as v; v.variant('swiglu', 512, 2048, match_parameters=True)", HEAVY),
        ("from positionwise import FeedForward, explain; import torch; FeedForward(4, 8)(torch.ones(2, 4))",
         HEAVY - {"torch", "numpy"}),
    ],
)  # fmt: skip
def test_an_import_loads_only_what_it_needs(code, forbidden):
    loaded = after(f"{code}; import sys, json; print(json.dumps(sorted(sys.modules)))")
    assert {name.partition(".")[0] for name in loaded} & forbidden == set()
    assert "positionwise" in loaded


def test_dir_shows_the_documented_names_and_no_others():
    shown = after("import positionwise, json; print(json.dumps(dir(positionwise)))")
    assert sorted(name for name in shown if not name.startswith("_")) == sorted(positionwise.__all__)


@pytest.mark.parametrize("name", positionwise.__all__)
def test_a_documented_name_is_importable(name):
    value = getattr(importlib.import_module("positionwise"), name)
    assert value.__name__ == name
    assert value.__module__.startswith(positionwise._HOMES[name])


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'feed_foward'"):
        _ = positionwise.feed_foward


def part_of(path):
    """The part a file belongs to; None for the package's own __init__, and the command line's for its __main__."""
    name = path.relative_to(SOURCE).parts[0].replace("__main__", "cli")
    return None if name == "__init__.py" else name.removesuffix(".py")


def type_checking_blocks(tree):
    """The nodes inside `if TYPE_CHECKING:`."""
    blocks = (node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    return {id(inner) for block in blocks for statement in block.body for inner in ast.walk(statement)}


def imported_parts(path, source):
    """(line, part) of every import of the package's own parts, at module level and inside functions."""
    tree = ast.parse(source)
    exempt = type_checking_blocks(tree) if part_of(path) is None else set()
    package = ["positionwise", *path.relative_to(SOURCE).parts[:-1]]
    for node in ast.walk(tree):
        if id(node) in exempt or not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        for name in names_of(node, package):
            if name == "positionwise":
                yield from attributes_of_the_package(tree)
            elif name.startswith("positionwise.") and name != "positionwise.__version__":
                yield node.lineno, home(name.split(".")[1])


def home(name):
    """The part that a name of the package lives in."""
    return positionwise._HOMES.get(name, f"positionwise.{name}").split(".")[1]


def attributes_of_the_package(tree):
    """(line, part) of what a file that says `import positionwise` reads of it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "positionwise":
            if node.attr != "__version__":
                yield node.lineno, home(node.attr)


def names_of(node, package):
    """The dotted names that an import statement asks for."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    above = package[: len(package) - node.level + 1] if node.level else []
    module = ".".join([*above, *([node.module] if node.module else [])])
    return [f"{module}.{alias.name}" for alias in node.names]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_part_imports_only_parts_above_it(path):
    part = part_of(path)
    assert part is None or part in ORDER, f"{part} is not a part of the layout"
    above = [] if part is None else ORDER[: ORDER.index(part) + 1]
    if part == "adapters":
        above.remove("transformer")
    wrong = [(line, other) for line, other in imported_parts(path, path.read_text("utf-8")) if other not in above]
    assert wrong == [], f"{path}: (line, part) of imports from below {part}: {wrong}"


@pytest.mark.parametrize(
    ("file", "source", "parts"),
    [
        ("spec.py", "from positionwise import activations, FeedForward", ["activations", "feedforward"]),
        ("spec.py", "def f():\n    import positionwise.kernels.choice", ["kernels"]),
        ("kernels/choice.py", "from ..functional import compose\nfrom . import dense\nfrom .. import spec",
         ["functional", "kernels", "spec"]),
        ("kernels/choice.py", "if TYPE_CHECKING:\n    from positionwise.feedforward import X", ["feedforward"]),
        ("__init__.py", "if TYPE_CHECKING:\n    from positionwise.feedforward import X", []),
        ("cli/__init__.py", "from positionwise import __version__\nimport torch", []),
        ("cli/__init__.py", "import positionwise\npositionwise.__version__", []),
        ("spec.py", "import positionwise\npositionwise.account()\npositionwise.errors", ["accounting", "errors"]),
    ],
)  # fmt: skip
def test_the_reader_of_imports_sees_every_form(file, source, parts):
    assert sorted(part for _, part in imported_parts(SOURCE / file, source)) == sorted(parts)
