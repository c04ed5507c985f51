"""Datasets of recorded episodes, in Minari's format: record a policy, and read a dataset for training.

Minari (https://minari.farama.org) opens the folder with `minari.MinariDataset(folder)`. Of each image stack,
only the newest image is stored (lossless); kit rebuilds the stacks when it reads the dataset.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import Space, spaces

from kit.config import SCRIPTED, RunConfig, folder_name
from kit.envs.obs import CRITIC, POLICY, leaves, pick_space, tree_map
from kit.envs.play import Player, Transition, ending, play
from kit.errors import UserError, check_whole
from kit.format.manifest import MAX_FILE_BYTES
from kit.machine.settings import one_thread
from kit.runs.directory import check_output, making
from kit.runs.evaluation import TEST_SEED, Script
from kit.runs.finding import is_url, locate_step
from kit.runs.opponents import make_env
from kit.runs.run import opened
from kit.trainers.clips import image_stacks
from kit.trainers.demonstrations import Episode, newest, recorded

if TYPE_CHECKING:
    from minari.data_collector import EpisodeBuffer

    from kit.envs.contract import BatchEnv
    from kit.envs.registry import Spaces

FILES = ("metadata.json", "main_data.hdf5")
MAX_ENVS = 32
RECORD_SEED = TEST_SEED + 1_000_000
"""Added to the seed of a recording, so that its episodes differ from those of training and of evaluations."""
MAX_BYTES = 64 * 2**30
"""Largest file that is fetched from a store."""
Progress = Callable[[int, int], None]
"""Called with the number of episodes recorded so far and the total number."""


def record(
    source: str | Path,
    output: str | Path,
    *,
    env: str = "Reach",
    env_options: dict[str, Any] | None = None,
    episodes: int = 100,
    seed: int = 0,
    step: int | str | None = None,
    runs_dir: str = "runs",
    trust: bool = False,
    on_progress: Progress = lambda done, total: None,
) -> Path:
    """Record whole episodes of a policy in the new folder `output`; return the folder.

    `source`: RUN or RUN@STEP, a policy that plays in its run's own env (without @STEP: `step`, or the best); or
    "scripted" or "scripted:NAME", a scripted policy that plays in `env` with `env_options`. Actions are deterministic.
    Raises `UserError`, and then leaves no folder.
    """
    check_whole("episodes", episodes, 1)
    output = _new_path(output)
    _minari()
    scripted, _, script = str(source).partition(":")
    run, named = (None, None) if scripted == SCRIPTED else locate_step(source, runs_dir, trust)
    asked = RunConfig(env=env, env_options=env_options or {})
    config = (asked if run is None else opened(run, trust).config).replace(device="cpu")
    per_env = -(-episodes // MAX_ENVS)  # each env plays the same number: the first to end would be the short ones
    n_envs = -(-episodes // per_env)
    batch = make_env(config, n_envs, seed + RECORD_SEED, 1)
    try:
        policy = None if run is None else run.policy(named if step is None else step)
        player: Player = Script(batch, script or None) if policy is None else policy.as_actor()
        with one_thread():
            played = _episodes(batch, config.env, player, episodes, seed + RECORD_SEED, on_progress)
            return write(output, batch, config, str(source), played)
    finally:
        batch.close()


def write(output: Path, env: BatchEnv, config: RunConfig, source: str, episodes: Iterable[EpisodeBuffer]) -> Path:
    """Write `episodes`, recorded in `env` of `config`, to the new folder `output`; return its absolute path.

    `source`: name of the policy, for the metadata. Raises `UserError` if `output` exists.
    """
    output = _new_path(output)
    with making(output) as building:
        spaces_ = _recorded_space(env), env.action_space
        data = _minari().MinariStorage.new(building, *spaces_, data_format="hdf5", jpeg_encoding=False)
        for episode in episodes:
            data.update_episodes([episode])
        data.update_metadata(_metadata(output, config, source))
        building.rename(output)
    return output


def _new_path(output: str | Path) -> Path:
    """Return the absolute path of `output`. Raises `UserError` if it exists or cannot be written."""
    output = Path(output).expanduser().absolute()  # Minari mishandles a relative path: it joins the path with itself
    with contextlib.suppress(OSError):  # a place that cannot be read: `check_output` says so
        if output.exists():
            raise UserError(f"output={str(output)!r} exists; name a new folder, or remove this one.")
    check_output(output)
    return output


def _episodes(
    env: BatchEnv, name: str, player: Player, episodes: int, seed: int, on_progress: Progress
) -> Iterator[EpisodeBuffer]:
    """Play `episodes` episodes, and yield each."""
    recorder, done = Recorder(env), 0
    steps = play(env, player, env.reset(seed=seed), -(-episodes // env.num_envs))
    for step in ending(steps, name, env.episode_steps):
        for episode in recorder.add(step)[: episodes - done]:
            yield episode
            done += 1
            on_progress(done, episodes)
        if done == episodes:
            return


class Recorder:
    """Collects the steps of the first `n_envs` envs (default: all) into whole episodes.

    Raises `UserError` without Minari.
    """

    def __init__(self, env: BatchEnv, n_envs: int | None = None) -> None:
        _minari()
        self._env = env
        self._steps: list[list[tuple[Any, ...]]] = [[] for _ in range(n_envs or env.num_envs)]

    def add(self, step: Transition) -> list[EpisodeBuffer]:
        """Add one step of all envs; return the episodes that it ends, if they count (`Transition.ended`)."""
        from minari.data_collector import EpisodeBuffer

        env, whole = self._env, []
        done, obs = step.terminated | step.truncated, recorded(step.obs, env)
        final = recorded(step.info["final_obs"], env)
        for i, steps in enumerate(self._steps):

            def row(x: torch.Tensor, i: int = i) -> Any:
                return x[i].numpy().copy()

            values = (obs, step.action, step.reward, step.terminated, step.truncated)
            steps.append(tuple(tree_map(row, x) for x in values))
            if not done[i]:
                continue
            before, actions, rewards, terminated, truncated = zip(*steps, strict=True)
            steps.clear()
            if step.ended[i]:
                observations = tree_map(lambda *x: np.stack(x), *before, tree_map(row, final))
                whole.append(EpisodeBuffer(
                    observations=observations, actions=np.stack(actions), rewards=np.stack(rewards).tolist(),
                    terminations=np.stack(terminated).tolist(), truncations=np.stack(truncated).tolist(),
                ))  # fmt: skip
        return whole


def _recorded_space(env: BatchEnv | Spaces, frames: dict[str, int] | None = None) -> Space:
    """Return the space of recorded observations: the policy's entries, with one image in place of each image stack.

    `frames`: entry -> stack depth, by default those of `env`; {}: whole stacks, as other programs record them.
    """
    space = pick_space(env.observation_space, env.obs_groups.get(POLICY))
    stacks = image_stacks(env.observation_space, env.frames if frames is None else frames)

    def single(box: Any) -> Space:
        return spaces.Box(box.low[-1], box.high[-1], dtype=box.dtype)

    if isinstance(space, spaces.Dict):
        return spaces.Dict({name: single(inner) if name in stacks else inner for name, inner in space.items()})
    return single(space) if stacks else space


def _metadata(output: Path, config: RunConfig, source: str) -> dict[str, Any]:
    import minari

    name = folder_name(output.name) or "dataset"
    return {
        "dataset_id": f"{folder_name(config.env)}/{name}-v0",
        "minari_version": minari.__version__,
        "algorithm_name": source,
        "description": f"{source} in {config.env} {config.env_options or ''}".strip(),
        "kit_env": config.env,
    }


# -- reading -------------------------------------------------------------------------------------------------------


def check(config: RunConfig, env: Spaces) -> None:
    """Raise `UserError` if the dataset of `config` cannot be read or does not fit `env`. Reads no episodes."""
    if config.dataset is not None:
        with _opened(config.dataset, whole=False) as data:
            _check_spaces(config, data, env)
            if missing := sorted({*env.obs_groups.get(CRITIC, ())} - {*env.obs_groups.get(POLICY, ())}):
                raise UserError(
                    f"dataset={config.dataset!r} lacks {', '.join(missing)}, which the critic's observation group has; "
                    "leave the group out with env_options obs_groups=[]."
                )
            sizes = {name: math.prod(x.shape) * x.dtype.itemsize for name, x in leaves("", _recorded_space(env))}
            once = {f".{name}" if name else "" for name in env.frames}  # others are stored twice, as obs and next_obs
            act = math.prod(env.action_space.shape or (1,))
            # actions and reward are float32, terminated is one byte
            step_bytes = sum(size * (1 if name in once else 2) for name, size in sizes.items()) + 4 * act + 4 + 1
            if (size := data.total_steps * step_bytes) > MAX_FILE_BYTES:
                raise UserError(
                    f"dataset={config.dataset!r} takes {size / 2**30:.1f} GiB, and a run saves a copy of at most "
                    f"{MAX_FILE_BYTES / 2**30:g} GiB; record fewer episodes or smaller images."
                )


def read(config: RunConfig, env: BatchEnv) -> list[Episode]:
    """Return the episodes of the dataset of `config` for `env`. Raises `UserError` for unusable data."""
    name, stacks = str(config.dataset), image_stacks(env.observation_space, env.frames)
    with _opened(name) as data:
        _check_spaces(config, data, env)
        try:
            whole = data.get_episodes(range(data.total_episodes))
            return [_episode(name, i, each, stacks) for i, each in enumerate(whole)]
        except (OSError, KeyError, RuntimeError, AssertionError) as error:
            raise _unreadable(name, error) from None


def _episode(name: str, number: int, data: dict[str, Any], stacks: dict[str, int]) -> Episode:
    steps = len(data["rewards"])
    ends = np.asarray(data["terminations"], bool) | np.asarray(data["truncations"], bool)
    lengths = {len(x) - 1 for _, x in leaves("", data["observations"])} | {len(data["actions"]), len(ends)}
    if not steps or lengths != {steps}:
        raise UserError(
            f"dataset={name!r} has an episode {number} of {steps} rewards, but {sorted(lengths)} steps of "
            "observations, actions or ends; record it again."
        )
    if not ends[-1] or ends[:-1].any():
        raise UserError(
            f"dataset={name!r} has an episode {number} that does not end with its last step; record whole episodes, "
            "with terminated or truncated set in the last step only."
        )

    def tensor(array: Any) -> torch.Tensor:
        return torch.as_tensor(np.asarray(array))

    obs = tree_map(tensor, data["observations"])
    ndims = {len(x.shape) for x in obs.values()} if isinstance(obs, dict) else {obs.ndim}
    if stacks and 5 in ndims:  # whole stacks (T + 1, frames, C, H, W), as other programs record them
        obs = newest(obs, stacks)
    rewards, terminated = (tensor(data[key]) for key in ("rewards", "terminations"))
    return Episode(obs, tensor(data["actions"]), rewards.float(), terminated.bool())


def _check_spaces(config: RunConfig, data: Any, env: Spaces | BatchEnv) -> None:
    seen = [_recorded_space(env), _recorded_space(env, {})]  # {}: stacks recorded whole, by other programs
    if data.observation_space not in seen:
        verb, its, ours = "has observations", data.observation_space, _recorded_space(env)
    elif data.action_space != env.action_space:
        verb, its, ours = "has actions", data.action_space, env.action_space
    else:
        return
    raise UserError(
        f"dataset={config.dataset!r} {verb} {its}, but env={config.env!r} has {ours}; record it in this env, or set "
        "the env and env_options it was recorded in."
    )


@contextmanager
def _opened(dataset: str, whole: bool = True) -> Iterator[Any]:
    """Open the dataset: a folder, or its URL in a store, from which it is fetched. Raises `UserError`.

    `whole`: whether to fetch the episodes of a URL too, not only the metadata.
    """
    storage = _minari().MinariStorage
    import h5py

    with tempfile.TemporaryDirectory(prefix="kit-dataset-") as fetched:
        if is_url(dataset):
            folder = _fetch(dataset, Path(fetched), whole)
        else:
            folder = Path(dataset).expanduser().absolute()
            folder = folder / "data" if (folder / "data").is_dir() else folder
        if not (folder / FILES[0]).is_file():
            raise UserError(f"dataset={dataset!r} has no {FILES[0]}; name a folder that `kit record` or Minari wrote.")
        try:
            data = storage.read(folder)
            n_episodes = data.total_episodes
            if data.FORMAT == "hdf5" and n_episodes and (whole or not is_url(dataset)):
                with h5py.File(folder / FILES[1]) as file:  # a file that was cut off does not open
                    _ = file[f"episode_{n_episodes - 1}"]
        except Exception as error:  # what a damaged file raises depends on where it is damaged
            raise _unreadable(dataset, error) from None
        if not n_episodes:
            raise UserError(f"dataset={dataset!r} holds no episode; record some.")
        yield data


def _fetch(url: str, folder: Path, whole: bool) -> Path:
    from kit.stores import open_store
    from kit.stores.pull import readable

    store = open_store(url)
    with readable(store):
        files = store.list()
        prefix = "data/" if f"data/{FILES[0]}" in files else ""
        for name in FILES:
            if f"{prefix}{name}" not in files:
                raise UserError(f"dataset={url!r} has no {name}; name a folder that `kit record` or Minari wrote.")
            if whole or name == FILES[0]:
                store.get(f"{prefix}{name}", folder / name, MAX_BYTES)
            else:
                (folder / name).touch()  # Minari only checks that it exists
    return folder


def _unreadable(dataset: str, error: Exception) -> UserError:
    reason = " ".join(str(error).split())[:150]
    return UserError(f"dataset={dataset!r} cannot be read ({type(error).__name__}: {reason}); copy or record it again.")


def _minari() -> Any:
    try:
        import h5py  # noqa: F401
        from minari.dataset import minari_storage
    except ImportError:
        raise UserError("datasets need Minari; install it with pip install 'kit[demos]'.") from None
    return minari_storage
