"""Compare encoders on this machine: parameters, memory, and observations per second."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from gymnasium import Space, spaces

from kit import envs
from kit.encoders import ENCODERS, load
from kit.envs.obs import PolicyView
from kit.errors import UserError
from kit.measure.speed import rate

if TYPE_CHECKING:
    import pandas as pd

BATCH, SMALL_BATCH = 16, 2
SLOW_S = 0.1
"""If a forward pass of `SMALL_BATCH` observations takes longer than this, the speed is measured with that batch."""
BUDGET_S = 0.5
"""Duration of each speed measurement, s; it includes at least one pass."""
ADAM = 4
"""Numbers stored per trained parameter: the weight, its gradient and Adam's two moments."""


def encoders(env: str, env_options: Mapping[str, Any] | None = None) -> pd.DataFrame:
    """Return a table of all encoders on the observations of `env`, measured on this machine's CPU.

    Columns ("clip" means one observation): number of parameters; memory of the weights in training; memory of the
    activations that a forward pass saves per observation; observations per second when acting (forward) and learning
    (forward and backward); when to use the encoder, or why it cannot encode these observations.
    """
    import pandas as pd

    described = envs.describe(env, env_options)
    space = PolicyView(described.observation_space, described.obs_groups.get("policy")).space
    large, small = _sample(space, BATCH), _sample(space, SMALL_BATCH)
    rows: dict[str, list[str]] = {}
    for name, info in ENCODERS.items():
        try:
            network = load(name)(space)
        except UserError as error:
            rows[name] = ["–"] * 5 + [str(error)]
            continue
        parameters = sum(p.numel() for p in network.parameters())
        saved = _saved_bytes(network, small) / SMALL_BATCH
        with torch.no_grad():
            start = time.perf_counter()
            network(small)
            is_slow = time.perf_counter() - start > SLOW_S
            batch, obs = (SMALL_BATCH, small) if is_slow else (BATCH, large)
            acting = batch * rate(partial(network, obs), BUDGET_S)
        learning = batch * rate(partial(_learn, network, obs), BUDGET_S)
        weights = 4 * ADAM * parameters
        sizes = [f"{parameters:,}", f"{weights / 1e6:,.1f} MB", f"{saved / 1e6:,.2f} MB"]
        rows[name] = [*sizes, f"{acting:,.0f}", f"{learning:,.0f}", info.use_when]
    columns = ["parameters", "weights", "each clip", "clips/s acting", "clips/s learning", "use it when"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns)


def _sample(space: Space, n: int) -> Any:
    if isinstance(space, spaces.Dict):
        return {name: _sample(inner, n) for name, inner in space.items()}
    shape = (n, *(space.shape or ()))
    if space.dtype == "uint8":
        return torch.randint(0, 256, shape, dtype=torch.uint8)
    return torch.rand(shape)


def _learn(network: torch.nn.Module, obs: Any) -> None:
    network(obs).sum().backward()


def _saved_bytes(network: torch.nn.Module, obs: Any) -> int:
    """Return the bytes of the activations, without weights, that a forward pass saves for the backward pass."""
    weights = {parameter.data_ptr() for parameter in network.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in weights:
            saved[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        network(obs)
    return sum(saved.values())
