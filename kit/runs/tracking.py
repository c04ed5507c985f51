"""A run's rows in Weights & Biases or Trackio as well. metrics.jsonl stays the truth; nothing waits for the tracker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kit.config import RunConfig
from kit.errors import need


def check(tracker: str | None) -> None:
    """Raise `UserError` if the package that `tracker` names is not there."""
    if tracker is not None:
        need(tracker.partition(":")[0], "track")


class Tracker:
    """Logs rows to the project that `config.tracker` names, as the run's name; a resumed run goes on there, and rows
    that are done again are sent again. A tracker that fails is left alone from then on, and `say` says so."""

    def __init__(self, config: RunConfig, name: str, say: Callable[[str], None]) -> None:
        from kit.stores.redact import redact_config

        kind, _, project = str(config.tracker).partition(":")
        self._kind, self._say = kind, say
        own = {"id": name} if kind == "wandb" else {"embed": False}  # of trackio the name is the id
        values = redact_config(config.to_dict())
        self._run = self._tried(
            lambda: need(kind, "track").init(project=project, name=name, config=values, resume="allow", **own)
        )

    def add(self, row: dict[str, Any]) -> None:
        """One row of metrics.jsonl, under its step."""
        if self._run is not None:
            values = {name: value for name, value in row.items() if name != "step"}
            self._tried(lambda: self._run.log(values, step=row["step"]))

    def close(self) -> None:
        if self._run is not None:
            self._tried(self._run.finish)
        self._run = None

    def _tried(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:  # whatever goes wrong there must not end a training
            self._run = None
            self._say(f"{self._kind} does not follow any more ({type(error).__name__}: {error}); training goes on")
            return None
