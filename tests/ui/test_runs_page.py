"""Tests of the runs page without a browser: filter, live rows, buttons, notes, jobs, trials, batches."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest

import kit
from kit.runs import api, control
from kit.runs.run import Run
from kit.scale.background import Background, JobRow
from kit.scale.work import Results
from kit.ui import dashboard, runs_page, style
from kit.ui.runs_page import RunsPage
from tests.ui.fabricate import at_work, make_run, set_status, text_of, wait_for

pytest.importorskip("ipywidgets")


@pytest.fixture(autouse=True)
def somebody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIT_HEADLESS", "0")
    monkeypatch.setattr(runs_page, "REFRESH_S", 0.02)
    monkeypatch.setattr(runs_page, "QUIET", 2)


@pytest.fixture
def page(tmp_path: Path) -> RunsPage:
    make_run(tmp_path, "arm", config={"env": "Reach"}, success_rate=0.4)
    make_run(tmp_path, "ant", config={"env": "Ant-v5", "algo": "SAC"}, success_rate=None, mean_return=900.0)
    make_run(tmp_path, "arm_two", config={"env": "Reach"}, success_rate=0.9, state="interrupted")
    return RunsPage(str(tmp_path)).show()


def texts(page: RunsPage) -> list[str]:
    return [row.children[1].value for row in page._rows.children]


def text(page: RunsPage, name: str) -> str:
    return texts(page)[list(page.ticks).index(name)]


def curve_of(page: RunsPage, name: str) -> str:
    return text(page, name).partition("<svg")[2].partition("</svg>")[0]


def press(page: RunsPage, button: str) -> None:
    assert not page.buttons[button].disabled
    page.buttons[button].click()


def enabled(page: RunsPage) -> set[str]:
    return {name for name, button in page.buttons.items() if not button.disabled}


def test_runs_are_filtered_and_sorted(page: RunsPage) -> None:
    page.order.value = "success rate"
    assert list(page.ticks) == ["arm_two", "arm", "ant"]
    assert "90 % success" in texts(page)[0] and "return 900" in texts(page)[2] and "no store" in texts(page)[0]
    page.reverse.value = True
    assert list(page.ticks) == ["arm", "arm_two", "ant"], "a run without a score stays last"
    page.filter.value = "reach inter"
    assert list(page.ticks) == ["arm_two"]
    page.filter.value = "sac"
    assert list(page.ticks) == ["ant"] and "1 of 3 runs" in page._head.value


def test_the_columns_have_heads(page: RunsPage) -> None:
    """Above the rows, beside the checkbox for all; on a phone, where they are hidden, each cell names itself."""
    heads = next(box for box in page.view.children if getattr(box, "children", [None])[0] is page.all_tick).children[1]
    names = re.findall(r"<span>(.*?)</span>", heads.value)
    assert names == ["name", "task", "curve", "progress", "score", "state", "speed or age", "disk and copy"]
    for name in names[3:]:
        assert f"title='{name}'" in text(page, "arm")


def test_fifty_runs_are_shown_and_only_a_row_that_changes_is_sent_again(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, f"run_{i:02}", rows=2) for i in range(51)]
    page, sent = RunsPage(str(tmp_path)).show(), list[str]()
    page.order.value = "name"
    assert len(texts(page)) == 50 and "51 runs" in page._head.value and "the first 50 are shown" in page._head.value
    for name, widget in page._texts.items():
        widget.observe(lambda _, name=name: sent.append(name), names="value")
    page.refresh()
    assert not sent
    set_status(runs[7].path, state="failed", message="no")
    page.refresh(keep_order=True)
    assert sent == ["run_07"] and "no" in text(page, "run_07")
    page.filter.value = "run_5"
    assert list(page.ticks) == ["run_50"] and "1 of 51 runs" in page._head.value


def test_a_ticked_row_that_is_filtered_away_takes_its_name_and_note_along(page: RunsPage, tmp_path: Path) -> None:
    page.ticks["arm"].value = True
    page.note.value = "the good one"
    page.filter.value = "ant"
    assert page.note.disabled and page.new_name.disabled
    assert page.note.value == page.new_name.value == ""
    page.filter.value = ""
    page.ticks["arm"].value = True
    assert page.note.value == "the good one"


def test_a_ticked_run_is_renamed(page: RunsPage, tmp_path: Path) -> None:
    assert page.new_name.disabled
    page.ticks["arm_two"].value = True
    assert page.new_name.value == "arm_two"
    page.new_name.value = "arm_slow"
    assert "arm_two is named arm_slow now" in page._message.value and page.ticks["arm_slow"].value
    assert not (tmp_path / "arm_two").exists() and Run(tmp_path / "arm_slow").config.run_name == "arm_slow"
    page.new_name.value = "arm"
    assert "exists in" in page._message.value and page.new_name.value == "arm_slow", "the name that it still has"
    page.new_name.value = "a/b"
    assert "cannot name a folder" in page._message.value
    make_run(tmp_path, "far", config={"env": "Reach", "store": "hf://me/runs"})
    page.refresh()
    page.ticks["arm_slow"].value, page.ticks["far"].value = False, True
    page.new_name.value = "near"
    assert "far is copied to hf://me/runs under this name" in page._message.value and (tmp_path / "far").exists()


def test_ticked_runs_are_deleted_after_a_second_click(page: RunsPage, tmp_path: Path) -> None:
    assert enabled(page) == set()
    page.ticks["arm_two"].value = page.ticks["ant"].value = True
    press(page, "delete")
    assert "1 of them unfinished" in page._message.value and (tmp_path / "ant").exists()
    page.ticks["ant"].value = False
    press(page, "delete")
    assert "Delete arm_two? It is unfinished;" in page._message.value
    page.ticks["ant"].value = True
    press(page, "delete")
    page.no_button.click()
    assert (tmp_path / "ant").exists() and page.sure_button.layout.display == "none"
    press(page, "delete")
    page.sure_button.click()
    assert [run.name for run in tmp_path.iterdir()] == ["arm"] and list(page.ticks) == ["arm"]


def test_a_refresh_during_a_delete_does_not_stop_it(
    page: RunsPage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(run: Run, sure: bool) -> None:
        api.remove(run, sure=sure)
        page.refresh()  # the page's thread does this every two seconds while another run trains

    monkeypatch.setattr(runs_page, "remove", slow)
    page.ticks["arm_two"].value = page.ticks["ant"].value = True
    press(page, "delete")
    page.sure_button.click()
    assert "Deleted: " in page._message.value
    assert [run.name for run in tmp_path.iterdir()] == ["arm"]


def test_a_running_run_can_be_watched_and_not_deleted(page: RunsPage, tmp_path: Path) -> None:
    run = make_run(tmp_path, "busy")
    page.refresh()
    page.ticks["busy"].value = True
    with at_work(run):
        press(page, "open")
        head = page._below.children[0].children[2]
        wait_for(lambda: "busy" in head.value and "training" in head.value)
        press(page, "open")
        wait_for(lambda: [thread.name for thread in threading.enumerate()].count("watch-busy") == 1)
        press(page, "delete")
        page.sure_button.click()
        assert "is at work; stop it first" in page._message.value and run.path.exists()


def test_a_run_that_has_ended_is_opened_without_resuming_it(
    page: RunsPage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resumed: list[Path] = []
    for module in (runs_page, dashboard):
        monkeypatch.setattr(module, "resume", lambda path, background: resumed.append(path))
    set_status(tmp_path / "arm_two", state="failed", message="no memory")
    page.refresh()
    page.ticks["arm_two"].value = True
    assert page.buttons["open"].description == "Open"
    press(page, "open")
    board = page._board
    assert board is not None
    wait_for(lambda: "no memory" in text_of(board, "kit-head") and not board.pause_button.disabled)
    assert not resumed and board.pause_button.description == "Resume"
    board.pause_button.click()
    wait_for(lambda: resumed == [tmp_path / "arm_two"])


def test_a_pruned_trial_is_not_continued_with_the_other_rows(
    page: RunsPage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resumed: list[Path] = []
    monkeypatch.setattr(runs_page, "resume", lambda path, background: resumed.append(path))
    pruned = make_run(tmp_path, "trial", state="interrupted", phase="pruned")
    page.refresh()
    page.ticks["trial"].value = True
    assert page.buttons["continue"].disabled
    page.all_tick.value = True
    press(page, "continue")
    assert resumed == [tmp_path / "arm_two"]
    head = style.head(pruned.name, pruned.status())
    assert ">pruned<" in head and "(Resume" not in head


def test_a_store_and_a_folder_that_does_not_exist_are_named(tmp_path: Path) -> None:
    with pytest.raises(kit.UserError, match=r"hf://me/runs is a store; kit\.runs"):
        RunsPage("hf://me/runs").show()
    assert "rusn is not a folder; correct its name" in RunsPage(tmp_path / "rusn").show()._head.value


def test_ticked_runs_are_compared_below(page: RunsPage) -> None:
    page.ticks["arm"].value = page.ticks["arm_two"].value = True
    press(page, "compare")
    assert "Reach" in page._below.children[0].value and not page._message.value


def test_rows_follow_running_runs_until_all_have_ended(page: RunsPage, tmp_path: Path) -> None:
    run = make_run(tmp_path, "busy", rows=2)
    with at_work(run):
        page.refresh()
        thread, place, tick = page._thread, list(page.ticks).index("busy"), page.ticks["arm"]
        assert place == 0 and "120 steps/s, 42 s left" in text(page, "busy")
        drawn: list[str] = []
        page._texts["arm"].observe(lambda change: drawn.append(change["new"]), names="value")
        tick.value = True
        press(page, "delete")
        curve = curve_of(page, "busy")
        with (run.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": 777, "rollout/success_rate": 1.0}) + "\n")
        set_status(run.path, step=777)
        wait_for(lambda: "78 % of 1,000" in text(page, "busy"))
        assert "polyline" in curve and curve_of(page, "busy") != curve
        assert page.ticks["arm"] is tick and tick.value and not drawn
        assert "Delete arm?" in page._message.value and page.sure_button.layout.display is None
    wait_for(lambda: "finished" in text(page, "busy"))
    assert thread is not None
    thread.join(20)
    assert not thread.is_alive()


def test_a_killed_run_is_shown_as_killed(page: RunsPage, tmp_path: Path) -> None:
    run = make_run(tmp_path, "busy")
    with at_work(run):
        page.refresh()
        page.ticks["busy"].value = True
        assert {"pause", "stop", "save"} <= enabled(page)
    set_status(run.path, state="running")  # its lock is free, as after kill -9
    wait_for(lambda: "the process was killed" in text(page, "busy"))
    wait_for(lambda: enabled(page) == {"continue", "open", "compare", "delete"})  # drawn a moment after the texts


def test_a_newer_page_takes_over(page: RunsPage, tmp_path: Path) -> None:
    with at_work(make_run(tmp_path, "busy")):
        page.refresh()
        first = page._thread
        second = RunsPage(str(tmp_path)).show()
        assert first is not None and second._thread is not None
        first.join(20)
        assert not first.is_alive() and second._thread.is_alive()
        assert "A newer page shows these runs" in page._message.value and "newer" not in second._message.value


def test_buttons_act_on_all_ticked_runs_in_a_suitable_state(
    page: RunsPage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = make_run(tmp_path, "one"), make_run(tmp_path, "two")
    resumed: list[Path] = []
    monkeypatch.setattr(runs_page, "resume", lambda path, background: resumed.append(path))
    with at_work(one), at_work(two, "paused"):
        page.refresh()
        page.all_tick.value = True
        assert {run.name for run in page.ticked} == {"one", "two", "arm", "ant", "arm_two"}
        for button in ("pause", "save", "stop", "continue"):
            press(page, button)
        assert control.take(one.path) == ["pause", "checkpoint", "stop"]
        assert control.take(two.path) == ["stop", "unpause"]
        assert resumed == [tmp_path / "arm_two"]


def test_a_note_is_kept_with_the_run_and_found(page: RunsPage, tmp_path: Path) -> None:
    assert page.note.disabled
    page.ticks["ant"].value = True
    page.note.value = "too <fast>"
    assert Run(tmp_path / "ant").note == "too <fast>" and "too &lt;fast&gt;" in text(page, "ant")
    page.ticks["ant"].value = False
    page.ticks["arm"].value = True
    assert page.note.value == "" and Run(tmp_path / "ant").note == "too <fast>"
    page.filter.value = "fast"
    assert list(page.ticks) == ["ant"]
    page.ticks["ant"].value = True
    assert page.note.value == "too <fast>"
    page.note.value = "x" * 1001
    assert "shorten it to 1,000" in page._message.value


def jobs_file(folder: Path, text: str) -> str:
    path = folder / "jobs.yaml"
    path.write_text(f"env: Reach\ntotal_steps: 1000\nn_envs: 2\ndevice: cpu\nruns_dir: {folder / 'runs'}\n{text}")
    return str(path)


def test_all_jobs_of_a_file_are_rows_even_without_a_run(tmp_path: Path) -> None:
    page = RunsPage(jobs_file(tmp_path, "jobs: [{run_name: one}, {run_name: two, algo: SAC}]")).show()
    assert ["waiting" in row for row in texts(page)] == [True, True] and "Reach, SAC" in text(page, "two")
    assert page.ticks["one"].disabled
    with at_work(make_run(tmp_path / "runs", "one")):
        page.refresh()
        assert "training" in text(page, "one") and "waiting" in text(page, "two") and not page.ticks["one"].disabled


def test_the_trials_of_a_search_are_rows(tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    from kit.scale import study

    path = jobs_file(tmp_path, "sweep: {trials: 4, space: {gamma: [0.9, 0.99]}}")
    page = RunsPage(path).show()
    assert texts(page) == []
    search = study.writable(study.plan(path)[0])
    for number, (state, message) in enumerate((("PRUNED", "behind"), ("FAIL", "no memory"), ("COMPLETE", ""))):
        trial = search.study.ask()
        study.suggest(trial, search.plan.space)
        if number != 1:
            make_run(tmp_path / "runs", f"jobs-t00{number}", state="interrupted" if number == 0 else "finished")
        trial.set_user_attr("message", message)
        search.study.tell(trial, 1.0 if state == "COMPLETE" else None, state=optuna.trial.TrialState[state])
    search.study.ask()
    page.refresh()
    page.order.value = "name"
    found = texts(page)
    assert "pruned" in found[0] and "failed" in found[1] and "no memory" in found[1]
    assert "finished" in found[2] and "waiting" in found[3]
    assert texts(RunsPage(search).show())[1:] and list(page.ticks) == [f"jobs-t00{i}" for i in range(4)]


class FakeBatch(Background[Results]):
    """A batch whose first job cannot start and whose second waits; it ends when `finish` is set."""

    def __init__(self) -> None:
        self.finish = threading.Event()
        failed = JobRow("failed", None, None, {"state": "failed", "message": "the disk is full"})
        waiting = JobRow("waiting", None, None, {"state": "waiting", "message": "the other one works"})
        self.shown: list[Results] = []
        """What its progress bar has shown."""
        super().__init__("fake", lambda latest: [failed, waiting], self.work, lambda: nullcontext(self.shown.append))

    def work(self, on_progress: Callable[[Results], None]) -> Results:
        while not self.finish.wait(0.01):
            on_progress(Results([]))
        return Results([])


def test_a_running_batch_shows_its_jobs_and_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = FakeBatch()
    assert batch.start() is batch and FakeBatch().start() is batch, "executing a cell twice starts no second batch"
    page = RunsPage(batch).show()
    assert "the disk is full" in text(page, "failed") and "the other one works" in text(page, "waiting")
    assert page.stop_all_button.layout.display is None
    page.stop_all_button.click()
    wait_for(lambda: page.stop_all_button.layout.display == "none")
    with pytest.raises(kit.UserError, match="was stopped"):
        batch.wait()
    assert "starts when the same batch" in str(batch.rows()[1].values["message"]), "a stopped batch starts no job"
    again = FakeBatch()
    again.finish.set()
    assert again.start() is again and again.wait() == []
    again.shown.clear()
    assert again.wait() == [] and len(again.shown) == 1, "the bar of a batch that has ended is full"


def test_a_notebook_can_await_a_batch_while_its_event_loop_runs() -> None:
    """In a kernel, this event loop handles clicks while a cell awaits."""
    batch = FakeBatch()
    batch.start()

    async def cell() -> Results:
        asyncio.get_running_loop().call_later(0.01, batch.finish.set)
        return await batch

    with ThreadPoolExecutor() as pool:  # in the test's thread, Playwright may run an event loop
        assert pool.submit(asyncio.run, cell()).result() == []


def test_interrupting_a_cell_that_awaits_a_batch_stops_it_with_one_sentence() -> None:
    """ipykernel cancels the cell's task."""
    batch = FakeBatch()
    batch.start()

    async def cell() -> None:
        task = asyncio.ensure_future(batch._wait())
        asyncio.get_running_loop().call_later(0.01, task.cancel)
        await task

    with ThreadPoolExecutor() as pool, pytest.raises(kit.UserError, match=r"stopped, .* start it again") as raised:
        pool.submit(asyncio.run, cell()).result()
    assert not batch.is_working and raised.value._render_traceback_() == [f"UserError: {raised.value}"]


def test_delete_is_refused_if_one_of_the_ticked_runs_trains(page: RunsPage, tmp_path: Path) -> None:
    with at_work(make_run(tmp_path, "busy"), "paused"):
        page.refresh()
        page.all_tick.value = True
        press(page, "delete")
        assert "still training: busy; stop them first" in page._message.value
        assert page.sure_button.layout.display == "none"


def test_runs_that_other_programs_start_are_found(page: RunsPage, tmp_path: Path) -> None:
    make_run(tmp_path, "later")
    assert "later" not in page.ticks
    page._beat()
    assert "later" in page.ticks
