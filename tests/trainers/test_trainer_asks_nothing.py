"""Tests of rollouts and updates for GPUs: no synchronisation, no copies between GPU and CPU.

They need no GPU but use torch's "meta" device, whose tensors have shapes and no values. So every read of a value is
detected, in this library and in Stable-Baselines3. Physics, random generators and the fused Adam kernel are replaced,
and no CUDA graphs are recorded; the other code is the code that runs on CUDA.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from stable_baselines3.common.policies import BaseModel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kit.envs import make_task
from kit.envs.sb3 import TensorVecEnv
from kit.envs.vec import TensorEnv
from kit.errors import UserError
from kit.sim.warp import WarpSim
from kit.trainers.a2c import A2C
from kit.trainers.fast.stacked import StackedActorCritic
from kit.trainers.ppo import PPO
from kit.trainers.sac import SAC
from tests.trainers.iteration import one_iteration

META = torch.device("meta")
WAIT = {"_local_scalar_dense", "nonzero", "equal", "masked_select"}
WORLDS, STEPS = 4, 8


class Border(TorchDispatchMode):
    """While `watched`, raises on synchronisations and copies between meta and CPU; else, reads of a value return 1."""

    watched = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, given = func.overloadpacket.__name__, tree_leaves((args, kwargs))
        tensors = [x for x in given if isinstance(x, torch.Tensor)]
        by_mask = name in ("index", "index_put_") and any(x.dtype is torch.bool for x in tensors[1:])
        there = any(x.device == META for x in tensors)
        if self.watched and there and (name in WAIT or by_mask):
            raise AssertionError(f"{name} waits for the GPU")
        if name == "_local_scalar_dense" and there:
            return tensors[0].new_ones((), device="cpu").item()
        result = func(*args, **(kwargs or {}))
        tensors += [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        if self.watched and len({x.device for x in tensors if x.dim() or "copy" in name}) > 1:
            raise AssertionError(f"{name} crosses")
        return result


class NoPhysics(WarpSim):
    """WarpSim without physics: its tensors are on the meta device, and steps do nothing."""

    def __init__(self, model: Any, n: int, *_: Any) -> None:
        super().__init__(model, n, "cpu")
        self.device, self._after_constraints, self._any = META, True, self._any.to(META)
        self._state = {name: value.to(META) for name, value in self._state.items()}
        self._initial = {name: value.to(META) for name, value in self._initial.items()}

    def _tensor(self, name: str) -> torch.Tensor:
        return super()._tensor(name).to(self.device)

    def parameter(self, name: str) -> torch.Tensor:
        return torch.empty(self.n, *getattr(self.model, name).shape, device=META)

    def _warm_up(self) -> None:
        pass

    def _launch(self, substeps: int) -> None:
        pass

    def _look_at_overflow(self) -> None:
        """The overflow check copies to the CPU, but does not synchronise."""


class Generator(torch.Generator):
    """CPU generator instead of one on the meta device, which torch does not have."""

    def __new__(cls, device: Any = "cpu") -> Generator:
        return super().__new__(cls)


@pytest.fixture
def border(monkeypatch: pytest.MonkeyPatch) -> Iterator[Border]:
    monkeypatch.setattr("kit.envs.task.make_sim", NoPhysics)
    monkeypatch.setattr(BaseModel, "device", META)  # networks are made on meta; moving there fails
    monkeypatch.setattr(torch, "Generator", Generator)
    monkeypatch.setattr(torch, "_fused_adam_", lambda *args, **options: None)
    validates = torch.distributions.Distribution._validate_args
    with Border() as border:
        yield border
    torch.distributions.Distribution.set_default_validate_args(validates)


NORMALIZED = {"normalize": True}
CASES: dict[str, tuple[str, type[Any], dict[str, Any]]] = {
    "ppo": ("Ant", PPO, {"n_steps": STEPS, "batch_size": 16, **NORMALIZED}),
    "ppo general": (
        "Ant",
        PPO,
        {"n_steps": STEPS, "batch_size": 16, "policy_kwargs": {"net_arch": {"pi": [8], "vf": []}}},
    ),
    "ppo exploring by state": (
        "Reach",
        PPO,
        {"n_steps": STEPS, "batch_size": 16, "use_sde": True, "sde_sample_freq": 4},
    ),
    "a2c": ("Reach", A2C, {"n_steps": STEPS}),
    "sac": ("Reach", SAC, {"train_freq": STEPS, "learning_starts": 16, **NORMALIZED}),
    "sac general": ("Reach", SAC, {"train_freq": STEPS, "policy_kwargs": {"share_features_extractor": True}}),
    "go1": ("Go1Joystick", PPO, {"n_steps": STEPS, "batch_size": 16}),
    "g1": ("G1Joystick", PPO, {"n_steps": STEPS, "batch_size": 16}),
}


@pytest.mark.filterwarnings("ignore:You are trying to run")
@pytest.mark.parametrize("case", CASES)
def test_an_iteration_neither_synchronises_nor_copies(border: Border, case: str) -> None:
    env, algorithm, options = CASES[case]
    try:
        vec = TensorEnv(make_task(env), WORLDS, META)
    except UserError as error:
        pytest.skip(f"no model of the robot: {error}")
    with torch.device(META):
        model = algorithm("MlpPolicy", TensorVecEnv(vec), seed=0, device=META, **options)
    stacks = model._stacked is not None if algorithm is SAC else isinstance(model.networks, StackedActorCritic)
    assert stacks != ("general" in case or "state" in case)
    _, callback = model._setup_learn(10**9)
    model._log_now = False
    for turn in range(2):
        border.watched = turn > 0  # the first iteration allocates buffers
        one_iteration(model, callback)
    model.act(model._last_obs)
