"""Write one checkpoint in a forked child, to be traced by strace: python -m tests.runs.one_save RUN_DIR."""

import os
import sys
from pathlib import Path

import safetensors.torch  # noqa: F401 - so that the child's system calls are those of the save alone
import torch

from kit.format import checkpoint
from kit.format.segments import Segment
from kit.runs.writer import Writer

STATE = {"policy": {"weight": torch.arange(50_000.0)}, "trainer": {"num_timesteps": 200}}


def save(run_path: Path) -> int:
    """Write one checkpoint; return exit code 0, or 3 after an `OSError`."""
    newest = checkpoint.committed(run_path / "checkpoints")[-1]
    writer = Writer(run_path, newest, lambda written: None)
    writer.submit(200, STATE, Segment(10, {"rewards": torch.ones(10, 1)}))
    writer.wait()
    return 3 if writer.error else 0


if __name__ == "__main__":
    child = os.fork()
    if child == 0:
        os._exit(save(Path(sys.argv[1])))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    sys.exit(code if code >= 0 else 128 - code)
