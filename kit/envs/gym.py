"""kit's tasks as Gymnasium envs: `gymnasium.make("kit/Reach-v0")` and `gymnasium.make_vec("kit/Reach-v0", 16)`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from kit.envs.contract import TOTALS
from kit.envs.obs import Obs, tree_map
from kit.envs.registry import make_task
from kit.envs.vec import TensorEnv

Infos = dict[str, Any]
_ADDED = ("final_obs", *TOTALS)
"""Entries of kit's `info` that are not metrics. `TaskVectorEnv` returns "final_obs" as Gymnasium's vector envs do."""


class TaskEnv(gymnasium.Env[Any, Any]):
    """Gymnasium env of the task named `task`.

    `info` holds the task's metrics as numbers, and "is_success" if the task defines `success`. `render` uses `camera`,
    by default the task's first camera.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(
        self,
        task: str,
        render_mode: str | None = None,
        camera: str | None = None,
        height: int = 480,
        width: int = 480,
        **options: Any,
    ) -> None:
        self.tensor_env = TensorEnv(make_task(task, **options), 1, autoreset=False)
        self.observation_space = self.tensor_env.observation_space
        self.action_space = self.tensor_env.action_space
        self.metadata = {**self.metadata, "render_fps": round(1 / self.tensor_env.control_dt_s)}
        self.render_mode = render_mode
        self._view = ((camera,) if camera else None, height, width)
        self._seeded = False

    def reset(self, *, seed: int | None = None, options: Infos | None = None) -> tuple[Any, Infos]:
        super().reset(seed=seed)
        return _numpy(_reset(self, seed), 0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Infos]:
        obs, reward, terminated, truncated, info = self.tensor_env.step(torch.as_tensor(action).unsqueeze(0))
        numbers = {name: value.item() for name, value in _rename(info).items()}
        return _numpy(obs, 0), reward.item(), bool(terminated.item()), bool(truncated.item()), numbers

    def render(self) -> np.ndarray | None:
        if self.render_mode is None:
            gymnasium.logger.warn('render() returns None without render_mode="rgb_array" in make().')
            return None
        return self.tensor_env.render(*self._view)[0, 0].numpy()

    def close(self) -> None:
        self.tensor_env.close()


class TaskVectorEnv(VectorEnv[Any, Any, np.ndarray]):
    """Gymnasium `VectorEnv` of the task named `task`.

    Finished envs are reset in the same step; their last observation and info are in `infos["final_obs"]` and
    `infos["final_info"]`, as in Gymnasium's own vector envs.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": ["rgb_array"],
        "render_fps": 20,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(
        self,
        task: str,
        num_envs: int = 1,
        render_mode: str | None = None,
        camera: str | None = None,
        height: int = 240,
        width: int = 320,
        max_episode_steps: int | None = None,
        device: str = "cpu",
        threads: int | None = None,
        **options: Any,
    ) -> None:
        made = make_task(task, **options)
        self.tensor_env = TensorEnv(made, num_envs, device, threads=threads)
        if max_episode_steps is not None:
            self.tensor_env.episode_steps = max_episode_steps
        self.num_envs = num_envs
        self.single_observation_space = self.tensor_env.observation_space
        self.single_action_space = made.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(made.action_space, num_envs)
        self.metadata = {**self.metadata, "render_fps": round(1 / made.control_dt_s)}
        self.render_mode = render_mode
        self._view = ((camera,) if camera else None, height, width)
        self._seeded = False

    def reset(self, *, seed: int | None = None, options: Infos | None = None) -> tuple[Any, Infos]:
        super().reset(seed=seed)
        return _numpy(_reset(self, seed)), {}

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, Infos]:
        obs, reward, terminated, truncated, info = self.tensor_env.step(torch.as_tensor(actions))
        done = (terminated | truncated).cpu().numpy()
        infos: Infos = {}
        for name, value in _rename(info).items():
            infos[name], infos[f"_{name}"] = value.cpu().numpy(), np.ones(self.num_envs, dtype=bool)
        if done.any():
            final_obs = np.full(self.num_envs, None, dtype=object)
            final_info = {name: value.copy() for name, value in infos.items() if name[0] != "_"}
            for i in np.flatnonzero(done):
                final_obs[i] = _numpy(info["final_obs"], int(i))
            infos |= {"final_obs": final_obs, "_final_obs": done, "_final_info": done.copy()}
            infos["final_info"] = {**final_info, **{f"_{name}": done.copy() for name in final_info}}
        rewards = reward.double().cpu().numpy()
        return _numpy(obs), rewards, terminated.cpu().numpy(), truncated.cpu().numpy(), infos

    def render(self) -> tuple[np.ndarray, ...] | None:
        return tuple(self.tensor_env.render(*self._view)[:, 0].cpu().numpy()) if self.render_mode else None

    def close_extras(self, **kwargs: Any) -> None:
        self.tensor_env.close()


def _reset(env: TaskEnv | TaskVectorEnv, seed: int | None) -> Obs:
    """Start new episodes. At the first reset, or if `seed` is given, seed the tensor env from Gymnasium's generator."""
    fresh = seed is not None or not env._seeded
    env._seeded = True
    return env.tensor_env.reset(int(env.np_random.integers(2**31)) if fresh else None)


def _numpy(obs: Obs, index: int | None = None) -> Any:
    """Convert the observation of all envs, or of the env `index`, to numpy."""
    return tree_map(lambda x: (x if index is None else x[index]).cpu().numpy(), obs)


def _rename(info: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the task's metrics, with "success" under Gymnasium's usual name "is_success"."""
    return {"is_success" if name == "success" else name: v for name, v in info.items() if name not in _ADDED}
