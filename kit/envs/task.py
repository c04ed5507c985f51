"""What a task is: what is done, seen, paid and drawn anew in many worlds at once, as batched torch functions."""

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


def may_have(mask: torch.Tensor) -> bool:
    """Whether any of `mask` is true, on the CPU; asking a GPU takes longer than work on nothing, so there: yes."""
    return mask.device.type != "cpu" or bool(mask.any())


class Task(ABC):
    """One task for `n` worlds at once, with physics of its own or none. With MuJoCo: `MujocoTask`.

    The constructor takes the task's options and sets the spaces; `build` is called once and makes the worlds. From then
    on every method works on tensors of leading size n on `device`, in this order per step:

        advance(action) -> measure() -> observe(), reward(action), terminated(), success(), info()
                                     -> where an episode ended: reset(done), measure(), observe()

    or, with `frames`, `observe_first` in place of the last.
    """

    name: str
    observation_space: gymnasium.Space
    """What `observe` gives, of one world, as are all spaces here. Boxes, discrete ones, and Dicts of these; pictures
    are uint8."""
    obs_groups: Groups = MappingProxyType({})
    """Who sees what: group ("policy", "critic", "teacher", ...) -> entries of the Dict observation. Without groups
    everybody sees everything. See `kit.envs.groups`."""
    groups: tuple[str, ...] = (POLICY, CRITIC)
    """Groups that an env delivers unless env_options `obs_groups` lists others; the policy's always is. Set before
    `build`."""
    bare: bool = True
    """Whether an env with groups that delivers a single entry gives it by itself; else as a Dict of one."""
    frames: Mapping[str, int] = MappingProxyType({})
    """Entries of the observation, "" where it is a single Box, of which a policy sees the latest so many frames:
    `observe` gives the newest (n, ...), the env a stack (n, T, ...) of them. See `kit.envs.frames`."""
    action_space: gymnasium.Space
    episode_steps: int
    """Steps after which an episode is cut (truncated)."""
    control_dt_s: float
    """Seconds per step."""
    staggered: bool = False
    """Training begins with episodes cut at random: right where they are much longer than a rollout and worlds many, for
    else all would be in the same phase of their episodes, and a policy learn now one phase, now the other."""
    video_speed: float = 1.0
    """Seconds of an episode in one of its film."""
    score: str = "mean_return"
    """Which figure of an evaluation says what the best policy is: this, "success_rate", or one of `info`."""
    cameras: tuple[str, ...] = ()
    """Views that `render` knows; the first is the default."""
    task_info: TaskInfo = TaskInfo()
    """What people are told of it."""
    train_steps: int | None = None
    """To train for, so that something is learnt."""
    random_terms: Mapping[str, Term] = MappingProxyType({})
    """What may differ between envs, by name: see `kit.envs.randomize`."""
    randomized: Mapping[str, Term] = MappingProxyType({})
    """Those that do, as env_options `randomize` says; set before `build`."""
    keeps: tuple[str, ...] = ()
    """Names of the tensors (n, ...) that decide the future: attributes that are changed in place."""

    n: int
    device: torch.device
    dtype: torch.dtype = torch.float32
    """Of actions and rewards."""

    def build(self, n: int, device: str | torch.device, threads: int | None = None) -> None:
        """Make `n` worlds; extend this to allocate the task's own tensors."""
        self.n, self.device = n, torch.device(device)

    @abstractmethod
    def reset(self, mask: torch.Tensor, generator: torch.Generator) -> None:
        """Begin new episodes in the worlds of `mask` (n,) bool. Draw random numbers at full width, so that what one
        world gets does not depend on how many others begin with it."""

    @abstractmethod
    def advance(self, action: torch.Tensor) -> None:
        """One step with `action` (n, ...), already inside the action space."""

    def measure(self) -> None:
        """Compute once what several of the methods below share; called whenever the worlds have changed. It must follow
        from the simulator and `state` alone. A small tensor costs microseconds, so a step should make few."""
        return None

    @abstractmethod
    def observe(self) -> Obs:
        """What can be seen: (n, ...), or a dict of such, of which entries that are not `delivered` may be left out."""

    @property
    def delivered(self) -> tuple[str, ...]:
        """Entries of a Dict observation that somebody sees, in their order."""
        if not self.obs_groups:
            return tuple(self.observation_space) if isinstance(self.observation_space, spaces.Dict) else ()
        seen = {name for group in (POLICY, *self.groups) for name in self.obs_groups.get(group, ())}
        return tuple(name for name in self.observation_space if name in seen)  # type: ignore[attr-defined]

    def observe_first(self, worlds: torch.Tensor) -> Obs:
        """What the worlds numbered `worlds` (k,) see as their episodes begin, (k, ...). A task that draws pictures
        should draw no others here."""
        return tree_map(lambda rows: rows.index_select(0, worlds), self.observe())

    @abstractmethod
    def reward(self, action: torch.Tensor) -> torch.Tensor:
        """(n,)"""

    @abstractmethod
    def terminated(self) -> torch.Tensor:
        """Worlds whose episode ended for good, (n,) bool. Running out of time is not the task's business."""

    def success(self) -> torch.Tensor | None:
        """Worlds that have achieved the goal in this episode, (n,) bool; None for a task that is never achieved."""
        return None

    def failed(self) -> torch.Tensor | None:
        """Worlds (n,) bool whose state means nothing any more, such as unstable physics; None if there is none."""
        return None

    def info(self) -> dict[str, torch.Tensor]:
        """Further figures to report, each (n,). Evaluations say what they are at an episode's end, on average, or how
        often, if it is yes or no; what those called "reward/NAME", the terms of the reward, come to in an episode; and
        how often what "NAME_per_minute" counts happens in a minute of the task's time."""
        return {}

    def scripted(self) -> torch.Tensor | None:
        """Actions (n, ...) of a machine that follows a plan without learning, to compare policies with."""
        return None

    def state(self) -> dict[str, torch.Tensor]:
        """Copies of the tensors in `keeps`."""
        return {name: getattr(self, name).clone() for name in self.keeps}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Put `state` back."""
        for name in self.keeps:
            getattr(self, name).copy_(state[name])

    def snapshot(self) -> dict[str, torch.Tensor]:
        """Copies of everything that decides the future of every world."""
        return {f"task.{name}": value for name, value in self.state().items()}

    def restore(self, snapshot: dict[str, torch.Tensor]) -> None:
        """Go back to `snapshot`."""
        self.load_state({name[5:]: value for name, value in snapshot.items() if name.startswith("task.")})

    def render(self, cameras: tuple[str, ...], height: int, width: int) -> torch.Tensor:
        """Pictures for people, uint8 (n, len(cameras), height, width, 3)."""
        raise UserError(f"env={self.name!r} draws no pictures; give its task a render method.")

    def close(self) -> None:
        """Give back threads and memory."""
        return None


class MujocoTask(Task):
    """A task on a MuJoCo model. It does not know which simulator runs it.

    The constructor builds `model` and the spaces; `bind` is given the simulator once and turns names into ids. To
    advance is to `act`, and let the physics run.
    """

    model: mujoco.MjModel
    substeps: int
    """Physics steps per step."""
    sim: Simulator
    shadows: bool = True
    """In pictures for people. Before cameras that stand still, films without come five times as fast
    (`kit.sim.render`)."""

    @property
    def control_dt_s(self) -> float:  # type: ignore[override]
        return self.substeps * float(self.model.opt.timestep)

    def build(self, n: int, device: str | torch.device, threads: int | None = None) -> None:
        self.bind(make_sim(self.model, n, device, threads))

    def bind(self, sim: Simulator) -> None:
        """Take the simulator; extend this to look up ids and to make the task's own per-world tensors."""
        self.sim, self.n, self.device, self.dtype = sim, sim.n, sim.device, sim.dtype

    @abstractmethod
    def act(self, action: torch.Tensor) -> None:
        """Write `action` (n, act), already inside the action space, to the simulator's inputs."""

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
