"""Resolve a config on this machine: replace every "auto"."""

from __future__ import annotations

from kit.config import RunConfig
from kit.trainers.planning import plan


def resolve(config: RunConfig) -> RunConfig:
    """Return `config` without "auto", with complete `overrides`. Raises `UserError` if it cannot be trained."""
    return plan(config).config
