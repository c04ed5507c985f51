"""The fields of RunConfig as a form: one entry each, in three groups, with the sentence of the field as its tooltip."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from kit.config import ALGOS, ENCODERS, PRESETS, RunConfig
from kit.errors import UserError, need

GROUPS = {
    "Task": ("env", "algo", "preset", "total_steps"),
    "Machine": ("device", "n_envs", "threads", "seed"),
    "Keeping": ("run_name", "store", "checkpoint_every", "session_limit"),
}
"""What is in sight; every other field is under "More"."""
MORE = "More"
EMPTY = {"run_name": "named by time", "store": "this machine only", "session_limit": "none"}
"""What an entry that is left empty means."""


class Form:
    """Entries for a RunConfig. `read` gives the RunConfig they spell, `on_change` is called after every edit."""

    def __init__(self, config: RunConfig, on_change: Callable[[], None]) -> None:
        self._w = need("ipywidgets", "notebook")
        self.entries: dict[str, Any] = {}
        for field in dataclasses.fields(RunConfig):
            entry = self._entry(field, getattr(config, field.name))
            entry.add_class(f"kit-field-{field.name}")
            entry.observe(lambda _: on_change(), names="value")
            self.entries[field.name] = entry
        self.view = self._lay_out()

    def read(self) -> RunConfig:
        """The RunConfig of what stands in the form. Raises `UserError` for what cannot be."""
        return RunConfig.from_dict({name: self._value(name, entry.value) for name, entry in self.entries.items()})

    def write(self, config: RunConfig) -> None:
        """Show `config`."""
        for name, entry in self.entries.items():
            value = _text(getattr(config, name))
            if isinstance(entry, self._w.Dropdown) and value not in entry.options:
                entry.options = (*entry.options, value)
            entry.value = value

    def _entry(self, field: dataclasses.Field[Any], value: Any) -> Any:
        w = self._w
        shared = {
            "description": field.name.replace("_", " "),
            "style": {"description_width": "118px"},
            "layout": w.Layout(width="260px"),
            "tooltip": field.metadata["help"],
        }
        choices = _choices(field.name)
        if choices:
            options = choices if str(value) in choices else (*choices, str(value))
            return w.Dropdown(options=options, value=str(value), **shared)
        return w.Text(value=_text(value), placeholder=EMPTY.get(field.name, ""), **shared)

    def _value(self, name: str, text: str) -> Any:
        text = text.strip()
        if name == "overrides":
            try:
                return json.loads(text or "{}")
            except ValueError:
                raise UserError(f'overrides={text!r} is not JSON; write it like {{"gamma": 0.98}}.') from None
        if not text and name in EMPTY:
            return None
        if name in ("run_name", "store", "runs_dir", "env", "session_limit"):
            return text
        return _number(text)

    def _lay_out(self) -> Any:
        w = self._w
        shown = {name for names in GROUPS.values() for name in names}
        rest = [name for name in self.entries if name not in shown]
        columns = [self._column(title, names) for title, names in GROUPS.items()]
        more = w.HBox([self.entries[name] for name in rest], layout=w.Layout(flex_flow="row wrap"))
        fold = w.Accordion([more], layout=w.Layout(max_width="920px", margin="4px 0"), selected_index=None)
        fold.set_title(0, MORE)
        fold.add_class("kit-more")
        return w.VBox([w.HBox(columns, layout=w.Layout(flex_flow="row wrap")), fold])

    def _column(self, title: str, names: tuple[str, ...]) -> Any:
        w = self._w
        heading = w.HTML(f"<b style='font:650 13px system-ui,sans-serif;opacity:.8'>{title}</b>")
        return w.VBox([heading, *(self.entries[name] for name in names)], layout=w.Layout(margin="0 14px 0 0"))


def _choices(name: str) -> tuple[str, ...]:
    if name == "env":
        from kit import envs

        return tuple(envs.names())
    return {"algo": ALGOS, "encoder": ENCODERS, "preset": PRESETS, "device": ("auto", "cpu", "cuda")}.get(name, ())


def _text(value: Any) -> str:
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, dict) else str(value)


def _number(text: str) -> int | float | str:
    """Such as 100000, 100_000, 100,000 and 1e5; anything else stays text for RunConfig to judge."""
    for kind in (int, float):
        try:
            return kind(text.replace(",", ""))
        except ValueError:
            continue
    return text
