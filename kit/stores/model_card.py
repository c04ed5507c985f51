"""The Hub page of a finished run: README.md with results, learning curve and video."""

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
"""Files beside the runs' folders in a repository. The Hub itself writes .gitattributes."""
HEAD = """---
library_name: kit
pipeline_tag: reinforcement-learning
tags: [reinforcement-learning, robotics, mujoco, stable-baselines3]
---"""
USE = """```python
import kit
run = kit.resume({url!r})  # continues training if the run is unfinished
policy = run.policy()
```
No file is a pickle: tensors are safetensors. The run is in the folder `{name}`.
"""


def page(run_dir: Path, store: Store) -> dict[str, Path | bytes]:
    """Return README.md, curve.png and replay.mp4 for the top folder of `store`.

    Empty if the run is unfinished, or if the store has a README.md that kit did not write.
    """
    import yaml

    status = read_json(run_dir / "status.json", {})
    if status.get("state") != "finished" or MARK.encode() not in (store.read_or_none("README.md") or MARK.encode()):
        return {}
    try:
        config, rows = yaml.safe_load((run_dir / "config.yaml").read_text()), read_rows(run_dir / "metrics.jsonl")
    except (OSError, ValueError, yaml.YAMLError):  # the run is copied even if a file is damaged
        return {}
    if not isinstance(config, dict):
        return {}
    test = {name.removeprefix("test/"): row[name] for row in rows for name in row if name.startswith("test/")}
    mean_return, success = ({**status, **test}.get(name) for name in ("mean_return", "success_rate"))
    facts = {"env": config.get("env"), "algorithm": config.get("algo"), "steps": f"{status.get('step', 0):,}",
             "number of envs": config.get("n_envs"), "seed": config.get("seed"),
             "mean return": None if mean_return is None else f"{mean_return:,.4g}",
             "success rate": None if success is None else f"{100 * success:.0f} %"}  # fmt: skip
    table = "\n".join(f"| {name} | {value} |" for name, value in facts.items() if value is not None)
    title = f"# {run_dir.name}: {facts['algorithm']} on {facts['env']}"
    parts, files = [HEAD, MARK, title, f"| | |\n|---|---|\n{table}"], dict[str, Path | bytes]()
    if plot := curve(rows):
        files["curve.png"] = plot
        parts.append("![learning curve](curve.png)")
    if videos := sorted((run_dir / "videos").glob("step_*.mp4"), key=lambda path: path.stat().st_mtime):
        files["replay.mp4"] = videos[-1]  # the Hub plays a file of this name on a reinforcement-learning page
        parts.append("The video of the trained policy is [replay.mp4](replay.mp4).")
    text = "\n\n".join([*parts, USE.format(url=store.url, name=run_dir.name)])
    return {"README.md": redact(text).encode(), **files}


def curve(rows: list[dict[str, Any]]) -> bytes | None:
    """Plot return and success rate over steps, in training and evaluations, as PNG. None without matplotlib or data."""
    curves = {"mean return": ("rollout/ep_rew_mean", "eval/mean_return"),
              "success rate": ("rollout/success_rate", "eval/success_rate")}  # fmt: skip
    points = {key: [(row["step"], row[key]) for row in rows if key in row] for keys in curves.values() for key in keys}
    plots = {title: keys for title, keys in curves.items() if any(len(points[key]) > 1 for key in keys)}
    if not plots or find_spec("matplotlib") is None:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * len(plots), 3.2), layout="constrained")
    for axes, (title, keys) in zip(figure.subplots(1, len(plots), squeeze=False)[0], plots.items(), strict=True):
        for key, label in zip(keys, ("training", "evaluation"), strict=True):
            axes.plot([step for step, _ in points[key]], [value for _, value in points[key]], label=label)
        axes.set(xlabel="steps", title=title)
        axes.legend()
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=110)
    return image.getvalue()
