"""Fixtures: a train panel; for tests in a browser Chromium, JupyterLab, a page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.config import RunConfig
from kit.measure import speed
from kit.ui.panel import TrainPanel
from tests.ui.lab import CHROMIUM, FLAGS, Lab


@pytest.fixture
def known_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Show panels as to a person, and let them take 1,000 steps/s as measured."""
    monkeypatch.setenv("KIT_HEADLESS", "0")
    known = speed.Speed("Reach", "PPO", 8, "cpu", 4000.0, 3000.0, 1000.0)
    monkeypatch.setattr(speed, "cached", lambda config: known)


@pytest.fixture
def panel(known_speed: None, tmp_path: Path) -> Iterator[TrainPanel]:
    shown = TrainPanel(RunConfig(runs_dir=str(tmp_path), total_steps=100_000, n_envs=8)).show()  # no probing
    yield shown
    shown.estimator.cancel()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not Path(CHROMIUM).exists():
        pytest.skip(f"{CHROMIUM} is not installed; on Debian: apt-get install chromium")
    pytest.importorskip("jupyterlab", reason="jupyterlab is not installed")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def lab(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A JupyterLab server on a folder with copies of the notebooks."""
    home = tmp_path_factory.mktemp("lab")
    folder = home / "notebooks"
    shutil.copytree(Path(__file__).parents[2] / "notebooks", folder, ignore=shutil.ignore_patterns(".*", "runs"))
    folders = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    own = {name: str(home / name.lower()) for name in folders}
    settings = home / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text('{"fetchNews": "false"}')
    own["JUPYTERLAB_SETTINGS_DIR"] = str(home / "settings")
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    server = Lab(folder, {**os.environ, **own, "PYTHONPATH": path, "KIT_FILM_S": "0.5"})
    yield server
    server.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    yield context.new_page()
    context.close()
