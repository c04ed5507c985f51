"""The loop that plays a policy in an env: hidden state, episode starts, counting of whole episodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import torch

from kit.envs.contract import BatchEnv, Info
from kit.envs.obs import Obs, select
from kit.errors import UserError

LONGEST_EPISODE = 108_000
"""`ending` raises an error if no episode ends within this many steps. The longest Atari episode has 108,000 frames."""
HiddenState = tuple[torch.Tensor, ...]
"""Hidden state of a recurrent policy: tensors (n, ...); empty for other policies."""


@runtime_checkable
class Player(Protocol):
    """Policy interface: (obs, hidden_state) -> (action, hidden_state), deterministic or stochastic."""

    def initial_state(self, n: int) -> HiddenState:
        """Return the hidden state at the start of an episode, for `n` envs."""

    def __call__(self, obs: Obs, hidden_state: HiddenState, /) -> tuple[torch.Tensor, HiddenState]:
        """Return actions (n, ...) for `obs` (n, ...), and the next hidden state."""


class Stateless:
    """A player without hidden state, from a function (observation -> action)."""

    def __init__(self, act: Callable[[Any], torch.Tensor]) -> None:
        self._act = act

    def initial_state(self, n: int) -> HiddenState:
        return ()

    def __call__(self, obs: Obs, hidden_state: HiddenState, /) -> tuple[torch.Tensor, HiddenState]:
        return self._act(obs), hidden_state


class Transition(NamedTuple):
    """One step of all envs."""

    obs: Obs
    """(n, ...): the observation given to the player, together with `hidden_state`."""
    hidden_state: HiddenState
    """The hidden state given to the player; the initial state where `episode_starts` is True."""
    episode_starts: torch.Tensor
    """(n,) bool: this step is the first of its episode."""
    action: torch.Tensor
    next_obs: Obs
    """(n, ...): the observation after the step; where an episode ended, the first of the next episode."""
    reward: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    info: Info
    ended: torch.Tensor
    """(n,) bool: this step ends an episode that counts (see `play`)."""


def play(env: BatchEnv, player: Player, obs: Obs, episodes: float = math.inf) -> Iterator[Transition]:
    """Step `env` with the actions of `player`, starting from `obs`, the result of `env.reset`.

    Ends when every env has finished `episodes` episodes. Only the first `episodes` episodes of each env count
    (`Transition.ended`), so that short episodes are not overrepresented.
    """
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


def ending(steps: Iterator[Transition], name: str, episode_steps: int) -> Iterator[Transition]:
    """Yield `steps` of the env `name`; raise `UserError` if no episode ends within `LONGEST_EPISODE` steps.

    `episode_steps`: the env's own time limit, if that is longer.
    """
    limit, since_end = max(LONGEST_EPISODE, episode_steps), 0
    for step in steps:
        since_end = 0 if bool(step.ended.any()) else since_end + 1
        if since_end > limit:
            raise UserError(
                f"no episode of env={name!r} ended within {limit:,} steps; give it a time limit, such as "
                "max_episode_steps in gymnasium.register."
            )
        yield step


def restart(player: Player, hidden_state: HiddenState, episode_starts: torch.Tensor) -> HiddenState:
    """Replace `hidden_state` by the initial state where `episode_starts` (n,) is True."""
    states = zip(player.initial_state(len(episode_starts)), hidden_state, strict=True)
    return tuple(cast(torch.Tensor, select(episode_starts.to(old.device), new, old)) for new, old in states)
