"""Record the last second before the physics of an env diverges: states, actions and randomised values.

The vectorised env used for training keeps the recent states of its envs in memory. When one diverges (`Task.failed`),
`take` returns its last second. The training process writes it to the run (`kit.runs.divergence`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from kit.envs.randomize import Randomizer
    from kit.sim import Simulator

SECONDS = 1.0
"""Length of a recording in simulated seconds."""
AT_MOST = 4
"""Largest number of divergences that a `Recorder` records."""
RECORDED_ENVS, UNREAD_STEPS = 256, 128
"""On a GPU: largest number of recorded envs, and of steps between two calls of `take`; earlier divergences are lost.
Looking for a divergence after each step would wait for the GPU."""
_RANDOMIZED = "randomized"
"""Name of the ring buffer's column that is 1 if the episode is randomised."""


class Divergence(NamedTuple):
    """Recording of an env before its physics diverged: row t has the state before step t, and the action of step t."""

    env: int
    length: int
    """Number of steps of the episode, including the one that diverged."""
    rows: dict[str, torch.Tensor]
    """"qpos" (t, nq), "qvel" (t, nv), "action" (t, act), and "randomize.NAME" (t, values) for each randomised term. An
    episode that was not randomised, as in the first stages of a curriculum, has no "randomize.NAME"."""


class Recorder:
    """Ring buffer of the last steps of `sim`'s envs. Call `before` and `after` each step."""

    def __init__(self, sim: Simulator, dt_s: float, n: int, act: int, randomizer: Randomizer | None) -> None:
        self._on_cpu = sim.device.type == "cpu"
        n = n if self._on_cpu else min(n, RECORDED_ENVS)
        self._keep, self._n = max(1, round(SECONDS / dt_s)), n
        drawn: dict[str, torch.Tensor] = {}
        if randomizer is not None:
            drawn = {f"randomize.{name}": x[:n] for name, x in randomizer.drawn.items()}
            drawn[_RANDOMIZED] = randomizer.active[:n].unsqueeze(1)
        self._sources = {"qpos": sim.qpos[:n], "qvel": sim.qvel[:n], **drawn}
        self._widths = {name: x.shape[1] for name, x in self._sources.items()} | {"action": act}
        steps = self._keep + (0 if self._on_cpu else UNREAD_STEPS)
        width = sum(self._widths.values())
        self._ring = torch.zeros(steps, n, width, dtype=sim.dtype, device=sim.device)
        self._ended = torch.zeros(steps, n, dtype=torch.int64, device=sim.device)
        """Length of the episode that diverged in this step; 0 if none did."""
        self._row, self._unread, self._recorded = -1, 0, 0
        self._found: list[Divergence] = []
        self._count = 0

    def before(self, action: torch.Tensor) -> None:
        """Record the current states, and `action` (n, act), which the env is about to take."""
        self._row, self._recorded = (self._row + 1) % len(self._ring), self._recorded + 1
        torch.cat([*self._sources.values(), action[: self._n].to(self._ring)], 1, out=self._ring[self._row])

    def after(self, failed: torch.Tensor | None, length: torch.Tensor) -> None:
        """Note which envs diverged in this step.

        `failed`: (n,) bool. `length`: (n,), steps of each env's episode so far, including this one.
        """
        if self._on_cpu:
            for env in [] if failed is None else failed.nonzero().flatten().tolist():
                self._add(env, self._row, int(length[env]), self._recorded)
        else:
            self._unread = min(self._unread + 1, UNREAD_STEPS)
            ended = 0 if failed is None else length[: self._n] * failed[: self._n]
            self._ended[self._row] = ended

    def take(self) -> list[Divergence]:
        """Return the recordings of divergences since the last call. Synchronises a GPU."""
        if not self._on_cpu and self._unread:
            recent = (self._row - torch.arange(self._unread).flip(0)) % len(self._ring)
            ended = self._ended[recent.to(self._ended.device)].cpu()
            for at, env in ended.nonzero().tolist():
                recorded = self._recorded - (self._unread - 1 - at)  # at the time of the divergence
                self._add(env, int(recent[at]), int(ended[at, env]), recorded)
            self._unread = 0
        found, self._found = self._found, []
        return found

    def _add(self, env: int, row: int, length: int, recorded: int) -> None:
        if self._count == AT_MOST:
            return
        self._count += 1
        count = min(length, self._keep, recorded)  # a resumed episode has steps that were not recorded
        steps = (row - torch.arange(count).flip(0)) % len(self._ring)
        values = self._ring[steps.to(self._ring.device), env].cpu()
        rows = dict(zip(self._widths, values.split(list(self._widths.values()), 1), strict=True))
        randomized = rows.pop(_RANDOMIZED, None)
        if randomized is not None and not randomized.any():
            rows = {name: x for name, x in rows.items() if not name.startswith("randomize.")}
        self._found.append(Divergence(env, length, rows))
