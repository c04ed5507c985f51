"""Behaviour cloning: supervised learning of the actions in a dataset (Pomerleau, 1989)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

import stable_baselines3 as sb3
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import ActorCriticPolicy

from kit.envs.obs import from_leaves
from kit.errors import UserError
from kit.trainers.algorithm import Algorithm
from kit.trainers.demonstrations import Episode, loaded, rows_of
from kit.trainers.imitation import ImitationTrainer
from kit.trainers.replay import Replay
from kit.trainers.saving import State


class BC(ImitationTrainer):
    """Trains a policy on recorded actions; the env is not stepped.

    `total_timesteps` counts samples: a batch of 128 samples is 128 steps. Call `set_dataset` before `learn`. The run
    saves the dataset as its replay data.
    """

    def set_dataset(self, episodes: Iterable[Episode] | None, state: Mapping[str, Any]) -> None:
        """Learn from `episodes`. With None, in a resumed run, allocate the buffer that `load_replay` fills.

        `state`: the checkpoint's state, which has the number of stored samples.
        """
        frames = self.replay_buffer.frames
        if episodes is None:
            self.replay_buffer = Replay(int(state["trainer"]["replay_written"]), 1, self.device, frames)
        else:
            rows = rows_of(episodes, frames, self.as_actor().clip)
            self.replay_buffer = loaded(rows, frames, self.device)
            if self.normalizer is not None:  # the env is not stepped; a warm start loads its statistics afterwards
                scaled = {name: rows[name].squeeze(1).to(self.device) for name in self.normalizer.obs_moments}
                self.normalizer.update(from_leaves("obs", scaled))

    def learn(self, total_timesteps: int, *args: Any, **kwargs: Any) -> Self:
        """Train until `total_timesteps` samples are seen. Further arguments as in `ImitationTrainer.learn`."""
        if not self.replay_buffer.written:
            raise UserError("dataset=None: BC needs a dataset; `kit record` makes one.")
        return super().learn(total_timesteps, *args, **kwargs)

    def forget_replay(self) -> None:
        """Raise `UserError`, because nothing can be learnt without the data."""
        raise UserError("the run's copy of its dataset is damaged; train a new run from the dataset.")

    def load_state(self, state: State) -> bool:
        same_envs = super().load_state(state)
        self.replay_buffer.breaks.clear()  # the envs are reset, but the dataset has no gap there
        return same_envs

    def _collect(self, callback: BaseCallback) -> bool:
        self.num_timesteps += self.gradient_steps * self.batch_size
        self._update_current_progress_remaining(self.num_timesteps, self._total_timesteps)
        return callback.on_step()


ALGORITHM = Algorithm(
    "BC", BC, sb3.PPO, ActorCriticPolicy,
    actions=(spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary),
    row={"n_envs": 1, "learning_rate": "lin_0.001", "log_std_init": -1.6, "net_arch": [256, 256]},
    stock_row={"n_envs": 1},
    used=("learning_rate", "batch_size", "policy_kwargs"),
    dataset="needed", clip_encoder="clip_cnn", fewer_envs=False,
    own={"gradient_steps": int, "random_shift": int, "policy_of": str},
)  # fmt: skip
