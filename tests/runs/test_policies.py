"""Policies are kept at evaluations, so that one can look back on how a run learnt."""

import errno
import os

import gymnasium
import numpy as np
import pytest
import torch

import kit
from kit.envs import Task
from kit.errors import UserError
from kit.format.checkpoint import committed
from kit.runs import session, training
from kit.runs.fingerprint import fingerprint
from tests.runs.crash import SLIDE, create


def test_each_evaluation_leaves_its_policy(tmp_path):
    run = create(tmp_path, "run", env=SLIDE, eval_every=400)
    assert session.Session(run.path)() == 0
    kept = run.policies()
    assert [found.step for found in kept] == [416, 800, 1216] and len(run.checkpoints()) < 3  # iterations are 32 steps
    early, late = (run.policy(step).policy.state_dict() for step in (416, 1216))
    assert not torch.equal(early["action_net.weight"], late["action_net.weight"])
    assert run.find(416).read()["evaluation"]["episodes"] > 0
    with pytest.raises(UserError, match="only a policy"):
        fingerprint(run, 416)
    with pytest.raises(UserError, match="there is: 416, 800, 1216"):
        run.policy(500)


def test_looking_at_a_policy_leaves_the_process_as_it_was(tmp_path):
    run = create(tmp_path, "run", env=SLIDE, total_steps=64)
    assert session.Session(run.path)() == 0
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    run.policy()
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


def test_a_long_run_keeps_some_of_them_from_first_to_last(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "POLICIES", 4)
    run = create(tmp_path, "run", env=SLIDE, eval_every=100)
    assert session.Session(run.path)() == 0
    steps = sorted(int(path.name[5:]) for path in (run.path / "policies").iterdir())
    assert len(steps) <= 4 and steps[0] == 128 and steps[-1] == 1216, steps


def test_a_best_policy_that_met_a_full_disk_is_kept_later(tmp_path, monkeypatch):
    """The disk is full at each first attempt; the next checkpoint or the final test tries again."""
    write, refused = training.checkpoint.write, set()

    def write_or_refuse(folder, step, *rest):
        if folder.name == "best" and step not in refused:
            refused.add(step)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(folder, step, *rest)

    monkeypatch.setattr(training.checkpoint, "write", write_or_refuse)
    run, quiet = (create(tmp_path, name, env=SLIDE, eval_every=400) for name in ("full", "quiet"))
    assert session.Session(run.path)() == 0
    monkeypatch.undo()
    assert session.Session(quiet.path)() == 0
    assert refused and run.best().step == quiet.best().step
    assert [row.get("test/step") for row in run.rows()] == [row.get("test/step") for row in quiet.rows()]


@pytest.mark.parametrize("number", ["many", "0"])
def test_a_wrong_number_of_episodes_is_one_sentence(number, tmp_path, monkeypatch):
    monkeypatch.setenv("KIT_EVAL_EPISODES", number)
    run = create(tmp_path, "run", env=SLIDE)
    with pytest.raises(UserError, match=f"KIT_EVAL_EPISODES='{number}' must be a whole number of at least 1"):
        session.Session(run.path)()


class Seeded(gymnasium.Env):
    """One step, paid the number that the episode was seeded with."""

    observation_space = action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = self.number if seed is None else seed
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), float(self.number), True, False, {}


def test_the_best_policy_is_tested_in_other_episodes_than_those_it_was_chosen_by(tmp_path):
    """Four episodes from seed 1,000,003 on choose it, four from 2,000,003 on test it; means are 1.5 above the first."""
    given = {"n_envs": 2, "seed": 0, "eval_every": 16, "overrides": {"n_steps": 8, "batch_size": 16}}
    run = kit.train(env="tests.runs.test_policies:Seeded", total_steps=32, runs_dir=str(tmp_path), **given)
    rows = run.metrics()
    assert rows["eval/mean_return"].dropna().tolist() == [1_000_004.5] * 3
    assert rows["test/mean_return"].dropna().tolist() == [2_000_004.5] == [run.status()["mean_return"]]
    assert rows["test/step"].dropna().tolist() == [run.find("best").step]
    assert kit.evaluate(run, 4)["mean_return"] == 2_000_004.5
    before = fingerprint(run)
    kit.resume(run.path)
    assert len(run.metrics()) == len(rows) and fingerprint(run) == before, "once is enough"


def test_a_run_of_a_moment_ends_with_what_its_test_found(tmp_path):
    run = create(tmp_path, "run", env=SLIDE, eval_every=400, total_steps=400)
    assert session.Session(run.path)() == 0
    assert run.status()["mean_return"] == run.rows()[-1]["test/mean_return"]


class Perverse(Task):
    """One step: a number is shown, to exceed it is a success, and costs. So training learns to fail."""

    episode_steps = 1
    control_dt_s = 1.0
    score = "won"
    keeps = ("shown",)

    def __init__(self) -> None:
        self.observation_space = self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def build(self, n, device, threads=None):
        super().build(n, device, threads)
        self.shown, self.exceeded = torch.zeros(n, 1), torch.zeros(n, dtype=torch.bool)

    def reset(self, mask, generator):
        new = torch.rand(self.n, 1, generator=generator) * 2 - 1
        self.shown.copy_(torch.where(mask[:, None], new, self.shown))

    def advance(self, action):
        self.exceeded = (action > self.shown)[:, 0]

    def observe(self):
        return self.shown.clone()

    def reward(self, action):
        return 1.0 - 2.0 * self.exceeded

    def terminated(self):
        return torch.ones(self.n, dtype=torch.bool)

    def info(self):
        paid = {"reward/fee": -2.0 * self.exceeded, "reward/wage": torch.ones(self.n)}
        return {"won": self.exceeded, "wins_per_minute": self.exceeded, "number": self.shown[:, 0].abs(), **paid}


def test_a_tasks_own_score_says_which_policy_is_best_and_its_figures_are_told(tmp_path):
    run = kit.train(
        env="tests.runs.test_policies:Perverse", total_steps=4096, n_envs=16, runs_dir=str(tmp_path), eval_every=512,
        overrides={"n_steps": 32, "batch_size": 64, "learning_rate": 5e-4},
    )  # fmt: skip
    kept = {found.step: found.read()["evaluation"] for found in committed(run.path / "policies")}
    rates = {step: found["won"] for step, found in kept.items()}
    assert rates[512] > rates[4096], "it has learnt to fail"
    assert run.find("best").step == max(step for step, rate in rates.items() if rate == max(rates.values()))
    assert kept[run.find("best").step]["mean_return"] == min(found["mean_return"] for found in kept.values())
    for found in kept.values():
        assert found["wins_per_minute"] == pytest.approx(60 * found["won"])  # episodes of a second
        assert 0.3 < found["number"] < 0.7, "the mean of what is uniform in [0, 1]"
        assert found["reward/wage"] == 1 and found["reward/fee"] == pytest.approx(-2 * found["won"])
        assert found["reward/wage"] + found["reward/fee"] == pytest.approx(found["mean_return"])
    assert run.metrics()["eval/reward/fee"].dropna().tolist()[1:] == [found["reward/fee"] for found in kept.values()]
