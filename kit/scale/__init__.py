"""More than one run, and more than one machine. Engines are others': Optuna for searches, papermill for notebooks."""

from kit.scale.notebooks import notebooks
from kit.scale.sweep import Sweep, sweep

__all__ = ["Sweep", "notebooks", "sweep"]
