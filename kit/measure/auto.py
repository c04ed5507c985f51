"""What a request comes to on this machine, with as many envs as fit into its GPU's memory."""

from __future__ import annotations

from kit.config import RunConfig
from kit.measure.fit import room
from kit.trainers.planning import plan


def resolve(config: RunConfig) -> RunConfig:
    """Every "auto" replaced and `overrides` completed. Raises `UserError` for what cannot be trained."""
    return plan(config, room).config
