"""Tests of resuming a run on another machine from its store: identical result, secrets, lease, bad store."""

import json
import shutil
import signal
import time

import psutil
import pytest

import kit
from kit.errors import UserError
from kit.runs.finding import list_runs, locate, locate_unfinished
from kit.runs.fingerprint import fingerprint
from kit.stores import lease, open_store
from tests.runs.crash import SLIDE, Forked, complete, create
from tests.stores.conftest import SHARED
from tests.stores.fabricate import make_run

STEPS = {"PPO": 1000, "A2C": 1000, "SAC": 400}
"""Total steps, enough that no run ends before the test sees its first checkpoint."""


@pytest.mark.parametrize("store_url", SHARED, indirect=True)
def test_a_run_resumed_from_the_store_equals_an_uninterrupted_run(tmp_path, store_url, waiter):
    algo = {"h": "A2C", "s": "SAC"}.get(store_url[0], "PPO")
    fields = {"env": SLIDE, "total_steps": STEPS[algo]}
    uncut = create(tmp_path / "here", "uncut", algo, **fields)
    assert complete(uncut) == 0, uncut.log()
    run = create(tmp_path / "here", "run", algo, checkpoint_every=100, store=store_url, **fields)
    session = Forked(run)
    assert session.until(lambda: run.latest() is not None), run.log()  # the copier outlives the session
    session.kill(signal.SIGTERM)
    assert session.wait() == 75, run.log()
    last = run.latest()
    waiter(lambda: (run.status()["store"] or {}).get("step") == last.step, 30, "the copier finishes by itself")
    kept = open_store(store_url)

    def is_released() -> bool:  # moto's S3 server briefly answers 404 while another process overwrites a file
        found = lease.read(kept, "run")[1]
        return found is not None and found.expires <= time.time()

    waiter(is_released, 30, "the copier lets go of the run")
    copier = run.status()["store"]["pid"]
    ended = "the copier ends; else its last file would come after the deletion"
    waiter(lambda: not psutil.pid_exists(copier), 30, ended)
    (listed,) = list_runs(store_url).to_dicts()
    assert (listed["name"], listed["task"]) == ("run", f"{SLIDE}, {algo}")
    shutil.rmtree(run.path)

    # as `kit resume --store URL` on an empty machine does
    there, moved = locate_unfinished(str(tmp_path / "there"), store_url)
    assert there.latest().step == last.step and moved["store"] == store_url
    assert there.copies() == f"step {last.step:,} verified in {store_url}"
    assert complete(there) == 0, there.log()
    assert fingerprint(there) == fingerprint(uncut)
    assert there.status()["store"]["step"] == there.latest().step, "the last checkpoint must be copied"


def test_no_token_in_the_run_directory(tmp_path, hub, waiter):
    from tests.stores.hub_server import WRITE_TOKEN

    run = create(tmp_path, "run", env=SLIDE, store="hf://me/runs", total_steps=200)
    assert complete(run) == 0, run.log()
    for path in run.path.rglob("*"):
        if path.is_file():
            assert WRITE_TOKEN.encode() not in path.read_bytes(), path


def test_the_error_of_a_second_machine_names_the_owner_of_the_run(tmp_path):
    store = str(tmp_path / "store")
    run = create(tmp_path / "here", "run", env=SLIDE, store=store, total_steps=10**9, checkpoint_every=100)
    session = Forked(run)
    try:
        assert session.until(lambda: (run.status()["store"] or {}).get("step") is not None), run.log()
        there, _ = locate(store, str(tmp_path / "there"))
        assert Forked(there).wait() != 0
        message = there.status()["message"]
        assert json.loads((tmp_path / "store/run/lease.json").read_text())["owner"] in message, message
    finally:  # otherwise the session would train forever
        session.kill(signal.SIGTERM)
    assert session.wait() == 75


def test_a_store_that_cannot_be_written_is_refused_before_anything_is_created(tmp_path):
    from kit import train

    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UserError, match="store="):
        train(store=str(tmp_path / "file"), runs_dir=str(tmp_path / "runs"), total_steps=100)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["taken", "begun"])
def test_a_name_that_the_store_has_is_refused_before_anything_is_created(tmp_path, name):
    store = open_store(str(tmp_path / "store"), write=True)
    store.put({"taken/checkpoints/step_000000100/manifest.json": b"{}"})
    lease.acquire(store, "begun", "rival")  # a machine that has no checkpoint yet
    with pytest.raises(UserError, match=name) as error:
        kit.train(store=store.url, runs_dir=str(tmp_path / "runs"), run_name=name, total_steps=100)
    assert ("`kit resume" in str(error.value)) == (name == "taken")
    assert not (tmp_path / "runs").exists()


def test_a_run_that_another_machine_trains_is_refused_before_its_download(tmp_path):
    store = open_store(str(tmp_path / "store"), write=True)
    run = make_run(tmp_path / "maker", "run")
    store.put({f"run/{path.relative_to(run)}": path for path in run.rglob("*") if path.is_file()})
    store.put({"run/latest.json": b"{}"})
    lease.acquire(store, "run", "rival")
    there = tmp_path / "there"
    for url in (store.url, f"{store.url}/run"):
        with pytest.raises(UserError, match=r"'run' belongs to rival"):
            kit.resume(url, runs_dir=str(there))
    with pytest.raises(UserError, match="belongs to rival"):
        kit.resume(store=store.url, runs_dir=str(there))
    assert not there.exists()
    locate(store.url, str(there))  # to look at it, or to start a branch
    assert (there / "run/config.yaml").is_file()
    lease.release(store, "run", "rival")
    lease.acquire(store, "run", lease.owner_of(there / "run"))  # and then killed
    assert locate(store.url, str(there), to_resume=True)[0].path == there / "run", "the owner itself may go on at once"
