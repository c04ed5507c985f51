"""The vector env interface: tensors in, tensors out. Trainers, evaluations and videos use nothing else."""

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
"""(obs, reward (n,), terminated (n,) bool, truncated (n,) bool, info)."""


class BatchEnv(ABC):
    """A vector env of `num_envs` envs, stepped as one batch.

        obs = env.reset(seed=0)                                             # tensor (n, ...) or dict of such tensors
        obs, reward, terminated, truncated, info = env.step(action)         # action (n, ...)

    Finished envs are reset within the same step. `terminated` (the task ended) and `truncated` (the time limit was
    reached without termination) are never both true. Observations have the dtypes of the space; reals are float32.

    `info` holds these entries for all envs:

     - "final_obs" (n, ...): the next observation before any reset; it differs from `obs` in finished envs only.
     - "episode_return", "episode_length" (n,): totals up to and including this step.
     - "success" (n,) bool: counts only in the step that ends an episode (`terminated | truncated`) and may be missing
       from other steps. An episode whose last step lacks it is not a success. An env that never reports it has no
       success rate.
     - The task's own metrics (n,). Metrics named "reward/NAME" are the terms of this step's reward.
    """

    num_envs: int
    device: torch.device
    observation_space: gymnasium.Space
    """Space of one env, as is `action_space`."""
    action_space: gymnasium.Space
    episode_steps: int
    """Time limit: steps after which an episode is truncated."""
    control_dt_s: float
    """Seconds per step."""
    video_speed: float = 1.0
    """Playback speed of videos: seconds of an episode per second of video."""
    score: str = "mean_return"
    """Evaluation metric that selects the best policy: "mean_return", "success_rate", or one of the task's `info`."""
    obs_groups: Groups = MappingProxyType({})
    """Observation groups: "policy", "critic", "teacher", ... -> top-level entries of the observation. Empty if every
    network sees all entries."""
    frames: Mapping[str, int] = MappingProxyType({})
    """Frame-stacked entries of the observation ("" if it is a single Box) -> T. Their shape is (n, T, ...), newest
    frame last. Consecutive stacks of an episode differ by one frame; the first repeats the first frame T times."""
    cameras: tuple[str, ...] = ()
    """Camera names for `render`; the first is the default."""
    snapshots: bool = True
    """Whether `snapshot` holds the full state, so that `restore` continues identically (bit for bit on the CPU)."""
    snapshot_note: str = "The full state of every env is saved exactly, in every checkpoint."
    """Message for the user about `snapshots`."""
    physics: tuple[mujoco.MjModel, int] | None = None
    """MuJoCo model and substeps per step, to measure the speed of the bare physics; None without such a model."""

    @abstractmethod
    def reset(self, seed: int | None = None) -> Obs:
        """Start a new episode in every env. The same `seed` gives the same episodes."""

    def stagger(self) -> None:
        """Shorten the first episodes by random time limits, so that envs do not all end together; some tasks only."""
        return None

    @abstractmethod
    def step(self, action: torch.Tensor) -> Step:
        """Step all envs with `action` (n, ...). Continuous actions are clipped to the action space."""

    def scripted(self) -> torch.Tensor | None:
        """Return actions (n, ...) of the task's scripted baseline policy, or None if it has none."""
        return None

    @abstractmethod
    def snapshot(self) -> dict[str, torch.Tensor]:
        """Copy the full state of all envs. Without `snapshots`, copy what `restore` needs to start new episodes."""

    @abstractmethod
    def restore(self, snapshot: dict[str, torch.Tensor]) -> None:
        """Load `snapshot`, taken from an env of the same kind and size."""

    @abstractmethod
    def render(self, cameras: tuple[str, ...] | None = None, height: int = 240, width: int = 320) -> torch.Tensor:
        """Render the current state of all envs as uint8 (n, cameras, height, width, 3); default: the first camera."""

    @abstractmethod
    def close(self) -> None:
        """Release threads and memory."""
