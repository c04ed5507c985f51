"""Tests of cells that run again, in a real kernel: the older panel stops, panels of other cells go on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ipywidgets")
manager = pytest.importorskip("jupyter_client.manager")

Execute = Callable[[str, dict[str, Any]], str]
BEGIN = """
from kit.runs import directory
from kit.ui import Dashboard, TrainPanel, cells, heartbeat, report, runs
from tests.ui.fabricate import make_run, set_status, wait_for
from pathlib import Path

run = make_run(Path("runs"))
lock = directory.lock(run.path)
lock.__enter__()
set_status(run.path, state="running", phase="training")

def watches(panel):
    thread = panel._watching
    return thread is not None and thread.is_alive()

def refreshes(panel):
    return panel._alive in heartbeat._boxes and panel._beat in heartbeat._refreshes
"""


@pytest.fixture
def execute(tmp_path: Path) -> Iterator[Execute]:
    """A function that runs code in a kernel as a cell with the given metadata, and returns what it prints."""
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    kernel, client = manager.start_new_kernel(cwd=str(tmp_path), env={**os.environ, "PYTHONPATH": path})

    def execute(code: str, metadata: dict[str, Any] | None = None) -> str:
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": True, "stop_on_error": True}
        message = client.session.msg("execute_request", content, metadata=metadata or {})
        client.shell_channel.send(message)
        printed = ""
        while True:
            got = client.get_iopub_msg(timeout=120)
            if got["parent_header"].get("msg_id") != message["header"]["msg_id"]:
                continue
            assert got["msg_type"] != "error", "\n".join(got["content"]["traceback"])
            printed += got["content"]["text"] if got["msg_type"] == "stream" else ""
            if got["msg_type"] == "status" and got["content"]["execution_state"] == "idle":
                return printed

    yield execute
    client.stop_channels()
    kernel.shutdown_kernel(now=True)


def cell(name: str, front_end: str) -> dict[str, Any]:
    return {"cellId": name} if front_end == "JupyterLab" else {"colab": {"cell_id": name}}


@pytest.mark.parametrize("front_end", ["JupyterLab", "Colab"])
def test_a_panel_stops_when_its_cell_runs_again_and_the_report_below_follows_the_newer_one(
    execute: Execute, front_end: str
) -> None:
    a, b, c, d = (cell(name, front_end) for name in "abcd")
    execute(BEGIN)
    execute("other = Dashboard(run).show()", b)
    for name in ("older", "newer"):
        execute("pass", a)  # as if a wrong argument had ended it
        execute(f"{name} = TrainPanel(run.config).show(); {name}_board = Dashboard(run).show()", a)
        if name == "older":
            execute("report(older)", c)
        execute(f"{name}_page = runs().show()" if name == "older" else "1 + 1", d)
    execute("wait_for(lambda: not any(watches(panel) for panel in (older, older_board)), 20)")
    panels = "[older, older_board, newer, newer_board, other]"
    assert execute(f"print(*(watches(panel) for panel in {panels}))") == "False False True True True\n"
    assert execute(f"print(*(refreshes(panel) for panel in {panels}))") == "False False True True True\n"
    assert execute("print(refreshes(older_page), 'runs' in older_page._live)") == "False False\n"
    assert execute("print(len(newer.reports), len(newer_board.reports), older.newest is newer)") == "1 0 True\n"
    execute("older._beat()")  # one that was under way
    assert execute("print(watches(older))") == "False\n"
    execute("report(newer)", c)
    assert execute("print(len(newer.reports))") == "1\n", "the older report has ended"


def test_where_cells_have_no_names_panels_go_on(execute: Execute) -> None:
    """As in Jupyter Notebook 6: two cells with the same code cannot be told from one that has run twice."""
    execute(BEGIN)
    for _ in range(2):
        execute("shown = [*globals().get('shown', []), Dashboard(run).show()]")
    assert execute("print(*map(watches, shown), *map(refreshes, shown))") == "True True True True\n"
