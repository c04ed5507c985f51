"""Tests of kernel compilation: a second process reuses the cache folder, progress is reported."""

import subprocess
import sys
import threading

import pytest

from kit.runs.session import Session
from kit.sim import compiling
from tests.envs.slide import Slide
from tests.runs.crash import create

LAUNCH = """
from kit.machine.warp import wp

@wp.kernel
def double(x: wp.array(dtype=float)):
    x[wp.tid()] = 2.0 * x[wp.tid()]

x = wp.ones(3, dtype=float, device="cpu")
wp.launch(double, dim=3, inputs=[x], device="cpu")
assert x.numpy().tolist() == [2.0, 2.0, 2.0]
"""


def test_a_second_process_compiles_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("KIT_CACHE", str(tmp_path / "kept"))
    monkeypatch.delenv("WARP_CACHE_PATH", raising=False)
    script = tmp_path / "launch.py"
    script.write_text(LAUNCH)
    written = []
    for _ in range(2):
        subprocess.run([sys.executable, str(script)], check=True, timeout=120)
        files = (tmp_path / "kept" / "warp").rglob("wp_*/*")
        written.append({str(file): file.stat().st_mtime_ns for file in files})
    assert written[0] and written[0] == written[1]


@pytest.fixture
def at_once(monkeypatch):
    """Send the first message after 0 s and later ones every 10 ms."""
    monkeypatch.setattr(compiling, "AFTER_S", 0.0)
    monkeypatch.setattr(compiling, "EVERY_S", 0.01)


def test_listeners_get_progress_messages(tmp_path, at_once):
    heard, told = [], threading.Event()

    def tell(sentence):
        heard.append(sentence)
        told.set()

    with compiling.listening(tell), compiling.compiling("the physics", tmp_path):
        assert told.wait(10)
        (tmp_path / "wp_one").mkdir()
        while "1 modules" not in heard[-1]:
            threading.Event().wait(0.01)
    assert heard[0].startswith("compiling the physics, once per machine: 0 modules")
    assert heard[-1] == ""


def test_without_a_listener_one_line_is_printed(tmp_path, at_once, monkeypatch, capsys):
    for _ in range(2):
        before = set(threading.enumerate())
        with compiling.compiling("a robot's fur", tmp_path):
            for watch in set(threading.enumerate()) - before:
                watch.join(10)
            assert set(threading.enumerate()) <= before
    assert capsys.readouterr().err.count("Compiling a robot's fur for this machine, once") == 1


class Slow(Slide):
    """Slide whose compilation lasts until a progress message has arrived."""

    noticed = threading.Event()

    def bind(self, sim):
        with compiling.compiling("the physics", "nowhere"):
            assert self.noticed.wait(30)
        super().bind(sim)


def test_a_run_reports_compilation(tmp_path, at_once, capsys):
    run, phases = create(tmp_path, "run", env=f"{__name__}:Slow", total_steps=64), []

    def progress(now):
        phases.append(now["phase"])
        if now["phase"].startswith("compiling the physics, once per machine"):
            Slow.noticed.set()

    assert Session(run.path, progress)() == 0
    assert Slow.noticed.is_set()
    assert phases[-1] == "finished"
    assert "compiling the physics, once per machine" in capsys.readouterr().out
