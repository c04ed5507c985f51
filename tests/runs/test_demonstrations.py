"""Tests of datasets: recording in Minari's format, training BC and SAC on them, exact resume, refusal of bad data."""

import json
import shutil
from types import MappingProxyType

import h5py
import minari
import numpy as np
import pytest
import torch
from gymnasium import spaces

import kit
from kit import cli
from kit.config import RunConfig
from kit.envs import describe
from kit.envs.obs import CRITIC, POLICY
from kit.errors import UserError
from kit.runs import demonstrations
from kit.trainers import make_trainer
from kit.trainers.planning import plan
from tests.envs.chase import ChaseState
from tests.runs.crash import complete, create, cut_twice
from tests.runs.test_resume import assert_same_end
from tests.stores.conftest import hub  # noqa: F401

CHASE, STATE = "tests.envs.chase:Chase", "tests.envs.chase:ChaseState"
SMALL = {"batch_size": 32, "gradient_steps": 4, "policy_kwargs": {"net_arch": [16]}}
TINY = {"batch_size": 8, "policy_kwargs": {"net_arch": [16], "features_extractor_kwargs": {"features": 8}}}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return kit.record("scripted", tmp_path_factory.mktemp("sets") / "images", env=CHASE, episodes=12, seed=1)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    return kit.record("scripted", tmp_path_factory.mktemp("sets") / "numbers", env=STATE, episodes=40)


def test_minari_reads_what_was_recorded(numbers):
    """Scripted actions are 10 (mark - place), clipped to ±2; a reward is minus the distance after the step."""
    data = minari.MinariDataset(numbers)
    assert (data.total_episodes, data.total_steps) == (40, 40 * 20)
    for episode in data:
        place, mark = episode.observations.T
        assert np.allclose(episode.actions[:, 0], np.clip(10 * (mark - place), -2, 2)[:-1], atol=1e-5)
        assert np.allclose(episode.rewards, -np.abs(mark - place)[1:], atol=1e-6)
        assert not episode.terminations.any() and episode.truncations.tolist() == [False] * 19 + [True]
    starts = {tuple(each.observations[0]) for each in data}
    assert len(starts) == 40


def test_images_are_stored_once_and_without_loss_and_stacked_again(images):
    """The env stacks two images; at the start of an episode, both are the first image."""
    data = minari.MinariDataset(images)
    recorded = data[0].observations
    assert recorded.shape == (21, 1, 36, 36) and set(np.unique(recorded)) == {0, 255}
    config = plan(RunConfig(env=CHASE, algo="BC", dataset=str(images), n_envs=1, threads=1, overrides=SMALL)).config
    env = kit.make_vec(CHASE, 1, "cpu", 0, 1)
    trainer = make_trainer(config, env)
    trainer.set_dataset(demonstrations.read(config, env), {})
    torch.manual_seed(0)
    batch = trainer.replay_buffer.sample(500)
    assert batch.obs.shape == (500, 2, 1, 36, 36)
    whole = np.concatenate([each.observations for each in data])
    before = np.concatenate([each.observations[[0, *range(20)]] for each in data])
    pairs = {(a.tobytes(), b.tobytes()) for a, b in zip(before, whole, strict=True)}
    for stacks in (batch.obs, batch.next_obs):
        assert all((a.tobytes(), b.tobytes()) in pairs for a, b in stacks.numpy())


def test_a_run_is_recorded_in_its_own_env(tmp_path):
    run = kit.train(
        env=STATE, algo="PPO", total_steps=64, n_envs=4, threads=1, runs_dir=str(tmp_path), run_name="r", eval_every=64,
        overrides={"n_steps": 16, "batch_size": 16},
    )  # fmt: skip
    path = kit.record(f"{run.path}@best", tmp_path / "set", episodes=2)
    episode = minari.MinariDataset(path)[0]
    actor = run.policy("best").as_actor()
    assert torch.allclose(actor(torch.tensor(episode.observations[:-1]))[0], torch.tensor(episode.actions), atol=1e-5)
    with pytest.raises(UserError, match="step=0 has no checkpoint"):
        kit.record(run.path, tmp_path / "untrained", step=0)


def test_bc_learns_from_a_dataset(tmp_path, numbers):
    """For comparison: random actions succeed, within 0.1 of the mark, in a tenth of the episodes."""
    fields = {"env": STATE, "dataset": str(numbers), "total_steps": 60_000}
    run = create(tmp_path, "bc", "BC", SMALL | {"gradient_steps": 16}, **fields)
    assert complete(run) == 0, run.log()
    assert kit.evaluate(run, 40, "latest")["success_rate"] > 0.8


@pytest.mark.parametrize("algo", ["BC", "SAC"])
def test_cut_run_ends_like_the_uncut_one_without_the_dataset(tmp_path, images, numbers, algo):
    env, source, overrides = (CHASE, images, TINY) if algo == "BC" else (
        STATE, numbers, {"batch_size": 32, "learning_starts": 50, "policy_kwargs": {"net_arch": [16]}}
    )  # fmt: skip
    lent = shutil.copytree(source, tmp_path / "lent")
    fields = {"env": env, "dataset": str(lent), "total_steps": 400, "n_envs": 2, "checkpoint_every": 40}
    uncut, cut = (create(tmp_path, name, algo, overrides, eval_every=200, **fields) for name in ("uncut", "cut"))
    assert complete(uncut) == 0, uncut.log()
    for _ in cut_twice(cut, 80):
        shutil.rmtree(lent, ignore_errors=True)
    assert complete(cut) == 0, cut.log()
    assert_same_end(cut, uncut)
    assert len(list((cut.path / "frozen").glob("dataset-*"))) == (algo == "SAC")


def test_a_reset_of_the_envs_is_no_gap_in_a_clones_dataset(images):
    config = plan(RunConfig(env=CHASE, algo="BC", dataset=str(images), n_envs=1, threads=1, overrides=TINY)).config
    env = kit.make_vec(CHASE, 1, "cpu", 0, 1)
    trainer = make_trainer(config, env)
    trainer.set_dataset(demonstrations.read(config, env), {})
    last = trainer.replay_buffer.written - 1
    state = trainer.state()
    state["trainer"]["replay_breaks"] = [last]  # of a checkpoint by an older version, in which row `last` was not drawn
    trainer.load_state(state)
    rows = torch.cat([trainer.replay_buffer._draw(5 * last)[0] for _ in range(4)])
    assert rows.min() >= 0 and rows.max() == last


def test_half_of_each_sac_minibatch_is_from_the_dataset(numbers):
    config = plan(
        RunConfig(env=STATE, algo="SAC", dataset=str(numbers), n_envs=1, threads=1, overrides={"batch_size": 64})
    ).config
    env = kit.make_vec(STATE, 1, "cpu", 0, 1)
    trainer = make_trainer(config, env)
    trainer.set_dataset(demonstrations.read(config, env), {})
    obs = env.reset(seed=9)
    for _ in range(30):  # own transitions get action 3; scripted actions are within ±1
        trainer.replay_buffer.add(obs, torch.full((1, 1), 3.0), torch.zeros(1), obs, torch.zeros(1, dtype=torch.bool))
    batch = trainer._sample_batch(64)
    assert (batch.actions == 3.0).sum() == 32
    place, mark = batch.obs[batch.actions[:, 0] != 3.0].unbind(1)
    scripted = (10 * (mark - place)).clamp(-2, 2) / 2  # scaled to ±1, as SAC stores actions
    assert torch.allclose(batch.actions[batch.actions[:, 0] != 3.0, 0], scripted, atol=1e-5)


@pytest.mark.parametrize("url", ["file://{}/sets", "hf://me/sets"])
def test_dataset_is_read_from_a_store(tmp_path, numbers, url, hub):  # noqa: F811
    """hf:// by the real client from a Hub on loopback."""
    from kit.stores import open_store

    store = open_store(url.format(tmp_path), write=True)
    store.put({f"data/{path.name}": path for path in numbers.iterdir()})
    config = RunConfig(env=STATE, algo="BC", dataset=store.url)
    env = kit.make_vec(STATE, 1, "cpu", 0, 1)
    demonstrations.check(config, describe(STATE))
    assert len(demonstrations.read(config, env)) == 40


def _cut_file(path):
    file = path / "main_data.hdf5"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _no_end(path):
    with h5py.File(path / "main_data.hdf5", "a") as file:
        file["episode_3/truncations"][-1] = False


def _shorter(path):
    with h5py.File(path / "main_data.hdf5", "a") as file:
        file["episode_3/actions"].resize(12, axis=0)


def _no_metadata(path):
    (path / "metadata.json").unlink()


def _other_space(path):
    data = json.loads((path / "metadata.json").read_text())
    space = json.loads(data["observation_space"])
    space["high"] = [2.0, 2.0]
    (path / "metadata.json").write_text(json.dumps({**data, "observation_space": json.dumps(space)}))


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (_cut_file, "cannot be read"),
        (_no_end, "has an episode 3 that does not end with its last step"),
        (_shorter, r"has an episode 3 of 20 rewards, but \[12, 20\] steps of"),
        (_no_metadata, "has no metadata.json"),
        (_other_space, r"has observations Box\(-1.0, 2.0"),
        (shutil.rmtree, "has no metadata.json"),
    ],
)
def test_bad_data_is_refused_in_a_sentence(tmp_path, numbers, damage, sentence):
    copy = shutil.copytree(numbers, tmp_path / "copy")
    damage(copy)
    config = RunConfig(env=STATE, algo="BC", dataset=str(copy), runs_dir=str(tmp_path / "runs"))
    with pytest.raises(UserError, match=f"dataset='.*copy' {sentence}"):
        demonstrations.read(config, kit.make_vec(STATE, 1, "cpu", 0, 1))


def _episode_lost(path):
    with h5py.File(path / "main_data.hdf5", "a") as file:
        del file["episode_39"]


@pytest.mark.parametrize("damage", [_cut_file, _episode_lost])
def test_a_cut_dataset_is_refused_before_a_run_is_created(tmp_path, monkeypatch, capsys, numbers, damage):
    monkeypatch.chdir(tmp_path)
    damage(shutil.copytree(numbers, tmp_path / "copy"))
    with pytest.raises(SystemExit) as ended:
        cli.main(["train", "--env", STATE, "--algo", "BC", "--dataset", "copy", "--total-steps", "64", "--trust"])
    assert ended.value.code == 2 and "kit: dataset='copy' cannot be read (" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"dataset": None}, "algo='BC' needs a dataset"),
        ({"algo": "PPO"}, "has no effect with algo='PPO'"),
        ({"env": CHASE}, "has observations"),
        ({"env": "Reach"}, "but env='Reach' has Box"),
    ],
)
def test_an_unsuitable_config_is_refused_before_a_run_is_created(tmp_path, numbers, fields, sentence):
    config = {"env": STATE, "algo": "BC", "dataset": str(numbers), "runs_dir": str(tmp_path)} | fields
    with pytest.raises(UserError, match=sentence):
        kit.train(**config)
    assert not list(tmp_path.iterdir())


class Judged(ChaseState):
    """The critic sees a number that is not recorded."""

    obs_groups = MappingProxyType({POLICY: ("state",), CRITIC: ("state", "hint")})
    groups = (POLICY, CRITIC)

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict({**self.observation_space, "hint": spaces.Box(-2, 2, (1,), np.float32)})

    def observe(self):
        return {**super().observe(), "hint": self.state_[:, 1:] - self.state_[:, :1]}


def test_a_dataset_without_the_critics_observations_is_refused(tmp_path, numbers):
    fields = {"env": f"{__name__}:Judged", "algo": "SAC", "dataset": str(numbers), "runs_dir": str(tmp_path / "runs")}
    with pytest.raises(UserError, match="lacks hint, which the critic's observation group has; leave the group out"):
        kit.train(**fields)


def test_a_dataset_too_large_for_a_run_is_refused(tmp_path, numbers):
    copy = shutil.copytree(numbers, tmp_path / "copy")
    data = json.loads((copy / "metadata.json").read_text())
    (copy / "metadata.json").write_text(json.dumps({**data, "total_steps": 10**10}))
    with pytest.raises(UserError, match=r"takes [\d.]+ GiB, and a run saves a copy of at most 4 GiB; record fewer"):
        kit.train(env=STATE, algo="BC", dataset=str(copy), runs_dir=str(tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"source": "scripted:x"}, "scripted"),
        ({"env": "Ant"}, "has no scripted policy"),
        ({"episodes": 0}, "episodes=0 must be a whole number"),
    ],
)
def test_a_refused_recording_leaves_no_folder(tmp_path, arguments, sentence):
    with pytest.raises(UserError, match=sentence):
        kit.record(**{"source": "scripted", "output": tmp_path / "set", "env": STATE} | arguments)
    assert not list(tmp_path.iterdir())
    (tmp_path / "set").mkdir()
    with pytest.raises(UserError, match="exists"):
        kit.record("scripted", tmp_path / "set", env=STATE)
    with pytest.raises(UserError, match="set is a file; name another folder"):
        (tmp_path / "file").mkdir(), (tmp_path / "file" / "set").touch()
        kit.record("scripted", tmp_path / "file" / "set" / "below", env=STATE)
    with pytest.raises(UserError, match=r"/proc/set cannot be written \(.*\); free some space there, or use another"):
        kit.record("scripted", "/proc/set", env=STATE)
