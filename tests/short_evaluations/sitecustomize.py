"""Imported by Python at its start: evaluations during training play four episodes, in processes that tests start.

What a run does around its evaluations does not depend on their number of episodes; most of a short run's time does."""

import sys
from importlib.util import find_spec
from types import ModuleType

EVALUATION = "kit.runs.evaluation"


class Shortened:
    """Finds kit.runs.evaluation as Python does, and changes two of its numbers once it has run."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name != EVALUATION:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        execute = spec.loader.exec_module

        def shortened(module: ModuleType) -> None:
            execute(module)
            module.EPISODES = module.EPISODES_NO_PHYSICS = 4

        spec.loader.exec_module = shortened
        return spec


sys.meta_path.insert(0, Shortened())
