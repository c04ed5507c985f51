"""The page that visitors of a finished run see on the Hub: what it is, how well it does, its curve and its video."""

from __future__ import annotations

import io
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kit.format.files import read_json, read_rows
from kit.stores.base import Store
from kit.stores.redact import redact

MARK = "<!-- written by kit; remove this line to keep your own text -->"
FILES = ("README.md", "curve.png", "replay.mp4", ".gitattributes")
"""Beside the runs; the last is the Hub's own."""
HEAD = """---
library_name: kit
pipeline_tag: reinforcement-learning
tags: [reinforcement-learning, robotics, mujoco, stable-baselines3]
---"""
USE = """```python
import kit
run = kit.resume({url!r})  # goes on training, if there is more to do
policy = run.policy()
```
Nothing here is a pickle: tensors are safetensors, the rest is JSON. The run is in the folder `{name}`.
"""


def page(run_dir: Path, store: Store) -> dict[str, Path | bytes]:
    """README.md, curve.png, replay.mp4 for the top of `store`; nothing if unfinished, or over somebody's own README."""
    import yaml

    status = read_json(run_dir / "status.json", {})
    if status.get("state") != "finished" or MARK.encode() not in (store.read_or_none("README.md") or MARK.encode()):
        return {}
    try:
        config, rows = yaml.safe_load((run_dir / "config.yaml").read_text()), read_rows(run_dir / "metrics.jsonl")
    except (OSError, ValueError, yaml.YAMLError):  # a run without a page is better than one that never arrives
        return {}
    tested = {name.removeprefix("test/"): row[name] for row in rows for name in row if name.startswith("test/")}
    best, success = ({**status, **tested}.get(name) for name in ("mean_return", "success_rate"))
    facts = {"task": config.get("env"), "algorithm": config.get("algo"), "steps": f"{status.get('step', 0):,}",
             "worlds": config.get("n_envs"), "seed": config.get("seed"),
             "mean return": None if best is None else f"{best:,.4g}",
             "success rate": None if success is None else f"{100 * success:.0f} %"}  # fmt: skip
    table = "\n".join(f"| {name} | {value} |" for name, value in facts.items() if value is not None)
    title = f"# {run_dir.name}: {facts['algorithm']} on {facts['task']}"
    parts, files = [HEAD, MARK, title, f"| | |\n|---|---|\n{table}"], dict[str, Path | bytes]()
    if drawn := curve(rows):
        files["curve.png"] = drawn
        parts.append("![learning curve](curve.png)")
    if videos := sorted((run_dir / "videos").glob("[!.]*.mp4"), key=lambda path: path.stat().st_mtime):
        files["replay.mp4"] = videos[-1]  # the name that the Hub plays on a reinforcement-learning page
        parts.append("The video of the trained policy is [replay.mp4](replay.mp4).")
    text = "\n\n".join([*parts, USE.format(url=store.url, name=run_dir.name)])
    return {"README.md": redact(text).encode(), **files}


def curve(rows: list[dict[str, Any]]) -> bytes | None:
    """A PNG of return and success over steps, in training and in evaluations; None without matplotlib or data."""
    curves = {"mean return": ("rollout/ep_rew_mean", "eval/mean_return"),
              "success rate": ("rollout/success_rate", "eval/success_rate")}  # fmt: skip
    points = {key: [(row["step"], row[key]) for row in rows if key in row] for keys in curves.values() for key in keys}
    drawn = {title: keys for title, keys in curves.items() if any(len(points[key]) > 1 for key in keys)}
    if not drawn or find_spec("matplotlib") is None:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * len(drawn), 3.2), layout="constrained")
    for axes, (title, keys) in zip(figure.subplots(1, len(drawn), squeeze=False)[0], drawn.items(), strict=True):
        for key, label in zip(keys, ("training", "evaluation"), strict=True):
            axes.plot([step for step, _ in points[key]], [value for _, value in points[key]], label=label)
        axes.set(xlabel="steps", title=title)
        axes.legend()
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=110)
    return image.getvalue()
