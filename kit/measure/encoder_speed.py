"""Encoders beside each other on this machine: size, memory, and how many observations a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from gymnasium import Space, spaces

from kit import envs
from kit.encoders import ENCODERS, load
from kit.envs.obs import PolicyView
from kit.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

BATCH = 16
BUDGET_S = 0.5
"""For each of two readings of each encoder, its first pass besides if that takes less."""
ADAM = 4
"""A weight, its gradient and Adam's two moments: numbers that each parameter takes when it learns."""


def encoders(env: str, env_options: Mapping[str, Any] | None = None) -> pd.DataFrame:
    """A table to read: for every encoder that takes what `env` shows, its parameters, its memory (weights as they
    learn, and what a pass keeps for its gradient, of each observation), and observations a second on this machine's
    CPU, acting and learning (a pass forward; forward and backward). An encoder that cannot be made says why."""
    import pandas as pd

    described = envs.describe(env, env_options)
    space = PolicyView(described.observation_space, described.obs_groups.get("policy")).space
    seen = _sample(space)
    lines: dict[str, list[str]] = {}
    for name, card in ENCODERS.items():
        try:
            network = load(name)(space)
        except UserError as error:
            lines[name] = ["–"] * 5 + [str(error)]
            continue
        parameters = sum(p.numel() for p in network.parameters())
        kept = _kept_bytes(network, seen) / BATCH
        with torch.no_grad():
            acting = BATCH / _seconds(partial(network, seen))
        learning = BATCH / _seconds(partial(_learn, network, seen))
        weights = 4 * ADAM * parameters
        sizes = [f"{parameters:,}", f"{weights / 1e6:,.1f} MB", f"{kept / 1e6:,.2f} MB"]
        lines[name] = [*sizes, f"{acting:,.0f}", f"{learning:,.0f}", card.use_when]
    heads = ["parameters", "weights", "each clip", "clips/s acting", "clips/s learning", "use it when"]
    return pd.DataFrame.from_dict(lines, orient="index", columns=heads)


def _sample(space: Space) -> Any:
    """A batch of noise, as a policy is given it."""
    if isinstance(space, spaces.Dict):
        return {name: _sample(inner) for name, inner in space.items()}
    shape = (BATCH, *(space.shape or ()))
    if space.dtype == "uint8":
        return torch.randint(0, 256, shape, dtype=torch.uint8)
    return torch.rand(shape)


def _learn(network: torch.nn.Module, seen: Any) -> None:
    network(seen).sum().backward()


def _kept_bytes(network: torch.nn.Module, seen: Any) -> int:
    """Of what a pass keeps for its gradient, weights aside."""
    own = {parameter.data_ptr() for parameter in network.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in own:
            kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        network(seen)
    return sum(kept.values())


def _seconds(work: Callable[[], object]) -> float:
    """Of one call: the mean over as many as fit, or the first, which warms up, where that alone takes as long."""
    begun, calls = time.perf_counter(), 0
    work()
    if (first := time.perf_counter() - begun) > BUDGET_S:
        return first
    begun = time.perf_counter()
    while calls == 0 or time.perf_counter() - begun < BUDGET_S:
        work()
        calls += 1
    return (time.perf_counter() - begun) / calls
