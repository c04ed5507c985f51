"""The vector env interface: tensors in, tensors out. Trainers, evaluations and videos use envs through it alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import gymnasium
import mujoco
import torch

from kit.envs.divergence import Divergence
from kit.envs.mirror import Mirror
from kit.envs.obs import Groups, Obs

Info = dict[str, Any]
Step = tuple[Obs, torch.Tensor, torch.Tensor, torch.Tensor, Info]
"""(obs, reward (n,), terminated (n,) bool, truncated (n,) bool, info)."""
TERM = "reward/"
"""Prefix of the entries of `Info` that are terms of the step's reward."""
TOTALS = ("episode_return", "episode_length")
"""Entries of `Info` with totals of the episode."""


class BatchEnv(ABC):
    """A vector env of `num_envs` envs, stepped as one batch.

        obs = env.reset(seed=0)                                             # tensor (n, ...) or dict of such tensors
        obs, reward, terminated, truncated, info = env.step(action)         # action (n, ...)

    Finished envs are reset within the same step. `terminated` (the task ended) and `truncated` (the time limit was
    reached without termination) are never both true. Floating-point observations are float32,
    others have the dtype of the space.

    `info` holds these entries for all envs:

     - "final_obs" (n, ...): in finished envs the last observation of the episode, before the reset; in others `obs`.
     - "episode_return", "episode_length" (n,): totals of the episode up to and including this step.
     - "success" (n,) bool: counts only in steps that end an episode (`terminated | truncated`). It may be missing. An
       episode whose last step lacks it is no success; an env that never reports it has no success rate.
     - The task's own metrics (n,). Metrics named "reward/NAME" are the terms of this step's reward.
    """

    num_envs: int
    device: torch.device
    observation_space: gymnasium.Space
    """Observation space of one env."""
    action_space: gymnasium.Space
    """Action space of one env."""
    episode_steps: int
    """Time limit: steps after which an episode is truncated."""
    control_dt_s: float
    """Seconds per step."""
    video_speed: float = 1.0
    """Playback speed of videos: seconds of an episode per second of video."""
    score: str = "mean_return"
    """Name of the evaluation metric by which the best policy is chosen: "mean_return", "success_rate", or a task's
    metric."""
    obs_groups: Groups = MappingProxyType({})
    """Observation groups: "policy", "critic", "teacher", ... -> top-level entries of the observation. Empty if every
    network sees all entries."""
    frames: Mapping[str, int] = MappingProxyType({})
    """Frame-stacked entry of the observation ("" if it is a single Box) -> number of frames T. The entry's shape is
    (n, T, ...), newest frame last. Each step adds a frame; an episode starts with its first frame T times."""
    done_envs: torch.Tensor | None = None
    """(E,) int64: indices of the envs whose episode ended in the last step; None if the env has not computed them.
    Trainers use it instead of `done.nonzero()`, which waits for the GPU."""
    cameras: tuple[str, ...] = ()
    """Camera names for `render`; the first is the default."""
    mirror: Mirror | None = None
    """Left-right mirror images of observations and actions; None if the task has not declared them."""
    stage: torch.Tensor | None = None
    """() int64: the current stage of the task's curriculum, from 0; None for a task without one."""
    snapshots: bool = True
    """Whether `snapshot` holds the full state, so that `restore` continues identically."""
    snapshot_note: str = "The full state of every env is saved exactly, in every checkpoint."
    """Sentence that tells the user whether checkpoints hold the envs' state."""
    physics: tuple[mujoco.MjModel, int] | None = None
    """(MuJoCo model, physics steps per env step), to measure the speed of the physics; None without a model."""

    @abstractmethod
    def reset(self, seed: int | None = None) -> Obs:
        """Start a new episode in every env. The same `seed` gives the same episodes."""

    def start_training(self, seed: int | None = None, earlier: Mapping[str, torch.Tensor] | None = None) -> Obs:
        """Start new episodes, as `reset`, for training: in the first stage of the task's curriculum, if it has one.

        `earlier`: a snapshot taken with another number of envs; only the curriculum's progress is restored from it.

        If the task asks for it (`Task.staggered`), these episodes get random, shorter time limits, so that they do not
        all end in the same step. Trainers call this method, evaluations call `reset`.
        """
        return self.reset(seed)

    @abstractmethod
    def step(self, action: torch.Tensor) -> Step:
        """Step all envs with `action` (n, ...). Continuous actions are clipped to the action space."""

    def take_divergences(self) -> list[Divergence]:
        """Return recordings of envs whose physics diverged since the last call, a few at most. Synchronises a GPU."""
        return []

    def scripted(self, name: str | None = None) -> torch.Tensor | None:
        """Return actions (n, ...) of the task's scripted policy `name` (`Task.scripts`; default: the first), or None if
        it has none."""
        return None

    def compute_reward(self, achieved_goal: torch.Tensor, desired_goal: torch.Tensor) -> torch.Tensor:
        """Return the rewards (N,) for any `achieved_goal` (N, ...) and `desired_goal` (N, ...), for goal tasks.

        Raises `UserError` if the env cannot compute them.
        """
        raise NotImplementedError

    @abstractmethod
    def snapshot(self) -> dict[str, torch.Tensor]:
        """Copy the full state of all envs; if `snapshots` is False, only the data for starting new episodes."""

    @abstractmethod
    def restore(self, snapshot: dict[str, torch.Tensor]) -> None:
        """Load `snapshot`, taken from an env of the same kind and size."""

    @abstractmethod
    def render(self, cameras: tuple[str, ...] | None = None, height: int = 240, width: int = 320) -> torch.Tensor:
        """Render the current state of all envs as uint8 (n, cameras, height, width, 3); default: the first camera."""

    @abstractmethod
    def close(self) -> None:
        """Release threads and memory."""
