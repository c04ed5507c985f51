"""Resolve a config on this machine: replace every "auto"."""

from __future__ import annotations

from kit.config import RunConfig
from kit.trainers.planning import plan
from kit.trust import refresh


def resolve(config: RunConfig) -> RunConfig:
    """Return `config` with a value for every "auto" and complete `overrides`. Raises `UserError` if it cannot train."""
    refresh(config)
    return plan(config).config
