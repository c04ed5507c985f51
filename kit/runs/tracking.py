"""Experiment tracking: send metric rows to Weights & Biases or Trackio. Training never fails because of the tracker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kit.config import RunConfig
from kit.errors import need


def check(tracker: str | None) -> None:
    """Raise `UserError` if the package that `tracker` names is not installed."""
    if tracker is not None:
        need(tracker.partition(":")[0], "track")


class Tracker:
    """Logs rows to the project that `config.tracker` names, under the run's name.

    A resumed run continues the same tracker run and sends the rows of repeated iterations again. An error is reported
    through `notify` and ends logging; metrics.jsonl still gets all rows.
    """

    def __init__(self, config: RunConfig, name: str, notify: Callable[[str], None]) -> None:
        from kit.stores.redact import redact_config

        kind, _, project = str(config.tracker).partition(":")
        self._kind, self._notify = kind, notify
        options = {"id": name} if kind == "wandb" else {"embed": False}  # trackio identifies a run by its name
        values = redact_config(config.to_dict())
        self._run = self._attempt(
            lambda: need(kind, "track").init(project=project, name=name, config=values, resume="allow", **options)
        )

    def add(self, row: dict[str, Any]) -> None:
        """Log one row of metrics.jsonl, at its step."""
        if self._run is not None:
            values = {name: value for name, value in row.items() if name != "step"}
            self._attempt(lambda: self._run.log(values, step=row["step"]))

    def close(self) -> None:
        """Finish the run in the tracker."""
        if self._run is not None:
            self._attempt(self._run.finish)
        self._run = None

    def _attempt(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:  # no error of the tracker may end training
            self._run = None
            self._notify(f"{self._kind} stopped logging ({type(error).__name__}: {error}); training goes on")
            return None
