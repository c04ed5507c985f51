"""What every trainer shares: the tensor env under SB3's view of it, boundaries, exact state, and a plain SB3 zip."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from stable_baselines3.common import utils
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import MaybeCallback
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, VecTransposeImage, is_vecenv_wrapped
from torch.optim import Optimizer

from kit.encoders.frozen import FrozenView
from kit.envs.contract import BatchEnv
from kit.envs.obs import Obs, from_leaves, leaves, tree_map
from kit.envs.sb3 import TensorVecEnv
from kit.errors import Interrupted, UserError
from kit.trainers.actor import Actor
from kit.trainers.normalize import Normalizer
from kit.trainers.saving import Component, Counters, FrozenWeights, Optimizers, RandomGenerators, State, Weights

READ_EVERY = 4
"""Iterations between two rows of metrics on a GPU, which stands still while its figures are read."""


def spare_the_compiler() -> None:
    """torch loads its compiler with the first optimizer, over a second, only to mark these methods as not to be
    compiled (torch/_compile.py). Marked as they are, they do without."""
    for method in (Optimizer.add_param_group, Optimizer.state_dict, Optimizer.load_state_dict):
        if plain := getattr(method, "__wrapped__", None):
            plain.__dict__.setdefault("__dynamo_disable", plain)


class TensorTrainer(BaseAlgorithm):
    """A mixin before one of SB3's algorithms.

    `state()` at an iteration boundary and `load_state()` in a new process decide the future bit for bit on the CPU;
    after `load_state`, `learn(total_timesteps)` goes on to that total. Callbacks, logger, `save` and `load` are SB3's,
    and a saved zip holds nothing of this library: plain SB3 opens it.
    """

    tensor_env: BatchEnv
    gamma: float
    normalizer: Normalizer | None = None
    actor_class: type[Actor] = Actor
    _last_obs: Obs | None  # type: ignore[assignment]

    def __init__(self, *args: Any, normalize: bool | dict[str, Any] = False, **kwargs: Any) -> None:
        """SB3's arguments, its env being a view of a tensor env (`kit.envs.sb3.TensorVecEnv`). `normalize` scales
        observations and rewards by running statistics: true, or some of `Normalizer`'s settings."""
        self.on_boundary: Callable[[], None] = _nothing
        self.should_stop: Callable[[], bool] = _never
        self._normalize = normalize
        self._attached: dict[str, Component] = {}
        spare_the_compiler()
        super().__init__(*args, **kwargs)

    # -- set-up ----------------------------------------------------------------------------------------------------

    def _setup_model(self) -> None:
        super()._setup_model()  # type: ignore[safe-super]
        self.iteration = 0
        self._ready = self.num_timesteps == 0
        self._unread: list[Any] = []
        self.normalizer = None
        if self.ep_info_buffer is None:
            self.ep_info_buffer = deque(maxlen=self._stats_window_size)
            self.ep_success_buffer = deque(maxlen=self._stats_window_size)
        if self.device.type != "cpu":  # SB3's distributions would ask the device about every one of their parameters
            torch.distributions.Distribution.set_default_validate_args(False)
        if self._normalize:
            settings = self._normalize if isinstance(self._normalize, dict) else {}
            settings = {"gamma": self.gamma, **settings}
            self.normalizer = Normalizer(self.observation_space, self.n_envs, self.device, **settings)
        self._actors: dict[bool, Actor] = {}
        if self.env is not None:
            self.tensor_env = tensor_env_of(self.env)
            self._begin()

    def _begin(self) -> None:
        """New episodes in every world."""
        self._last_obs = self.tensor_env.reset(seed=self.seed)
        self.tensor_env.stagger()
        if self.normalizer is not None:
            self.normalizer.begin(self.as_actor().view(self._last_obs))

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

    def end(self) -> None:
        """It was trained for the last time; for whoever else has a part in it."""

    # -- acting ----------------------------------------------------------------------------------------------------

    def as_actor(self, deterministic: bool = True) -> Actor:
        """The policy as it acts, on the weights as they are from now on."""
        if deterministic not in self._actors:
            assert isinstance(self.env, VecEnv) and isinstance(self.env.unwrapped, TensorVecEnv)
            view = self.env.unwrapped.view
            given = self.policy, view, self.normalizer, self.action_space, deterministic
            self._actors[deterministic] = self.actor_class(*given)
        return self._actors[deterministic]

    def act(self, obs: Obs, deterministic: bool = True) -> torch.Tensor:
        """Actions (n, ...) for raw observations (n, ...), ready for `env.step`. A recurrent policy takes
        them for the first of an episode; `kit.envs.play` carries its hidden state on."""
        return self.as_actor(deterministic)(obs)[0]

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """SB3's `predict`, for raw observations also where the policy was trained on normalised ones."""
        if self.normalizer is not None:
            tensors = tree_map(lambda x: torch.as_tensor(x, device=self.device), observation)
            observation = tree_map(lambda x: x.cpu().numpy(), self.normalizer.observe(tensors))
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
            *columns, success = zip(*self._unread, strict=True)
            if any(x is not None for x in success):
                told = zip(columns[0], success, strict=True)
                columns.append(tuple(torch.zeros_like(done) if x is None else x for done, x in told))
            whole = [torch.cat([x.flatten() for x in column]) for column in columns]
            self._count_episodes(*whole)
        self._unread.clear()

    def _count_episodes(
        self, done: torch.Tensor, returns: torch.Tensor, lengths: torch.Tensor, success: torch.Tensor | None = None
    ) -> None:
        assert self.ep_info_buffer is not None and self.ep_success_buffer is not None
        if success is None and self.ep_success_buffer:
            success = torch.zeros_like(done)
        if success is not None:  # those that ended before the env first gave it were none
            self.ep_success_buffer.extend([0.0] * (len(self.ep_info_buffer) - len(self.ep_success_buffer)))
        ended = done.flatten().nonzero().flatten()
        self._episode_num += len(ended)
        ended = ended[-self._stats_window_size :]
        for total, length in zip(returns.flatten()[ended].tolist(), lengths.flatten()[ended].tolist(), strict=True):
            self.ep_info_buffer.append({"r": total, "l": length, "t": 0.0})
        if success is not None:
            self.ep_success_buffer.extend(success.flatten()[ended].float().tolist())

    # -- exact state -----------------------------------------------------------------------------------------------

    def attach(self, name: str, part: Component) -> None:
        """Save `part` under `name` too, from now on."""
        self._attached[name] = part

    def policy_components(self) -> dict[str, Component]:
        """What acting needs."""
        parts: dict[str, Component] = {"policy": Weights(self.policy), "frozen": FrozenWeights(self.policy)}
        view = self.as_actor().view
        if isinstance(view, FrozenView):
            parts["encoder"] = view
        return parts | ({} if self.normalizer is None else {"normalizer": self.normalizer})

    def components(self) -> dict[str, Component]:
        """Everything that decides the future, apart from replay data and the worlds."""
        further: dict[str, Component] = {
            "optimizer": Optimizers(self._optimizers()),
            "trainer": Counters(self),
            "rng": RandomGenerators(self.device),
        }
        return {**self.policy_components(), **further, **self._attached}

    def _optimizers(self) -> Mapping[str, tuple[torch.optim.Optimizer, Mapping[str, torch.Tensor]]]:
        """Name -> optimizer and its parameters by name."""
        raise NotImplementedError

    def state(self) -> State:
        """Copies of everything that decides the future, apart from replay data; valid at iteration boundaries."""
        self._read_episodes()
        state = {name: part.state() for name, part in self.components().items()}
        last_obs = {name: value.cpu().clone() for name, value in leaves("last_obs", self._last_obs)}
        state["trainer"] |= last_obs
        return {**{"normalizer": {}}, **_filled(state), "env": self.tensor_env.snapshot()}

    def policy_state(self) -> State:
        """The part of `state()` that acting needs: what `load_policy` takes."""
        state = {name: part.state() for name, part in self.policy_components().items()}
        return {**{"normalizer": {}}, **_filled(state)}

    def load_state(self, state: State) -> bool:
        """Become the trainer that `state()` was taken from; `learn(total_timesteps)` then goes on to that total. False
        if its worlds were more or fewer, or of another simulator: then everything goes on but they, who begin new
        episodes."""
        self.load_policy(state)
        parts = self.components()
        for name in ("optimizer", "trainer", *(name for name in self._attached if name in state)):
            parts[name].load_state(state[name])
        same_envs = self._holds(state["env"])
        if same_envs:
            self.tensor_env.restore(state["env"])
        if same_envs and self.tensor_env.snapshots:
            self._last_obs = tree_map(lambda x: x.to(self.device), from_leaves("last_obs", state["trainer"]))
        else:  # the worlds could not be saved, or were others: they begin anew, the same way each time
            self._last_obs = self.tensor_env.reset(seed=(self.seed or 0) + self.num_timesteps)
            self.tensor_env.stagger()
        if self.normalizer is not None:
            self.normalizer.load_state(state["normalizer"], statistics_only=not same_envs)
        parts["rng"].load_state(state["rng"])  # the last: resets draw too
        self._ready = True
        return same_envs

    def _holds(self, worlds: dict[str, torch.Tensor]) -> bool:
        """Whether `worlds`, a snapshot, is of as many as here and of the same simulator."""
        mine = self.tensor_env.snapshot()
        return all(
            name in worlds and worlds[name].shape == value.shape and worlds[name].dtype == value.dtype
            for name, value in mine.items()
        )

    def load_policy(self, state: State) -> None:
        """Only what acting needs. Any number of worlds will do."""
        parts = self.policy_components()
        if "encoder" in parts:
            parts["encoder"].load_state(state.get("encoder", {}))
        parts["policy"].load_state(state["policy"])
        if "frozen" in state:
            parts["frozen"].load_state(state["frozen"])
        if self.normalizer is not None:
            self.normalizer.load_state(state["normalizer"], statistics_only=True)

    def warm_start(self, state: State) -> None:
        """Take over the policy of another trainer's `state`, what its normaliser knows and, where they are the same
        ones, its optimizers. Raises `UserError` if the policy does not fit."""
        if bool(state.get("normalizer")) != (self.normalizer is not None):
            raise UserError("of the two only one normalises what it sees; give both the same overrides normalize")
        self.load_policy(state)
        if {name.partition(".")[0] for name in state.get("optimizer", {})} == set(self._optimizers()):
            self.components()["optimizer"].load_state(state["optimizer"])

    # -- SB3's zip -------------------------------------------------------------------------------------------------

    def _excluded_save_params(self) -> list[str]:
        ours = [
            "on_boundary", "should_stop", "tensor_env", "normalizer", "iteration", "_unread", "_normalize",
            "_ready", "_actors", "_attached", "_last_obs", "_last_episode_starts", "_last_original_obs",
        ]  # fmt: skip
        return [*super()._excluded_save_params(), *ours]


def tensor_env_of(env: VecEnv) -> BatchEnv:
    """The tensor env that `env` is a view of."""
    if is_vecenv_wrapped(env, VecNormalize):
        raise UserError("VecNormalize around env is not seen by tensors; give the trainer normalize=True instead.")
    if is_vecenv_wrapped(env, VecTransposeImage):
        raise UserError(f"observation_space={env.unwrapped.observation_space} has its channels last; put them first.")
    if not isinstance(env.unwrapped, TensorVecEnv):
        raise UserError(f"env={env} has no tensors inside; make it with kit.make_vec.")
    return env.unwrapped.tensor_env


def _filled(state: State) -> State:
    """Without parts that have nothing to say."""
    return {name: values for name, values in state.items() if values}


def _nothing() -> None:
    pass


def _never() -> bool:
    return False
