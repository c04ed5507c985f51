"""A run's worlds shared out among the processes of a group: each simulates some, and all see all of them."""

from __future__ import annotations

from typing import Any

import torch

from kit.envs.foreign import ForeignEnv
from kit.envs.task import Share, may_have
from kit.envs.vec import TensorEnv
from kit.machine.group import Group

COMMON = ("generator", "seed")
"""What a snapshot holds once, not for every world."""


def share_of(group: Group, n_envs: int) -> Share:
    """Which of `n_envs` worlds this process simulates."""
    return Share(group.mine(n_envs).start, n_envs)


class SharedEnv:
    """`own`'s worlds and those of the other processes, with the methods of `TensorEnv`. Every process calls the same
    methods with the same arguments, for all worlds, and gets the same answers, for all worlds: what one process
    with `num_envs` worlds would get. So whoever uses it need not know. `own`, if it is a `TensorEnv`, leaves its
    finished worlds as they are (`autoreset=False`)."""

    def __init__(self, own: TensorEnv | ForeignEnv, group: Group) -> None:
        self.own, self.group = own, group
        self.num_envs = own.num_envs * group.size
        self._mine = group.mine(self.num_envs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.own, name)

    def reset(self, seed: int | None = None) -> torch.Tensor:
        """As `TensorEnv.reset`."""
        return self.group.gather({"obs": self.own.reset(seed)})["obs"]

    def step(
        self, action: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        """As `TensorEnv.step`."""
        obs, reward, terminated, truncated, info = self.own.step(action[self._mine])
        step = {"obs": obs, "reward": reward, "terminated": terminated, "truncated": truncated, **info}
        if isinstance(self.own, TensorEnv):
            del step["final_obs"]  # the same as obs, see `begin`
        whole = self.group.gather(step)
        all_obs, reward, terminated, truncated = (whole.pop(name) for name in tuple(step)[:4])
        if isinstance(self.own, TensorEnv):
            whole["final_obs"], all_obs = all_obs, self._begin(self.own, obs, all_obs, terminated | truncated)
        return all_obs, reward, terminated, truncated, whole

    def _begin(self, own: TensorEnv, obs: torch.Tensor, all_obs: torch.Tensor, done: torch.Tensor) -> torch.Tensor:
        """Reset the worlds of `done` (num_envs,). All processes draw at the same time, whosever world it is, for they
        must go on drawing the same; so it waits until here, where all know."""
        if not may_have(done):
            return all_obs
        return self.group.gather({"obs": own.begin(done[self._mine], obs)})["obs"]

    def snapshot(self) -> dict[str, torch.Tensor]:
        """As `TensorEnv.snapshot`."""
        own = self.own.snapshot()
        common = {name: own.pop(name) for name in COMMON if name in own}
        return self.group.gather(own) | common

    def restore(self, snapshot: dict[str, torch.Tensor]) -> None:
        """As `TensorEnv.restore`: a snapshot by any number of processes will do."""
        self.own.restore({name: v if name in COMMON else v[self._mine] for name, v in snapshot.items()})

    def close(self) -> None:
        self.own.close()
