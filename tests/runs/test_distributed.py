"""Tests of distributed PPO: same weights as one process, exact resume, crashes of one rank, loopback sockets."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import kit
from kit import Run, RunConfig
from kit.envs import make_vec
from kit.envs.check import N
from kit.envs.contract import BatchEnv
from kit.errors import UserError
from kit.measure.auto import resolve
from kit.runs.fingerprint import fingerprint
from kit.trainers import make_trainer
from kit.trainers.distributed.ppo import _sums
from kit.trainers.normalize import Normalizer
from tests.runs.crash import SLIDE

PROCESSES, WORLDS, STEPS = 2, 8, 16
SMALL: dict[str, Any] = {
    "env": "Reach", "n_envs": WORLDS, "threads": 2, "eval_every": 0,
    "overrides": {
        "n_steps": STEPS, "batch_size": 32, "n_epochs": 2, "target_kl": 0.5, "policy_kwargs": {"net_arch": [16, 16]},
    },
}  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., str]:
    def write(**changes: object) -> str:
        path = tmp_path / "config.yaml"
        path.write_text(json.dumps({**SMALL, "runs_dir": str(tmp_path), **changes}))
        return str(path)

    return write


class Joined(BatchEnv):
    """Several batched envs joined into one, in order."""

    def __init__(self, envs: list[BatchEnv]) -> None:
        self.envs, first = envs, envs[0]
        self.num_envs = sum(env.num_envs for env in envs)
        self.device, self.episode_steps, self.control_dt_s = first.device, first.episode_steps, first.control_dt_s
        self.observation_space, self.action_space = first.observation_space, first.action_space

    def reset(self, seed=None):
        seeds = [None if seed is None else seed + i * env.num_envs for i, env in enumerate(self.envs)]
        return torch.cat([env.reset(at) for env, at in zip(self.envs, seeds, strict=True)])

    def start_training(self, seed=None):
        seeds = [None if seed is None else seed + i * env.num_envs for i, env in enumerate(self.envs)]
        return torch.cat([env.start_training(at) for env, at in zip(self.envs, seeds, strict=True)])

    def step(self, action):
        steps = [env.step(part) for env, part in zip(self.envs, action.chunk(len(self.envs)), strict=True)]
        *tensors, infos = zip(*steps, strict=True)
        return *map(torch.cat, tensors), {name: torch.cat([info[name] for info in infos]) for name in infos[0]}

    def snapshot(self):
        return {}

    restore = render = close = None


class Streams:
    """Random generator states of several processes, used in this one."""

    def __init__(self, states: list[torch.Tensor]) -> None:
        self.states = states

    def draw(self, function: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
        drawn = []
        for i, state in enumerate(self.states):
            torch.set_rng_state(state)
            drawn.append(function())
            self.states[i] = torch.get_rng_state()
        return drawn


def in_one_process(config: RunConfig) -> dict[str, torch.Tensor]:
    """Train in this process exactly as `PROCESSES` processes would; return the weights."""
    share = WORLDS // PROCESSES
    envs, states, trainers = [], [], []
    for rank in range(PROCESSES):
        envs.append(make_vec(config.env, share, seed=config.seed + rank * share))
        overrides = {**config.overrides, "batch_size": config.overrides["batch_size"] // PROCESSES}
        trainers.append(make_trainer(config.replace(seed=config.seed + rank * share, overrides=overrides), envs[-1]))
        states.append(torch.get_rng_state())
    trainer = make_trainer(config, Joined(envs))
    trainer.policy.load_state_dict(trainers[0].policy.state_dict())
    streams, actions = Streams(states), trainer.networks._actions

    def noise(rollout):
        actions._noise = torch.cat(streams.draw(lambda: torch.randn(STEPS, share, actions._width)), 1)
        actions._std = actions.log_std.exp()

    def permutation(n: int) -> torch.Tensor:
        """Permute the joint rollout so that each minibatch has equally many rows of each process.

        Row t · share + w of process r is row t · WORLDS + r · share + w of the joint rollout.
        """
        rows = streams.draw(lambda: torch.randperm(n // PROCESSES))
        rows = [(own // share) * WORLDS + r * share + own % share for r, own in enumerate(rows)]
        return torch.cat([own.view(-1, trainer.batch_size // PROCESSES) for own in rows], 1).flatten()

    actions.draw_noise, trainer._permutation = noise, permutation
    trainer.learn(config.total_steps)
    return trainer.policy.state_dict()


def test_two_processes_train_the_same_weights_as_one(tmp_path: Path, config: Callable[..., str]) -> None:
    total = 3 * WORLDS * STEPS
    path = config(total_steps=total, run_name="two")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    subprocess.run([*torchrun, "-m", "kit", "train", path], check=True, env=environment, timeout=120)
    run = Run(tmp_path / "two")
    assert run.status()["state"] == "finished" and run.status()["step"] == total
    found = run.find("latest").read()["policy"]
    expected = in_one_process(resolve(RunConfig.load(path)))
    assert found.keys() == expected.keys()
    for name, weights in expected.items():
        assert torch.allclose(found[name], weights, rtol=0, atol=1e-5), name


FEW = {
    **SMALL, "env": SLIDE, "processes": PROCESSES, "checkpoint_every": 5 * WORLDS * STEPS,
    "total_steps": 40 * WORLDS * STEPS,
}  # fmt: skip


@pytest.mark.parametrize("leads", [False, pytest.param(True, marks=pytest.mark.storm)])
def test_sockets_are_on_loopback_and_after_a_kill_of_a_rank_one_or_two_resume(tmp_path: Path, leads: bool) -> None:
    few: dict[str, Any] = {**FEW, "overrides": {**SMALL["overrides"], "normalize": True}, "runs_dir": str(tmp_path)}
    uncut = kit.train(run_name="uncut", **few)
    assert uncut.status()["state"] == "finished"
    cut = kit.launch(run_name="cut", **few)
    cut.wait(200, until=lambda now: now["checkpoint"] is not None)
    leader = psutil.Process(cut.status()["process"]["pid"])
    leader.suspend()  # or the run could end meanwhile
    (other,) = leader.children()
    sockets = [socket for rank in (leader, other) for socket in rank.net_connections("inet")]
    (leader if leads else other).kill()
    if not leads:
        leader.resume()
    heard = {socket.laddr.ip for socket in sockets if socket.status == psutil.CONN_LISTEN}
    assert heard and heard <= {"127.0.0.1", "::1"}, heard
    assert cut.wait(200)["state"] == "interrupted"
    psutil.wait_procs([other], timeout=60)
    assert not other.is_running()
    if not leads:
        assert "another process of this run has ended" in cut.status()["message"]
    alone = tmp_path / "alone"
    shutil.copytree(cut.path, alone)
    assert kit.resume(cut.path).status()["state"] == "finished"
    assert fingerprint(cut) == fingerprint(uncut)
    assert kit.resume(alone, processes=1).status()["step"] == few["total_steps"]


def test_after_an_exception_in_a_rank_all_ends_and_this_process_can_train_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    fields = {**FEW, "runs_dir": str(tmp_path), "total_steps": WORLDS * STEPS}
    at = "task_of_rank0.py, line 8, in state"
    for rank, says in ((0, f"{at}: AssertionError: a bug"), (1, "RuntimeError: process 1 of this run failed")):
        (tmp_path / f"task_of_rank{rank}.py").write_text(
            "import sys\nfrom kit.tasks.reach.task import Reach\n\n"
            + f"assert 'ranks' not in sys.argv[0] or {rank == 0}, 'a bug'\n\n"  # before it joins the others
            + "class Task(Reach):\n    def state(self):\n"
            f"        assert self.n == {N} or 'ranks' in sys.argv[0] or {rank == 1}, 'a bug'\n"  # N: of the check
            "        return super().state()\n"
        )
        now = kit.train(**fields | {"env": f"task_of_rank{rank}:Task"}).status()
        assert (now["state"], now["message"].partition(";")[0]) == ("failed", says)
        assert "AssertionError: a bug" in capfd.readouterr().err
        assert not [child for child in psutil.Process().children() if "kit.runs.ranks" in child.cmdline()]
    assert kit.train(**fields).status()["state"] == "finished"


def test_a_config_that_cannot_be_distributed_is_refused(tmp_path: Path) -> None:
    few = {**FEW, "runs_dir": str(tmp_path)}
    with pytest.raises(UserError, match="n_envs=7 cannot be shared by 2 processes; choose a multiple"):
        kit.train(**few | {"n_envs": 7, "overrides": {}})
    with pytest.raises(UserError, match="processes=2: algo='A2C' trains in one process; use 1"):
        kit.train(**few | {"algo": "A2C", "overrides": {}})
    assert not list(tmp_path.iterdir())


def test_merged_normalisers_count_shared_observations_once() -> None:
    from gymnasium.spaces import Box

    rows = torch.randn(90, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3 + 5
    known, left, right, whole = (Normalizer(Box(-1, 1, (3,)), 1, torch.device("cpu"), 0.99) for _ in range(4))
    for normalizer, parts in ((known, (0,)), (left, (0, 1)), (right, (0, 2)), (whole, (0, 1, 2))):
        for i in parts:
            normalizer.update(rows[30 * i : 30 * i + 30])
    before, *grown, expected = (_sums(n.moments()["obs"]) for n in (known, left, right, whole))
    assert (before + sum(own - before for own in grown)).allclose(expected)
