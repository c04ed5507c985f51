"""Resolve a config on this machine: replace every "auto", with as many envs as fit into the GPU's memory."""

from __future__ import annotations

from kit.config import RunConfig
from kit.measure.fit import room
from kit.trainers.planning import plan


def resolve(config: RunConfig) -> RunConfig:
    """Replace every "auto" and complete `overrides`. Raises `UserError` for a config that cannot be trained."""
    return plan(config, room).config
