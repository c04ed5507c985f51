"""What every trainer shares: the tensor env under SB3's view of it, boundaries, exact state, and a plain SB3 zip."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common import utils
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import MaybeCallback
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, VecTransposeImage, is_vecenv_wrapped

from kit.errors import UserError
from kit.trainers import Interrupted
from kit.trainers.normalize import Normalizer
from kit.trainers.rollout import Obs, tmap

State = dict[str, dict[str, Any]]
"""Component -> name -> tensor, number, text, bool, None or list: what a checkpoint holds."""


class TensorTrainer(BaseAlgorithm):
    """A mixin before one of SB3's algorithms.

    `state()` at an iteration boundary and `load_state()` in a new process decide the future bit for bit on the CPU;
    after `load_state`, `learn(total_timesteps)` goes on to that total. Callbacks, logger, `save` and `load` are SB3's,
    and a saved zip holds nothing of this library: plain SB3 opens it.
    """

    tensor_env: Any
    gamma: float
    normalizer: Normalizer | None = None
    _last_obs: Obs | None  # type: ignore[assignment]

    def __init__(
        self, *args: Any, normalize: bool | dict[str, Any] = False, autocast: str | None = None, **kwargs: Any
    ) -> None:
        """SB3's arguments, its env being a view of a tensor env (`kit.envs.sb3.TensorVecEnv`). `normalize` scales
        observations and rewards by running statistics: true, or some of `Normalizer`'s settings. `autocast`: see
        `kit.trainers.precision`; PPO and A2C only."""
        self.on_boundary: Callable[[], None] = _nothing
        self.should_stop: Callable[[], bool] = _never
        self._normalize, self._autocast = normalize, autocast
        super().__init__(*args, **kwargs)

    # -- set-up ----------------------------------------------------------------------------------------------------

    def _setup_model(self) -> None:
        super()._setup_model()  # type: ignore[safe-super]
        self.iteration = 0
        self._ready = self.num_timesteps == 0
        self._unread: list[Any] = []
        self.normalizer = None
        self.tensor_env = None
        if self.ep_info_buffer is None:
            self.ep_info_buffer = deque(maxlen=self._stats_window_size)
            self.ep_success_buffer = deque(maxlen=self._stats_window_size)
        if isinstance(self.action_space, spaces.Box):
            low, high = self.action_space.low, self.action_space.high
            self._bounds = torch.as_tensor(low, device=self.device), torch.as_tensor(high, device=self.device)
        if self.device.type != "cpu":  # SB3's distributions would ask the device about every one of their parameters
            torch.distributions.Distribution.set_default_validate_args(False)
        if self._normalize:
            settings = self._normalize if isinstance(self._normalize, dict) else {}
            settings = {"gamma": self.gamma, **settings}
            self.normalizer = Normalizer(self.observation_space, self.n_envs, self.device, **settings)
        if self.env is not None:
            self.tensor_env = _inside(self.env)
            self._begin()

    def _begin(self) -> None:
        """New episodes in every world."""
        self._last_obs = self.tensor_env.reset(seed=self.seed)
        if self.normalizer is not None:
            self.normalizer.begin(cast(torch.Tensor, self._last_obs))

    def _setup_learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        reset_num_timesteps: bool = True,
        tb_log_name: str = "run",
        progress_bar: bool = False,
    ) -> tuple[int, BaseCallback]:
        if reset_num_timesteps and not self._ready:
            self._begin()
            self.num_timesteps = self.iteration = self._episode_num = 0
            self.ep_info_buffer, self.ep_success_buffer = None, None  # SB3 makes new ones
            self._unread.clear()
        if reset_num_timesteps:  # up to this total, also from a loaded state; otherwise, as in SB3, so many more
            total_timesteps -= self.num_timesteps
        self._ready = False
        custom = self._custom_logger
        if not custom:
            fresh = self.num_timesteps == 0
            self._logger = utils.configure_logger(self.verbose, self.tensorboard_log, tb_log_name, fresh)
        self._custom_logger = True
        try:
            return super()._setup_learn(total_timesteps, callback, False, tb_log_name, progress_bar)
        finally:
            self._custom_logger = custom

    # -- boundaries ------------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        """Before every env step and every minibatch."""
        if self.should_stop():
            raise Interrupted(f"asked to stop at step {self.num_timesteps:,}")

    def _boundary(self) -> None:
        """After every iteration, when `state()` is whole."""
        self.on_boundary()

    # -- acting ----------------------------------------------------------------------------------------------------

    def _see(self, obs: Obs) -> Obs:
        """`obs` as the policy sees them."""
        return obs if self.normalizer is None else self.normalizer.observe(cast(torch.Tensor, obs))

    def act(self, obs: Obs, deterministic: bool = True) -> torch.Tensor:
        """Actions (n, act) for raw observations (n, obs) on this device, ready for `env.step`."""
        self.policy.set_training_mode(False)
        with torch.no_grad():
            actions = self.policy._predict(self._see(tmap(lambda x: x.to(self.device), obs)), deterministic)
        return self._to_env(actions)

    def _to_env(self, actions: torch.Tensor) -> torch.Tensor:
        """Policy outputs as the env wants them: shaped, and stretched where the policy squashes."""
        actions = actions.reshape(-1, *(self.action_space.shape or ()))
        return self._unscale(actions) if self.policy.squash_output else actions

    def _unscale(self, actions: torch.Tensor) -> torch.Tensor:
        """From [-1, 1] to the action space."""
        low, high = self._bounds
        return low + 0.5 * (actions + 1.0) * (high - low)

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """SB3's `predict`, for raw observations also where the policy was trained on normalised ones."""
        if self.normalizer is not None and isinstance(observation, np.ndarray):
            observation = self.normalizer.observe(torch.as_tensor(observation, device=self.device)).cpu().numpy()
        return super().predict(observation, state, episode_start, deterministic)

    # -- statistics ------------------------------------------------------------------------------------------------

    def _record_episodes(
        self, done: torch.Tensor, returns: torch.Tensor, lengths: torch.Tensor, success: torch.Tensor | None
    ) -> None:
        """Put the episodes that ended (True in `done`, any shape) into SB3's window, in order. A GPU is asked for them
        only when somebody wants to know (`_read_episodes`)."""
        if self.device.type == "cpu":
            self._count_episodes(done, returns, lengths, success)
        else:
            self._unread.append([None if x is None else x.clone() for x in (done, returns, lengths, success)])

    def _read_episodes(self) -> None:
        """Before the window is looked at."""
        if self._unread:
            columns = zip(*self._unread, strict=True)
            whole: Any = (None if c[0] is None else torch.cat([x.flatten() for x in c]) for c in columns)
            self._count_episodes(*whole)
        self._unread.clear()

    def _count_episodes(
        self, done: torch.Tensor, returns: torch.Tensor, lengths: torch.Tensor, success: torch.Tensor | None
    ) -> None:
        assert self.ep_info_buffer is not None and self.ep_success_buffer is not None
        ended = done.flatten().nonzero().flatten()
        self._episode_num += len(ended)
        ended = ended[-self._stats_window_size :]
        for total, length in zip(returns.flatten()[ended].tolist(), lengths.flatten()[ended].tolist(), strict=True):
            self.ep_info_buffer.append({"r": total, "l": length, "t": 0.0})
        if success is not None:
            self.ep_success_buffer.extend(success.flatten()[ended].float().tolist())

    # -- exact state -----------------------------------------------------------------------------------------------

    def _optimizers(self) -> dict[str, tuple[torch.optim.Optimizer, dict[str, torch.Tensor]]]:
        """Name -> optimizer and its parameters by name."""
        raise NotImplementedError

    def state(self) -> State:
        """Copies of everything that decides the future, apart from replay data; valid at iteration boundaries."""
        self._read_episodes()
        assert self.ep_info_buffer is not None and self.ep_success_buffer is not None
        assert self._last_obs is not None
        last_obs = self._last_obs if isinstance(self._last_obs, dict) else {"": self._last_obs}
        return {
            **self.policy_state(),
            "optimizer": {
                f"{group}.{name}": value
                for group, (optimizer, parameters) in self._optimizers().items()
                for name, value in _optimizer_state(optimizer, parameters).items()
            },
            "trainer": {
                "num_timesteps": self.num_timesteps,
                "n_updates": self._n_updates,
                "iteration": self.iteration,
                "episodes": self._episode_num,
                "progress_remaining": self._current_progress_remaining,
                "episode_returns": [episode["r"] for episode in self.ep_info_buffer],
                "episode_lengths": [episode["l"] for episode in self.ep_info_buffer],
                "episode_successes": list(self.ep_success_buffer),
                **{f"last_obs.{key}".rstrip("."): obs.cpu().clone() for key, obs in last_obs.items()},
            },
            "rng": _rng_state(self.device),
            "env": self.tensor_env.snapshot(),
        }

    def policy_state(self) -> State:
        """The part of `state()` that acting needs: what `load_policy` takes."""
        return {
            "policy": {name: value.detach().cpu().clone() for name, value in self.policy.state_dict().items()},
            "normalizer": {} if self.normalizer is None else self.normalizer.state(),
        }

    def load_state(self, state: State) -> bool:
        """Become the trainer that `state()` was taken from; `learn(total_timesteps)` then goes on to that total. False
        if its worlds were more or fewer, or of another simulator: then everything goes on but they, who begin new
        episodes."""
        self.load_policy(state)
        for group, (optimizer, parameters) in self._optimizers().items():
            mine = {name[len(group) + 1 :]: v for name, v in state["optimizer"].items() if name.startswith(group + ".")}
            _load_optimizer_state(optimizer, parameters, mine)
        own = state["trainer"]
        self.num_timesteps = int(own["num_timesteps"])
        self._n_updates = int(own["n_updates"])
        self.iteration = int(own["iteration"])
        self._episode_num = int(own["episodes"])
        self._current_progress_remaining = float(own["progress_remaining"])
        episodes = zip(own["episode_returns"], own["episode_lengths"], strict=True)
        self.ep_info_buffer = deque(({"r": r, "l": n, "t": 0.0} for r, n in episodes), maxlen=self._stats_window_size)
        self.ep_success_buffer = deque(own["episode_successes"], maxlen=self._stats_window_size)
        same_worlds = self._holds(state["env"])
        if same_worlds:
            self.tensor_env.restore(state["env"])
        if same_worlds and self.tensor_env.snapshots:
            last_obs = {name[9:]: obs.to(self.device) for name, obs in own.items() if name.startswith("last_obs")}
            self._last_obs = last_obs.get("", last_obs)
        else:  # the worlds could not be saved, or were others: they begin anew, the same way each time
            self._last_obs = self.tensor_env.reset(seed=(self.seed or 0) + self.num_timesteps)
        if self.normalizer is not None:
            self.normalizer.load_state(state["normalizer"], statistics_only=not same_worlds)
        _load_rng_state(state["rng"], self.device)
        self._ready = True
        return same_worlds

    def _holds(self, worlds: dict[str, torch.Tensor]) -> bool:
        """Whether `worlds`, a snapshot, is of as many as here and of the same simulator."""
        mine = self.tensor_env.snapshot()
        return all(
            name in worlds and worlds[name].shape == value.shape and worlds[name].dtype == value.dtype
            for name, value in mine.items()
        )

    def load_policy(self, state: State) -> None:
        """Only what acting needs: the components "policy" and "normalizer" of `state`. Any number of worlds will do."""
        self.policy.load_state_dict(state["policy"])
        if self.normalizer is not None:
            self.normalizer.load_state(state["normalizer"], statistics_only=True)

    # -- SB3's zip -------------------------------------------------------------------------------------------------

    def _excluded_save_params(self) -> list[str]:
        ours = [
            "on_boundary", "should_stop", "tensor_env", "normalizer", "iteration", "_unread", "_normalize", "_autocast",
            "_ready", "_bounds", "_last_obs", "_last_episode_starts", "_last_original_obs",
        ]  # fmt: skip
        return [*super()._excluded_save_params(), *ours]


def _inside(env: VecEnv) -> Any:
    """The tensor env that `env` is a view of."""
    if is_vecenv_wrapped(env, VecNormalize):
        raise UserError("VecNormalize around env is not seen by tensors; give the trainer normalize=True instead.")
    if is_vecenv_wrapped(env, VecTransposeImage):
        raise UserError(f"observation_space={env.unwrapped.observation_space} has its channels last; put them first.")
    tensor_env = getattr(env.unwrapped, "tensor_env", None)
    if tensor_env is None:
        raise UserError(f"env={env} has no tensors inside; make it with kit.make_vec.")
    return tensor_env


def _nothing() -> None:
    pass


def _never() -> bool:
    return False


def _optimizer_state(optimizer: torch.optim.Optimizer, parameters: dict[str, torch.Tensor]) -> dict[str, Any]:
    """By "<parameter>.<slot>", e.g. "log_std.exp_avg": tensors and numbers."""
    by_index = optimizer.state_dict()["state"]
    flat: dict[str, Any] = {"learning_rate": optimizer.param_groups[0]["lr"]}
    for index, name in enumerate(parameters):
        for slot, value in by_index.get(index, {}).items():
            flat[f"{name}.{slot}"] = value.detach().cpu().clone() if isinstance(value, torch.Tensor) else value
    return flat


def _load_optimizer_state(
    optimizer: torch.optim.Optimizer, parameters: dict[str, torch.Tensor], flat: dict[str, Any]
) -> None:
    by_index: dict[int, dict[str, Any]] = {}
    for index, name in enumerate(parameters):
        slots = {key[len(name) + 1 :]: value for key, value in flat.items() if key.rpartition(".")[0] == name}
        if slots:
            by_index[index] = slots
    state = {**optimizer.state_dict(), "state": by_index}
    optimizer.load_state_dict(state)
    for group in optimizer.param_groups:
        group["lr"] = flat["learning_rate"]


def _rng_state(device: torch.device) -> dict[str, Any]:
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    assert (version, kind) == (3, "MT19937")
    state = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor(words, dtype=torch.int64),
        "python_gauss": gauss,
        "numpy": torch.from_numpy(np.asarray(keys).astype(np.int64)),
        "numpy_position": int(position),
        "numpy_has_gauss": int(has_gauss),
        "numpy_gauss": float(cached),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def _load_rng_state(state: dict[str, Any], device: torch.device) -> None:
    torch.set_rng_state(state["torch"])
    random.setstate((3, tuple(state["python"].tolist()), state["python_gauss"]))
    keys = state["numpy"].numpy().astype(np.uint32)
    gauss = (int(state["numpy_has_gauss"]), float(state["numpy_gauss"]))
    np.random.set_state(("MT19937", keys, int(state["numpy_position"]), *gauss))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
