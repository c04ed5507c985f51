"""A tensor env in thirty lines: a point is pushed towards the origin of a plane."""

import torch
from gymnasium import spaces


class FakeEnv:
    """Reaching the origin ends the episode; so does its 20th step. Reset draws a new start."""

    snapshots = True

    def __init__(self, num_envs: int = 4, seed: int = 0, limit: int = 20, act: int = 2) -> None:
        self.num_envs, self.device, self.dtype, self.limit = num_envs, torch.device("cpu"), torch.float32, limit
        self.observation_space = spaces.Box(-10, 10, (act + 1,))
        self.action_space = spaces.Box(-1, 1, (act,))
        self.generator = torch.Generator()
        self.place, self.total, self.steps = torch.zeros(num_envs, act), torch.zeros(num_envs), torch.zeros(num_envs)
        self.reset(seed)

    def reset(self, seed: int | None = None) -> torch.Tensor:
        if seed is not None:
            self.generator.manual_seed(seed)
        self._begin(torch.ones(self.num_envs, dtype=torch.bool))
        return self._obs()

    def _begin(self, worlds: torch.Tensor) -> None:
        start = torch.rand(self.place.shape, generator=self.generator) * 4 - 2
        self.place = torch.where(worlds[:, None], start, self.place)
        self.total, self.steps = self.total.masked_fill(worlds, 0), self.steps.masked_fill(worlds, 0)

    def _obs(self) -> torch.Tensor:
        return torch.cat([self.place, self.steps[:, None] / self.limit], 1)

    def step(self, action: torch.Tensor):
        self.place = self.place + 0.3 * action.clamp(-1, 1)
        self.steps, reward = self.steps + 1, -self.place.norm(dim=1)
        self.total = self.total + reward
        terminated = reward > -0.3
        truncated = (self.steps >= self.limit) & ~terminated
        info = {"final_obs": self._obs(), "success": terminated, "episode_return": self.total, "episode_length": self.steps.long()}
        self._begin(terminated | truncated)
        return self._obs(), reward, terminated, truncated, info

    def snapshot(self) -> dict[str, torch.Tensor]:
        worlds = {name: getattr(self, name).clone() for name in ("place", "total", "steps")}
        return {**worlds, "generator": self.generator.get_state()}

    def restore(self, snapshot: dict[str, torch.Tensor]) -> None:
        self.place, self.total, self.steps = (snapshot[name].clone() for name in ("place", "total", "steps"))
        self.generator.set_state(snapshot["generator"])

    def close(self) -> None:
        pass
