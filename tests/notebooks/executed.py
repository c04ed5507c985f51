"""Helpers for notebook tests: read a notebook's cells, execute it with papermill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

papermill = pytest.importorskip("papermill")
NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
CELL_LIMIT_S = 600
TINY = {"env": "Reach", "total_steps": 512, "n_envs": 4, "eval_every": 512, "checkpoint_every": 256}
TINY_PPO = {"n_steps": 64, "batch_size": 64, "n_epochs": 2}
TINY_DISTILL = {"gradient_steps": 1, "n_steps": 4, "batch_size": 16}


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text()))


def sources(path: Path, kind: str) -> list[str]:
    return ["".join(cell["source"]) for cell in read(path)["cells"] if cell["cell_type"] == kind]


def execute(name: str, folder: Path, **parameters: Any) -> str:
    """Execute a notebook in `folder`; return all its outputs as JSON text."""
    path = next(path for path in NOTEBOOKS if path.stem == name)
    out = folder / f"{name}.out.ipynb"
    papermill.execute_notebook(
        path, out, parameters, cwd=folder, kernel_name="python3", execution_timeout=CELL_LIMIT_S, progress_bar=False
    )
    outputs = [output for cell in read(out)["cells"] for output in cell.get("outputs", [])]
    return json.dumps(outputs)
