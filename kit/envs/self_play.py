"""Self-play: a pool of the learning policy's own earlier versions, as opponents of a game.

The pool grows while training: every `every` env steps it gets a copy of the policy. When it is full, every second
member is dropped and `every` doubles, so that its members are always spread evenly over the training, the first one
included. The pool is part of the env's snapshot, so a resumed run meets the same opponents.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

from kit.envs.obs import Obs

SIZE, EVERY = 8, 1_000_000
"""Most members of a pool, and env steps between two additions at first."""
SCALING = "normalizer."


class Pool:
    """Copies of the policy: modules that map observations (rows, ...) to actions (rows, ...), as `Player`."""

    def __init__(self, size: int = SIZE, every: int = EVERY) -> None:
        self.members: list[Any] = []
        """The oldest first."""
        self._size, self._every, self._next = size, every, every
        self._template: Any = None

    def learn_from(self, player: Any, step: int) -> bool:
        """Add a copy of `player` if it is due at env step `step`; return whether it was added.

        Call it once before `load_state`, which needs a player of the same kind.
        """
        if self._template is None:
            self._template = _copy(player)
        if step < self._next:
            return False
        if len(self.members) == self._size:
            self.members, self._every = self.members[::2], 2 * self._every
        self.members.append(_copy(player))
        self._next = step + self._every
        return True

    def act(self, member: int, obs: Obs) -> torch.Tensor:
        """Return the actions of a member for `obs` (rows, ...)."""
        action: torch.Tensor = self.members[member](obs, ())[0]
        return action

    def state(self) -> dict[str, torch.Tensor]:
        """Return counters and weights, always for `size` members; those that are missing have the first weights."""
        if self._template is None:
            return {}
        slots = [*self.members, *[self._template] * (self._size - len(self.members))]
        weights = {f"{i}.{name}": x.clone() for i, slot in enumerate(slots) for name, x in _weights(slot).items()}
        return {"counters": torch.tensor([len(self.members), self._every, self._next]), **weights}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Load the result of `state`."""
        count, self._every, self._next = (int(x) for x in state["counters"])
        self.members = [_copy(self._template) for _ in range(count)]
        for i, member in enumerate(self.members):
            own = {name.removeprefix(f"{i}."): x for name, x in state.items() if name.startswith(f"{i}.")}
            for name, value in member.state_dict().items():
                value.copy_(own[name])
            if member.normalizer is not None:
                saved = {name.removeprefix(SCALING): x for name, x in own.items() if name.startswith(SCALING)}
                member.normalizer.load_state({k: x.item() if x.ndim == 0 else x for k, x in saved.items()}, True)


def _copy(player: Any) -> Any:
    """Return a copy of `player` without its optimizer."""
    optimizer = player.policy.optimizer
    player.policy.optimizer = None
    try:
        return copy.deepcopy(player).requires_grad_(False)
    finally:
        player.policy.optimizer = optimizer


def _weights(player: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a player: weights, buffers, and its normaliser's statistics."""
    scaling = {} if player.normalizer is None else player.normalizer.state()
    return {**player.state_dict(), **{f"{SCALING}{name}": torch.as_tensor(value) for name, value in scaling.items()}}
