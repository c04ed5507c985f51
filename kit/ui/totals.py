"""Reward terms of a step, and their sums over the running episode of each env."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kit.envs.contract import TERM
from kit.envs.play import Transition


def reward_terms(reward: torch.Tensor, info: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the reward (n,) of a step of n envs, as "reward", and its terms (n,) by name."""
    return {"reward": reward} | {name.removeprefix(TERM): x for name, x in info.items() if name.startswith(TERM)}


class Totals:
    """Episode number, steps, sums of the reward terms, and last outcome, of each of `n` envs.

    `episode`: number of the first episode.
    """

    def __init__(self, n: int, episode: int) -> None:
        self.episode = torch.full((n,), episode)
        self._started = False
        self._steps = torch.zeros(n, dtype=torch.long)
        self._outcome = [""] * n
        self.action = torch.zeros(n, 0)
        self.step: dict[str, torch.Tensor] = {}
        """Reward terms of the last step, name -> (n,)."""
        self.total: dict[str, torch.Tensor] = {}
        """Their sums over the episode so far, name -> (n,)."""
        self.most = [0.0, 0.0]
        """Largest absolute values in `step` and in `total` so far."""

    def add(self, transition: Transition) -> None:
        """Add one step of all envs."""
        self.episode += transition.episode_starts & self._started
        self._started = True
        self._steps, self.action = transition.info["episode_length"], transition.action
        self.step = reward_terms(transition.reward, transition.info)
        for name, value in self.step.items():
            before = self.total.get(name, torch.zeros_like(value))
            self.total[name] = value + torch.where(transition.episode_starts, 0.0, before)
        for i, values in enumerate((self.step, self.total)):
            self.most[i] = max(self.most[i], *(float(value.abs().max()) for value in values.values()))
        if "success" in transition.info:
            for i in transition.ended.nonzero().flatten().tolist():
                self._outcome[i] = "success" if transition.info["success"][i] else "no success"

    def caption(self, env: int) -> str:
        """Return episode, step, return and last outcome of an env, as Markdown."""
        total = float(self.total["reward"][env]) if self.total else 0.0
        last = f"; last episode: **{self._outcome[env]}**" if self._outcome[env] else ""
        return f"episode {self.episode[env]}, step {self._steps[env]}, return {total:.2f}{last}"
