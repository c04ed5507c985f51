"""What a task is: a model, and what is acted, seen, rewarded and drawn anew, as batched torch functions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import mujoco
import torch

from kit.sim import Simulator


class Share(NamedTuple):
    """Which of a run's worlds are in this process: those from `first` on, of `total` in all processes together."""

    first: int
    total: int


def may_have(mask: torch.Tensor) -> bool:
    """Whether any of `mask` is true, on the CPU; asking a GPU takes longer than work on nothing, so there: yes."""
    return mask.device.type != "cpu" or bool(mask.any())


class Task(ABC):
    """One robot task for `n` worlds at once. It does not know which simulator runs it.

    The constructor builds `model` and the spaces; `bind` is given the simulator once and turns names into ids. From
    then on every method works on tensors of leading size n on the simulator's device, in this order per control step:

        act(action) -> physics -> measure() -> observe(), reward(action), terminated(), success(), info()
                                            -> where an episode ended: reset(done), measure(), observe()
    """

    name: str
    model: mujoco.MjModel
    substeps: int
    """Physics steps per control step."""
    episode_steps: int
    """Control steps after which an episode is cut (truncated)."""
    cameras: tuple[str, ...]
    """Names of the model's cameras worth looking through; the first is the default view."""
    observation_space: gymnasium.spaces.Box
    """Of one world, as are all spaces here."""
    action_space: gymnasium.spaces.Box

    sim: Simulator
    share: Share | None = None
    """Set where other processes have the rest of the run's worlds."""

    @property
    def control_dt_s(self) -> float:
        """Seconds per control step."""
        return self.substeps * float(self.model.opt.timestep)

    def bind(self, sim: Simulator) -> None:
        """Take the simulator; extend this to look up ids and to make the task's own per-world tensors."""
        self.sim = sim

    @abstractmethod
    def reset(self, mask: torch.Tensor, generator: torch.Generator) -> None:
        """Begin new episodes in the worlds of `mask` (n,) bool. Draw random numbers at full width, with `draw`, so that
        what one world gets does not depend on how many others begin with it, or are in this process."""

    def draw(self, function: Callable[..., torch.Tensor], shape: tuple[int, ...], **options: Any) -> torch.Tensor:
        """`function(shape, **options)`, such as torch.rand, of `shape` (n, ...). Where the run's worlds are shared out,
        every process draws for all of them and keeps its own rows: the same numbers as one process would give them."""
        if self.share is None:
            return function(shape, **options)
        first, total = self.share
        return function((total, *shape[1:]), **options)[first : first + shape[0]]

    @abstractmethod
    def act(self, action: torch.Tensor) -> None:
        """Write `action` (n, act), already inside the action space, to the simulator's inputs."""

    def measure(self) -> None:
        """Compute once what several of the methods below share; called whenever the physics has changed. It must follow
        from the simulator and `state` alone. A small tensor costs microseconds, so a step should make few."""
        return None

    @abstractmethod
    def observe(self) -> torch.Tensor:
        """What the policy sees, (n, obs)."""

    @abstractmethod
    def reward(self, action: torch.Tensor) -> torch.Tensor:
        """(n,)"""

    @abstractmethod
    def terminated(self) -> torch.Tensor:
        """Worlds whose episode ended for good, (n,) bool. Running out of time is not the task's business."""

    def success(self) -> torch.Tensor | None:
        """Worlds that have achieved the goal in this episode, (n,) bool; None for a task that is never achieved."""
        return None

    def info(self) -> dict[str, torch.Tensor]:
        """Further figures to report, each (n,)."""
        return {}

    def state(self) -> dict[str, torch.Tensor]:
        """Copies of the task's own per-world tensors that outlive a control step, such as the goal."""
        return {}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Put `state` back."""
        return None
