"""A form for RunConfig: one entry per field, in groups; a field's name shows its help text as a tooltip."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from kit import envs
from kit.config import ALGOS, ENCODERS, PRESETS, RunConfig, to_text
from kit.errors import UserError, need
from kit.ui.fold import Fold
from kit.ui.hyper import Entries, Hyperparameters, label
from kit.ui.task import option_names, sensible_steps

GROUPS = {
    "Task": ("env", "algo", "preset", "total_steps"),
    "Machine": ("device", "n_envs", "threads", "seed"),
    "Saving": ("run_name", "store", "checkpoint_every", "session_limit"),
}
"""Title of a group -> its fields, which are always visible. All other fields are under "More"."""
CHOICES = {"algo": ALGOS, "encoder": ENCODERS, "preset": PRESETS, "device": ("auto", "cpu", "cuda")}
PLACEHOLDERS = {"env": "Reach, Ant-v5, module:Class", "run_name": "by env and time"}
PLACEHOLDERS |= {"store": "none"}
PLACEHOLDERS |= dict.fromkeys(("session_limit", "tracker", "teacher", "dataset"), "none")
"""Grey text in an empty entry: the meaning of the empty entry, or examples."""


class Form:
    """Form entries for a RunConfig: `read` returns the RunConfig; `on_change` is called after every edit."""

    def __init__(self, config: RunConfig, on_change: Callable[[], None], dollars_per_hour: float | None = None) -> None:
        self._w = w = need("ipywidgets", "notebook")
        self._make = Entries(w).make
        self.entries: dict[str, Any] = {}
        self._suggested = to_text(sensible_steps(config.env))
        for field in dataclasses.fields(RunConfig):
            entry = self._entry(field, _field_text(getattr(config, field.name)))
            entry.observe(lambda _: on_change(), names="value")
            self.entries[field.name] = entry
        self.entries["env"].observe(self._suggest, names="value")
        self._name_options(config.env)
        self.price = self._make(
            "dollars per hour", "kit-field-dollars_per_hour",
            "price of this machine, for the estimate; usual: 0.2 to 4; default: the last known",
            placeholder="last known price", value="" if dollars_per_hour is None else f"{dollars_per_hour:g}",
        )  # fmt: skip
        self.price.observe(lambda _: on_change(), names="value")
        self.hyper = Hyperparameters(w, self._override)
        rest = [name for name in self.entries if not any(name in names for names in GROUPS.values())]
        more = w.HBox([*(self.entries[name] for name in rest), self.price], layout=w.Layout(flex_flow="row wrap"))
        folds = [Fold(w, "Hyperparameters", "kit-hyperparameters", [self.hyper.view])]
        folds.append(Fold(w, "More", "kit-more", [more]))
        columns, layout, plain = [], w.Layout(margin="0 8px 0 0", max_width="100%"), w.HTML()
        for title, names in GROUPS.items():
            text = f"<b style='font:650 13px system-ui,sans-serif;opacity:.8'>{title}</b>"
            heading = w.HTML(text, layout=plain.layout, style=plain.style)  # one of each for all columns
            columns.append(w.VBox([heading, *(self.entries[name] for name in names)], layout=layout))
        self.view = w.VBox([w.HBox(columns, layout=w.Layout(flex_flow="row wrap")), *(fold.view for fold in folds)])

    def read(self) -> RunConfig:
        """Return the RunConfig in the form. Raises `UserError` for an invalid value."""
        return RunConfig(**{name: RunConfig.from_text(name, entry.value) for name, entry in self.entries.items()})

    def read_price(self) -> float | None:
        """Return the dollars per hour, or None if the entry is empty. Raises `UserError` if it is not a number."""
        text = self.price.value.strip()
        if text and not re.fullmatch(r"\d*\.?\d+", text):
            raise UserError(f"dollars_per_hour={text!r} is not a price; write a number such as 0.79.")
        return float(text) if text else None

    def mark(self, message: str) -> None:
        """Mark in red the entry that the error `message` names at its start ("name=..."); "" removes the mark."""
        match = re.match(r"(?:overrides (?:policy_kwargs )?)?(\w+)=", message)
        wrong = match and match[1]
        for name, entry in [*self.hyper.entries.items(), *self.entries.items(), ("dollars_per_hour", self.price)]:
            (entry.add_class if name == wrong else entry.remove_class)("kit-wrong")

    def _override(self, overrides: dict[str, Any]) -> None:
        self.entries["overrides"].value = to_text(overrides)

    def fill(self, config: RunConfig) -> None:
        for name, entry in self.entries.items():
            text = _field_text(getattr(config, name))
            if name in CHOICES and text not in entry.options:
                entry.options = (*entry.options, text)
            entry.value = text

    def _suggest(self, change: Any) -> None:
        """Suggest the new task's `total_steps`, unless the user has changed the last suggestion."""
        self._name_options(change["new"])
        steps = sensible_steps(change["new"])  # none for a name that is half typed
        if steps and self.entries["total_steps"].value == self._suggested:
            self._suggested = self.entries["total_steps"].value = to_text(steps)

    def _name_options(self, env: str) -> None:
        """Name the options of the task `env` in the help of the entry env_options."""
        names = ", ".join(option_names(env))
        explanation = f"options of the task{': ' if names else ''}{names}; default: {{}}"
        self.entries["env_options"].description = label("env_options", explanation)

    def _entry(self, field: dataclasses.Field[Any], text: str) -> Any:
        w, name, default = self._w, field.name, getattr(RunConfig(), field.name)
        css = f"kit-field-{name}"
        explanation = f"{field.metadata['help']}; default: {_field_text(default) or 'none'}"
        if name in CHOICES:
            options = tuple(dict.fromkeys((*CHOICES[name], text)))
            return self._make(name, css, explanation, kind=w.Dropdown, options=options, value=text)
        kind = {"kind": w.Combobox, "options": [*envs.names(), *envs.robot_envs()]} if name == "env" else {}
        return self._make(name, css, explanation, value=text, placeholder=PLACEHOLDERS.get(name, ""), **kind)


def _field_text(value: Any) -> str:
    return "" if value is None else to_text(value)
