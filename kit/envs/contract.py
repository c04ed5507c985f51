"""What every vector env of kit's is: tensors in, tensors out. Trainers, evaluations and films know nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import gymnasium
import mujoco
import torch

from kit.envs.obs import Groups, Obs

Info = dict[str, Any]
Step = tuple[Obs, torch.Tensor, torch.Tensor, torch.Tensor, Info]
"""obs, reward (n,), terminated (n,) bool, truncated (n,) bool, info."""


class BatchEnv(ABC):
    """`num_envs` worlds stepped together.

        obs = env.reset(seed=0)                                             # (n, ...), or a dict of such
        obs, reward, terminated, truncated, info = env.step(action)         # action (n, ...)

    Finished worlds come back already reset. `terminated` (the task ended) and `truncated` (time ran out in a world that
    had not ended) are never both true. Observations have the dtypes of the space, reals as float32.

    `info` holds, for every world: "final_obs" (n, ...), the true next observation before any reset, of which only the
    rows of finished worlds differ from `obs`; "episode_return" and "episode_length" (n,), totals up to and including
    this step; "success" (n,) bool; and the task's own figures (n,), of which those called "reward/NAME" are the terms
    of this step's reward.

    "success" counts in the step that ends an episode (`terminated | truncated`), and there alone. An env may leave it
    out of other steps. An episode that ends in a step without it was no success, unless the env never gives it: then it
    has no success rate.
    """

    num_envs: int
    device: torch.device
    observation_space: gymnasium.Space
    """Of one world, as is the action space."""
    action_space: gymnasium.Space
    episode_steps: int
    """After which an episode is cut."""
    control_dt_s: float
    """Seconds per step."""
    video_speed: float = 1.0
    """Seconds of an episode in one of its film."""
    score: str = "mean_return"
    """Which figure of an evaluation says what the best policy is: this, "success_rate", or one of the task's `info`."""
    obs_groups: Groups = MappingProxyType({})
    """Who sees what: "policy", "critic", "teacher", ... -> top-level entries of the observation. Empty where everybody
    sees everything."""
    frames: Mapping[str, int] = MappingProxyType({})
    """Entries of the observation, "" where it is a single Box, that are stacks (n, T, ...) of the latest T frames, the
    newest last: within an episode each differs from the one before by one frame, and its first is T times the same."""
    cameras: tuple[str, ...] = ()
    """Views that `render` knows; the first is the default."""
    snapshots: bool = True
    """`snapshot` holds everything: after `restore` the future is the same, bit for bit on the CPU."""
    snapshot_note: str = "Every world is saved exactly, as part of every checkpoint."
    """A sentence for the user."""
    physics: tuple[mujoco.MjModel, int] | None = None
    """The model and its substeps per step, where there is bare physics to compare with."""

    @abstractmethod
    def reset(self, seed: int | None = None) -> Obs:
        """Begin a new episode in every world; the same `seed` gives the same episodes."""

    def stagger(self) -> None:
        """Before training: let the worlds' first episodes end at different times, where the env thinks that good."""
        return None

    @abstractmethod
    def step(self, action: torch.Tensor) -> Step:
        """One step with `action` (n, ...); continuous ones are clipped to the action space."""

    def scripted(self) -> torch.Tensor | None:
        """Actions (n, ...) of a plan that learns nothing, to compare policies with, where the task has one."""
        return None

    @abstractmethod
    def snapshot(self) -> dict[str, torch.Tensor]:
        """Copies of everything that decides the future where `snapshots`, else what `restore` needs to begin anew."""

    @abstractmethod
    def restore(self, snapshot: dict[str, torch.Tensor]) -> None:
        """Go back to `snapshot`, of an env of the same kind and size."""

    @abstractmethod
    def render(self, cameras: tuple[str, ...] | None = None, height: int = 240, width: int = 320) -> torch.Tensor:
        """Pictures of every world as it is now, uint8 (n, cameras, height, width, 3); by default the first camera."""

    @abstractmethod
    def close(self) -> None:
        """Give back threads and memory."""
