"""What every test shares: one thread, one seed, and Hypothesis without clock or memory."""

import os

import pytest
import torch
from hypothesis import settings

settings.register_profile("positionwise", deadline=None, derandomize=True, database=None, max_examples=40)
settings.load_profile("positionwise")
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """In CI nothing may be missing, so a skipped test fails there; only a GPU may be absent."""
    report = yield
    if (
        report.skipped
        and os.environ.get("CI")
        and not hasattr(report, "wasxfail")
        and not item.get_closest_marker("gpu")
    ):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where everything is installed: {report.longrepr}"
    return report


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture
def saved_bytes():
    """Measures the bytes that autograd keeps of ``ffn(x)``."""

    def measure(ffn, x):
        """Bytes that autograd keeps for backward: distinct storages, parameters left out."""
        own = {p.untyped_storage().data_ptr() for p in ffn.parameters()}
        kept = {}

        def pack(tensor):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                kept[storage.data_ptr()] = storage  # held, so that its address is not given to another
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            ffn(x)
        return sum(storage.nbytes() for storage in kept.values())

    return measure
