"""What every test shares: one thread, one seed, and Hypothesis without clock or memory."""

import os

import pytest
import torch
from hypothesis import settings

settings.register_profile("positionwise", deadline=None, derandomize=True, database=None, max_examples=40)
settings.load_profile("positionwise")
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)
