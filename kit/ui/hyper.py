"""The algorithm's hyperparameters, a field each: empty, the preset's value stands in grey; typed, it is an override."""

from __future__ import annotations

import html
import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

from kit.config import RunConfig, number, spelled
from kit.measure.auto import resolve
from kit.presets import POLICY_KEYS
from kit.trainers import algorithm
from kit.trainers.arguments import hyperparameter_docs, nested


class Hyperparameters:
    """`show` tells what a config comes to; `on_change` gets the overrides that are asked for after an edit."""

    def __init__(self, w: Any, on_change: Callable[[dict[str, Any]], None]) -> None:
        self._w, self._on_change = w, on_change
        self.entries: dict[str, Any] = {}
        self._algo, self._asked = "", dict[str, Any]()
        self._showing: int | None = None  # in which thread; what is typed meanwhile comes from another
        self.view = w.HBox([], layout=w.Layout(flex_flow="row wrap"))

    def show(self, asked: RunConfig, resolved: RunConfig) -> None:
        """What `asked` overrides, marked where the preset says otherwise; in grey what holds of the others, as in
        `resolved`. A second or so."""
        found = hyperparameter_docs(algorithm.find(resolved.algo))
        preset = resolve(asked.replace(overrides={}, n_envs=resolved.n_envs))
        self._showing = threading.get_ident()
        try:
            if resolved.algo != self._algo:
                self._algo, self.entries = (
                    resolved.algo,
                    {name: self._entry(name, said[1]) for name, said in found.items()},
                )
                self.view.children = tuple(self.entries.values())
            own, stock = _flat(asked.overrides), {name: default for name, (default, _) in found.items()}
            self._asked = dict(own)
            usual, used = stock | _flat(preset.overrides), stock | _flat(resolved.overrides)
            for name, entry in self.entries.items():
                given = usual[name] if name in own else used[name]
                entry.placeholder = "Stable-Baselines3's" if given is None else spelled(given)
                entry.value = spelled(own[name]) if name in own else ""
                changed = name in own and own[name] != usual[name]
                (entry.add_class if changed else entry.remove_class)("kit-changed")
        finally:
            self._showing = None

    def _entry(self, name: str, explanation: str) -> Any:
        entry = text_entry(self._w, name, explanation, label_px=138, width_px=280)
        entry.add_class(f"kit-hyper-{name}")
        entry.observe(lambda change: self._edited(name, change["new"].strip()), names="value")
        return entry

    def _edited(self, name: str, text: str) -> None:
        if self._showing == threading.get_ident():
            return
        self._asked.pop(name, None)
        if text:
            self._asked[name] = value_of(text)
        self._on_change(nested(self._asked))


def text_entry(
    w: Any, name: str, explanation: str, kind: Any = None, label_px: int = 118, width_px: int = 260, **settings: Any
) -> Any:
    """An entry of ipywidgets `w`; pointing at its name shows the explanation."""
    return (kind or w.Text)(
        description=f"<span title='{html.escape(explanation)}'>{name.replace('_', ' ')}</span>",
        description_allow_html=True, style={"description_width": f"{label_px}px"},
        layout=w.Layout(width=f"{width_px}px"), **settings,
    )  # fmt: skip


def value_of(text: str) -> Any:
    """What somebody typed: JSON, a number as people type it, or else a text such as lin_0.0003."""
    try:
        return json.loads(text)
    except ValueError:
        return number(text)


def _flat(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of the network stands beside the others; what is left of `policy_kwargs` stays."""
    policy = dict(overrides.get("policy_kwargs", {}))
    own = {name: policy.pop(name) for name in POLICY_KEYS if name in policy}
    flat = {name: value for name, value in overrides.items() if name != "policy_kwargs"} | own
    return flat | ({"policy_kwargs": policy} if policy else {})
