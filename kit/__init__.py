"""Train robot policies in notebooks on rented machines, and never lose a run."""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"
HOME = "https://github.com/kit-rl/kit"

_WHERE = {
    "RunConfig": "kit.config",
    "UserError": "kit.errors",
    "train": "kit.runs.api",
    "launch": "kit.runs.api",
    "branch": "kit.runs.api",
    "resume": "kit.runs.api",
    "batch": "kit.scale.batch",
    "sweep": "kit.scale.sweep",
    "launch_batch": "kit.scale.batch",
    "launch_sweep": "kit.scale.sweep",
    "notebooks": "kit.scale.notebooks",
    "runs": "kit.runs",
    "Run": "kit.runs.run",
    "example": "kit.runs.examples",
    "evaluate": "kit.runs.evaluation",
    "fingerprint": "kit.runs.fingerprint",
    "record": "kit.runs.demonstrations",
    "export": "kit.runs.export",
    "push": "kit.runs.publish",
    "make_vec": "kit.envs",
    "check_task": "kit.runs.checking",
    "verify": "kit.machine",
    "machine": "kit.machine",
    "measure": "kit.measure",
    "resolve": "kit.measure.auto",
    "ui": "kit.ui",
}
__all__ = [*_WHERE, "__version__"]


def __getattr__(name: str) -> Any:
    """Import a subpackage on first use, so that `import kit` is quick and does not load torch."""
    if name not in _WHERE:
        raise AttributeError(f"module 'kit' has no attribute {name!r}")
    module = import_module(_WHERE[name])
    return module if _WHERE[name] == f"kit.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return __all__
