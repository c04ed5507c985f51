"""Tells the GPU's monitor what training asks of the card."""

from stable_baselines3.common.callbacks import BaseCallback

from kit.machine.gpu import ROLLOUT, UPDATE, Monitor


class Phases(BaseCallback):
    def __init__(self, monitor: Monitor) -> None:
        super().__init__()
        self.monitor = monitor

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        self.monitor.phase = ROLLOUT

    def _on_rollout_end(self) -> None:
        self.monitor.phase = UPDATE
