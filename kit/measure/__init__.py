"""Measurements on this machine: training speed, encoder speed, and advice from them."""

from importlib import import_module
from typing import Any

_WHERE = {"resolve": "auto", "probe": "speed", "advise": "advice", "within_reach": "advice",
          "rented": "advice", "encoders": "encoder_speed"}  # fmt: skip
__all__ = [*_WHERE]


def __getattr__(name: str) -> Any:
    """Import a module on first use."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
