"""Machine code that Numba keeps must not outlive the source that it was made from."""

import hashlib
from pathlib import Path

import pytest

from positionwise.kernels import few, sparse_kernels, sparse_lists

MODULES = {
    few: ["vectors"],
    sparse_lists: ["vectors", "sparse_loops"],
    sparse_kernels: ["vectors", "sparse_loops", "sparse_lists"],
}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_kernels_name_what_they_are_built_on(module):
    """A change of a module that they import functions from changes their own file too."""
    folder, digest = Path(module.__file__).parent, hashlib.sha256()
    for name in MODULES[module]:
        digest.update((folder / f"{name}.py").read_bytes())
    assert module.BUILT_ON == digest.hexdigest()[:12]
