"""How busy the GPU is while a run trains: in its metrics, by what training does, and in its status."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from kit.machine.monitor import GpuMonitor, total

if TYPE_CHECKING:
    from stable_baselines3.common.type_aliases import MaybeCallback

ROLLOUT, UPDATE, OTHER = "rollout", "update", "other"
"""Phases of a session. The last is preparation, evaluation and saving: what a card does then says nothing."""


def monitor(device: str) -> GpuMonitor:
    """Of the card that `device` names; one that sees nothing for the CPU."""
    if device == "cpu":
        return GpuMonitor(index=None)
    _, _, number = device.partition(":")
    return GpuMonitor(int(number or 0))


def phases(monitor: GpuMonitor) -> MaybeCallback:
    """A Stable-Baselines3 callback that tells `monitor` what training does; none where there is nothing to see."""
    if not monitor.available:
        return None
    from stable_baselines3.common.callbacks import BaseCallback

    class Phases(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            monitor.phase = ROLLOUT

        def _on_rollout_end(self) -> None:
            monitor.phase = UPDATE

    return Phases()


def columns(monitor: GpuMonitor) -> dict[str, float]:
    """For a row of metrics, over the time since the row before: gpu/rollout_busy and gpu/update_busy (percent),
    gpu/memory_gb (peak, all programs together), gpu/watts. What was not sampled is left out."""
    seen = monitor.recent()
    busy = {f"gpu/{phase}_busy": seen[phase].busy_percent for phase in (ROLLOUT, UPDATE) if phase in seen}
    whole = total(list(seen.values()))
    return busy if whole is None else {**busy, "gpu/memory_gb": whole.memory_bytes / 1e9, "gpu/watts": whole.watts}


def figures(monitor: GpuMonitor) -> dict[str, Any] | None:
    """For status.json: this session's rollouts and updates so far, as fields of `Summary` by phase; None before."""
    seen = {phase: dataclasses.asdict(one) for phase, one in monitor.phases().items() if phase in (ROLLOUT, UPDATE)}
    return seen or None
