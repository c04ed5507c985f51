"""Base classes of tasks: observation, reward, termination and reset as batched torch functions over `n` envs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType

import gymnasium
import mujoco
import torch
from gymnasium import spaces

from kit.envs.obs import CRITIC, POLICY, Groups, Obs, tree_map
from kit.envs.randomize import Term
from kit.envs.task_info import TaskInfo
from kit.errors import UserError
from kit.sim import Simulator, make_sim


def maybe_any(mask: torch.Tensor) -> bool:
    """Return whether `mask` may contain a True: exactly `mask.any()` on the CPU, always True on a GPU.

    On a GPU, `any` waits for the device, which costs more than needless work.
    """
    return mask.device.type != "cpu" or bool(mask.any())


class Task(ABC):
    """A task for a batch of `n` envs, with its own physics or none. Subclass `MujocoTask` for a MuJoCo model.

    The constructor takes the task's options and sets the spaces. `build` is called once and allocates the envs. After
    that every method works on tensors of leading size n on `device`, called in this order per step:

        advance(action) -> measure() -> observe(), reward(action), terminated(), success(), info()
                                     -> if episodes ended: reset(done), measure(), observe()

    With `frames`, the last call is `observe_first`.
    """

    name: str
    observation_space: gymnasium.Space
    """Space of what `observe` returns for one env: Box, Discrete, MultiDiscrete, MultiBinary or a Dict of these. Images
    are uint8."""
    obs_groups: Groups = MappingProxyType({})
    """Observation groups: "policy", "critic", "teacher", ... -> entries of the Dict observation. Empty: every network
    sees all entries. See `kit.envs.groups`."""
    groups: tuple[str, ...] = (POLICY, CRITIC)
    """Groups that the env delivers by default; env_options `obs_groups` replaces them. The policy's group is always
    delivered. Set before `build`."""
    bare: bool = True
    """Whether a single delivered entry is the observation itself; if False it is a Dict with one entry."""
    frames: Mapping[str, int] = MappingProxyType({})
    """Entries to frame-stack ("" if the observation is a single Box) -> T. `observe` returns the newest frame (n, ...);
    the env stacks the latest T as (n, T, ...). See `kit.envs.frames`."""
    action_space: gymnasium.Space
    episode_steps: int
    """Time limit: steps after which an episode is truncated."""
    control_dt_s: float
    """Seconds per step."""
    staggered: bool = False
    """Whether the first episodes of a training are truncated at random times. Use it if episodes are much longer than a
    rollout and envs are many: otherwise all envs stay in the same phase of their episodes, and each rollout shows the
    policy one phase only."""
    video_speed: float = 1.0
    """Playback speed of videos: seconds of an episode per second of video."""
    score: str = "mean_return"
    """Evaluation metric that selects the best policy: "mean_return", "success_rate", or one of `info`."""
    cameras: tuple[str, ...] = ()
    """Camera names for `render`; the first is the default."""
    task_info: TaskInfo = TaskInfo()
    """Description of the task for people."""
    train_steps: int | None = None
    """Suggested number of training steps."""
    random_terms: Mapping[str, Term] = MappingProxyType({})
    """Domain randomisation terms that the task offers, by name. See `kit.envs.randomize`."""
    randomized: Mapping[str, Term] = MappingProxyType({})
    """Terms switched on by env_options `randomize`. Set before `build`."""
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
        """Start new episodes in the envs of `mask` (n,) bool. Always draw random numbers for all n envs, so that the
        numbers of one env do not depend on how many others are reset with it."""

    @abstractmethod
    def advance(self, action: torch.Tensor) -> None:
        """Simulate one step with `action` (n, ...), already clipped to the action space."""

    def measure(self) -> None:
        """Compute values shared by the methods below. Called whenever the state has changed (step, reset, restore).

        The values must depend on the simulator and on `state` only. Every small tensor costs microseconds, so make few.
        """
        return None

    @abstractmethod
    def observe(self) -> Obs:
        """Return the observation: a tensor (n, ...) or a dict of such. Entries outside `delivered` may be missing."""

    @property
    def delivered(self) -> tuple[str, ...]:
        """Entries of a Dict observation that belong to the policy's group or to one of `groups`, in their order."""
        if not self.obs_groups:
            return tuple(self.observation_space) if isinstance(self.observation_space, spaces.Dict) else ()
        seen = {name for group in (POLICY, *self.groups) for name in self.obs_groups.get(group, ())}
        return tuple(name for name in self.observation_space if name in seen)  # type: ignore[attr-defined]

    def observe_first(self, env_ids: torch.Tensor) -> Obs:
        """Return the first observations (k, ...) of the envs `env_ids` (k,), which were just reset. A task that renders
        images should render only theirs."""
        return tree_map(lambda rows: rows.index_select(0, env_ids), self.observe())

    @abstractmethod
    def reward(self, action: torch.Tensor) -> torch.Tensor:
        """Return the reward of the last step, (n,)."""

    @abstractmethod
    def terminated(self) -> torch.Tensor:
        """Return which episodes terminated, (n,) bool. The env adds truncation at the time limit."""

    def success(self) -> torch.Tensor | None:
        """Return which envs have achieved the goal in this episode, (n,) bool; None for a task without a goal."""
        return None

    def failed(self) -> torch.Tensor | None:
        """Return which envs have an invalid state, such as unstable physics, (n,) bool; None if that cannot happen."""
        return None

    def info(self) -> dict[str, torch.Tensor]:
        """Return further metrics to report, each (n,). An evaluation aggregates them by name and dtype:

         - "reward/NAME", a term of the reward: summed over the episode.
         - "NAME_per_minute", a count: events per minute of simulated time.
         - Any other: the value at the end of the episode, averaged over episodes; the share of episodes if bool.
        """
        return {}

    def scripted(self) -> torch.Tensor | None:
        """Return actions (n, ...) of a scripted baseline policy, or None if the task has none."""
        return None

    def state(self) -> dict[str, torch.Tensor]:
        """Copy the tensors named in `keeps`."""
        return {name: getattr(self, name).clone() for name in self.keeps}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Load tensors returned by `state`."""
        for name in self.keeps:
            getattr(self, name).copy_(state[name])

    def snapshot(self) -> dict[str, torch.Tensor]:
        """Copy the full state of all envs."""
        return {f"task.{name}": value for name, value in self.state().items()}

    def restore(self, snapshot: dict[str, torch.Tensor]) -> None:
        """Load a state returned by `snapshot`."""
        self.load_state({name[5:]: value for name, value in snapshot.items() if name.startswith("task.")})

    def render(self, cameras: tuple[str, ...], height: int, width: int) -> torch.Tensor:
        """Render images for people, uint8 (n, len(cameras), height, width, 3)."""
        raise UserError(f"env={self.name!r} cannot render images; give its task a render method.")

    def close(self) -> None:
        """Release threads and memory."""
        return None


class MujocoTask(Task):
    """A task on a MuJoCo model. The same class runs on both simulators (MuJoCo on the CPU, MuJoCo Warp on CUDA).

    The constructor builds `model` and the spaces. `bind` receives the simulator once and turns names into ids.
    `advance` calls `act` and then steps the physics.
    """

    model: mujoco.MjModel
    substeps: int
    """Physics steps per env step."""
    sim: Simulator
    shadows: bool = True
    """Whether images for people show shadows. With fixed cameras, videos without shadows render five times as fast
    (`kit.sim.render`)."""

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
        """Write `action` (n, act), already clipped to the action space, to the simulator's controls."""

    def advance(self, action: torch.Tensor) -> None:
        self.act(action)
        self.sim.step(self.substeps)

    def failed(self) -> torch.Tensor | None:
        return self.sim.diverged()

    def snapshot(self) -> dict[str, torch.Tensor]:
        return {**{f"sim.{name}": value for name, value in self.sim.snapshot().items()}, **super().snapshot()}

    def restore(self, snapshot: dict[str, torch.Tensor]) -> None:
        self.sim.restore({name[4:]: value for name, value in snapshot.items() if name.startswith("sim.")})
        super().restore(snapshot)

    def render(self, cameras: tuple[str, ...], height: int, width: int) -> torch.Tensor:
        return self.sim.render(cameras, height, width, shadows=self.shadows)

    def close(self) -> None:
        self.sim.close()
