"""Components of the training state. Each saves and loads itself; `trainer.components()` lists all but `env`.

    policy      weights
    frozen      frozen weights of pretrained encoders; a run stores them once, not in every checkpoint
    encoder     hash of a frozen encoder's weights, if the trainer stores its features (`FrozenView`)
    normalizer  running statistics
    optimizer   moments and learning rates
    trainer     counters, the latest episodes and the last observations
    rng         global random generators of Python, numpy and torch
    env         snapshot of all envs

Add your own, such as another policy or a pool of opponents, with `trainer.attach("opponents", pool)`.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

from kit.errors import UserError

Values = dict[str, Any]
"""A component's values: name -> tensor, number, text, bool, None or list."""
State = dict[str, Values]
"""Contents of a checkpoint: component name -> its values."""


class Component(Protocol):
    """Part of the training state: `state` returns a copy of its values, `load_state` restores them."""

    def state(self) -> Values: ...

    def load_state(self, state: Values) -> None: ...


class Weights:
    """Weights of a policy, without the frozen weights."""

    def __init__(self, policy: BasePolicy) -> None:
        self.policy = policy

    def state(self) -> Values:
        frozen = frozen_names(self.policy)
        return {name: value for name, value in _copies(self.policy).items() if name not in frozen}

    def load_state(self, state: Values) -> None:
        mine = self.policy.state_dict()
        unknown = [name for name, value in state.items() if name not in mine or mine[name].shape != value.shape]
        lacking = mine.keys() - state.keys() - frozen_names(self.policy)
        if unknown or lacking:
            names = ", ".join([*unknown, *sorted(lacking)][:3])
            raise UserError(f"the policy does not fit: {names} differ; use the env and network it was trained with.")
        self.policy.load_state_dict({**mine, **state})


class FrozenWeights(Weights):
    """Frozen weights of pretrained encoders, which no optimizer changes."""

    def state(self) -> Values:
        copies = _copies(self.policy)
        return {name: copies[name] for name in sorted(frozen_names(self.policy))}

    def load_state(self, state: Values) -> None:
        self.policy.load_state_dict({**self.policy.state_dict(), **state})


@contextmanager
def held(parameters: Iterable[torch.Tensor]) -> Iterator[None]:
    """Context manager: an optimizer step in the block leaves `parameters` as they are.

    The step changes Adam's moments, then the values of `parameters` are put back. So when they start to learn, Adam
    knows the size of their gradients; otherwise its first steps would be several times too long.
    """
    values = [(p, p.detach().clone()) for p in parameters]
    yield
    for p, value in values:
        p.data.copy_(value)


def frozen_names(policy: BasePolicy) -> set[str]:
    """Return the names of parameters and buffers in frozen modules of feature extractors."""
    names: set[str] = set()
    for path, module in policy.named_modules():
        if isinstance(module, BaseFeaturesExtractor):
            for prefix, submodule in module.named_modules(prefix=path):
                parameters = list(submodule.parameters())
                if parameters and not any(p.requires_grad for p in parameters):
                    names |= {f"{prefix}.{name}" for name in submodule.state_dict()}
    return names


def _copies(policy: BasePolicy) -> Values:
    return {name: value.detach().cpu().clone() for name, value in policy.state_dict().items()}


class Optimizers:
    """Optimizers as a component; `named`: name -> (optimizer, its parameters by name).

    Saved as "<name>.<parameter>.<value>", such as "policy.log_std.exp_avg", and "<name>.learning_rate".
    """

    def __init__(self, named: Mapping[str, tuple[torch.optim.Optimizer, Mapping[str, torch.Tensor]]]) -> None:
        self.named = named

    def state(self) -> Values:
        flat: Values = {}
        for group, (optimizer, parameters) in self.named.items():
            by_index = optimizer.state_dict()["state"]
            flat[f"{group}.learning_rate"] = optimizer.param_groups[0]["lr"]
            for index, name in enumerate(parameters):
                for slot, value in by_index.get(index, {}).items():
                    is_tensor = isinstance(value, torch.Tensor)
                    flat[f"{group}.{name}.{slot}"] = value.detach().cpu().clone() if is_tensor else value
        return flat

    def load_state(self, state: Values) -> None:
        for group, (optimizer, parameters) in self.named.items():
            by_index: dict[int, Values] = {}
            for index, name in enumerate(parameters):
                prefix = f"{group}.{name}"
                slots = {key[len(prefix) + 1 :]: v for key, v in state.items() if key.rpartition(".")[0] == prefix}
                if slots:
                    by_index[index] = slots
            optimizer.load_state_dict({**optimizer.state_dict(), "state": by_index})
            for settings in optimizer.param_groups:
                settings["lr"] = state[f"{group}.learning_rate"]


class Counting(Protocol):
    """Attributes of a trainer that `Counters` saves: counters and the window of recent episodes, named as in SB3."""

    num_timesteps: int
    iteration: int
    ep_info_buffer: deque[dict[str, Any]] | None
    ep_success_buffer: deque[float] | None
    _n_updates: int
    _episode_num: int
    _current_progress_remaining: float
    _stats_window_size: int


class Counters:
    """Step, update and episode counters of a trainer, and the returns, lengths and successes of its latest episodes."""

    def __init__(self, trainer: Counting) -> None:
        self.trainer = trainer

    def state(self) -> Values:
        trainer = self.trainer
        assert trainer.ep_info_buffer is not None and trainer.ep_success_buffer is not None
        return {
            "num_timesteps": trainer.num_timesteps,
            "n_updates": trainer._n_updates,
            "iteration": trainer.iteration,
            "episodes": trainer._episode_num,
            "progress_remaining": trainer._current_progress_remaining,
            "episode_returns": [episode["r"] for episode in trainer.ep_info_buffer],
            "episode_lengths": [episode["l"] for episode in trainer.ep_info_buffer],
            "episode_successes": list(trainer.ep_success_buffer),
        }

    def load_state(self, state: Values) -> None:
        trainer = self.trainer
        trainer.num_timesteps = int(state["num_timesteps"])
        trainer._n_updates = int(state["n_updates"])
        trainer.iteration = int(state["iteration"])
        trainer._episode_num = int(state["episodes"])
        trainer._current_progress_remaining = float(state["progress_remaining"])
        window = trainer._stats_window_size
        episodes = zip(state["episode_returns"], state["episode_lengths"], strict=True)
        trainer.ep_info_buffer = deque(({"r": r, "l": n, "t": 0.0} for r, n in episodes), maxlen=window)
        trainer.ep_success_buffer = deque(state["episode_successes"], maxlen=window)


class RandomGenerators:
    """States of the random generators of Python, numpy and torch, on the CPU and on `device`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def state(self) -> Values:
        version, words, gauss = random.getstate()
        kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
        assert (version, kind) == (3, "MT19937")
        state = {
            "torch": torch.get_rng_state(),
            "python": torch.tensor(words, dtype=torch.int64),
            "python_gauss": gauss,
            "numpy": torch.from_numpy(np.asarray(keys).astype(np.int64)),
            "numpy_position": int(position),
            "numpy_has_gauss": int(has_gauss),
            "numpy_gauss": float(cached),
        }
        if self.device.type == "cuda":
            state["cuda"] = torch.cuda.get_rng_state(self.device)
        return state

    def load_state(self, state: Values) -> None:
        words, keys = state["python"].tolist(), state["numpy"].numpy().astype(np.uint32)
        position, gauss = int(state["numpy_position"]), (int(state["numpy_has_gauss"]), float(state["numpy_gauss"]))
        # A checkpoint may be damaged or forged: with wrong lengths or positions numpy and Python read out of bounds.
        lengths, positions = (len(words), len(keys)), (words[-1] if words else -1, position)
        if lengths != (625, 624) or not all(0 <= p <= 624 for p in positions):
            raise UserError("the checkpoint's random generators hold an invalid state; it was not written by kit.")
        torch.set_rng_state(state["torch"])
        random.setstate((3, tuple(words), state["python_gauss"]))
        np.random.set_state(("MT19937", keys, position, *gauss))
        if self.device.type == "cuda" and "cuda" in state:
            torch.cuda.set_rng_state(state["cuda"], self.device)
