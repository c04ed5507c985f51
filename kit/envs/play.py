"""The loop in which a policy acts in an env: hidden state, episode starts, whole episodes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple, Protocol, cast, runtime_checkable

import torch

from kit.envs.contract import BatchEnv, Info
from kit.envs.obs import Obs, select

HiddenState = tuple[torch.Tensor, ...]
"""A hidden state: tensors (n, ...) with the envs in front, none if the policy is not recurrent."""


@runtime_checkable
class Player(Protocol):
    """A policy without noise or with it, recurrent or not."""

    def initial_state(self, n: int) -> HiddenState:
        """The hidden state with which episodes of `n` envs start."""

    def __call__(self, obs: Obs, hidden_state: HiddenState, /) -> tuple[torch.Tensor, HiddenState]:
        """Actions (n, ...) for `obs` (n, ...), and the hidden state afterwards."""


class Transition(NamedTuple):
    """One step of every env."""

    obs: Obs
    """(n, ...); with `hidden_state` what the player was given."""
    hidden_state: HiddenState
    """That of envs in `episode_starts` is new."""
    episode_starts: torch.Tensor
    """(n,) bool: the first step of an episode."""
    action: torch.Tensor
    next_obs: Obs
    """(n, ...), of finished envs the first of their next episode."""
    reward: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    info: Info
    ended: torch.Tensor
    """(n,) bool: the last step of one of the episodes that count."""


def play(env: BatchEnv, player: Player, obs: Obs, episodes: float = math.inf) -> Iterator[Transition]:
    """Step `env` with the actions of `player`, from `obs`, which `env.reset` gave. Ends when every env has finished
    `episodes`: these count, the same number of each, so that short ones do not count more often."""
    n = env.num_envs
    hidden_state, episode_starts = player.initial_state(n), torch.ones(n, dtype=torch.bool, device=env.device)
    finished = torch.zeros(n, dtype=torch.long, device=env.device)
    while bool((finished < episodes).any()):
        hidden_state = restart(player, hidden_state, episode_starts)
        action, after = player(obs, hidden_state)
        next_obs, reward, terminated, truncated, info = env.step(action)
        done = terminated | truncated
        ended = done & (finished < episodes)
        yield Transition(
            obs, hidden_state, episode_starts, action, next_obs, reward, terminated, truncated, info, ended
        )
        obs, hidden_state, episode_starts = next_obs, after, done
        finished += ended


def restart(player: Player, hidden_state: HiddenState, episode_starts: torch.Tensor) -> HiddenState:
    """`hidden_state` with that of the envs in `episode_starts` (n,) bool as new."""
    states = zip(player.initial_state(len(episode_starts)), hidden_state, strict=True)
    return tuple(cast(torch.Tensor, select(episode_starts.to(now.device), new, now)) for new, now in states)
