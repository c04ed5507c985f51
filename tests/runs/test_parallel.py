"""One run in two processes under the real torchrun, on CPUs: equal to one process, cut and resumed, refused."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import psutil
import pytest
import torch

from kit.config import RunConfig
from kit.errors import UserError
from kit.runs import metrics, parallel
from kit.runs.fingerprint import fingerprint
from kit.runs.run import Run
from tests.runs.crash import SMALL, complete, create

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch.distributed") is None, reason="torch is without it")

OVERRIDES = {**SMALL["PPO"], "normalize": True}
FIELDS = {"env": "Reach", "n_envs": 2, "threads": 1, "eval_every": 0, "checkpoint_every": 64}
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC")}


class Torchrun:
    """`kit ...`, or another `module`, in two processes."""

    def __init__(self, *arguments, module="kit"):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
        self.process = subprocess.Popen(
            [*command, "-m", module, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**CLEAN, "OMP_NUM_THREADS": "1"},
        )

    def wait(self):
        """Everything that was printed."""
        self.printed, _ = self.process.communicate(timeout=120)
        return self.printed

    def workers(self):
        return psutil.Process(self.process.pid).children()


def train(tmp_path, name, total_steps, **fields):
    options = {**FIELDS, "total_steps": total_steps, "run_name": name, "runs_dir": tmp_path, **fields}
    overrides = json.dumps(options.pop("overrides", OVERRIDES))
    return Torchrun("train", *(f"--{key}={value}" for key, value in options.items()), "--overrides", overrides)


def rows(run):
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in metrics.read(run.path)]


def largest_difference(one, two, component):
    a, b = one[component], two[component]
    assert a.keys() == b.keys()
    tensors = [name for name, value in a.items() if isinstance(value, torch.Tensor) and value.numel()]
    return max((a[name].double() - b[name].double()).abs().max().item() for name in tensors)


def cut(run, torchrun, kill, after):
    """Call `kill` once the run has a checkpoint of at least `after` steps; what torchrun printed."""
    end = time.monotonic() + 60
    while not (run.path.exists() and any(c.step >= after for c in run.checkpoints())):
        assert torchrun.process.poll() is None and time.monotonic() < end, torchrun.wait()
        time.sleep(0.02)
    kill()
    return torchrun.wait()


def test_worlds_in_two_processes_are_those_of_one():
    session = Torchrun(module="tests.envs.two_shares")
    printed = session.wait()
    assert session.process.returncode == 0 and printed.count("agrees") == 2, printed


@pytest.mark.timeout(240)
def test_two_processes_are_one_run(tmp_path):
    """Equal to one process up to rounding; cut in every way and resumed, equal to the uncut two to the last bit."""
    steps = 640
    together = train(tmp_path, "together", steps)
    alone = create(tmp_path, "alone", overrides={"normalize": True}, total_steps=steps, checkpoint_every=64)
    assert complete(alone) == 0, alone.log()
    printed = together.wait()
    assert together.process.returncode == 0, printed
    uncut = Run(tmp_path / "together")

    one, two = alone.latest().read(), uncut.latest().read()
    assert largest_difference(one, two, "policy") < 1e-5
    assert largest_difference(one, two, "normalizer") < 1e-5
    assert largest_difference(one, two, "env") < 1e-3
    assert all(torch.equal(one["rng"][name], two["rng"][name]) for name in ("torch", "numpy", "python"))
    assert [row["step"] for row in rows(alone)] == [row["step"] for row in rows(uncut)]
    assert rows(alone)[0] == pytest.approx(rows(uncut)[0], abs=1e-5)
    assert printed.count("done: 640 steps") == 1  # one process speaks

    run = Run(shutil.copytree(uncut.path, tmp_path / "cut"))  # as it stood at an early checkpoint
    for later in run.checkpoints():
        shutil.rmtree(later.path)
    (run.path / "metrics.jsonl").unlink()

    session = Torchrun("resume", run.path)
    printed = cut(run, session, lambda: session.process.send_signal(signal.SIGTERM), 64)
    assert run.status()["state"] == "interrupted" and run.status()["message"].startswith("SIGTERM"), printed

    session = Torchrun("resume", run.path)
    step, leader = run.latest().step, lambda: run.status()["process"]["pid"]
    printed = cut(run, session, lambda: [w.kill() for w in session.workers() if w.pid != leader()], step + 64)
    assert run.status()["state"] == "interrupted" and "rank 1 was lost" in run.status()["message"], printed

    session = Torchrun("resume", run.path)
    printed = session.wait()
    assert session.process.returncode == 0, printed
    assert rows(run) == rows(uncut)
    assert fingerprint(run) == fingerprint(uncut)


def test_what_processes_cannot_share_is_refused(monkeypatch):
    config = RunConfig(env="Reach", n_envs=6, threads=1, overrides={"n_steps": 16, "batch_size": 32}).resolve()
    parallel.check(config)  # one process
    for name, value in {"RANK": 0, "WORLD_SIZE": 4, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 4}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(UserError, match=r"n_envs=6 cannot be shared evenly by 4 processes; use 4 or 8\.$"):
        parallel.check(config)
    eight = config.replace(n_envs=8)
    parallel.check(eight)
    with pytest.raises(UserError, match="batch_size=2 cannot be shared evenly by 4 processes; use 4"):
        parallel.check(eight.replace(overrides={**config.overrides, "batch_size": 2}))
    with pytest.raises(UserError, match="algo='SAC' trains in one process, not 4"):
        parallel.check(RunConfig(env="Reach", algo="SAC", n_envs=8, threads=1).resolve())
    with pytest.raises(UserError, match="device='cuda:1' names one GPU"):
        parallel.check(eight.replace(device="cuda:1"))
