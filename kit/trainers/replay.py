"""Off-policy data: a ring of the latest transitions of every world, as tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kit.envs.obs import Obs, from_leaves, leaves


@dataclass
class Transitions:
    """A batch of N: observed, did, was paid, saw next; `terminated` says that nothing follows."""

    obs: Obs
    actions: torch.Tensor
    rewards: torch.Tensor
    next_obs: Obs
    terminated: torch.Tensor


class Replay:
    """The last `capacity` rows; a row is one step of all `n_envs` worlds.

    Rows are numbered from the first one ever added; row `r` lies in slot `r % capacity`. Memory is claimed from the
    system as it is first written. A transition takes twice its observation, its action and 5 B more: of Reach 2 × 24
    and 7 numbers of 4 B, 0.23 GB for a million; of three 64×64 cameras in uint8 74 kB.
    """

    def __init__(self, capacity: int, n_envs: int, device: torch.device) -> None:
        self.capacity, self.n_envs, self.device = capacity, n_envs, device
        self.written = 0
        self.first = 0
        """The first row that is there: later than 0 where earlier ones were lost."""
        self._columns: dict[str, torch.Tensor] = {}

    def __len__(self) -> int:
        """Rows that can be sampled."""
        return min(self.written - self.first, self.capacity)

    def add(
        self, obs: Obs, actions: torch.Tensor, rewards: torch.Tensor, next_obs: Obs, terminated: torch.Tensor
    ) -> None:
        """Append one row: every argument has leading size `n_envs`. `next_obs` is what truly followed."""
        row = dict([*leaves("obs", obs), *leaves("next_obs", next_obs)])
        row |= {"actions": actions, "rewards": rewards, "terminated": terminated}
        slot = self.written % self.capacity
        for name, value in row.items():
            self._column(name, value)[slot] = value
        self.written += 1

    def sample(self, size: int) -> Transitions:
        """`size` transitions, drawn with replacement by torch's global generator."""
        index = torch.randint(len(self) * self.n_envs, (size,), device=self.device)
        if self.first and len(self) < self.capacity:  # they do not lie in front
            index = (index + self.first * self.n_envs) % (self.capacity * self.n_envs)
        drawn = {name: column.flatten(0, 1).index_select(0, index) for name, column in self._columns.items()}
        obs, next_obs = from_leaves("obs", drawn), from_leaves("next_obs", drawn)
        return Transitions(obs, drawn["actions"], drawn["rewards"], next_obs, drawn["terminated"])

    def rows(self, start: int, stop: int) -> dict[str, torch.Tensor]:
        """Copies of rows `start` to `stop` on the CPU: column name -> (stop - start, n_envs, ...)."""
        if not max(self.first, self.written - self.capacity) <= start <= stop <= self.written:
            raise ValueError(f"rows {start} to {stop} are not all among the last {len(self)} of {self.written}")
        slots = torch.arange(start, stop, device=self.device) % self.capacity
        return {name: column.index_select(0, slots).cpu() for name, column in self._columns.items()}

    def load(self, rows: dict[str, torch.Tensor], start: int) -> None:
        """Put `rows` (as from `rows()`, the first one numbered `start`) back; `written` says which still count."""
        stop = start + len(rows["rewards"])
        first, last = max(start, self.written - self.capacity), min(stop, self.written)
        slots = torch.arange(first, max(first, last), device=self.device) % self.capacity
        for name, value in rows.items():
            kept = value[first - start : first - start + len(slots)].to(self.device)
            self._column(name, value[0]).index_copy_(0, slots, kept)

    def forget(self) -> None:
        """Nothing that was written so far is there any more."""
        self.first = self.written

    def _column(self, name: str, row: torch.Tensor) -> torch.Tensor:
        if name not in self._columns:
            shape = (self.capacity, *row.shape)
            self._columns[name] = torch.empty(shape, dtype=row.dtype, device=self.device)  # empty: nothing touched yet
        return self._columns[name]
