"""Form entries for the algorithm's hyperparameters: grey values come from the preset, typed values are overrides."""

from __future__ import annotations

import html
import inspect
import json
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

from kit.config import RunConfig, number, to_text
from kit.measure.auto import resolve
from kit.presets import POLICY_KEYS
from kit.trainers import algorithm
from kit.trainers.arguments import hyperparameter_docs, nested

STOCK_NET_ARCH: dict[str, Any] = {
    "SAC": [256, 256], "TD3": [400, 300], "CrossQ": {"pi": [256, 256], "qf": [1024, 1024]},
}  # fmt: skip
"""Algorithm -> default layers in Stable-Baselines3, where net_arch=None means these layers; [64, 64] if not listed."""


class Hyperparameters:
    """One text entry per hyperparameter; calls `on_change(overrides)` with all overrides after each edit."""

    def __init__(self, w: Any, on_change: Callable[[dict[str, Any]], None]) -> None:
        self._make, self._on_change = Entries(w, label_px=150, width_px=290).make, on_change
        self.entries: dict[str, Any] = {}
        self._algo, self._overrides = "", dict[str, Any]()
        self._latest = object()  # replaced by each edit of the user and each `show`, which ends an older `show`
        self._filling = threading.Lock()
        self._showing: int | None = None  # id of the thread in which `show` fills entries; its edits are not the user's
        self.view = w.HBox([], layout=w.Layout(flex_flow="row wrap"))

    def show(self, config: RunConfig, resolved: RunConfig) -> None:
        """Fill the entries with `config`'s overrides; show other values of the `resolved` config in grey.

        An entry whose override differs from the preset is marked. Takes about a second; ends early if the user edits an
        entry meanwhile.
        """
        self._latest = latest = object()
        record = algorithm.find(resolved.algo)
        known = hyperparameter_docs(record)
        preset = resolve(config.replace(overrides={}, n_envs=resolved.n_envs))
        own = _flat(config.overrides)
        stock = {name: stock_value(record, name) if value is None else value for name, (value, _) in known.items()}
        usual, used = stock | _flat(preset.overrides), stock | _flat(resolved.overrides)
        with self._filling:
            if self._latest is not latest:
                return
            self._overrides = dict(own)
            self._showing = threading.get_ident()
            try:
                if resolved.algo != self._algo:
                    self._algo = resolved.algo
                    self.entries = {name: self._entry(name, explanation) for name, (_, explanation) in known.items()}
                    self.view.children = tuple(self.entries.values())
                for name, entry in self.entries.items():
                    default = usual[name] if name in own else used[name]
                    entry.placeholder = "none" if default is None else to_text(default)
                    entry.description = label(name, f"{known[name][1]}; default: {entry.placeholder}")
                    if self._latest is not latest:
                        return
                    typed = entry.value.strip()
                    if name not in own:
                        entry.value = ""
                    elif not typed or parsed(name, typed) != own[name]:  # 3e-4 stays as the user has typed it
                        entry.value = to_text(own[name])
                    changed = name in own and own[name] != usual[name]
                    (entry.add_class if changed else entry.remove_class)("kit-changed")
            finally:
                self._showing = None

    def _entry(self, name: str, explanation: str) -> Any:
        entry = self._make(name, f"kit-hyper-{name}", explanation)
        entry.observe(lambda change: self._edited(name, change["new"].strip()), names="value")
        return entry

    def _edited(self, name: str, text: str) -> None:
        if self._showing == threading.get_ident():
            return
        self._latest = object()
        self._overrides.pop(name, None)
        if text:
            self._overrides[name] = parsed(name, text)
        self._on_change(nested(self._overrides))


def stock_value(record: algorithm.Algorithm, name: str) -> Any:
    """Return the value that Stable-Baselines3 uses if `name` is left out and its documented default is None."""
    if name == "net_arch":
        return STOCK_NET_ARCH.get(record.name, [64, 64])
    if name == "activation_fn":
        default = inspect.signature(record.policy).parameters[name].default
        return getattr(default, "__name__", "none").lower()
    return None


def label(name: str, explanation: str) -> str:
    """Return the label of an entry as HTML, with its help text."""
    return f"{name.replace('_', ' ')}<span class='kit-help' role='tooltip'>{html.escape(explanation)}</span>"


class Entries:
    """Makes entries of one width. They share one layout and one style: each is a widget, and sixty take half a second.

    `w`: ipywidgets.
    """

    def __init__(self, w: Any, label_px: int = 118, width_px: int = 260) -> None:
        self._w = w
        self._style = w.Text(style={"description_width": f"{label_px}px"}).style
        self._layout = w.Layout(width=f"{width_px}px", max_width="100%")

    def make(self, name: str, css: str, explanation: str, kind: Any = None, **settings: Any) -> Any:
        """Return an entry that shows `explanation` while it has the focus or the pointer is on its label.

        `css`: CSS class of the entry; `kind`: widget class (Text).
        """
        return (kind or self._w.Text)(
            description=label(name, explanation), description_allow_html=True, style=self._style, layout=self._layout,
            _dom_classes=("kit-entry", css), **settings,  # `add_class` would send a message for each
        )  # fmt: skip


def parsed(name: str, text: str) -> Any:
    """Parse the typed value of `name`: JSON, a number such as 1e6 or 400k, or a text such as lin_0.0003.

    net_arch, the layer widths of a network, may be typed as 64, 64 or as [64, 64].
    """
    if name == "net_arch" and re.fullmatch(r"\d+(\s*,\s*\d+)+", text):
        return [int(width) for width in text.split(",")]
    try:
        value = json.loads(text)
    except ValueError:
        value = number(text)
    return int(value) if isinstance(value, float) and value.is_integer() else value  # as for a config's fields


def _flat(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the overrides with `POLICY_KEYS` moved from policy_kwargs to the top level."""
    policy = dict(overrides.get("policy_kwargs", {}))
    own = {name: policy.pop(name) for name in POLICY_KEYS if name in policy}
    flat = {name: value for name, value in overrides.items() if name != "policy_kwargs"} | own
    return flat | ({"policy_kwargs": policy} if policy else {})
