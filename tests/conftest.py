"""Pytest configuration: environment variables, markers, order of tests, summary of skipped tests with remedies."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator, Iterator

import pytest

from kit.errors import UserError

# Set before PyTorch is imported; processes started by tests inherit it. When several tests run in parallel, PyTorch's
# threads mostly wait for each other. Trainers set the number of threads from their config.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Evaluation episodes take most of a short run's time, and the rest of the run does not depend on their number.
os.environ.setdefault("KIT_EVAL_EPISODES", "4")

REMEDIES = {
    "strace": "system calls that fail: apt-get install strace",
    "chromium": "notebooks in a browser: apt-get install chromium",
    "no model of": "legged robots: set MENAGERIE_ROOT to a copy of mujoco_menagerie, or connect to the internet once",
    "the model of": "legged robots: set MENAGERIE_ROOT to a copy of mujoco_menagerie, or connect to the internet once",
    "could not import": "an optional package: pip install -e '.[test]'",
    "no package index": "what the first cell installs on rented machines: an internet connection",
    "needs root": "full disks and dead mounts: run as root",
    "CUDA GPU": "the simulator on CUDA: a machine with an NVIDIA card",
}
"""Substring of a skip reason -> what is not tested, and the remedy; printed in the summary."""


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Store the modules that tests trust (`kit.trust`) in a temporary folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


SLOW = {
    *("test_viewing", "test_play", "test_results", "test_lists_of_runs", "test_dashboard", "test_style"),
    *("test_cluster", "test_bulk", "test_batch", "test_sweep", "test_cloud", "test_hf_jobs", "test_colab"),
    *("test_nights", "test_distributed", "test_resume", "test_faults", "test_control", "test_memory", "test_branch"),
    *("test_trust", "test_copier", "test_copier_killed", "test_copier_hub", "test_resume_elsewhere", "test_publish"),
    *("test_own_task", "test_own", "test_old_runs", "test_gpu_benchmark", "test_image_envs"),
    *("test_views", "test_encoders", "test_sync", "test_policies", "test_gymnasium_env", "test_compiling", "test_fit"),
    *("test_video", "test_teacher", "test_demonstrations", "test_cli", "test_divergence", "test_any_robot"),
}
"""Files whose tests train runs, render videos, kill processes or open a browser; all others are `-m fast`."""
BY_HAND = ("storm", "bench", "live")
LONGEST = (
    "test_vision_notebook", "test_first_notebooks", "test_lab", "test_walk_and_mission_notebooks",
    "test_dishes_and_own_task_notebooks", "test_many_runs_notebooks", "test_goals_notebook", "test_algorithm_notebook",
    "test_demonstrations_notebook", "test_pretended_gpu",
)  # fmt: skip
"""Files with the longest tests, also slow. They run first, so that none of them still runs when all others are done."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem not in {*SLOW, *LONGEST} and not any(map(item.get_closest_marker, BY_HAND)):
            item.add_marker("fast")
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    """Skip a test that fails because robot models are missing: a `UserError` that names MENAGERIE_ROOT."""
    try:
        yield
    except UserError as error:
        if "MENAGERIE_ROOT" in str(error):
            pytest.skip(str(error))
        raise


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lacking: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        lacking[next((remedy for word, remedy in REMEDIES.items() if word in reason), reason)] += 1
    for remedy, count in lacking.most_common():
        terminalreporter.write_line(f"not tested here, {count} test{'s' * (count > 1)}: {remedy}", yellow=True)
