"""A task that uses little of the processor: tests that wait until a run is stopped leave it to tests beside them."""

from __future__ import annotations

import time

import torch

from tests.envs.slide import Slide

SLOW = "tests.envs.slow:Slow"


class Slow(Slide):
    name = "Slow"

    def advance(self, action: torch.Tensor) -> None:
        time.sleep(0.02)
        super().advance(action)
