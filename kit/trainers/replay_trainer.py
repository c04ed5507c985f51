"""Base class of trainers that learn from stored transitions: replay buffer, its save and restore, mean metrics."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Self

import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import MaybeCallback

from kit.encoders.frozen import FrozenView
from kit.envs.obs import Obs
from kit.trainers.base import READ_EVERY, TensorTrainer, tensor_env_of
from kit.trainers.clips import image_stacks
from kit.trainers.replay import Replay
from kit.trainers.saving import Component, Counters, State, Values


class ReplayTrainer(TensorTrainer):
    """Trainer with a replay buffer.

    `state()` does not include the replay data: save it with `replay_rows` and restore it with `load_replay`.
    """

    buffer_size: int
    metric_names: tuple[str, ...]
    """Names of the values that an update returns, logged as "train/<name>"."""
    replay_buffer: Replay
    dump_logs: Callable[..., None]
    """SB3's method that writes the recorded metrics."""

    def _setup_model(self) -> None:
        if not isinstance(getattr(self, "replay_buffer", None), Replay):
            rows = max(1, self.buffer_size // self.n_envs)
            frames: dict[str, int] = {}
            if self.env is not None:
                env, space = tensor_env_of(self.env), self.observation_space
                space = space if isinstance(self.env.unwrapped.view, FrozenView) else env.observation_space  # type: ignore[attr-defined]
                frames = image_stacks(space, env.frames)
            self.replay_buffer = self._make_replay(rows, frames)
        self._metric_sums = torch.zeros(len(self.metric_names), device=self.device)
        self._metric_steps = 0
        super()._setup_model()

    def _make_replay(self, rows: int, frames: Mapping[str, int]) -> Replay:
        """Make the replay buffer for `rows` rows; `frames`: image entry -> stack depth."""
        return Replay(rows, self.n_envs, self.device, frames)

    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1000,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """Train until `total_timesteps` steps are done.

        Metrics are logged every `log_interval` steps (in SB3: episodes) and at the end, on a GPU at most once per
        `READ_EVERY` × n_envs steps.
        """
        if self.device.type != "cpu":
            log_interval = max(log_interval, READ_EVERY * self.n_envs)
        total_timesteps, callback = self._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name or type(self).__name__, progress_bar
        )
        callback.on_training_start(locals(), globals())
        while self.num_timesteps < total_timesteps:
            before = self.num_timesteps
            if not self._iterate(callback):
                break
            self.iteration += 1
            log_due = self.num_timesteps // log_interval > before // log_interval
            if log_due or self.num_timesteps >= total_timesteps:
                self._log_update()
                self._log_episodes()
                self.dump_logs()
            self._boundary()
        callback.on_training_end()
        return self

    @abstractmethod
    def _iterate(self, callback: BaseCallback) -> bool:
        """Collect data, count it in `num_timesteps`, and update; return False if the callback ends training."""

    def _replay_obs(self, obs: Obs) -> Obs:
        """Return `obs` as it is stored in the replay buffer: with a frozen encoder's features instead of images."""
        view = self.as_actor().view
        return view(obs) if isinstance(view, FrozenView) else obs

    def _log_update(self) -> None:
        """Log the mean of each metric since the last log."""
        if not self._metric_steps:
            return
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        for name, total in zip(self.metric_names, self._metric_sums.tolist(), strict=True):
            self.logger.record(f"train/{name}", total / self._metric_steps)
        self.logger.record("train/learning_rate", self.lr_schedule(self._current_progress_remaining))
        self._metric_sums.zero_()
        self._metric_steps = 0

    # -- state -----------------------------------------------------------------------------------------------------

    @property
    def replay_capacity(self) -> int:
        """Largest number of rows in the replay buffer."""
        return self.replay_buffer.capacity

    @property
    def replay_first(self) -> int:
        """Number of the oldest row in the replay buffer, counted from the run's first row, 0."""
        return max(self.replay_buffer.first, self.replay_written - self.replay_capacity)

    @property
    def replay_written(self) -> int:
        """Number of rows ever added; a row is one step of all envs."""
        return self.replay_buffer.written

    def replay_rows(self, start: int, stop: int) -> dict[str, torch.Tensor]:
        """Copy the rows numbered `start` to `stop` - 1 to the CPU: column -> (stop - start, n_envs, ...).

        Raises `UserError` if a reward is NaN on a GPU, where training does not read it.
        """
        rows = self.replay_buffer.rows(start, stop)
        if self.device.type != "cpu":
            self._check_finite(rows["rewards"])
        return rows

    def load_replay(self, rows: dict[str, torch.Tensor], start_row: int) -> None:
        """Restore `rows`, numbered from `start_row`. Call after `load_state`, which sets the number of valid rows."""
        self.replay_buffer.load(rows, start_row)

    def forget_replay(self) -> None:
        """Drop the replay data when it cannot be restored. Call after `load_state`."""
        self.replay_buffer.forget()

    def _reset_envs(self) -> None:
        super()._reset_envs()
        self.replay_buffer.note_reset()

    def load_state(self, state: State) -> bool:
        same_envs = super().load_state(state)
        if same_envs and self.tensor_env.snapshots:
            assert self._last_obs is not None
            self.replay_buffer.continue_from(self._last_obs)
        else:
            self.replay_buffer.note_reset()
        return same_envs

    def components(self) -> dict[str, Component]:
        return {**super().components(), "trainer": ReplayCounters(self)}

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_metric_sums", "_metric_steps"]


class ReplayCounters(Counters):
    """Counters, including the replay buffer's row numbers and the metric sums that are not logged yet."""

    trainer: ReplayTrainer

    def state(self) -> Values:
        trainer, replay = self.trainer, self.trainer.replay_buffer
        sums = {"figure_sums": trainer._metric_sums.cpu().clone(), "figures_summed": trainer._metric_steps}
        first = {"replay_first": replay.first} if replay.first else {}
        breaks = {"replay_breaks": list(replay.breaks)} if replay.breaks else {}
        return {**super().state(), "replay_written": trainer.replay_written, **first, **breaks, **sums}

    def load_state(self, state: Values) -> None:
        super().load_state(state)
        trainer, replay = self.trainer, self.trainer.replay_buffer
        replay.written = int(state["replay_written"])
        replay.first = int(state.get("replay_first", 0))
        replay.breaks = [int(row) for row in state.get("replay_breaks", [])]
        trainer._metric_sums.copy_(state["figure_sums"][: len(trainer._metric_sums)])
        trainer._metric_steps = int(state["figures_summed"])
