"""Panels, dashboards, reports and video players for notebooks. Of kit's packages, only `kit.cli` uses this one."""

from kit.machine.host import connect
from kit.ui.accounts import account, economy
from kit.ui.comparing import compare, standings
from kit.ui.dashboard import Dashboard
from kit.ui.episode import episode
from kit.ui.gallery import checkpoints_side_by_side, failures, find_run, from_cameras, runs_side_by_side, statistics
from kit.ui.headless import RunFailed, nobody_there
from kit.ui.panel import TrainPanel
from kit.ui.picker import RunPicker
from kit.ui.plots import inside, learning_curve
from kit.ui.result import report
from kit.ui.resume import ResumePanel
from kit.ui.runs_page import runs
from kit.ui.search import sweep
from kit.ui.seeing import what_it_sees
from kit.ui.task import task
from kit.ui.videos import video
from kit.ui.viewing import view

__all__ = [
    "Dashboard", "ResumePanel", "RunFailed", "RunPicker", "TrainPanel", "account", "checkpoints_side_by_side",
    "compare", "connect", "economy", "episode", "failures", "find_run", "from_cameras", "inside", "learning_curve",
    "nobody_there", "report", "runs", "runs_side_by_side", "standings", "statistics", "sweep", "task", "video", "view",
    "what_it_sees",
]  # fmt: skip
