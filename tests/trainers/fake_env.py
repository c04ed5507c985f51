"""A small tensor env, and helpers that build trainers on it and compare them with SB3's."""

from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.logger import KVWriter, Logger

from kit.config import RunConfig
from kit.envs.contract import BatchEnv
from kit.trainers import Trainer, make_trainer


class FakeEnv(BatchEnv):
    """Env in which actions push a point; the reward is minus its distance to the origin.

    An episode terminates within 0.3 of the origin and is truncated after `limit` steps. A reset draws a random start.
    """

    control_dt_s = 0.05

    def __init__(self, num_envs: int = 4, limit: int = 20, act: int = 2, action_space: spaces.Space | None = None):
        self.num_envs, self.device, self.limit = num_envs, torch.device("cpu"), limit
        self.episode_steps = limit
        self.observation_space = spaces.Box(-10, 10, (act + 1,))
        self.action_space = action_space or spaces.Box(-1, 1, (act,))
        self.generator = torch.Generator()
        self.place, self.total, self.steps = torch.zeros(num_envs, act), torch.zeros(num_envs), torch.zeros(num_envs)

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

    def step(self, action: torch.Tensor) -> Any:
        if not isinstance(self.action_space, spaces.Box):  # discrete: the first number minus 1 pushes along all axes
            action = torch.stack([action.reshape(self.num_envs, -1)[:, 0] - 1.0] * self.place.shape[1], 1)
        self.place = self.place + 0.3 * action.clamp(-1, 1)
        self.steps, reward = self.steps + 1, -self.place.norm(dim=1)
        self.total = self.total + reward
        terminated = reward > -0.3
        truncated = (self.steps >= self.limit) & ~terminated
        info = {"final_obs": self._obs(), "success": terminated}
        info |= {"episode_return": self.total, "episode_length": self.steps.long()}
        self._begin(terminated | truncated)
        return self._obs(), reward, terminated, truncated, info

    def snapshot(self) -> dict[str, torch.Tensor]:
        worlds = {name: getattr(self, name).clone() for name in ("place", "total", "steps")}
        return {**worlds, "generator": self.generator.get_state()}

    def restore(self, snapshot: dict[str, torch.Tensor]) -> None:
        self.place, self.total, self.steps = (snapshot[name].clone() for name in ("place", "total", "steps"))
        self.generator.set_state(snapshot["generator"])

    def render(self, cameras: Any = None, height: int = 240, width: int = 320) -> torch.Tensor:
        return torch.zeros(self.num_envs, 1, height, width, 3, dtype=torch.uint8)

    def close(self) -> None:
        pass


class GoalEnv(FakeEnv):
    """A `FakeEnv` with goals: the reward is 0 within 0.3 of a random goal, else -1; episodes are only truncated."""

    def __init__(self, num_envs: int = 4, limit: int = 20) -> None:
        self.goal = torch.zeros(num_envs, 2)
        super().__init__(num_envs, limit)
        point = spaces.Box(-10, 10, (2,))
        self.observation_space = spaces.Dict(
            {"observation": self.observation_space, "achieved_goal": point, "desired_goal": point}
        )

    def _begin(self, worlds: torch.Tensor) -> None:
        super()._begin(worlds)
        goal = torch.rand(self.goal.shape, generator=self.generator) * 4 - 2
        self.goal = torch.where(worlds[:, None], goal, self.goal)

    def _obs(self) -> Any:
        return {"desired_goal": self.goal, "achieved_goal": self.place, "observation": super()._obs()}

    def compute_reward(self, achieved_goal: torch.Tensor, desired_goal: torch.Tensor) -> torch.Tensor:
        return -((achieved_goal - desired_goal).norm(dim=1) > 0.3).float()

    def step(self, action: torch.Tensor) -> Any:
        self.place = self.place + 0.3 * action.clamp(-1, 1)
        self.steps, reward = self.steps + 1, self.compute_reward(self.place, self.goal)
        self.total = self.total + reward
        truncated = self.steps >= self.limit
        info = {"final_obs": self._obs(), "success": reward == 0}
        info |= {"episode_return": self.total, "episode_length": self.steps.long()}
        self._begin(truncated)
        return self._obs(), reward, torch.zeros_like(truncated), truncated, info

    def snapshot(self) -> dict[str, torch.Tensor]:
        return {**super().snapshot(), "goal": self.goal.clone()}

    def restore(self, snapshot: dict[str, torch.Tensor]) -> None:
        super().restore(snapshot)
        self.goal = snapshot["goal"].clone()


def trainer(algo: str, env: Any = None, seed: int = 0, **overrides: Any) -> Trainer:
    """Return a trainer of `algo` with small hyperparameters, on `env` or a `FakeEnv`."""
    small: dict[str, dict[str, Any]] = {
        "PPO": {"n_steps": 16, "batch_size": 32, "n_epochs": 2},
        "RecurrentPPO": {"n_steps": 16, "batch_size": 32, "n_epochs": 2, "policy_kwargs": {"lstm_hidden_size": 8}},
        "A2C": {},
        "SAC": {"learning_starts": 40, "policy_kwargs": {"net_arch": [32, 32]}, "batch_size": 64},
        "CrossQ": {"learning_starts": 40, "policy_kwargs": {"net_arch": [32, 32]}, "batch_size": 64},
        "TD3": {"learning_starts": 40, "policy_kwargs": {"net_arch": [32, 32]}, "batch_size": 64},
    }
    env = env or FakeEnv()
    config = RunConfig(
        algo=algo, n_envs=env.num_envs, seed=seed, device="cpu", overrides={**small[algo], **overrides}, threads=1
    )
    return make_trainer(config, env)


class Rows(KVWriter):
    """Logger output that keeps every row, without the wall-clock columns (time/)."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, Any], step: int = 0) -> None:
        self.rows.append({"step": step, **{k: v for k, v in key_values.items() if not k.startswith("time/")}})


def rows_of(model: Any) -> list[dict[str, Any]]:
    """Return a list to which `model` adds every row that it logs from now on."""
    rows = Rows()
    model.set_logger(Logger(folder=None, output_formats=[rows]))
    return rows.rows


def share_rollout(ours: Any, stock: Any) -> None:
    """Copy the rollout of `ours` to SB3's model `stock`, change the weights of `ours` and copy them too."""
    ours._compute_returns()
    ours._log_now = True
    with torch.no_grad():  # change the weights after the rollout, so that ratios differ from 1
        for p in ours.policy.parameters():
            p.add_(0.02 * torch.randn_like(p))
    stock.policy.load_state_dict(ours.policy.state_dict())
    theirs, rollout = stock.rollout_buffer, ours.rollout_buffer
    for name in ("values", "log_probs", "advantages", "returns", "rewards"):
        getattr(theirs, name)[:] = getattr(rollout, name).numpy()
    theirs.observations[:] = rollout.obs.numpy()
    theirs.actions[:] = rollout.actions.reshape(ours.n_steps, ours.n_envs, -1).numpy()
    theirs.full = True
