"""Resolve a config on this machine: replace every "auto"; on a GPU, measure how many envs fit into its memory."""

from __future__ import annotations

from kit.config import RunConfig
from kit.measure.fit import room
from kit.trainers.planning import plan


def resolve(config: RunConfig) -> RunConfig:
    """Return `config` without "auto", with complete `overrides`. Raises `UserError` if it cannot be trained."""
    return plan(config, room).config
