"""Curriculum: train on easier stages of a task first, and go on when the policy succeeds often enough.

    class MyTask(Task):
        curriculum = Curriculum(stages=3, at_least=0.8)

        def reset(self, mask, generator):
            far = 0.1 + 0.2 * self.stage  # stage: int64 tensor without dimensions, 0 to 2

    kit.train(env="my_tasks:MyTask", env_options={"curriculum": {"at_least": 0.9}})

`curriculum` is true (the default), false (train on the last stage from the start) or a mapping that changes `at_least`
and `episodes`. Domain randomisation (`kit.envs.randomize`) adds one stage at the end, the only one with randomised
episodes. Evaluations and videos use the last stage: the full task, randomised if randomisation is on. The stage is part
of the env's snapshot, so a resumed run continues exactly.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch

from kit.envs.obs import maybe_any
from kit.errors import UserError, check_names, check_whole

OPTION = "curriculum"
"""Name of this option in env_options."""
SHARES = ("success", "success_rate", "win_rate")
"""Measures that are at most 1."""
CHECK_EVERY = 16
"""Env steps between two decisions whether to go on. On a GPU, a decision (`_decide`) launches about a dozen
kernels, and counting the episodes that end in a step (`_count`) about five."""


@dataclasses.dataclass(frozen=True)
class Curriculum:
    """The number of stages, and when to go on to the next one."""

    stages: int = 2
    measure: str = "success"
    """Entry of the step's info that is measured when an episode ends: "success", or a metric of the task."""
    at_least: float = 0.8
    """Go on when the running mean of `measure` reaches this value, above 0. In training, actions have exploration
    noise."""
    episodes: int = 100
    """Window of the running mean, an exponential moving average with weight 1/episodes per episode. It is 0 when a
    stage starts, and is compared with `at_least` every `CHECK_EVERY` steps."""

    def __post_init__(self) -> None:
        value = self.at_least
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            what = f"curriculum at_least={value!r} must be a number above 0"
            raise UserError(f"{what}, such as 0.8, because the running mean of {self.measure!r} starts at 0.")


def chosen(env: str, own: Curriculum | None, option: Any) -> Curriculum | None:
    """Return `own`, the env's curriculum, with the changes in `option`, the value of env_options `curriculum`."""
    if option is False:
        return None
    if own is None:
        raise UserError(f"env_options curriculum={option!r}: env={env!r} has no curriculum; leave it out.")
    if option is True:
        return own
    if not isinstance(option, Mapping):
        raise UserError(f"env_options curriculum={option!r} must be true, false, or a mapping such as at_least: 0.9.")
    allowed = {"at_least": own.at_least, "episodes": own.episodes}
    check_names("env_options curriculum", option, "the curriculum", allowed)
    changed = dataclasses.replace(own, **option)
    check_whole("env_options curriculum episodes", changed.episodes, 1)
    return changed


def unfit(curriculum: Curriculum | None) -> str:
    """Return why no new run may have `curriculum`; "" if it may."""
    if curriculum is None or curriculum.at_least <= 1 or curriculum.measure not in SHARES:
        return ""
    share = f"{curriculum.measure!r} is a share of the episodes"
    return f"curriculum at_least={curriculum.at_least!r} is never reached, because {share}; set it to 1 at most."


class Stages:
    """The stage of a training env, and the running mean that decides when to go on."""

    def __init__(self, curriculum: Curriculum, stage: torch.Tensor, of_task: torch.Tensor, extra: int) -> None:
        """`stage`, `of_task`: stages of env and task, () int64, changed in place. `extra`: stages the env adds."""
        self._curriculum, self._stage, self._of_task = curriculum, stage, of_task
        self._last = curriculum.stages - 1 + extra
        self._mean = torch.zeros((), dtype=torch.float64, device=stage.device)
        self._sums = torch.zeros(2, dtype=torch.float64, device=stage.device)
        """Number of episodes since the last decision, and the sum of their measures."""
        self._steps = 0
        self._set(torch.zeros_like(stage))

    def _set(self, stage: torch.Tensor) -> None:
        self._stage.copy_(stage)
        self._of_task.copy_(stage.clamp(max=self._curriculum.stages - 1))

    def step(self, done: torch.Tensor, info: Mapping[str, Any]) -> None:
        """Count the episodes that ended in this step, `done` (n,) bool, with their `info` (n,); go on if it is time.

        Does not wait for a GPU.
        """
        self._steps += 1
        if maybe_any(done):
            self._count(done, info)
        if self._steps % CHECK_EVERY == 0:
            self._decide()

    def _count(self, done: torch.Tensor, info: Mapping[str, Any]) -> None:
        measure = self._curriculum.measure
        measures = torch.where(done, info[measure], 0).to(self._sums).nan_to_num(0.0)  # NaN: diverged physics
        self._sums += torch.stack([done.to(self._sums), measures]).sum(1)

    def _decide(self) -> None:
        ended, total = self._sums.unbind()
        mean = total / ended.clamp(min=1)
        keep = (1.0 - 1.0 / self._curriculum.episodes) ** ended
        self._mean.copy_(keep * self._mean + (1.0 - keep) * mean)
        goes_on = (self._mean >= self._curriculum.at_least) & (self._stage < self._last)
        self._set(self._stage + goes_on)
        self._mean.masked_fill_(goes_on, 0.0)
        self._sums.zero_()

    def state(self) -> dict[str, torch.Tensor]:
        steps = torch.tensor(self._steps)
        return {"stage": self._stage.clone(), "mean": self._mean.clone(), "sums": self._sums.clone(), "steps": steps}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        self._set(state["stage"])
        self._mean.copy_(state["mean"])
        self._sums.copy_(state["sums"])
        self._steps = int(state["steps"])
