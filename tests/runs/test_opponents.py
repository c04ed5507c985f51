"""Tests of opponents from other runs: their actions, exact resume, hidden state in snapshots, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import kit
from kit.envs import TensorEnv
from kit.errors import UserError
from kit.runs.fingerprint import fingerprint
from kit.runs.opponents import make_env
from kit.runs.run import Run
from tests.runs.crash import create

SMALL = {"n_envs": 4, "total_steps": 128, "eval_every": 0, "checkpoint_every": 64}
TINY = {"n_steps": 16, "batch_size": 64, "n_epochs": 1, "policy_kwargs": {"net_arch": [16, 16]}}
STEADY = TINY | {"learning_rate": 1e-3}  # the preset's falls with the steps that are left, which a longer total changes
STAND = torch.zeros(1, 4, dtype=torch.int64)


def moved_by(commands: torch.Tensor, env: TensorEnv) -> torch.Tensor:
    """Return the defenders of `env` after one step with `commands` and standing attackers.

    Computed in a copy of the game with `side="defenders"`.
    """
    options = {"side": "defenders", "attackers": lambda obs: STAND.expand(len(obs), 4)}
    other = kit.make_vec("Mission", env.num_envs, env_options=options)
    other.restore({**env.snapshot(), "task.opponent": other.snapshot()["task.opponent"]})
    other.step(commands)
    return other.task.defenders


@pytest.fixture(scope="module")
def guards(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of Mission as defenders, with 128 steps."""
    folder = str(tmp_path_factory.mktemp("guards"))
    return kit.train(
        env="Mission", env_options={"side": "defenders"}, runs_dir=folder, run_name="guards", overrides=STEADY, **SMALL
    )


def test_defenders_have_their_own_actions_observations_and_rewards(guards: Run) -> None:
    assert guards.policy().policy.action_net.out_features == 3 * 9
    env = kit.make_vec("Mission", 8, seed=0, env_options={"side": "defenders"})
    assert env.reset().shape == (8, 40) and env.action_space.nvec.tolist() == [9, 9, 9]
    start = env.task.attackers.clone()
    for _ in range(40):
        _, reward, *_, info = env.step(torch.zeros(8, 3, dtype=torch.int64))
        assert reward.tolist() == pytest.approx(
            sum(info[f"reward/{n}"] for n in ("progress", "holding", "losses")).tolist()
        )
    gone = (env.task.attackers[:, 2:, :2] - start[:, 2:, :2]).norm(dim=2)
    assert gone.min() > 40 and reward.sum() < 0, "stock attackers move to the zone, and the defenders lose reward"


def test_a_frozen_policy_moves_the_defenders(guards: Run) -> None:
    config = kit.RunConfig(env="Mission", env_options={"defenders": str(guards.path)}, device="cpu")
    env = make_env(config, 4, 0)
    seen = env.task.guard.clone()
    expected = guards.policy().act(seen)
    told = moved_by(expected, env)
    env.step(STAND.expand(4, 4))
    assert torch.equal(env.task.defenders, told)
    env.close()


def test_games_are_spread_evenly_over_a_pool_and_resume_is_exact(
    guards: Run, recurrent_guards: Run, tmp_path: Path
) -> None:
    """Game i meets opponent i modulo 3; each moves as it does alone, the recurrent one with its hidden state."""
    pool = ["stock", str(guards.path), str(recurrent_guards.path)]
    alone = [make_env(kit.RunConfig(env="Mission", env_options={"defenders": one}, device="cpu"), 7, 0) for one in pool]
    config = kit.RunConfig(env="Mission", env_options={"defenders": pool}, device="cpu")
    together = make_env(config, 7, 0)
    for env in (*alone, together):
        env.reset(seed=1)
    for _ in range(20):
        for env in (*alone, together):
            env.step(STAND.expand(7, 4))
        for i in range(3):
            assert torch.equal(together.task.defenders[i::3], alone[i].task.defenders[i::3]), f"opponent {i}"
    assert not torch.equal(alone[0].task.defenders, alone[1].task.defenders)
    single = make_env(config, 1, 0)  # a video shows one game: the first opponent's
    single.reset(seed=1)
    assert single.step(STAND)[0].isfinite().all()
    saved = together.snapshot()
    with pytest.raises(UserError, match="the defenders differ from those of this snapshot"):
        make_env(config.replace(env_options={"defenders": pool[::-1]}), 7, 0).restore(saved)

    fields = {**SMALL, "env": "Mission", "env_options": {"defenders": pool}, "overrides": STEADY}
    whole = kit.train(runs_dir=str(tmp_path), run_name="whole", **fields)
    cut = create(tmp_path, "cut", **{**fields, "total_steps": 64})
    kit.resume(cut.path)
    kit.resume(cut.path, total_steps=128)
    assert fingerprint(cut) == fingerprint(whole)


@pytest.fixture(scope="module")
def recurrent_guards(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of Mission as defenders, with RecurrentPPO and a normaliser."""
    policy = {"net_arch": [16], "lstm_hidden_size": 16, "ortho_init": False}
    overrides = {**TINY, "policy_kwargs": policy, "normalize": True, "learning_rate": 0.05}
    folder = str(tmp_path_factory.mktemp("recurrent"))
    return kit.train(
        env="Mission", algo="RecurrentPPO", env_options={"side": "defenders"}, runs_dir=folder, run_name="guards",
        overrides=overrides, **SMALL,
    )  # fmt: skip


def test_a_recurrent_opponent_plays_with_its_hidden_state(recurrent_guards: Run) -> None:
    options = {"defenders": str(recurrent_guards.path)}
    config = kit.RunConfig(env="Mission", env_options=options, device="cpu")
    env, actor = make_env(config, 2, 0), recurrent_guards.policy().as_actor()
    env.reset(seed=1)
    hidden_state, differs = actor.initial_state(2), False
    env.restore({**env.snapshot(), "limit": torch.tensor([7, 11])})  # episodes end at different times
    ends = 0
    for step in range(30):
        if step == 5:
            saved, kept = env.snapshot(), hidden_state
        expected, hidden_state = actor(env.task.guard.clone(), hidden_state)
        differs |= not torch.equal(expected, actor(env.task.guard.clone())[0])
        told = moved_by(expected, env)
        _, _, terminated, truncated, _ = env.step(STAND.expand(2, 4))
        assert torch.equal(env.task.defenders, told), f"in step {step}"
        done = terminated | truncated
        hidden_state = tuple(kept.masked_fill(done.view(-1, 1, 1, 1), 0.0) for kept in hidden_state)
        ends += int(done.sum())
    assert differs and ends == 2, "actions must depend on the hidden state, which two episode ends reset"

    other = make_env(config, 2, 0)
    other.restore(saved)
    env.restore(saved)
    for _ in range(30):
        steps = [it.step(STAND.expand(2, 4)) for it in (env, other)]
        assert torch.equal(env.task.defenders, other.task.defenders)
        assert torch.equal(steps[0][0], steps[1][0])
    assert torch.equal(saved["task.hidden_state.0"], kept[0])


def test_a_bare_name_is_looked_up_in_runs_dir(guards: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = kit.RunConfig(env="Mission", env_options={"defenders": "guards@latest"}, device="cpu")
    make_env(config.replace(runs_dir=str(guards.path.parent)), 1, 0).close()


def test_a_snapshot_with_another_opponent_is_refused(guards: Run) -> None:
    env = kit.make_vec("Mission", 4, env_options={"defenders": guards.policy().as_actor()})
    other = kit.make_vec("Mission", 4, env_options={"side": "attackers"})
    with pytest.raises(UserError, match="the defenders differ from those of this snapshot"):
        other.restore({**other.snapshot(), "task.opponent": env.snapshot()["task.opponent"]})


def test_an_unsuitable_opponent_is_refused_before_a_run_is_created(guards: Run, tmp_path: Path) -> None:
    arm = create(tmp_path, "arm", total_steps=64)
    for options, says in (
        ({"defenders": str(tmp_path / "none")}, "none does not exist"),
        ({"defenders": str(arm.path)}, "has no checkpoint"),
        (
            {"side": "defenders", "attackers": str(guards.path)},
            "plays Mission as defenders; name a run that plays Mission as",
        ),
        ({"defenders": []}, "defenders=\\[\\] names nobody; name 'stock' or a run"),
        ({"defenders": ["stock", "no-run"]}, "defenders='no-run'"),
        ({"side": "judges"}, "side='judges' is unknown; valid are attackers and defenders"),
        ({"attackers": str(guards.path)}, "are the side that learns"),
    ):
        with pytest.raises(UserError, match=says):
            kit.train(env="Mission", env_options=options, runs_dir=str(tmp_path / "new"), overrides=STEADY, **SMALL)
    assert not (tmp_path / "new").exists()
    with pytest.raises(UserError, match="is a run; pass its policy"):
        kit.make_vec("Mission", 1, env_options={"defenders": str(guards.path)})
