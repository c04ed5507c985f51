"""More than one run, and more than one machine. Engines are others': Optuna for searches."""

from kit.scale.sweep import Sweep, sweep

__all__ = ["Sweep", "sweep"]
