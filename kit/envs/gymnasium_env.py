"""Vector env of copies of any Gymnasium env: SB3 steps them; observations and rewards become tensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import mujoco
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.envs.mujoco import MujocoEnv
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import FlattenObservation, OrderEnforcing, TimeLimit, TransformObservation
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from kit.envs.contract import BatchEnv, Step
from kit.envs.groups import check
from kit.envs.obs import Groups, Obs, entries, leaves, prefixed, tree_map, with_prefix
from kit.envs.outputs import check_gymnasium, check_spaces
from kit.envs.task import NO_GOAL_REWARD
from kit.errors import UserError
from kit.sim.worlds import is_fixed

_STATE = mujoco.mjtState.mjSTATE_INTEGRATION
_KNOWN = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class GymnasiumEnv(BatchEnv):
    """A vector env of `num_envs` copies of a Gymnasium env, given by class or id and made with `options`.

    Nested Dicts are flattened to names such as "hand/force"; Tuple, Text and similar spaces are flattened to vectors.
    By default the copies are stepped one after the other in this process; `processes=True` gives each its own process,
    which is faster only if a step takes milliseconds. An env with a Dict space may declare observation groups in an
    attribute `obs_groups`, as a `Task` does.

    Snapshots of Gymnasium's own MuJoCo envs are exact. Other envs start new episodes on `restore`.
    """

    cameras: tuple[str, ...] = ("default",)

    def __init__(
        self,
        env: str | EnvSpec | type[gymnasium.Env],
        num_envs: int,
        device: str | torch.device = "cpu",
        seed: int = 0,
        processes: bool = False,
        **options: Any,
    ) -> None:
        env = gymnasium.spec(env) if isinstance(env, str) else env
        name = env.id if isinstance(env, EnvSpec) else env.__name__
        self.num_envs, self._name = num_envs, name
        self.device = torch.device(device)
        self.dtype = torch.float32
        makers = [_maker(env, name, options)] * num_envs
        self.vec_env: VecEnv = SubprocVecEnv(makers, "forkserver") if processes else DummyVecEnv(makers)
        self.observation_space = self.vec_env.observation_space
        self.action_space = self.vec_env.action_space
        check_spaces(name, self.observation_space, self.action_space)
        declared: Groups = self.vec_env.get_attr("obs_groups", 0)[0]
        check(declared, self.observation_space)
        self.obs_groups = {group: tuple(names) for group, names in declared.items()}
        self.snapshots = all(self.vec_env.get_attr("resumable"))
        self.snapshot_note = (
            f"The full state of {name} is saved exactly, in every checkpoint."
            if self.snapshots
            else f"{name} cannot save the state of its envs, so a resumed run starts new episodes in them."
        )
        self.episode_steps = self.vec_env.get_attr("time_limit", 0)[0] or 1000
        self.control_dt_s = 1 / (self.vec_env.get_attr("metadata", 0)[0].get("render_fps") or 30)
        self._return = torch.zeros(num_envs, dtype=torch.float64)
        self._length = torch.zeros(num_envs, dtype=torch.int64)
        self._seed = seed
        self.reset(seed)

    def reset(self, seed: int | None = None) -> Obs:
        """Start a new episode in every env; env i is seeded with `seed` + i."""
        if seed is not None:
            self._seed = seed
            self.vec_env.seed(seed)
        self._return.zero_()
        self._length.zero_()
        return self._tensor(self.vec_env.reset(), "reset()")

    def step(self, action: torch.Tensor) -> Step:
        actions = action.cpu().numpy()
        if isinstance(self.action_space, spaces.Box):
            actions = np.clip(actions, self.action_space.low, self.action_space.high)
        obs_, reward_, done_, infos = self.vec_env.step(actions)
        obs, reward, done = self._tensor(obs_), torch.as_tensor(reward_, dtype=torch.float32), torch.as_tensor(done_)
        self._require_finite("step()", "the reward", reward)
        truncated = torch.tensor([bool(info["TimeLimit.truncated"]) for info in infos])
        self._return += reward
        self._length += 1
        info = {
            "final_obs": self._final(obs, done_, infos),
            "episode_return": self._return.to(self.device, self.dtype),
            "episode_length": self._length.to(self.device, copy=True),
        }
        if any(i.get("is_success") is not None for i in infos):
            info["success"] = torch.tensor([bool(i.get("is_success")) for i in infos], device=self.device)
        self._return.masked_fill_(done, 0.0)
        self._length.masked_fill_(done, 0)
        device = self.device
        return obs, reward.to(device), (done & ~truncated).to(device), truncated.to(device), info

    def _final(self, obs: Obs, done: np.ndarray, infos: list[dict[str, Any]]) -> Obs:
        """Return `obs` with the rows of finished envs replaced by their terminal observations."""
        if not done.any():
            return obs
        final = tree_map(torch.clone, obs)
        for i in np.flatnonzero(done).tolist():
            last = self._tensor(infos[i]["terminal_observation"])
            tree_map(lambda rows, row, i=i: rows[i].copy_(row), final, last)
        return final

    def _tensor(self, obs: Any, method: str = "step()") -> Obs:
        """Convert `obs`, returned by `method`, to tensors; floating-point numbers become float32 and must be finite."""

        def convert(values: Any) -> torch.Tensor:
            tensor = torch.as_tensor(np.asarray(values))
            return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

        tensors = tree_map(convert, obs)
        for name, tensor in entries(tensors) if isinstance(tensors, Mapping) else [("", tensors)]:
            if tensor.is_floating_point():
                self._require_finite(method, f"the observation {name!r}" if name else "the observation", tensor)
        return tree_map(lambda tensor: tensor.to(self.device), tensors)

    def _require_finite(self, method: str, what: str, value: torch.Tensor) -> None:
        """Raise `UserError` if `value`, on the CPU, is NaN or infinite: it would spoil the networks."""
        if not bool(torch.isfinite(value).all()):
            raise UserError(
                f"env={self._name!r}: {method} returned NaN or infinity in {what}; look for a division by zero, or a "
                "root or logarithm of a negative number, or end the episode before it."
            )

    def compute_reward(self, achieved_goal: torch.Tensor, desired_goal: torch.Tensor) -> torch.Tensor:
        goals = achieved_goal.cpu().numpy(), desired_goal.cpu().numpy()
        infos: list[dict[str, Any]] = [{} for _ in goals[0]]  # empty, as in SB3: the replay buffer stores no infos
        try:
            (rewards,) = self.vec_env.env_method("compute_reward", *goals, infos, indices=[0])
        except AttributeError:
            if self.vec_env.has_attr("compute_reward"):  # the error comes from inside the env's method
                raise
            raise UserError(NO_GOAL_REWARD.format(self._name)) from None
        return torch.as_tensor(np.asarray(rewards, dtype=np.float32), device=self.device)

    def snapshot(self) -> dict[str, torch.Tensor]:
        common = {"return": self._return.clone(), "length": self._length.clone(), "seed": torch.tensor(self._seed)}
        if not self.snapshots:
            return common
        states = self.vec_env.env_method("snapshot")
        worlds = {name: torch.from_numpy(np.stack([state[name] for state in states])) for name in states[0]}
        return common | prefixed("world", worlds)

    def restore(self, snapshot: dict[str, torch.Tensor]) -> None:
        """Load `snapshot`, taken from an env of the same id and size.

        If `snapshots` is False, this only seeds the envs, with a seed computed from `snapshot`. Call `reset` afterwards
        to start episodes.
        """
        if not self.snapshots:
            self.reset(int(snapshot["seed"]) + int(snapshot["length"].sum()) + 1)
            return
        worlds = {name: value.cpu().numpy() for name, value in with_prefix("world", snapshot).items()}
        for i in range(self.num_envs):
            rows = {name: value[i] for name, value in worlds.items()}
            self.vec_env.env_method("restore", rows, indices=i)
        self._return.copy_(snapshot["return"])
        self._length.copy_(snapshot["length"])

    def render(self, cameras: tuple[str, ...] | None = None, height: int = 240, width: int = 320) -> torch.Tensor:
        """Render the current state of all envs as uint8 (n, 1, height, width, 3). There is one camera.

        Raises `UserError` if the env has no images, or a package for rendering, such as pygame, is missing.
        """
        try:
            images = np.stack(self.vec_env.env_method("image", height, width))
        except NotImplementedError:
            raise UserError(
                f"env={self._name!r} cannot be rendered: its render() returns no image; let it return one, uint8 "
                "(H, W, 3), for render_mode='rgb_array'."
            ) from None
        except gymnasium.error.DependencyNotInstalled as error:
            raise UserError(f"env={self._name!r} cannot be rendered: {str(error).rstrip('.')}.") from None
        return torch.from_numpy(images).unsqueeze(1)

    def close(self) -> None:
        self.vec_env.close()


def check_own(env: type[gymnasium.Env], options: Mapping[str, Any]) -> None:
    """Check a reset and a step of a Gymnasium env of your own, made with `options`. Raises `UserError`."""
    made = _new(env, env.__name__, dict(options))
    try:
        check_gymnasium(env.__name__, made)
    finally:
        made.close()


def _maker(env: EnvSpec | type[gymnasium.Env], name: str, options: dict[str, Any]) -> Callable[[], gymnasium.Env]:
    def make() -> gymnasium.Env:
        made = _new(env, name, options)
        return _Snapshots(_flattened(made if isinstance(env, EnvSpec) else OrderEnforcing(made), name))

    return make


def _new(env: EnvSpec | type[gymnasium.Env], name: str, options: dict[str, Any]) -> gymnasium.Env:
    try:
        if isinstance(env, EnvSpec):
            return _made(env, options)
        mode = {"render_mode": "rgb_array"} if "render_mode" in inspect.signature(env).parameters else {}
        return env(**mode, **options)
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise UserError(f"env={name!r} cannot be made here with env_options={options!r}: {error}") from error


def _made(env: EnvSpec, options: dict[str, Any]) -> gymnasium.Env:
    """Make `env` with render_mode="rgb_array", or without it if the constructor has no such parameter."""
    try:
        return gymnasium.make(env, render_mode="rgb_array", **options)
    except TypeError:  # no such parameter; any other TypeError is raised again below
        return gymnasium.make(env, **options)


def _flattened(env: gymnasium.Env, name: str) -> gymnasium.Env:
    """Wrap `env` so that its observation space is one that SB3 supports, or a flat Dict of such spaces.

    Raises `UserError`, which calls the env `name`, for a space without a fixed size, such as a Sequence.
    """
    space = env.observation_space
    for what, inner in leaves("observation_space", space):
        if not inner.is_np_flattenable:
            remedy = "make it a Box, Discrete, MultiDiscrete or MultiBinary, or a Dict or Tuple of these"
            raise UserError(f"env={name!r}: {what} is {inner}, which has no fixed size; {remedy}.")
    if isinstance(space, _KNOWN):
        return env
    if isinstance(space, spaces.Dict):
        flat = spaces.Dict(dict(entries(space)))
        if all(isinstance(inner, _KNOWN) for inner in flat.values()):
            nested = flat.keys() != space.keys()
            return TransformObservation(env, lambda obs: dict(entries(obs)), flat) if nested else env
    return FlattenObservation(env)


class _Snapshots(gymnasium.Wrapper):
    """Snapshots of Gymnasium's MuJoCo envs: physics, derived arrays, random generator and elapsed steps.

    Arrays that MuJoCo derives from the state, such as body positions, are saved too, because observations read them.
    They cannot be recomputed: after a step they belong to the state before the last physics step.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        inner = env.unwrapped
        self.obs_groups: Groups = getattr(inner, "obs_groups", {})
        self.resumable = isinstance(inner, MujocoEnv) and type(inner).__module__.startswith("gymnasium.envs.mujoco.")
        layers = [env]
        while isinstance(layers[-1], gymnasium.Wrapper):
            layers.append(layers[-1].env)
        self._clock: Any = next((layer for layer in layers if isinstance(layer, TimeLimit)), None)
        self.time_limit: int | None = None if self._clock is None else self._clock._max_episode_steps

    def _derived(self) -> dict[str, np.ndarray]:
        data = self.env.unwrapped.data  # type: ignore[attr-defined]
        arrays = {name: getattr(data, name) for name in dir(data) if not name.startswith("_")}
        return {k: a for k, a in arrays.items() if isinstance(a, np.ndarray) and a.size and is_fixed(data, a)}

    def snapshot(self) -> dict[str, np.ndarray]:
        inner: Any = self.env.unwrapped
        state = np.empty(mujoco.mj_stateSize(inner.model, _STATE))
        mujoco.mj_getState(inner.model, inner.data, state, _STATE)
        return {
            "state": state,
            **{f"data.{name}": array.copy() for name, array in self._derived().items()},
            "generator": _pack(inner.np_random),
            "elapsed_steps": np.array(self._clock._elapsed_steps if self._clock is not None else 0),
        }

    def restore(self, snapshot: dict[str, np.ndarray]) -> None:
        inner: Any = self.env.unwrapped
        mujoco.mj_resetData(inner.model, inner.data)
        for name, array in self._derived().items():
            np.copyto(array, snapshot[f"data.{name}"])
        mujoco.mj_setState(inner.model, inner.data, snapshot["state"], _STATE)
        _unpack(inner.np_random, snapshot["generator"])
        if self._clock is not None:
            self._clock._elapsed_steps = int(snapshot["elapsed_steps"])

    def image(self, height: int, width: int) -> np.ndarray:
        """Render an image, uint8 (height, width, 3), with kit's renderer for MuJoCo envs, else the env's `render`."""
        inner: Any = self.env.unwrapped
        if isinstance(inner, MujocoEnv):
            from kit.sim.render import render_data

            return render_data(inner.model, inner.data, height, width).numpy()
        image = np.asarray(self.env.render())
        if image.ndim != 3:  # without a render mode, render() returns None
            raise NotImplementedError
        rows = np.arange(height) * image.shape[0] // height
        columns = np.arange(width) * image.shape[1] // width
        return image[rows][:, columns]


def _pack(generator: np.random.Generator) -> np.ndarray:
    """Return the state of a PCG64 generator, uint64 (6,)."""
    state: Any = generator.bit_generator.state
    words = [word for number in (state["state"]["state"], state["state"]["inc"]) for word in divmod(number, 2**64)]
    return np.array([*words, state["has_uint32"], state["uinteger"]], dtype=np.uint64)


def _unpack(generator: np.random.Generator, packed: np.ndarray) -> None:
    """Load the generator state returned by `_pack`."""
    high, low, inc_high, inc_low, has_uint32, uinteger = (int(word) for word in packed)
    generator.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": (high << 64) + low, "inc": (inc_high << 64) + inc_low},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }
