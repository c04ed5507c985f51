"""Fixtures of the trainer tests."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread():
    """Run torch on one thread: faster for small networks, and results do not depend on the number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
