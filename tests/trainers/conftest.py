"""What the trainers' tests share."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _one_thread():
    """Small networks: a second thread only adds waiting, and results do not depend on the machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
