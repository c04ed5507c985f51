"""Stable-Baselines3 `VecEnv` adapter for kit's vector envs, converting between tensors and numpy."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvStepReturn

from kit.envs.contract import BatchEnv
from kit.envs.obs import Obs, PolicyView, tree_map


class TensorVecEnv(VecEnv):
    """SB3 `VecEnv` around `tensor_env`, with observations in the layout of SB3's policies (`view`).

    Infos match SB3's `Monitor`: at the end of an episode they hold "episode" {"r", "l", "t"}, "terminal_observation",
    "TimeLimit.truncated" and, if the task reports success, "is_success".
    """

    def __init__(self, tensor_env: BatchEnv, view: PolicyView | None = None) -> None:
        self.tensor_env = tensor_env
        self.view = view or PolicyView(tensor_env.observation_space)
        self._started = time.time()
        super().__init__(tensor_env.num_envs, self.view.space, tensor_env.action_space)

    def reset(self) -> Any:
        seed = self._seeds[0]
        self._reset_seeds()
        self._reset_options()
        return self._numpy(self.tensor_env.reset(seed))

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = torch.as_tensor(actions)

    def step_wait(self) -> VecEnvStepReturn:
        obs, reward, terminated, truncated, info = self.tensor_env.step(self._actions)
        done = (terminated | truncated).cpu().numpy()
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        final = self._numpy(info["final_obs"]) if done.any() else None
        for i in np.flatnonzero(done):
            infos[i] = {
                "terminal_observation": tree_map(lambda rows, i=i: rows[i], final),
                "TimeLimit.truncated": bool(truncated[i]),
                "episode": {
                    "r": float(info["episode_return"][i]),
                    "l": int(info["episode_length"][i]),
                    "t": round(time.time() - self._started, 6),
                },
            }
            if "success" in info:
                infos[i]["is_success"] = bool(info["success"][i])
        return self._numpy(obs), reward.cpu().numpy(), done, infos

    def _numpy(self, obs: Obs) -> Any:
        return tree_map(lambda x: x.cpu().numpy(), self.view(obs))

    def close(self) -> None:
        self.tensor_env.close()

    def get_images(self) -> Sequence[np.ndarray | None]:
        return list(self.tensor_env.render()[:, 0].cpu().numpy())

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        value = "rgb_array" if attr_name == "render_mode" else getattr(self.tensor_env, attr_name)
        return [value for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        raise NotImplementedError("all envs share their attributes; set them on .tensor_env")

    def env_method(self, method_name: str, *args: Any, indices: VecEnvIndices = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError("all envs are one batch; call the methods of .tensor_env")

    def env_is_wrapped(self, wrapper_class: type, indices: VecEnvIndices = None) -> list[bool]:
        return [wrapper_class is Monitor for _ in self._get_indices(indices)]
