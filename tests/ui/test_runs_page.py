"""The page of runs without a browser: the widgets' own values and clicks."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.ui.runs_page import RunsPage
from tests.ui.fabricate import at_work, make_run, wait_for

pytest.importorskip("ipywidgets")


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunsPage:
    monkeypatch.setenv("KIT_HEADLESS", "0")
    make_run(tmp_path, "arm", config={"env": "Reach"}, success_rate=0.4)
    make_run(tmp_path, "ant", config={"env": "Ant-v5", "algo": "SAC"}, success_rate=None, mean_return=900.0)
    make_run(tmp_path, "arm_two", config={"env": "Reach"}, success_rate=0.9, state="interrupted")
    return RunsPage(str(tmp_path)).show()


def texts(page: RunsPage) -> list[str]:
    return [child.children[1].value for child in page._rows.children[1:]]


def test_runs_are_filtered_and_sorted(page: RunsPage) -> None:
    page.order.value = "success rate"
    assert list(page.ticks) == ["arm_two", "arm", "ant"]
    assert "90 % success" in texts(page)[0] and "return 900" in texts(page)[2] and "no store" in texts(page)[0]
    page.filter.value = "reach inter"
    assert list(page.ticks) == ["arm_two"]
    page.filter.value = "sac"
    assert list(page.ticks) == ["ant"] and "1 of 3 runs" in page._rows.children[0].value


def test_ticked_runs_are_deleted_after_a_second_click(page: RunsPage, tmp_path: Path) -> None:
    assert page.delete_button.disabled and page.compare_button.disabled
    page.ticks["arm_two"].value = page.ticks["ant"].value = True
    page.delete_button.click()
    assert "1 of them unfinished" in page._message.value and (tmp_path / "ant").exists()
    page.no_button.click()
    assert (tmp_path / "ant").exists() and page.sure_button.layout.display == "none"
    page.delete_button.click()
    page.sure_button.click()
    assert [run.name for run in tmp_path.iterdir()] == ["arm"] and list(page.ticks) == ["arm"]


def test_a_run_that_trains_is_watched_and_not_deleted(page: RunsPage, tmp_path: Path) -> None:
    run = make_run(tmp_path, "busy")
    page.refresh()
    page.ticks["busy"].value = True
    with at_work(run):
        page.open_button.click()
        head = page._below.children[0].children[2]
        wait_for(lambda: "busy" in head.value and "training" in head.value)
        page.delete_button.click()
        page.sure_button.click()
        assert "is at work; stop it first" in page._message.value and run.path.exists()


def test_ticked_runs_are_compared_below(page: RunsPage) -> None:
    page.ticks["arm"].value = page.ticks["arm_two"].value = True
    page.compare_button.click()
    assert "Reach" in page._below.children[0].value and not page._message.value
