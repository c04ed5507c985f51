"""Tests of warm starts: copied state, inherited config, family order, refusals, `kit.branch`."""

from __future__ import annotations

from pathlib import Path

import pytest
import stable_baselines3
import torch

import kit
from kit.errors import UserError
from kit.runs.api import rename
from kit.runs.finding import family, local_runs, locate_step
from kit.runs.session import Session
from kit.runs.warm_start import warm_start
from tests.runs.crash import create


@pytest.fixture(scope="module")
def parents(tmp_path_factory):
    """Two finished runs in one folder: PPO with a normaliser, and SAC."""
    folder = tmp_path_factory.mktemp("runs")
    runs = {
        "PPO": create(folder, "ppo", overrides={"normalize": True}, total_steps=320, seed=3),
        "SAC": create(folder, "sac", "SAC", total_steps=200, seed=3),
    }
    for run in runs.values():
        assert Session(run.path)() == 0
    return runs


def begun(run: kit.Run) -> dict:
    return run.find(0).read()


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(
        torch.equal(v, b[k]) if isinstance(v, torch.Tensor) else v == b[k] for k, v in a.items()
    )


@pytest.mark.parametrize("algo", ["PPO", "SAC"])
def test_policy_normaliser_and_optimizer_are_copied_and_counters_are_not(parents, algo: str) -> None:
    parent = parents[algo]
    run = kit.train(
        start_from=f"{parent.path}@latest", run_name=f"child-{algo}", total_steps=64, overrides={"gamma": 0.9}
    )
    assert run.status()["state"] == "finished"
    before, after = parent.latest().read(), begun(run)
    for part in ("policy", "optimizer"):
        assert same(before[part], after[part]), part
    assert after["trainer"]["num_timesteps"] == 0 and before["trainer"]["num_timesteps"] > 0
    assert run.config.overrides == {**parent.config.overrides, "gamma": 0.9}
    assert (run.config.n_envs, run.config.seed, run.config.env) == (2, 3, "Reach")
    assert run.parent == (parent.name, parent.latest().step)
    if algo == "PPO":  # running returns belong to the envs and are not copied
        assert after["normalizer"]["obs.count"] == before["normalizer"]["obs.count"]
        assert same(
            {k: v for k, v in before["normalizer"].items() if k != "returns"},
            {k: v for k, v in after["normalizer"].items() if k != "returns"},
        )
    else:
        assert torch.equal(before["temperature"]["log_ent_coef"], after["temperature"]["log_ent_coef"])
        assert after["trainer"]["replay_written"] == 0


def test_another_algorithm_takes_the_policy_alone(parents) -> None:
    run = kit.train(start_from=parents["PPO"].path, algo="A2C", run_name="a2c", total_steps=32)
    before, after = parents["PPO"].latest().read(), begun(run)
    assert same(before["policy"], after["policy"]) and not any("exp_avg" in name for name in after["optimizer"])
    assert "n_epochs" not in run.config.overrides and run.config.overrides["normalize"] is True


def test_family_lists_runs_after_their_parents(parents, tmp_path) -> None:
    first = create(tmp_path, "first", total_steps=64)
    assert Session(first.path)() == 0
    second = kit.train(start_from=f"{first.path}@64", run_name="second")
    third = kit.train(start_from=second.path, run_name="third")
    other = create(tmp_path, "other")
    lines = [(run.name, run.parent) for run in family(local_runs(tmp_path))]
    names = [name for name, _ in lines]
    assert names.index("first") + 1 == names.index("second") == names.index("third") - 1 and other.name in names
    assert third.parent == ("second", 64)
    with pytest.raises(UserError, match="second is where third started from; keep the name, and write a note"):
        rename(second, "middle")
    assert rename(third, "last").parent == ("second", 64) and not third.path.exists()


def test_a_branch_may_have_the_name_of_its_parent_in_another_folder(parents, tmp_path) -> None:
    named = kit.train(start_from=parents["PPO"].path, run_name="ppo", runs_dir=str(tmp_path / "me@host"))
    assert [run.name for run in family(local_runs(named.path.parent))] == ["ppo"]
    assert locate_step(named.path, "runs")[1] is None, "the folder's name contains an @"
    assert locate_step(f"{named.path}@best", "runs")[1] == "best"
    assert rename(named, "other").name == "other"


def test_a_step_that_is_no_number_is_refused(parents, tmp_path) -> None:
    for source in (f"{parents['PPO'].path}@foo", f"{parents['PPO'].path}@"):
        with pytest.raises(UserError, match="is not a step; give a number such as 100000, best or latest"):
            kit.train(start_from=source, runs_dir=str(tmp_path))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"env": "Ant"}, "does not fit env='Ant'"),
        ({"algo": "SAC"}, "does not fit env='Reach' with SAC"),
        ({"overrides": {"policy_kwargs": {"net_arch": [32]}}}, "does not fit"),
        ({"overrides": {"normalize": False}}, "normalize"),
    ],
    ids=["another robot", "another kind of policy", "another network", "unlike normalised"],
)
def test_an_incompatible_warm_start_is_refused_and_creates_no_run(parents, tmp_path, changes: dict, words: str) -> None:
    with pytest.raises(UserError, match=words) as refused:
        kit.train(start_from=parents["PPO"].path, runs_dir=str(tmp_path), run_name="child", **changes)
    assert "\n" not in str(refused.value) and not [p for p in tmp_path.iterdir() if p.name != "worker.log"]


def test_a_branch_trains_in_another_process(parents) -> None:
    run = kit.branch(parents["PPO"], "latest", run_name="branch", total_steps=64)
    assert run.wait(200)["state"] == "finished", run.log()
    assert same(begun(run)["policy"], parents["PPO"].latest().read()["policy"])


def test_a_zip_that_was_trained_with_state_dependent_noise_is_imported(tmp_path: Path) -> None:
    sizes = {"n_steps": 32, "batch_size": 16, "learning_rate": 2e-4}
    model = stable_baselines3.PPO("MlpPolicy", "Pendulum-v1", use_sde=True, **sizes)
    model.save(tmp_path / "gsde.zip")
    fields = {"env": "Pendulum-v1", "total_steps": 64, "eval_every": 0, "runs_dir": str(tmp_path), "n_envs": 2}
    run = kit.train(start_from=tmp_path / "gsde.zip", trust=True, threads=1, **fields)
    overrides = run.config.overrides
    assert (overrides["use_sde"], overrides["n_steps"], overrides["learning_rate"]) == (True, 32, 2e-4)
    start, weights = run.find(0).read()["policy"], model.policy.state_dict()
    assert start.keys() == weights.keys() and all(torch.equal(start[name], weights[name]) for name in weights)


def test_hyperparameters_that_a_zip_cannot_give_keep_their_defaults(tmp_path: Path) -> None:
    stable_baselines3.SAC("MlpPolicy", "Pendulum-v1", n_steps=3).save(tmp_path / "sac.zip")
    stable_baselines3.PPO("MlpPolicy", "Pendulum-v1").save(tmp_path / "ppo.zip")
    three = warm_start(tmp_path / "sac.zip", True, str(tmp_path), "SAC").make_config(None, {"env": "Pendulum-v1"})
    assert "n_steps" not in three.overrides and three.overrides["batch_size"] == 256
    taught = warm_start(tmp_path / "ppo.zip", True, str(tmp_path), "Distill").make_config(None, {"algo": "Distill"})
    assert taught.overrides.keys() <= {"policy_kwargs"}
