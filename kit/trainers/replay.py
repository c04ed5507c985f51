"""Off-policy data: a ring of the latest transitions of every world, as tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kit.trainers.rollout import Obs


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
    system as it is first written. A Reach transition takes 2 × 4 B for each number observed (24), 4 B for each of
    7 actions and 5 B more: 0.23 GB for a million.
    """

    def __init__(self, capacity: int, n_envs: int, device: torch.device) -> None:
        self.capacity, self.n_envs, self.device = capacity, n_envs, device
        self.written = 0
        self._columns: dict[str, torch.Tensor] = {}

    def __len__(self) -> int:
        """Rows that can be sampled."""
        return min(self.written, self.capacity)

    def add(
        self, obs: Obs, actions: torch.Tensor, rewards: torch.Tensor, next_obs: Obs, terminated: torch.Tensor
    ) -> None:
        """Append one row: every argument has leading size `n_envs`. `next_obs` is what truly followed."""
        row = {**_named("obs", obs), **_named("next_obs", next_obs)}
        row |= {"actions": actions, "rewards": rewards, "terminated": terminated}
        slot = self.written % self.capacity
        for name, value in row.items():
            self._column(name, value)[slot] = value
        self.written += 1

    def sample(self, size: int) -> Transitions:
        """`size` transitions, drawn with replacement by torch's global generator."""
        index = torch.randint(len(self) * self.n_envs, (size,), device=self.device)
        drawn = {name: column.flatten(0, 1).index_select(0, index) for name, column in self._columns.items()}
        return Transitions(
            _unnamed("obs", drawn), drawn["actions"], drawn["rewards"], _unnamed("next_obs", drawn), drawn["terminated"]
        )

    def rows(self, start: int, stop: int) -> dict[str, torch.Tensor]:
        """Copies of rows `start` to `stop` on the CPU: column name -> (stop - start, n_envs, ...)."""
        if not max(0, self.written - self.capacity) <= start <= stop <= self.written:
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

    def _column(self, name: str, row: torch.Tensor) -> torch.Tensor:
        if name not in self._columns:
            shape = (self.capacity, *row.shape)
            self._columns[name] = torch.empty(shape, dtype=row.dtype, device=self.device)  # empty: nothing touched yet
        return self._columns[name]


def _named(name: str, obs: Obs) -> dict[str, torch.Tensor]:
    """Columns for observations: "obs", or "obs.<key>" for each key of a Dict space."""
    return {f"{name}.{key}": value for key, value in obs.items()} if isinstance(obs, dict) else {name: obs}


def _unnamed(name: str, columns: dict[str, torch.Tensor]) -> Obs:
    if name in columns:
        return columns[name]
    return {key[len(name) + 1 :]: value for key, value in columns.items() if key.startswith(name + ".")}
