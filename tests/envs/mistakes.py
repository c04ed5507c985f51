"""Correct tasks, and tasks and Gymnasium envs that each contain one typical mistake."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from kit.envs import Task
from kit.envs.curriculum import Curriculum
from tests.envs.corridor import Walk


class Limitless(Task):
    """`Good` without a time limit."""

    keeps = ("x",)
    control_dt_s = 0.1

    def __init__(self) -> None:
        self.observation_space: spaces.Space = spaces.Box(-2, 2, (1,))
        self.action_space = spaces.Box(-1, 1, (1,))

    def build(self, n: int, device: str | torch.device, threads: int | None = None) -> None:
        super().build(n, device)
        self.x = torch.zeros(n, 1)

    def reset(self, mask: torch.Tensor, generator: torch.Generator) -> None:
        self.x.copy_(torch.where(mask[:, None], torch.rand(self.n, 1, generator=generator) - 0.5, self.x))

    def advance(self, action: torch.Tensor) -> None:
        self.x.add_(0.1 * action).clamp_(-2, 2)

    def observe(self) -> torch.Tensor:
        return self.x.clone()

    def reward(self, action: torch.Tensor) -> torch.Tensor:
        return -self.x.abs()[:, 0]

    def terminated(self) -> torch.Tensor:
        return self.x[:, 0] > 1


class Good(Limitless):
    """Correct task: an action moves a point on a line; the reward is higher closer to 0."""

    episode_steps = 30


class Needy(Good):
    def __init__(self, length: int) -> None:
        super().__init__()


class Misnamed(Good):
    keeps = ("y",)


class Column(Good):
    def reward(self, action: torch.Tensor) -> torch.Tensor:
        return -self.x.abs()


class Scalar(Good):
    def reward(self, action: torch.Tensor) -> torch.Tensor:
        return -self.x.abs().mean()


class Numpy(Good):
    def reward(self, action: torch.Tensor) -> torch.Tensor:
        return (-self.x.abs()[:, 0]).numpy()  # type: ignore[return-value]


class Float(Good):
    def terminated(self) -> torch.Tensor:
        return (self.x[:, 0] > 1).float()


class Wide(Good):
    def observe(self) -> torch.Tensor:
        return torch.cat([self.x, self.x], 1)


class Converted(Good):
    """Not a mistake: dtypes that kit converts."""

    def observe(self) -> torch.Tensor:
        return self.x.double()

    def reward(self, action: torch.Tensor) -> torch.Tensor:
        return super().reward(action).long()


class Whole(Good):
    def observe(self) -> torch.Tensor:
        return self.x.long()


class Keyless(Good):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict({"x": self.observation_space, "speed": self.observation_space})

    def observe(self) -> dict[str, torch.Tensor]:  # type: ignore[override]
        return {"x": self.x.clone()}


class Late(Good):
    """Its reward is NaN where x > 0.6; episodes start at x < 0.5, so NaN comes after some steps."""

    def reward(self, action: torch.Tensor) -> torch.Tensor:
        return (0.6 - self.x[:, 0]).sqrt()


class Soon(Good):
    """Its reward is NaN after a few steps, while the check still plays all steps twice to compare them."""

    def reward(self, action: torch.Tensor) -> torch.Tensor:
        return (0.52 - self.x[:, 0].abs()).sqrt()


class Rare(Good):
    """Its reward is NaN in the last step of an episode."""

    keeps = ("x", "age")

    def build(self, n: int, device: str | torch.device, threads: int | None = None) -> None:
        super().build(n, device)
        self.age = torch.zeros(n, 1)

    def reset(self, mask: torch.Tensor, generator: torch.Generator) -> None:
        super().reset(mask, generator)
        self.age.masked_fill_(mask[:, None], 0.0)

    def advance(self, action: torch.Tensor) -> None:
        super().advance(action)
        self.age.add_(1)

    def reward(self, action: torch.Tensor) -> torch.Tensor:
        return torch.where(self.age[:, 0] < self.episode_steps, 0.0, torch.nan)


class Forgets(Good):
    keeps = ()


class ForgetsGoal(Good):
    """It draws a goal at the start of each episode, which `keeps` does not name."""

    def build(self, n: int, device: str | torch.device, threads: int | None = None) -> None:
        super().build(n, device)
        self.goal = torch.zeros(n)

    def reset(self, mask: torch.Tensor, generator: torch.Generator) -> None:
        super().reset(mask, generator)
        self.goal.copy_(torch.where(mask, torch.rand(self.n, generator=generator), self.goal))

    def reward(self, action: torch.Tensor) -> torch.Tensor:
        return -(self.x[:, 0] - self.goal).abs()


class Own(Good):
    def reset(self, mask: torch.Tensor, generator: torch.Generator) -> None:
        self.x.copy_(torch.where(mask[:, None], torch.rand(self.n, 1) - 0.5, self.x))


class All(Good):
    def reset(self, mask: torch.Tensor, generator: torch.Generator) -> None:
        self.x.copy_(torch.rand(self.n, 1, generator=generator) - 0.5)


class Few(Good):
    def reset(self, mask: torch.Tensor, generator: torch.Generator) -> None:
        self.x[mask] = torch.rand(int(mask.sum()), 1, generator=generator) - 0.5


class Narrow(Good):
    def advance(self, action: torch.Tensor) -> None:
        self.x.add_(3 * action)


class Timeless(Good):
    episode_steps = 0


class Totals(Good):
    def info(self) -> dict[str, torch.Tensor]:
        return {"episode_return": self.x[:, 0]}


class Unmeasured(Good):
    curriculum = Curriculum(measure="sucess")

    def success(self) -> torch.Tensor:
        return self.terminated()


class Named(Good):
    """Its action is a Dict."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Dict({"x": self.action_space})  # type: ignore[assignment]


class Misspelt(Good):
    score = "mean_retrun"


class NoSuccess(Good):
    score = "success_rate"


class Unbounded(Good):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(-np.inf, np.inf, (1,))


class Goals(Good):
    """Correct task with goals: the reward is minus the distance of x from 0.5."""

    def __init__(self) -> None:
        one = spaces.Box(-2, 2, (1,))
        super().__init__()
        self.observation_space = spaces.Dict({"observation": one, "achieved_goal": one, "desired_goal": one})

    def observe(self) -> dict[str, torch.Tensor]:  # type: ignore[override]
        goal = torch.full_like(self.x, 0.5)
        return {"observation": self.x.clone(), "achieved_goal": self.x.clone(), "desired_goal": goal}

    def reward(self, action: torch.Tensor) -> torch.Tensor:
        return -(self.x - 0.5).abs()[:, 0]

    def compute_reward(self, achieved_goal: torch.Tensor, desired_goal: torch.Tensor) -> torch.Tensor:
        return -(achieved_goal - desired_goal).abs()[:, 0]


class OtherGoalReward(Goals):
    def compute_reward(self, achieved_goal: torch.Tensor, desired_goal: torch.Tensor) -> torch.Tensor:
        return -2 * super().compute_reward(achieved_goal, desired_goal)


class WideGoalReward(Goals):
    def compute_reward(self, achieved_goal: torch.Tensor, desired_goal: torch.Tensor) -> torch.Tensor:
        return -(achieved_goal - desired_goal).abs()


class Leaky(gymnasium.Env):
    """Gymnasium env that counts its steps; at step 40, the observation is NaN, or with `reward=True` the reward is."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, reward: bool = False) -> None:
        self.reward = reward

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        value = np.nan if self.steps == 40 else self.steps
        return np.full(1, 0 if self.reward else value, np.float32), float(value * self.reward), False, False, {}


class Longer(Leaky):
    """Gymnasium env whose observation has one number more than its space."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros(2, np.float32), super().reset(seed=seed)[1]


class Shortened(gymnasium.Wrapper):
    """`Longer` as a wrapper puts it right: no mistake."""

    def __init__(self) -> None:
        super().__init__(Longer())

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        obs, info = super().reset(seed=seed)
        return obs[:1], info


class Lone(Leaky):
    """Gymnasium env whose step returns a single number for an observation of three."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return np.zeros(3, np.float32), super().reset(seed=seed)[1]

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return 0.5, *super().step(action)[1:]  # type: ignore[return-value]


class Old(Leaky):
    """Gymnasium env whose step returns four values, as those of OpenAI Gym did."""

    def step(self, action: int) -> Any:
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, info


class Endless(Walk):
    """The corridor without an end."""

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        return super().step(action)[0], 0.0, False, False, {}
