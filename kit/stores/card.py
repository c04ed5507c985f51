"""The page that visitors of a finished run see on the Hub: what it is, how well it does, its curve and its video."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

from kit.errors import UserError, need
from kit.stores.base import MissingFile, Store
from kit.stores.redact import redact

MARK = "<!-- written by kit; remove this line to keep your own text -->"
MAX_METRICS_BYTES = 64 * 2**20


def page(run_dir: Path, store: Store) -> dict[str, Path | bytes]:
    """README.md, curve.png and replay.mp4 for the top of `store`; nothing while the run is unfinished, or where someone
    wrote a README of their own."""
    status = _json(run_dir / "status.json")
    if status.get("state") != "finished" or not _may_replace(store):
        return {}
    rows = _metrics(run_dir / "metrics.jsonl")
    files: dict[str, Path | bytes] = {}
    curve = _curve(rows)
    if curve:
        files["curve.png"] = curve
    videos = sorted((run_dir / "videos").glob("*.mp4"), key=lambda path: path.stat().st_mtime)
    if videos:
        files["replay.mp4"] = videos[-1]  # the name that the Hub plays on a reinforcement-learning page
    return {"README.md": redact(_text(run_dir, store.url, status, rows, files)).encode(), **files}


def _may_replace(store: Store) -> bool:
    try:
        return MARK.encode() in store.read("README.md")
    except MissingFile:
        return True


def _text(run_dir: Path, url: str, status: dict[str, Any], rows: list[dict[str, Any]], files: dict[str, Any]) -> str:
    config = _yaml(run_dir / "config.yaml")
    env, algo = str(config.get("env", "?")), str(config.get("algo", "?"))
    evaluation: dict[str, Any] = next((row for row in reversed(rows) if "eval/mean_return" in row), {})
    facts = {
        "task": env,
        "algorithm": algo,
        "steps": _number(status.get("step")),
        "worlds": config.get("n_envs"),
        "seed": config.get("seed"),
        "mean return": _number(evaluation.get("eval/mean_return", status.get("mean_return"))),
        "success rate": _percent(evaluation.get("eval/success_rate", status.get("success_rate"))),
    }
    table = "\n".join(f"| {name} | {value} |" for name, value in facts.items() if value not in (None, ""))
    parts = [
        "---\nlibrary_name: kit\npipeline_tag: reinforcement-learning\n"
        "tags:\n- reinforcement-learning\n- robotics\n- mujoco\n- stable-baselines3\n---",
        MARK,
        f"# {run_dir.name}: {algo} on {env}",
        f"| | |\n|---|---|\n{table}",
    ]
    if "curve.png" in files:
        parts.append("![learning curve](curve.png)")
    if "replay.mp4" in files:
        parts.append("The video of the trained policy is [replay.mp4](replay.mp4).")
    parts.append(
        f"## Use it\n```python\nimport kit\nrun = kit.resume({url!r})  # goes on training, if there is more to do\n"
        "policy = run.policy()\n```\nNothing here is a pickle: tensors are safetensors, the rest is JSON. "
        f"The run is in the folder `{run_dir.name}`."
    )
    return "\n\n".join(parts) + "\n"


def _curve(rows: list[dict[str, Any]]) -> bytes | None:
    """A PNG of return and success over steps; None without matplotlib or data."""
    series = {
        "mean return": ("rollout/ep_rew_mean", "eval/mean_return"),
        "success rate": ("rollout/success_rate", "eval/success_rate"),
    }
    drawn = {
        title: {key: points for key in keys if len(points := _points(rows, key)) > 1} for title, keys in series.items()
    }
    drawn = {title: lines for title, lines in drawn.items() if lines}
    try:
        need("matplotlib", "notebook")
    except UserError:
        return None
    if not drawn:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * len(drawn), 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (title, lines) in zip(figure.subplots(1, len(drawn), squeeze=False)[0], drawn.items(), strict=True):
        for key, points in lines.items():
            axes.plot(*zip(*points, strict=True), label="training" if key.startswith("rollout") else "evaluation")
        axes.set(xlabel="steps", title=title)
        axes.grid(alpha=0.3)
        axes.legend()
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=110)
    return image.getvalue()


def _points(rows: list[dict[str, Any]], key: str) -> list[tuple[float, float]]:
    return [(row["step"], row[key]) for row in rows if isinstance(row.get(key), (int, float)) and "step" in row]


def _metrics(path: Path) -> list[dict[str, Any]]:
    rows = []
    with contextlib.suppress(FileNotFoundError):
        for line in path.read_bytes()[:MAX_METRICS_BYTES].splitlines():
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                if isinstance(row, dict):
                    rows.append(row)
    return rows


def _json(path: Path) -> dict[str, Any]:
    with contextlib.suppress(FileNotFoundError, ValueError):
        value = json.loads(path.read_bytes())
        return value if isinstance(value, dict) else {}
    return {}


def _yaml(path: Path) -> dict[str, Any]:
    import yaml

    with contextlib.suppress(FileNotFoundError, yaml.YAMLError, UnicodeDecodeError):
        value = yaml.safe_load(path.read_text())
        return value if isinstance(value, dict) else {}
    return {}


def _number(value: Any) -> str | None:
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else None


def _percent(value: Any) -> str | None:
    return f"{100 * value:.0f} %" if isinstance(value, (int, float)) else None
