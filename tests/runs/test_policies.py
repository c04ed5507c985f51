"""Tests of kept policies: one per evaluation, the best policy and its final test, full disks, task scores."""

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
from kit.runs.metrics import Events, Metrics
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


def test_loading_a_policy_does_not_change_the_number_of_threads(tmp_path):
    run = create(tmp_path, "run", env=SLIDE, total_steps=64)
    with pytest.raises(UserError, match="has no checkpoint yet; "):
        run.policy()
    assert session.Session(run.path)() == 0
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    run.policy()
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


def test_a_long_run_keeps_a_limited_number_of_policies_from_first_to_last(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "POLICIES", 4)
    run = create(tmp_path, "run", env=SLIDE, eval_every=100)
    assert session.Session(run.path)() == 0
    steps = sorted(int(path.name[5:]) for path in (run.path / "policies").iterdir())
    assert len(steps) <= 4 and steps[0] == 128 and steps[-1] == 1216, steps


def test_a_best_policy_that_did_not_fit_on_the_disk_is_saved_later(tmp_path, monkeypatch):
    """The first attempt to save each best policy fails; the next checkpoint or the final test tries again."""
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


def test_a_failed_save_is_shown_until_the_next_one(tmp_path, monkeypatch):
    shown, write = [], training.checkpoint.write
    run = create(tmp_path, "run", env=SLIDE, total_steps=160, checkpoint_every=32)
    started = session.Session(run.path)

    def second_fails(folder, step, *rest):
        shown.append(started.status.values["message"])
        if len(shown) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(folder, step, *rest)

    monkeypatch.setattr(training.Writer, "busy", False)  # so each save waits for the one before
    monkeypatch.setattr(training.checkpoint, "write", second_fails)
    assert started() == 0
    assert "a checkpoint could not be written ([Errno 28] No space left" in shown[2]
    assert [bool(message) for message in shown[:4]] == [False, False, True, False]


@pytest.mark.parametrize("number", ["many", "0"])
def test_a_wrong_number_of_episodes_is_one_sentence(number, tmp_path, monkeypatch):
    monkeypatch.setenv("KIT_EVAL_EPISODES", number)
    run = create(tmp_path, "run", env=SLIDE)
    with pytest.raises(UserError, match=f"KIT_EVAL_EPISODES='{number}' must be a whole number of at least 1"):
        session.Session(run.path)()


class Seeded(gymnasium.Env):
    """Env with one-step episodes; the reward is the last seed passed to `reset`."""

    observation_space = action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = self.number if seed is None else seed
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), float(self.number), True, False, {}


def test_the_best_policy_is_tested_in_other_episodes_than_it_was_selected_in(tmp_path):
    """Evaluations use the seeds 1,000,003 to 1,000,006, the test 2,000,003 to 2,000,006; returns are the seeds."""
    given = {"n_envs": 2, "seed": 0, "eval_every": 16, "overrides": {"n_steps": 8, "batch_size": 16}}
    run = kit.train(env="tests.runs.test_policies:Seeded", total_steps=32, runs_dir=str(tmp_path), **given)
    rows = run.metrics()
    assert rows["eval/mean_return"].dropna().tolist() == [1_000_004.5] * 3
    assert rows["test/mean_return"].dropna().tolist() == [2_000_004.5] == [run.status()["mean_return"]]
    assert rows["test/step"].dropna().tolist() == [run.find("best").step]
    assert kit.evaluate(run, 4)["mean_return"] == 2_000_004.5
    before = fingerprint(run)
    kit.resume(run.path)
    assert len(run.metrics()) == len(rows) and fingerprint(run) == before, "a finished run must not be tested again"


def test_the_status_of_a_short_run_has_the_result_of_its_test(tmp_path):
    run = create(tmp_path, "run", env=SLIDE, eval_every=400, total_steps=400)
    assert session.Session(run.path)() == 0
    assert run.status()["mean_return"] == run.rows()[-1]["test/mean_return"]


class Perverse(Task):
    """Task with one-step episodes in which success lowers the reward, so that training learns to fail.

    Success: the action exceeds the observed number.
    """

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


def test_the_tasks_score_selects_the_best_policy_and_its_metrics_are_recorded(tmp_path):
    run = kit.train(
        env="tests.runs.test_policies:Perverse", total_steps=4096, n_envs=16, runs_dir=str(tmp_path), eval_every=512,
        overrides={"n_steps": 32, "batch_size": 64, "learning_rate": 5e-4},
    )  # fmt: skip
    kept = {found.step: found.read()["evaluation"] for found in committed(run.path / "policies")}
    rates = {step: found["won"] for step, found in kept.items()}
    assert rates[512] > rates[4096], "training must lower the success rate"
    assert run.find("best").step == max(step for step, rate in rates.items() if rate == max(rates.values()))
    assert kept[run.find("best").step]["mean_return"] == min(found["mean_return"] for found in kept.values())
    for found in kept.values():
        assert found["wins_per_minute"] == pytest.approx(60 * found["won"])  # an episode lasts 1 s
        assert 0.3 < found["number"] < 0.7, "mean of a uniform number in [0, 1]"
        assert found["reward/wage"] == 1 and found["reward/fee"] == pytest.approx(-2 * found["won"])
        assert found["reward/wage"] + found["reward/fee"] == pytest.approx(found["mean_return"])
    assert run.metrics()["eval/reward/fee"].dropna().tolist()[1:] == [found["reward/fee"] for found in kept.values()]


def test_the_score_of_a_run_that_trains_further_is_not_its_older_final_test(tmp_path):
    run = create(tmp_path, "run", total_steps=64, eval_every=64)
    assert session.Session(run.path)() == 0 and run.status()["measured_in"] == "final test"
    metrics = Metrics(run.path, len(run.rows()))
    metrics.add(128, {"eval/mean_return": 2.0, "rollout/ep_rew_mean": 1.0})
    score = session._score(metrics.last)
    assert (score["measured_in"], score["mean_return"]) == ("evaluation", 2.0)
    metrics.add(128, {"test/step": 128, "test/mean_return": 3.0})
    assert session._score(metrics.last)["measured_in"] == "final test"


def test_events_that_cannot_be_written_are_tried_again_at_a_checkpoint_only(tmp_path, monkeypatch):
    events, opened = Events(tmp_path, []), []

    def full() -> None:
        opened.append(1)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(events, "_open", full)
    for step in range(5):
        events.add({"step": step, "eval/mean_return": 1.0})
    assert len(opened) == 1
    events.flush()
    assert len(opened) == 2
    monkeypatch.undo()
    events.flush()
    assert not events._waiting and [*tmp_path.glob("events.*")]
