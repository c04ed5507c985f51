"""Tests of self-play in Mission: who plays which side in which game, the pool and its growth, resume, opponents."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import kit
from kit.envs import make_vec
from kit.envs.self_play import Pool
from kit.errors import UserError
from kit.runs.fingerprint import fingerprint
from kit.tasks.mission import task as mission

BOTH = {"side": "both", "obstacles": 0}


class Marcher(torch.nn.Module):
    """A policy that gives all units the same command; like `kit.trainers.actor.Actor`, it has policy and normaliser."""

    normalizer = None

    def __init__(self, command: int) -> None:
        super().__init__()
        self.policy = torch.nn.Linear(82, 4)
        self.policy.optimizer = None
        self.register_buffer("command", torch.tensor(command))
        self.seen: list[torch.Tensor] = []

    def forward(self, obs: torch.Tensor, hidden_state: tuple[()]) -> tuple[torch.Tensor, tuple[()]]:
        self.seen.append(obs)
        return self.command.expand(len(obs), 4).clone(), ()


def training(n: int = 8, **options: Any) -> Any:
    """Return an env in the last stage of training."""
    env = make_vec("Mission", n, env_options={**BOTH, **options})
    env.start_training(seed=0)
    env.task.stage.fill_(3)
    return env


def test_half_of_the_games_are_attacks_and_each_side_sees_its_own_numbers():
    env = training()
    obs = env.step(torch.zeros(8, 4, dtype=torch.int64))[0]
    assert obs.shape == (8, 82)
    assert (obs[:4, :42] != 0).any(1).all() and (obs[:4, 42:] == 0).all(), "the first half attacks"
    assert (obs[4:, :42] == 0).all() and (obs[4:, 42:] != 0).any(1).all()
    assert torch.equal(obs[:4, :42], env.task.obs[:4]) and torch.equal(obs[4:, 42:], env.task.guard[4:])
    judged = make_vec("Mission", 8, env_options=BOTH)
    assert (judged.reset(seed=0)[:, 42:] == 0).all(), "evaluations are attacks"


def test_actions_go_to_the_side_that_is_played_and_rewards_are_opposite():
    """Everybody goes north (3). In the first half these are the attackers; in the second, the defenders."""
    env = training(pool=0.0)
    env.task.attackers[:, :, :2], env.task.defenders[:, :, :2] = torch.zeros(2), torch.tensor([60.0, -60.0])
    env.task.defenders[:, :, 2:] = torch.tensor([0.0, 1.0])
    attackers, defenders = env.task.attackers.clone(), env.task.defenders.clone()
    _, reward, _, _, info = env.step(torch.full((8, 4), 3))
    moved = (env.task.attackers - attackers)[..., :2]
    assert moved[:4, 0, 1].min() > 0.9, "1 m to the north"
    assert (env.task.defenders - defenders)[4:, :, 1].min() > 0.5
    progress = -env.task.terms[:, 0]
    assert torch.equal(info["reward/progress"][4:], progress[4:]) and torch.equal(
        info["reward/progress"][:4], -progress[:4]
    )
    assert torch.allclose(reward, torch.where(torch.arange(8) < 4, 1, -1) * env.task.terms.sum(1))


def test_the_share_of_games_against_the_pool_and_what_its_members_see_and_do():
    """Half of either half: games 0, 1, 4 and 5. Two members take turns, on the side that the learner does not play."""
    env = training(pool=0.5)
    west, east = Marcher(5), Marcher(1)
    task = env.task
    task._pool = Pool(every=100)
    task.learn_from(west, 100)
    task.learn_from(east, 150)
    task.learn_from(east, 200)
    assert [member.command.item() for member in task._pool.members] == [5, 1], "not due at step 150"
    task.attackers[:, :, :2], task.defenders[:, :, :2] = torch.tensor([0.0, 80.0]), torch.tensor([60.0, -60.0])
    before = task.attackers.clone(), task.defenders.clone()
    env.step(torch.zeros(8, 4, dtype=torch.int64))
    attackers, defenders = task.attackers - before[0], task.defenders - before[1]
    first, second = task._pool.members
    assert (first.seen[-1][0, :42] == 0).all() and (first.seen[-1][0, 42:] != 0).any(), "game 0: the member defends"
    assert (first.seen[-1][1, :42] != 0).any() and (first.seen[-1][1, 42:] == 0).all(), "game 4: it attacks"
    assert attackers[4, 0, 0] < -0.9 and attackers[5, 0, 0] > 0.9, "west and east, 1 m"
    assert len(second.seen[-1]) == 2
    straight = mission.Mission.straight(task.obs)
    assert straight[6].any() and attackers[6, 0, :2].norm() > 0.9, "games 6 and 7: stock attackers"
    assert (defenders[2:4, :, :2].norm(dim=2) > 0.5).any(1).all(), "games 2 and 3: stock defenders"


def test_before_the_last_stage_all_opponents_are_stock():
    """A member of the pool would send everybody west. With and without it, games are equal until the last stage."""
    moved = []
    for share in (1.0, 0.0):
        env = training(pool=share)
        env.task._pool = Pool(every=100)
        env.task.learn_from(Marcher(5), 100)
        for stage in (2, 3):
            env.task.stage.fill_(stage)
            env.step(torch.full((8, 4), 3))
            moved.append(torch.cat([env.task.attackers, env.task.defenders], 1).clone())
    early, late, early_without, late_without = moved
    assert torch.equal(early, early_without) and not torch.equal(late, late_without)


def test_only_attacks_count_for_the_curriculum():
    won = training().step(torch.zeros(8, 4, dtype=torch.int64))[4]["win_rate"]
    assert won.isnan().tolist() == [False] * 4 + [True] * 4


def test_a_full_pool_keeps_every_second_member_the_oldest_included():
    pool, player = Pool(size=4, every=10), Marcher(0)
    for step in range(0, 200, 10):
        player.command.fill_(step)
        pool.learn_from(player, step)
    steps = [member.command.item() for member in pool.members]
    assert steps == [10, 90, 170], "the fifth and the seventh member halved it; evenly spread over the training"


def test_the_pool_is_restored_with_its_members():
    pool, player = Pool(size=3, every=10), Marcher(1)
    pool.learn_from(player, 0)
    pool.learn_from(Marcher(4), 10)
    other = Pool(size=3, every=10)
    other.learn_from(copy.deepcopy(player), 0)
    other.load_state(pool.state())
    assert [member.command.item() for member in other.members] == [4]
    assert torch.equal(other.members[0].policy.weight, pool.members[0].policy.weight)
    assert other.state().keys() == pool.state().keys(), "of constant shape, whatever the number of members"


def test_a_resumed_run_meets_the_same_opponents(tmp_path, monkeypatch):
    monkeypatch.setattr(mission, "Pool", lambda: Pool(size=3, every=512))
    config = kit.RunConfig(
        env="Mission", env_options=BOTH, n_envs=16, device="cpu", threads=1, eval_every=0, runs_dir=str(tmp_path),
        overrides={"n_steps": 16, "learning_rate": 1e-3},
    )  # fmt: skip
    uncut = kit.train(config, total_steps=4096, run_name="uncut")
    cut = kit.train(config, total_steps=2304, run_name="cut")
    cut = kit.resume(cut.path, total_steps=4096)
    assert fingerprint(cut) == fingerprint(uncut)


def test_a_policy_of_both_sides_is_an_opponent_on_either(tmp_path, monkeypatch):
    monkeypatch.setenv("KIT_EVAL_EPISODES", "2")
    small = {"n_envs": 8, "device": "cpu", "threads": 1, "runs_dir": str(tmp_path), "overrides": {"n_steps": 16}}
    run = kit.train(env="Mission", env_options=BOTH, total_steps=256, eval_every=256, **small)
    assert kit.evaluate(run, episodes=2)["win_rate"] in (0.0, 0.5, 1.0)
    for side, options in (("attackers", {"defenders": str(run.path)}),
                          ("defenders", {"side": "defenders", "attackers": str(run.path)})):  # fmt: skip
        rival = kit.train(env="Mission", env_options=options, total_steps=256, eval_every=0, run_name=side, **small)
        assert rival.status()["state"] == "finished", side


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"side": "nobody"}, "side='nobody' is unknown; valid are attackers, defenders and both"),
        ({"side": "both", "pool": 1.5}, "pool=1.5 must be a share from 0 to 1"),
        ({"side": "both", "defenders": "runs/x"}, "defenders='runs/x' cannot be set, because side='both'"),
        ({"side": "both", "attackers": "runs/x"}, "attackers='runs/x' cannot be set, because side='both'"),
    ],
)
def test_wrong_options_are_refused(options, sentence):
    with pytest.raises(UserError) as refused:
        make_vec("Mission", 2, env_options=options)
    assert sentence in str(refused.value)
