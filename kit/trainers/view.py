"""SB3's view of a tensor env, for construction only; gives way to kit.envs.sb3."""

from __future__ import annotations

from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv


class View(VecEnv):
    def __init__(self, tensor_env: Any) -> None:
        self.tensor_env = tensor_env
        self.render_mode = None
        super().__init__(tensor_env.num_envs, tensor_env.observation_space, tensor_env.action_space)

    def reset(self) -> Any:
        return self.tensor_env.reset().cpu().numpy()

    def step_async(self, actions: np.ndarray) -> None:
        raise NotImplementedError

    def step_wait(self) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        self.tensor_env.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self.tensor_env, attr_name, None)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None: ...

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        return []

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs
