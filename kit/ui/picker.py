"""A dropdown to choose a run on this machine or in a store."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Self

from kit.errors import UserError, explain, need
from kit.runs.finding import is_url, locate
from kit.runs.run import Run, opened
from kit.ui import heartbeat, style
from kit.ui.dashboard import display_widget
from kit.ui.gallery import find_run
from kit.ui.headless import nobody_there
from kit.ui.resume import list_lines, store_entry
from kit.ui.rows import Line, RowReader, title


class RunPicker:
    """A dropdown of the latest runs (`kit.ui.resume.MAX_RUNS` of them); `picker.run` is the chosen run.

    >>> picker = kit.ui.RunPicker().show()
    >>> picker.run

    The initial choice is `run` (a name or path), by default the latest run in `runs_dir` that has a policy, or, if
    there is none, the latest run in `store`. A notebook executed without a user keeps this choice. Reading
    `picker.run` downloads a run that is only in `store`. `trust` as in `kit.resume`.
    """

    def __init__(
        self, run: str | Path | None = None, runs_dir: str = "runs", store: str | None = None, trust: bool = False
    ) -> None:
        self.runs_dir, self.store, self.trust = runs_dir, store, trust
        self._reader, self._stored = RowReader(), list[Line]()
        self._lock, self._drawing = threading.Lock(), 0
        self._choice: str | None = None
        try:
            self._choice = str(find_run(run, runs_dir).path)
        except UserError:
            if run is not None or store is None:
                raise
            if stored := list_lines(store):
                self._choice = stored[0].choice

    @property
    def run(self) -> Run:
        """The chosen run. Raises `UserError` if there is no run, a download fails, or the run's code is not trusted."""
        if self._choice is None:
            raise UserError(
                f"runs_dir={self.runs_dir!r} and store={self.store!r} hold no run; train one with 01_train."
            )
        try:
            run, _ = locate(self._choice, self.runs_dir, trust=self.trust)
        except UserError as error:
            if is_url(self._choice) or Path(self._choice).exists():
                raise
            raise UserError(f"{error} Renamed or deleted? Choose another run.") from None
        self._choice = str(run.path)
        return opened(run, self.trust)

    def show(self) -> Self:
        if nobody_there():
            print(self.run)
            return self
        w = need("ipywidgets", "notebook")
        self.choices = w.Dropdown(description="run", layout=w.Layout(width="100%", max_width="560px"))
        self.choices.add_class("kit-run-picker")
        self.label = w.HTML()
        self.choices.observe(lambda change: self._choose(change["new"]), names="value")
        self._draw()
        self.entry = store_entry(w, self.store, self._list_store)
        css = w.HTML(f"<style>{style.CSS}</style>", layout=w.Layout(display="none"))
        self.view = w.VBox([css, self.choices, self.entry, self.label])
        heartbeat.cover(w, self.view, self._draw)
        display_widget(self.view, " ")
        if self.store is not None:
            self._list_store(self.store)
        return self

    def _choose(self, choice: str | None) -> None:
        if choice is not None and threading.get_ident() != self._drawing:
            self._choice = choice
            self._say(f"Run the cells below again to see {choice.rpartition('/')[2]}.")

    def _draw(self) -> None:
        """List the runs of `runs_dir`, then those that are only in the store. Keep the choice."""
        local = list_lines(self.runs_dir, self._reader)
        names = {line.name for line in local}
        lines = local + [line for line in self._stored if line.name not in names]
        # without the step of a run at work, which would redraw the list at every look, and close it
        texts = [f"{line.name} ({style.state(line.now)[1]})" if line.is_working else title(line) for line in lines]
        options = list(zip(texts, [line.choice for line in lines], strict=True))
        if self._choice is not None and self._choice not in [choice for _, choice in options]:
            options.insert(0, (Path(self._choice).name, self._choice))
        if options == list(self.choices.options):
            return
        with self._lock:
            self._drawing = threading.get_ident()  # new options choose the first of them
            try:
                self.choices.options = options
                self.choices.value = self._choice
            finally:
                self._drawing = 0

    def _list_store(self, store: str) -> None:
        if not store:
            self._draw()
            return

        def list_store() -> None:
            try:
                self._stored = lines = list_lines(store)
                self._draw()
                self._say(f"{store}: {len(lines)} run{'' if len(lines) == 1 else 's'}.")
            except Exception as error:
                self._say(explain(error), bad=True)

        self.store = store
        self._say(f"Listing the runs in {store}…")
        threading.Thread(target=list_store, name="look", daemon=True).start()

    def _say(self, message: str, bad: bool = False) -> None:
        self.label.value = style.wrap(style.note(message, bad))
