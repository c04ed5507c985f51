"""Tests of runs under random faults (`tests.runs.nights`): three nights by default, 500 with `-m storm`.

With `pytest -m storm tests/runs/test_nights.py`, KIT_NIGHTS sets the number of nights, KIT_NIGHT the first seed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def spend(count: int, first: int, processes: int = 1) -> None:
    """Run `count` nights in `processes` processes; the assert message has the events of failed nights."""
    share = -(-count // processes)
    command = [sys.executable, "-m", "tests.runs.nights", "--count", str(share)]
    started = [
        subprocess.Popen(
            [*command, "--seed", str(first + i * share)],
            cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for i in range(processes)
    ]  # fmt: skip
    said = [process.communicate()[0] for process in started]
    print("\n".join(said))
    assert all(process.returncode == 0 for process in started), "\n".join(said)


def test_three_nights_of_random_faults() -> None:
    spend(3, first=1228)


@pytest.mark.storm
@pytest.mark.timeout(4 * 3600)
def test_five_hundred_nights_of_random_faults() -> None:
    """Uses two processes, because most of a night is waiting."""
    spend(int(os.environ.get("KIT_NIGHTS", 500)), first=int(os.environ.get("KIT_NIGHT", 100)), processes=2)
