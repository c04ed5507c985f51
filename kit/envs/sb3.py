"""Stable-Baselines3 `VecEnv` adapter for kit's vector envs, and SB3's info dicts from a batched `info`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvStepReturn

from kit.envs.contract import BatchEnv
from kit.envs.obs import Obs, PolicyView, tree_map


class LazyInfos(Sequence[dict[str, Any]]):
    """SB3's list of info dicts, one per env, with the entries of SB3's `Monitor`.

    A dict is built when it is read.
    """

    def __init__(self, info: dict[str, Any], done: torch.Tensor, truncated: torch.Tensor) -> None:
        self._info, self._done, self._truncated = info, done, truncated

    def __len__(self) -> int:
        return len(self._done)

    def __getitem__(self, env: Any) -> Any:
        if isinstance(env, slice):
            return [self[i] for i in range(*env.indices(len(self)))]
        if not -len(self) <= env < len(self):
            raise IndexError(env)
        info: dict[str, Any] = {"TimeLimit.truncated": bool(self._truncated[env])}
        if "success" in self._info:
            info["is_success"] = bool(self._info["success"][env])
        if self._done[env]:
            info["terminal_observation"] = tree_map(lambda rows: rows[env].cpu().numpy(), self._info["final_obs"])
            total, length = self._info["episode_return"][env].item(), self._info["episode_length"][env].item()
            info["episode"] = {"r": total, "l": int(length), "t": 0.0}
        return info


class TensorVecEnv(VecEnv):
    """SB3 `VecEnv` around `tensor_env`, with observations in the layout of SB3's policies (`view`).

    Infos are empty except at the end of an episode; see `LazyInfos`.
    """

    def __init__(self, tensor_env: BatchEnv, view: PolicyView | None = None) -> None:
        self.tensor_env = tensor_env
        self.view = view or PolicyView(tensor_env.observation_space)
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
        done = terminated | truncated
        ended = done.cpu().numpy()
        final = self.view(info["final_obs"]) if ended.any() else None
        infos = LazyInfos({**info, "final_obs": final}, done, truncated)
        return self._numpy(obs), reward.cpu().numpy(), ended, [infos[i] if ended[i] else {} for i in range(len(ended))]

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
