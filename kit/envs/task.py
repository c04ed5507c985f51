"""Base classes of tasks: observation, reward, termination and reset of `n` envs, as batched torch functions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType

import gymnasium
import mujoco
import torch
from gymnasium import spaces

from kit.envs.curriculum import Curriculum
from kit.envs.mirror import Mirror
from kit.envs.obs import CRITIC, POLICY, Groups, Obs, prefixed, tree_map, with_prefix
from kit.envs.randomize import Term
from kit.envs.task_info import TaskInfo
from kit.errors import UserError, suggest
from kit.sim import Simulator, make_sim

NO_GOAL_REWARD = (
    "env={!r} has goals but no compute_reward(achieved_goal, desired_goal), which hindsight needs; add it, or set "
    "overrides n_sampled_goal=0."
)


class Task(ABC):
    """A task for a batch of `n` envs, with its own physics or none. Subclass `MujocoTask` for a MuJoCo model.

    The constructor takes the task's options and sets the spaces. `build` is called once and allocates the envs. The
    other methods work on tensors of leading size n on `device`. Per step the env calls them in this order:

        advance(action) -> measure() -> observe(), reward(action), terminated(), success(), info()
                                     -> if episodes ended: reset(done), measure(), observe()

    With `frames`, the last call is `observe_first` instead.
    """

    name: str
    observation_space: gymnasium.Space
    """Space of what `observe` returns for one env: Box, Discrete, MultiDiscrete, MultiBinary or a Dict of these. Images
    are uint8."""
    obs_groups: Groups = MappingProxyType({})
    """Observation groups: "policy", "critic", "teacher", ... -> entries of the Dict observation. Empty if every network
    sees all entries. See `kit.envs.groups`."""
    groups: tuple[str, ...] = (POLICY, CRITIC)
    """Names of the groups that the env delivers. The option `obs_groups` in env_options, a list of names, replaces them
    before `build`. The policy's group is always delivered."""
    bare: bool = True
    """If the env delivers a single entry: True makes it the observation, False a Dict with that entry."""
    frames: Mapping[str, int] = MappingProxyType({})
    """Entry to frame-stack ("" if the observation is a single Box) -> number of frames T. `observe` returns the newest
    frame (n, ...); the env stacks the latest T as (n, T, ...). See `kit.envs.frames`."""
    action_space: gymnasium.Space
    episode_steps: int
    """Time limit: steps after which an episode is truncated."""
    control_dt_s: float
    """Seconds per step."""
    staggered: bool = False
    """Whether the first episodes in training are truncated at random times. Use it for episodes much longer than a
    rollout: otherwise all envs are in the same phase of their episodes, and a rollout shows only that phase."""
    video_speed: float = 1.0
    """Playback speed of videos: seconds of an episode per second of video."""
    score: str = "mean_return"
    """Name of the evaluation metric by which the best policy is chosen: "mean_return", "success_rate", or one from
    `info`."""
    cameras: tuple[str, ...] = ()
    """Camera names for `render`; the first is the default."""
    task_info: TaskInfo = TaskInfo()
    """Description of the task, for people."""
    scripts: tuple[str, ...] = ()
    """Names of the task's scripted policies: methods without arguments that return actions (n, ...) for the current
    state of the envs. A task with a single scripted policy may override `scripted` instead and leave this empty."""
    train_steps: int | None = None
    """Suggested number of training steps."""
    random_terms: Mapping[str, Term] = MappingProxyType({})
    """Domain randomisation terms that the task offers, by name. See `kit.envs.randomize`."""
    randomized: Mapping[str, Term] = MappingProxyType({})
    """Terms that env_options `randomize` switches on; set before `build`."""
    curriculum: Curriculum | None = None
    """Stages to train on, from easy to the task itself. See `kit.envs.curriculum`."""
    switched_off: Curriculum | None = None
    """The task's curriculum if env_options `curriculum` is false; then `curriculum` is None."""
    stage: torch.Tensor
    """() int64: the current stage of the curriculum, set by the env before the first reset; outside training the last
    stage."""
    mirror: Mirror | None = None
    """Left-right mirror images of observation entries and actions, for symmetric tasks. See `kit.envs.mirror`."""
    keeps: tuple[str, ...] = ()
    """Names of the attributes that hold the task's state: tensors (n, ...), changed in place and saved in snapshots."""

    n: int
    device: torch.device
    dtype: torch.dtype = torch.float32
    """Dtype of actions and rewards."""

    def build(self, n: int, device: str | torch.device, threads: int | None = None) -> None:
        """Allocate `n` envs. Extend this to allocate the task's own tensors."""
        self.n, self.device = n, torch.device(device)

    @abstractmethod
    def reset(self, mask: torch.Tensor, generator: torch.Generator) -> None:
        """Start new episodes in the envs where `mask` (n,) bool is True.

        Always draw random numbers for all n envs, so that one env's numbers do not depend on which others are reset.
        """

    @abstractmethod
    def advance(self, action: torch.Tensor) -> None:
        """Simulate one step with `action` (n, ...), already clipped to the action space."""

    def measure(self) -> None:
        """Compute values that several of the methods below use. Called after every step, reset and restore.

        The values may depend only on the simulator and on `state`. Use few torch operations: each costs microseconds.
        """
        return None

    @abstractmethod
    def observe(self) -> Obs:
        """Return the observation: a tensor (n, ...) or a dict of such. Entries not in `delivered` may be left out."""

    @property
    def delivered(self) -> tuple[str, ...]:
        """Entries of a Dict observation that the policy's group or one of `groups` contains, in the space's order."""
        if not self.obs_groups:
            return tuple(self.observation_space) if isinstance(self.observation_space, spaces.Dict) else ()
        seen = {name for group in (POLICY, *self.groups) for name in self.obs_groups.get(group, ())}
        return tuple(name for name in self.observation_space if name in seen)  # type: ignore[attr-defined]

    def observe_first(self, env_ids: torch.Tensor) -> Obs:
        """Return the first observations (k, ...) of the envs `env_ids` (k,), which were just reset.

        A task that renders images should override it, to render these envs only.
        """
        return tree_map(lambda rows: rows.index_select(0, env_ids), self.observe())

    @abstractmethod
    def reward(self, action: torch.Tensor) -> torch.Tensor:
        """Return the reward of the last step, (n,)."""

    @abstractmethod
    def terminated(self) -> torch.Tensor:
        """Return (n,) bool: True if the episode has ended by the task's rules. The env handles the time limit."""

    def compute_reward(self, achieved_goal: torch.Tensor, desired_goal: torch.Tensor) -> torch.Tensor:
        """Return the rewards (N,) for any `achieved_goal` (N, ...) and `desired_goal` (N, ...).

        For goal tasks, whose observations have the entries "observation", "achieved_goal" and "desired_goal": SAC and
        TD3 (and CrossQ) then learn from goals achieved by accident (`kit.trainers.hindsight`).
        """
        raise UserError(NO_GOAL_REWARD.format(self.name))

    def success(self) -> torch.Tensor | None:
        """Return (n,) bool: True if the goal of the episode is achieved; None for a task without a goal."""
        return None

    def failed(self) -> torch.Tensor | None:
        """Return (n,) bool: True if the state is invalid, such as diverged physics; None if that cannot happen.

        The env terminates these episodes, with zeros as observation and reward.
        """
        return None

    def info(self) -> dict[str, torch.Tensor]:
        """Return metrics of the task, name -> (n,). An evaluation aggregates them by name and dtype:

         - "reward/NAME", a term of the reward: summed over the episode.
         - "NAME_per_minute", the events of this step: summed, then divided by the simulated minutes.
         - Any other: the value at the end of the episode, averaged over episodes; if bool, the fraction of True.
        """
        return {}

    def scripted(self) -> torch.Tensor | None:
        """Return actions (n, ...) of the task's first scripted policy, a baseline or teacher; None if it has none."""
        return getattr(self, self.scripts[0])() if self.scripts else None

    def state(self) -> dict[str, torch.Tensor]:
        """Copy the tensors named in `keeps`. Raises `UserError` for a name that is no tensor of the task."""
        for name in self.keeps:
            if not isinstance(getattr(self, name, None), torch.Tensor):
                tensors = [each for each, value in vars(self).items() if isinstance(value, torch.Tensor)]
                hint = suggest(name, tensors) if tensors else "make it a tensor in `build`"
                raise UserError(f"env={self.name!r}: keeps={self.keeps!r} names {name!r}, which is no tensor; {hint}.")
        return {name: getattr(self, name).clone() for name in self.keeps}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Load tensors returned by `state`."""
        for name in self.keeps:
            getattr(self, name).copy_(state[name])

    def snapshot(self) -> dict[str, torch.Tensor]:
        """Copy the full state of all envs."""
        return prefixed("task", self.state())

    def restore(self, snapshot: dict[str, torch.Tensor]) -> None:
        """Load a state returned by `snapshot`."""
        self.load_state(with_prefix("task", snapshot))

    def render(self, cameras: tuple[str, ...], height: int, width: int) -> torch.Tensor:
        """Render images for people, uint8 (n, len(cameras), height, width, 3)."""
        raise UserError(f"env={self.name!r} cannot render images; give its task a render method.")

    def close(self) -> None:
        """Release threads and memory."""
        return None


class MujocoTask(Task):
    """A task on a MuJoCo model; runs on both simulators, MuJoCo on the CPU and MuJoCo Warp on CUDA.

    The constructor builds `model` and the spaces. `bind` receives the simulator once and turns names into ids.
    `advance` calls `act` and then steps the physics.
    """

    model: mujoco.MjModel
    substeps: int
    """Physics steps per env step."""
    sim: Simulator
    shadows: bool = True
    """Whether images for people show shadows. Without shadows and with fixed cameras, static geoms are rendered only
    once, and videos take a fifth of the time (`kit.sim.render`)."""

    @property
    def control_dt_s(self) -> float:  # type: ignore[override]
        return self.substeps * float(self.model.opt.timestep)

    def build(self, n: int, device: str | torch.device, threads: int | None = None) -> None:
        self.bind(make_sim(self.model, n, device, threads))

    def bind(self, sim: Simulator) -> None:
        """Store the simulator. Extend this to look up ids and to allocate the task's own tensors (n, ...)."""
        self.sim, self.n, self.device, self.dtype = sim, sim.n, sim.device, sim.dtype

    @abstractmethod
    def act(self, action: torch.Tensor) -> None:
        """Write `action` (n, act), already clipped to the action space, to the controls of `sim`."""

    def advance(self, action: torch.Tensor) -> None:
        self.act(action)
        self.sim.step(self.substeps)

    def failed(self) -> torch.Tensor | None:
        return self.sim.diverged()

    def snapshot(self) -> dict[str, torch.Tensor]:
        return {**prefixed("sim", self.sim.snapshot()), **super().snapshot()}

    def restore(self, snapshot: dict[str, torch.Tensor]) -> None:
        self.sim.restore(with_prefix("sim", snapshot))
        super().restore(snapshot)

    def render(self, cameras: tuple[str, ...], height: int, width: int) -> torch.Tensor:
        if not cameras:
            raise UserError(f"env={self.name!r} has no camera; set `cameras` to names of cameras in its model.")
        return self.sim.render(cameras, height, width, shadows=self.shadows)

    def close(self) -> None:
        self.sim.close()
