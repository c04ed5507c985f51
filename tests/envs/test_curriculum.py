"""Tests of curricula: when a stage ends by hand, evaluations on the last stage, snapshots, resumed runs, options."""

from __future__ import annotations

import pytest
import torch

import kit
from kit.envs import curriculum, make_vec
from kit.errors import UserError
from kit.runs.fingerprint import fingerprint

STAIRS = "tests.envs.stairs:Stairs"
UP, STAY = torch.ones(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)


@pytest.fixture
def decided_in_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers worked by hand are easier then; in training it is every `CHECK_EVERY` steps."""
    monkeypatch.setattr(curriculum, "CHECK_EVERY", 1)


def stages(env, actions) -> list[int]:
    """Return the stage after each of `actions`."""
    found = []
    for action in actions:
        env.step(action)
        found.append(int(env.stage))
    return found


def test_a_stage_ends_when_the_running_mean_is_high_enough(decided_in_each_step):
    """With weight 1/4, k successes in a row give 1 - (3/4)^k: 0.25, 0.44, 0.58. At 0.5 the next stage begins."""
    env = make_vec(STAIRS)
    assert env.start_training(seed=0).item() == 1, "one stair in the first stage"
    assert stages(env, [UP] * 3) == [0, 0, 1]
    assert env.task.left.item() == 2, "the new episode has two stairs"
    assert stages(env, [UP] * 6) == [1, 1, 1, 1, 1, 2], "the mean starts from 0 in each stage"
    assert set(stages(env, [UP] * 40)) == {2}, "the last stage has no end"


def test_whether_to_go_on_is_decided_every_sixteen_steps():
    """The first decision is after the 16th step. Its mean of 16 successes is 1 - (3/4)^16 = 0.99."""
    env = make_vec(STAIRS)
    env.start_training(seed=0)
    assert stages(env, [UP] * 33) == [0] * 15 + [1] * 16 + [2] * 2


def test_failures_count(decided_in_each_step):
    """Success, failure of five steps, success, success, success: 0.25, 0.19, 0.39, 0.54."""
    env = make_vec(STAIRS)
    env.start_training(seed=0)
    assert stages(env, [UP, *[STAY] * 5, UP, UP]) == [*[0] * 7, 1]


def test_an_episode_with_diverged_physics_counts_as_a_failure(decided_in_each_step):
    """Success, NaN, then successes: as with a failure in place of the NaN."""
    env = make_vec(STAIRS)
    env.start_training(seed=0)
    assert stages(env, [UP]) == [0]
    env._stages.step(torch.tensor([True]), {env.task.curriculum.measure: torch.tensor([torch.nan])})
    assert stages(env, [UP, UP]) == [0, 1]


def test_envs_count_together(decided_in_each_step):
    """Two of four envs succeed in the same step. Four episodes of mean 1/2 give (1 - (3/4)^2) / 2 = 0.22, then ..."""
    env = make_vec(STAIRS, 4)
    env.start_training(seed=0)
    half = torch.tensor([1, 1, 0, 0])
    env.step(half)
    mean = float(env.snapshot()["curriculum.mean"])
    assert mean == pytest.approx(1 - 0.75**2), "only two episodes have ended, both with success"
    assert int(env.stage) == 0


def test_evaluations_use_the_last_stage():
    env = make_vec(STAIRS)
    assert env.reset(seed=0).item() == 4 and int(env.stage) == 2
    assert set(stages(env, [STAY] * 20)) == {2}
    assert "curriculum.stage" not in env.snapshot()
    for env in (STAIRS, "tests.envs.stairs:Chosen"):
        assert make_vec(env, env_options={"curriculum": False}).start_training(seed=0).item() == 4


def test_snapshots_continue_the_stage_also_in_another_number_of_envs(decided_in_each_step):
    env = make_vec(STAIRS)
    env.start_training(seed=0)
    stages(env, [UP] * 5)
    saved = env.snapshot()
    rest = stages(env, [UP] * 8)
    other = make_vec(STAIRS)
    other.start_training(seed=3)
    other.restore(saved)
    assert stages(other, [UP] * 8) == rest and rest[0] != rest[-1]
    more = make_vec(STAIRS, 3)
    assert more.start_training(0, saved).flatten().tolist() == [2, 2, 2] and int(more.stage) == 1
    old = {name: value for name, value in saved.items() if not name.startswith("curriculum")}
    other.restore(old)
    assert int(other.stage) == 2, "runs from before curricula stay on the task itself"
    assert "curriculum.stage" not in other.snapshot()


def test_a_resumed_run_ends_with_the_fingerprint_of_an_uncut_one(tmp_path):
    """The cut is in the second of three stages, and between two decisions: after 120 steps of each env."""
    config = kit.RunConfig(
        env=STAIRS, n_envs=2, device="cpu", threads=1, runs_dir=str(tmp_path), eval_every=0,
        overrides={"n_steps": 24, "batch_size": 48, "n_epochs": 1}, env_options={"curriculum": {"episodes": 100}},
    )  # fmt: skip
    uncut = kit.train(config, total_steps=960, run_name="uncut")
    cut = kit.train(config, total_steps=240, run_name="cut")
    assert [cut.rows()[-1]["rollout/stage"], uncut.rows()[-1]["rollout/stage"]] == [1, 2]
    cut = kit.resume(cut.path, total_steps=960)
    assert fingerprint(cut) == fingerprint(uncut)
    assert [row.get("rollout/stage") for row in cut.rows()] == [row.get("rollout/stage") for row in uncut.rows()]


@pytest.mark.parametrize(
    ("env", "option", "sentence"),
    [
        ("Reach", True, "env='Reach' has no curriculum; leave it out"),
        (STAIRS, "yes", "curriculum='yes' must be true, false, or a mapping"),
        (STAIRS, {"atleast": 0.5}, "curriculum atleast=0.5 is not one of the curriculum's; did you mean at_least"),
        (STAIRS, {"at_least": "high"}, "curriculum at_least='high' must be a number"),
        (STAIRS, {"at_least": -1.0}, "at_least=-1.0 must be a number above 0, such as 0.8, because the running mean"),
        (STAIRS, {"episodes": 0}, "curriculum episodes=0 must be a whole number"),
    ],
)
def test_wrong_options_are_refused(env, option, sentence):
    with pytest.raises(UserError) as refused:
        make_vec(env, env_options={"curriculum": option})
    assert sentence in str(refused.value)


@pytest.mark.parametrize(("env", "measure"), [(STAIRS, "success"), ("Mission", "win_rate")])
def test_a_share_above_one_is_refused_for_new_runs(env, measure):
    """Later stages would never begin. An older run, made for its first stage, can still be played."""
    options = {"curriculum": {"at_least": 2}}
    with pytest.raises(UserError, match=rf"curriculum at_least=2 is never reached, because '{measure}' is a share"):
        kit.resolve(kit.RunConfig(env=env, env_options=options))
    kit.resolve(kit.RunConfig(env=env, env_options={"curriculum": {"at_least": 1}}))
    kit.resolve(kit.RunConfig(env="tests.envs.stairs:Unmeasured", env_options=options))
    make_vec(STAIRS, env_options=options).start_training(seed=0)


def test_a_measure_that_the_task_lacks_is_named():
    env = make_vec("tests.envs.stairs:Unmeasured")
    env.start_training(seed=0)
    with pytest.raises(UserError, match="the curriculum measures 'height', which the task's info lacks"):
        env.step(UP)
