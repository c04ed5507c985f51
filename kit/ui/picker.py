"""Choosing a run on this machine or in a store, without touching code."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Self

from kit.errors import UserError, need
from kit.runs.finding import local_runs, locate
from kit.runs.run import Run, opened
from kit.ui import style
from kit.ui.gallery import find_run
from kit.ui.headless import nobody_there
from kit.ui.resume import Entry, entries, store_entry


class RunPicker:
    """A list of runs to choose from; `run` is the chosen one.

    >>> picker = kit.ui.RunPicker().show()
    >>> picker.run

    At first it is `run`, a name or path, else the latest that has a policy; with nobody there it stays so. A run that
    lies in `store` alone is fetched into `runs_dir` when it is asked for. `trust` as in `kit.resume`.
    """

    def __init__(
        self, run: str | Path | None = None, runs_dir: str = "runs", store: str | None = None, trust: bool = False
    ) -> None:
        self.runs_dir, self.store, self.trust = runs_dir, store, trust
        self._choice: str | None = None
        if run is not None or store is None or local_runs(runs_dir):
            self._choice = str(find_run(run, runs_dir).path)
        elif stored := entries(store):
            self._choice = stored[0]["choice"]

    @property
    def run(self) -> Run:
        """Raises `UserError` if there is none, if it cannot be fetched, or if what it names is not trusted."""
        if self._choice is None:
            raise UserError(
                f"runs_dir={self.runs_dir!r} and store={self.store!r} hold no run; train one with 01_train."
            )
        run, _ = locate(self._choice, self.runs_dir)
        self._choice = str(run.path)
        return opened(run, self.trust)

    def show(self) -> Self:
        if nobody_there():
            print(self.run)
            return self
        from IPython.display import display

        w = need("ipywidgets", "notebook")
        self.choices = w.Dropdown(description="run", layout=w.Layout(width="100%", max_width="560px"))
        self.choices.add_class("kit-run-picker")
        self.label = w.HTML()
        self._offer([{**now, "choice": str(Path(now["choice"]).absolute())} for now in entries(self.runs_dir)])
        self.choices.observe(lambda change: self._choose(change["new"]), names="value")
        self.entry = store_entry(w, self.store, self._look)
        display(w.VBox([self.choices, self.entry, self.label]))
        if self.store is not None:
            self._look(self.store)
        return self

    def _choose(self, choice: str | None) -> None:
        if choice is not None:
            self._choice = choice
            self._say("The cells below show this run when they are run again.")

    def _offer(self, found: list[Entry]) -> None:
        """Runs to choose from, behind those that are offered already."""
        offered = list(self.choices.options)
        names = {Path(choice).name for _, choice in offered}
        offered += [(_told(now), now["choice"]) for now in found if now["name"] not in names]
        choices = [choice for _, choice in offered]
        if self._choice is not None and self._choice not in choices:
            offered.insert(0, (Path(self._choice).name, self._choice))
        chosen = self._choice
        self.choices.options = offered
        self.choices.value = chosen

    def _look(self, store: str) -> None:
        """List the runs of `store`, in a thread."""

        def look() -> None:
            try:
                found = entries(store)
                self._offer(found)
                self._say(f"{store}: {len(found)} run{'' if len(found) == 1 else 's'}.")
            except Exception as error:
                self._say(str(error) or type(error).__name__, bad=True)

        self.store = store
        self._say(f"Looking into {store}…")
        threading.Thread(target=look, name="look", daemon=True).start()

    def _say(self, sentence: str, bad: bool = False) -> None:
        self.label.value = style.wrap(style.note(sentence, bad))


def _told(now: dict[str, Any]) -> str:
    success = f", {style.percent(now['success_rate'])} success" if now["success_rate"] is not None else ""
    return f"{now['name']} ({now['state']}, {now['step']:,} steps{success})"
