"""HTML pieces and CSS for panels and reports; text colours follow the page's theme, light or dark."""

from __future__ import annotations

import base64
import html
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kit.machine.gpu import Summary, total
from kit.machine.progress import percent as percent
from kit.measure.speed import duration
from kit.runs.control import ON_REQUEST

if TYPE_CHECKING:
    import pandas as pd

BLUE, ORANGE, GREEN, RED, GREY = "#2a78d6", "#eb6834", "#1a9850", "#d73027", "#8a8f98"
COLOURS = {"starting": BLUE, "running": BLUE, "paused": ORANGE, "stopping": ORANGE, "interrupted": ORANGE}
COLOURS |= {"finished": GREEN, "failed": RED}

READABLE = 0.7
"""Smallest scale of a figure at which its text can be read."""

CSS = """
.kit{font:14px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;max-width:920px;color:inherit}
.kit-card{border:1px solid rgba(128,128,128,.28);border-radius:10px;padding:12px 16px;margin:2px 0}
.kit-curves{max-width:600px}
.kit-top{display:flex;align-items:baseline;gap:10px;flex-wrap:wrap}
.kit-state{font-weight:650;font-size:15px;display:inline-flex;align-items:center;gap:7px}
.kit-dot{width:9px;height:9px;border-radius:50%;display:inline-block}
.kit-name{overflow-wrap:anywhere;opacity:.72;font-family:ui-monospace,SFMono-Regular,Menlo,monospace;font-size:12.5px}
.kit-right{margin-left:auto;font-variant-numeric:tabular-nums;opacity:.85}
.kit-bar{height:8px;border-radius:4px;background:rgba(128,128,128,.2);margin:9px 0 2px;overflow:hidden}
.kit-bar>div{height:100%;border-radius:4px;transition:width .4s}
.kit-tiles{display:flex;gap:10px 34px;flex-wrap:wrap;margin-top:9px}
.kit-tile b{display:block;font-size:20px;line-height:1.25;font-weight:600;font-variant-numeric:tabular-nums}
.kit-tile span{font-size:12px;opacity:.68}
.kit-note{font-size:12.5px;opacity:.8;margin-top:8px}
.kit-note:has(.kit-good,.kit-bad),.kit-bad,.kit-good{opacity:1}
.kit-bad{color:#d73027;color:color-mix(in srgb,#d73027 80%,currentColor);font-weight:550}
.kit-good{color:#1a9850;color:color-mix(in srgb,#1a9850 70%,currentColor)}
.kit-flex{display:flex;gap:14px;margin-top:8px;flex-wrap:wrap;align-items:flex-start}
.kit-facts{display:grid;grid-template-columns:auto 1fr;gap:7px 16px;font-size:13px;flex:1 1 320px}
.kit figure{margin:0}
.kit figcaption{font-size:12.5px;opacity:.75;margin:3px 2px}
.kit video{border-radius:8px;display:block;background:#0002;max-width:100%;height:auto}
.kit figcaption a{color:inherit;text-decoration:underline;cursor:pointer;margin-left:8px}
.kit img,.kit svg{max-width:100%}
.kit img,.kit .kit-curve{height:auto}
.kit-wide{overflow-x:auto}
.kit .kit-wide>*{min-width:480px}
.kit-dashboard .widget-html-content{min-width:0}
.kit-run{display:grid;gap:2px 9px;
  grid-template-columns:minmax(0,1.7fr) minmax(0,1fr) 64px repeat(2,minmax(0,1.15fr)) repeat(3,minmax(0,1fr));
  white-space:nowrap;align-items:center;font-variant-numeric:tabular-nums;font-size:12.5px;line-height:1.35}
.kit-run>:nth-child(n+4):nth-child(-n+8){font-size:12px;white-space:normal}
.kit-run .kit-bar{margin:0;height:3px}
.kit-run svg{display:block}
.kit-run .kit-row-text{grid-column:1/-1;font-size:12.5px;white-space:normal;overflow-wrap:anywhere}
.kit-run>*{overflow:hidden;text-overflow:ellipsis}
.kit-run>:nth-child(-n+2){white-space:normal;overflow-wrap:anywhere}
.kit-run-head{font-size:12px;font-weight:650;opacity:.8}
@media(max-width:640px){.kit .kit-table th,.kit .kit-table td{white-space:normal;padding-right:6px;font-size:12px}
  .kit-run-head{display:none}
  .kit-run{grid-template-columns:repeat(2,auto)}.kit-card{padding:10px 12px}}
.kit-table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums;margin:6px 0 14px}
.kit-table th,.kit-table td{padding:4px 12px 4px 0;text-align:left!important;white-space:nowrap;
  border-bottom:1px solid rgba(128,128,128,.22)}
.kit .kit-table tbody th{white-space:normal}
.kit pre.kit-code{margin:0 0 8px;padding:8px 10px!important;border-radius:6px;background:rgba(128,128,128,.12);
  overflow-x:auto;font:12.5px/1.5 ui-monospace,Menlo,monospace;white-space:pre-wrap;user-select:all}
.kit-dim{opacity:.65}
.kit-fold-button.jupyter-button{text-align:left;white-space:normal;padding:3px 8px;margin:0;border:0;
  background:rgba(128,128,128,.12);color:inherit;box-shadow:none}
.kit-fold-button.jupyter-button:focus-visible{outline:2px solid #2a78d6;outline-offset:-2px}
.kit-train-panel .widget-box,.kit-entry,.kit-entry .widget-label{overflow:visible!important}
.kit-entry{position:relative}
.kit-help{display:none;position:absolute;z-index:20;left:8px;top:calc(100% + 3px);width:calc(100% - 20px);
  padding:6px 10px;
  white-space:normal;text-align:left;font-size:12.5px;line-height:1.4;border-radius:6px;border:1px solid #2a78d6;
  background:var(--jp-layout-color1,Canvas);color:var(--jp-ui-font-color1,CanvasText);
  box-shadow:0 2px 8px rgba(0,0,0,.25);pointer-events:none}
.kit-entry:focus-within .kit-help,.kit-entry .widget-label:hover .kit-help{display:block}
.kit-choices:has(.kit-entry:hover) .kit-entry:focus-within:not(:hover) .kit-help{display:none}
.kit-dashboard .jupyter-button:focus-visible{outline:2px solid #eb6834;outline-offset:1px}
[data-jp-theme-light=false] .kit-dashboard select{background-image:url('data:image/svg+xml;utf8,\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 18 18"><path fill="white" d="M5 7l4 4 4-4z"/></svg>')!important}
.kit-fold{border:1px solid rgba(128,128,128,.28);border-radius:4px}
.kit-choices .widget-inline-hbox{max-width:100%}
.kit-changed .widget-label{color:#eb6834;font-weight:650}
.kit-wrong input,.kit-wrong select{border-color:#d73027!important;box-shadow:0 0 0 1px #d73027}
.kit-dashboard{position:relative}
.kit-alive,.kit-alive .widget-html-content,.kit-alive .kit{position:static!important;overflow:visible}
.kit-silent{position:absolute;inset:0;z-index:30;display:flex;align-items:flex-start;padding:12px 16px;font-weight:650;
  background:var(--jp-layout-color1,Canvas);color:var(--jp-ui-font-color1,CanvasText);visibility:hidden;opacity:.94;
  animation:kit-silent 0s 30s forwards}
@keyframes kit-silent{to{visibility:visible}}
.kit-curve text{fill:currentColor;stroke:none;font-family:system-ui,sans-serif}
.kit-curve text:not([font-size]){font-size:11px}
"""


@dataclass(frozen=True)
class Page:
    """The output of a notebook cell: HTML, a text for logs, and a PNG for viewers without HTML."""

    text: str
    body: str
    """HTML without CSS; the CSS is added on display."""
    image: bytes | None = None
    """PNG of the main content, for viewers of saved notebooks that show no HTML, such as GitHub."""

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f"<style>{CSS}</style>{wrap(self.body)}"

    def _repr_png_(self) -> bytes | None:
        return self.image


def wrap(*parts: str) -> str:
    """Wrap HTML in an element of class `kit`, to which the CSS applies. Does not include the CSS."""
    return f"<div class='kit'>{''.join(parts)}</div>"


def flex(parts: Iterable[str]) -> str:
    """Put HTML pieces side by side, with line wrapping."""
    return f"<div class='kit-flex'>{''.join(parts)}</div>"


def heading(text: str) -> str:
    return f"<p style='font-size:16px;margin:8px 0 4px'><b>{html.escape(text)}</b></p>"


def bullets(title: str, lines: Iterable[str]) -> str:
    """Return lines as an HTML list with a title."""
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f"<div class='kit-note'><b>{html.escape(title)}</b><ul style='margin:4px 0'>{items}</ul></div>"


def wide(drawing: str) -> str:
    """Return `drawing` in a box that scrolls sideways instead of becoming too small to read."""
    return f"<div class='kit-wide'>{drawing}</div>"


def image(png: bytes, text: str, attributes: str = "") -> str:
    """Return an HTML image that contains the PNG; `text` is shown if the image cannot be shown."""
    url = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return f"<img alt='{html.escape(text)}' {attributes} src='{url}'>"


def figure(png: bytes, text: str) -> str:
    """Return a figure as an HTML image that scrolls sideways instead of becoming too small to read."""
    width = int.from_bytes(png[16:20], "big")  # in a PNG's header
    return wide(image(png, text, f"style='min-width:{READABLE * width:.0f}px'"))


def table(frame: pd.DataFrame, **options: Any) -> str:
    """Return `frame` as an HTML table that scrolls sideways; `options`: arguments of `DataFrame.to_html`."""
    return f"<div style='overflow-x:auto'>{frame.to_html(border=0, classes='kit-table', **options)}</div>"


def head(name: str, now: dict[str, Any]) -> str:
    """Return HTML with a run's state, name, progress bar, main values and notes. `now`: the run's status."""
    colour, word = state(now)
    if now["state"] in ("starting", "running") and now["phase"] not in ("training", "starting", ""):
        word = now["phase"]
    if now["state"] == "interrupted" and now["phase"] != "pruned":
        by_user = now["message"].startswith(ON_REQUEST)
        word = f"{'stopped' if by_user else 'interrupted'} (Resume continues it)"
    return (
        f"<div class='kit-card'><div class='kit-top'><span class='kit-state' style='color:{colour}'>"
        f"<span class='kit-dot' style='background:{colour}'></span>{html.escape(word)}</span>"
        f"<span class='kit-name'>{html.escape(name)}</span>"
        f"<span class='kit-right'>{now['step']:,} of {now['total_steps']:,} steps</span></div>"
        f"{bar(now)}<div class='kit-tiles'>{tiles(now)}</div>{notes(now)}</div>"
    )


def state(now: dict[str, Any]) -> tuple[str, str]:
    """Return the colour and the text for a run's state."""
    if now.get("phase") == "pruned":
        return GREY, "pruned"
    return COLOURS.get(now["state"], GREY), "training" if now["state"] == "running" else now["state"]


def progress(now: dict[str, Any]) -> float:
    """Return the fraction of the run's steps that are done, 0 to 1."""
    return float(min(1.0, now["step"] / max(1, now["total_steps"] or 0)))


def bar(now: dict[str, Any]) -> str:
    """Return a run's progress bar as HTML, in the colour of its state."""
    filled = f"width:{100 * progress(now):.1f}%;background:{state(now)[0]}"
    value = f"role='progressbar' aria-label='steps done, %' aria-valuenow='{100 * progress(now):.0f}'"
    return f"<div class='kit-bar' {value}><div style='{filled}'></div></div>"


MEANINGS = {
    "success rate": "share of episodes that ended in success",
    "mean return": "sum of the rewards of an episode, averaged over episodes",
    "steps per second": "environment steps per second, over all envs",
}
"""Name of a value in `tiles` -> its tooltip."""


SCORES = ("success rate", "mean return")
"""Names of values under which `tiles` also says where they were measured."""


def tiles(now: dict[str, Any]) -> str:
    """Return HTML with the run's main values in large digits, each above its name."""
    gpu, where = _gpu_summary(now), f", {now['measured_in']}" if now.get("measured_in") else ""
    rows: tuple[tuple[str, Any, Callable[[Any], str]], ...] = (
        ("success rate", now["success_rate"], percent),
        ("mean return", now["mean_return"], lambda value: f"{round(value, 2) + 0.0:.2f}"),  # + 0.0: no "-0.00"
        ("of all steps", progress(now), percent),
        ("steps per second", now["steps_per_s"] or None, "{:,.0f}".format),
        ("time left", now["eta_s"] or None, duration),
        ("left of the session", now.get("session_left_s"), duration),
        ("GPU busy", gpu.busy_percent if gpu else None, "{:.0f} %".format),
    )
    shown = ((name, format_value(value)) for name, value, format_value in rows if value is not None)
    return "".join(
        f"<div class='kit-tile' title='{MEANINGS.get(name, '')}'><b>{value}</b>"
        f"<span>{name}{where if name in SCORES else ''}</span></div>"
        for name, value in shown
    )


def notes(now: dict[str, Any]) -> str:
    """Return HTML with notes about a run: GPU load, parent run, branches, checkpoint, store, and the run's message."""
    saved, store, gpu = now["checkpoint"], now["store"], _gpu_summary(now)
    ended = now["state"] in ("finished", "failed", "interrupted")
    lines = []
    if gpu is not None and gpu.verdict and now["phase"] == "training":
        lines.append(f"<span class='kit-bad'>{html.escape(gpu.verdict)}</span>")
    elif gpu is not None:
        loads = " and ".join(f"{load['busy_percent']:.0f} % of {phase}s" for phase, load in now["gpu"].items())
        lines.append(f"The GPU was busy {loads}; up to {gpu.memory_bytes / 1e9:.1f} GB of its memory were in use.")
    if now.get("parent"):
        name, step = now["parent"]
        at_step = "" if step is None else f" of step {step:,}"
        lines.append(f"Training started from the policy{at_step} of {html.escape(name)}.")
    if now.get("branches"):
        lines.append(f"Branches: {html.escape(', '.join(now['branches']))}.")
    if now.get("plan"):
        lines.append(f"{html.escape(now['plan'])}.")
    if saved:
        age = "" if ended else f", {ago(saved['time'])}"  # an ended run is not redrawn, so the age would become wrong
        lines.append(f"Saved on this machine: step {saved['step']:,}{age}.")
    if saved and now["state"] in ("interrupted", "failed"):
        lines.append(
            f"Resume continues from step {saved['step']:,}. A checkpoint is written between iterations, so the steps "
            "of an unfinished iteration are repeated."
        )
    if store:
        lines.append(_store_line(store, ended))
    if ended and now.get("started") and now.get("updated"):
        lines.append(f"The last session took {duration(now['updated'] - now['started'])}.")
    if now["message"] and now["state"] != "finished":
        bad = "kit-bad" if now["state"] == "failed" else ""
        lines.append(f"<span class='{bad}'>{html.escape(now['message'])}</span>")
    return "".join(f"<div class='kit-note'>{entry}</div>" for entry in lines)


def _gpu_summary(now: dict[str, Any]) -> Summary | None:
    """Return the GPU's load, over rollouts and updates together; None without measurements."""
    return total([Summary(**load) for load in (now["gpu"] or {}).values()])


def _store_line(store: dict[str, Any], ended: bool) -> str:
    """Return a sentence as HTML: which step is in the store, and why newer steps are not. `ended`: as in `notes`."""
    where = html.escape(str(store.get("url", "the store")))
    step, moment, state = (store.get(name) for name in ("step", "time", "state"))
    age = f", {ago(moment)}" if moment and not ended else ""
    arrived = f"Stored and verified in {where}: step {step:,}{age}." if step is not None else ""
    if state == "failing":
        reason = html.escape(str(store.get("error") or "no reason given"))
        failure = f"Not copied to {where}: {reason}. Training goes on; the copy is retried."
        return f"<span class='kit-bad'>{failure}</span> {arrived}"
    if not arrived:
        return f"Copying to {where}."
    warning = f" {html.escape(str(store['error']))}" if store.get("error") else ""
    return f"<span class='kit-good'>{arrived}</span>{warning}" if state == "ok" else f"{arrived} Copying newer steps."


def note(text: str, bad: bool = False) -> str:
    """Return `text` as HTML in small type, in red if `bad`."""
    look = "class='kit-note kit-bad' role='alert'" if bad else "class='kit-note'"  # an alert is read out at once
    return f"<div {look}>{html.escape(text)}</div>"


def ago(moment: float) -> str:
    """Format unix seconds as an age, such as "12 s ago"."""
    seconds = max(0.0, time.time() - moment)
    if seconds < 2:
        return "just now"
    return f"{duration(seconds)} ago" if seconds < 2 * 86_400 else f"{seconds / 86_400:.0f} days ago"
