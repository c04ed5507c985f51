"""A callback that tells the GPU monitor whether training collects a rollout or updates the policy."""

from stable_baselines3.common.callbacks import BaseCallback

from kit.machine.gpu import ROLLOUT, UPDATE, Monitor


class Phases(BaseCallback):
    """Sets `monitor.phase` at the start and end of each rollout."""

    def __init__(self, monitor: Monitor) -> None:
        super().__init__()
        self.monitor = monitor

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        self.monitor.phase = ROLLOUT

    def _on_rollout_end(self) -> None:
        self.monitor.phase = UPDATE
