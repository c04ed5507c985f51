"""Tests of `kit.notebooks`: refused files, failed notebooks, outputs in the store, kills, leases."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml

import kit
from kit.errors import UserError
from kit.runs.fingerprint import fingerprint
from kit.runs.session import Session
from kit.scale.files import FileJobs
from kit.scale.notebooks import plan_jobs, retry
from kit.scale.store_folder import StoreFolder
from kit.stores import LeaseHeld, lease, open_store
from tests.runs.crash import SMALL, create, kill_everything_in
from tests.scale.shared import batch, wait_for_checkpoint, write_notebook
from tests.stores.conftest import hub  # noqa: F401 - a fixture
from tests.stores.hub_server import HubServer
from tests.ui.fabricate import wait_for

pytest.importorskip("papermill")
FIELDS: dict[str, Any] = {
    "env": "Reach", "n_envs": 2, "threads": 1, "device": "cpu", "total_steps": 960, "eval_every": 0,
    "checkpoint_every": 160, "overrides": SMALL["PPO"],
}  # fmt: skip
TRAINS = f"""
import kit

if seed == 1:
    raise ValueError("not this seed")
kit.ui.TrainPanel(seed=seed, run_name=run_name, runs_dir=runs_dir, **{FIELDS!r}).show()
"""


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A notebook that trains a short run, and a YAML file that executes it with two seeds."""
    monkeypatch.chdir(tmp_path)
    write_notebook("train.ipynb", 'seed = 0\nrun_name = None\nruns_dir = "runs"', TRAINS)
    path = Path("bulk.yaml")
    path.write_text(yaml.safe_dump({"notebook": "train.ipynb", "grid": {"seed": [0, 1]}, "store": "hf://me/bulk"}))
    return path


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"parameters": {"sed": 3}}, r"sed=3 is not a parameter of train.ipynb; it has seed, run_name, runs_dir"),
        ({"grid": {"seed": 3}}, r"each value of `grid` a list"),
        ({"grid": {"seed": []}}, r"each value of `grid` a list that is not empty"),
        ({"store": 5}, r"store=5 is not a text; write a path or a store's URL"),
        ({"notebook": "gone.ipynb"}, r"notebook='gone.ipynb' does not exist"),
        ({"grids": {}}, r"grids=\{\} is unknown; valid are notebook"),
    ],
)
def test_invalid_file_is_refused_before_anything_starts(jobs: Path, changes: dict[str, Any], words: str) -> None:
    content = yaml.safe_load(jobs.read_text())
    jobs.write_text(yaml.safe_dump({**content, "store": None, **changes}))
    with pytest.raises(UserError, match=words):
        kit.notebooks(jobs)
    with pytest.raises(UserError, match=r"holds a notebook; run it with `kit batch bulk\.yaml` or kit\.notebooks"):
        kit.batch(jobs)
    assert not Path("runs").exists()


def test_a_damaged_result_in_the_store_hides_no_other_job(jobs: Path, tmp_path: Path) -> None:
    stored = tmp_path / "store/bulk.notebooks"
    for name, content in (("bulk-s0", "{"), ("bulk-s1", '{"state": "finished"}')):
        (stored / name).mkdir(parents=True)
        (stored / name / "result.json").write_text(content)
    jobs.write_text(jobs.read_text().replace("hf://me/bulk", str(tmp_path / "store")))
    first, second = (row.values for row in FileJobs(jobs).rows())
    assert first["state"] == "waiting" and first["message"].startswith("result.json is not JSON")
    assert second["state"] == "finished"


def test_ctrl_c_ends_a_notebook_that_does_not_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("kit.scale.work.STOPPING_S", 0.5)
    write_notebook("idle.ipynb", "seed = 0", "import time\nopen('begun', 'w')\ntime.sleep(600)")
    Path("idle.yaml").write_text("notebook: idle.ipynb")

    def interrupt(_: Any) -> None:
        if Path("begun").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kit.notebooks("idle.yaml", on_progress=interrupt)
    (job,) = plan_jobs(Path("idle.yaml"))[0]
    wait_for(lambda: not job.is_working())
    assert job.result is None, "it is executed again when the batch is started again"


def test_a_blank_runs_dir_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_notebook("idle.ipynb", "runs_dir = 'runs'")
    Path("idle.yaml").write_text("notebook: idle.ipynb\nruns_dir:\nstore:\n")
    ((here,), _), ((far,), _) = plan_jobs(Path("idle.yaml")), plan_jobs(Path("idle.yaml"), on="ray")
    assert here.path == Path("runs/idle.notebooks/idle") and here.parameters == {"runs_dir": "runs"}
    assert far.path == tmp_path / here.path and far.parameters == {"runs_dir": str(tmp_path / "runs")}


@pytest.mark.storm
@pytest.mark.timeout(400)
def test_notebooks_continue_after_a_kill(jobs: Path, hub: HubServer, tmp_path: Path) -> None:  # noqa: F811
    process, run = batch(str(jobs)), Path("runs/bulk-s0")
    wait_for_checkpoint(run, process)
    kill_everything_in(tmp_path)
    process.wait()

    found = kit.notebooks(jobs)
    assert [(row["name"], row["state"]) for row in found] == [("bulk-s0", "finished"), ("bulk-s1", "failed")], found
    assert found[1]["message"] == "ValueError: not this seed"
    quiet = create(Path("quiet"), "bulk-s0", **FIELDS)
    assert Session(quiet.path)() == 0
    assert fingerprint(kit.Run(run)) == fingerprint(quiet)

    files = hub.repos["me/bulk"].files
    results = {name: json.loads(files[f"bulk.notebooks/{name}/result.json"]) for name in ("bulk-s0", "bulk-s1")}
    assert [result["state"] for result in results.values()] == ["finished", "failed"]
    assert len({result["attempt"] for result in results.values()}) == 2
    executed = nbformat.reads(files["bulk.notebooks/bulk-s0/notebook.ipynb"].decode(), 4)
    assert "100 %" in json.dumps(executed["cells"][-1]["outputs"])
    last = hub.repos["me/bulk"].log[-1][1]
    assert any(path.endswith("result.json") for path in last) or "lease.json" in last[0], "the result is written last"

    assert [row["state"] for row in kit.notebooks(jobs)] == ["finished", "failed"], "nothing is executed again"
    assert retry(jobs) == ["bulk-s1"]
    assert plan_jobs(jobs)[0][1].result is None


@pytest.mark.storm
@pytest.mark.timeout(3600)
def test_forty_notebooks_finish_despite_kills_and_a_store_that_goes_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All notebooks finish, and their results and outputs are the same on this machine and in the store.

    The batch and all its child processes are killed four times, and the store goes away five times."""
    monkeypatch.chdir(tmp_path)
    store, away, draw = tmp_path / "store", tmp_path / "away", random.Random(1)
    store.mkdir()
    work = (
        "import time\nfrom pathlib import Path\ntime.sleep(4)\n"
        "with Path('done.txt').open('a') as file:\n    file.write(f'{number}\\n')"
    )
    write_notebook("square.ipynb", "number = 0", work, "number ** 2")
    asked = {"notebook": "square.ipynb", "grid": {"number": list(range(40))}, "store": str(store)}
    Path("many.yaml").write_text(yaml.safe_dump(asked))
    for night in range(5):
        process = batch("many.yaml")
        pause = threading.Event()
        pause.wait(draw.uniform(10, 20))
        store.rename(away)
        pause.wait(draw.uniform(3, 12))
        away.rename(store)
        pause.wait(draw.uniform(2, 8))
        if night < 4:
            kill_everything_in(tmp_path)
        process.communicate()
    assert [row["state"] for row in kit.notebooks("many.yaml")] == ["finished"] * 40
    done = Counter(Path("done.txt").read_text().split())
    assert done.keys() == {str(number) for number in range(40)}
    for number in range(40):
        name = f"many.notebooks/many-{number}"
        results = [json.loads((root / name / "result.json").read_text()) for root in (tmp_path / "runs", store)]
        assert results[0] == results[1] and results[0]["state"] == "finished"
        copies = [nbformat.read(root / name / "notebook.ipynb", 4) for root in (tmp_path / "runs", store)]
        assert copies[0] == copies[1]
        assert copies[0].cells[-1].outputs[0].data["text/plain"] == str(number**2)
    begun_again = {number for number, times in done.items() if times > 1}
    print(f"executed more than once, for they were killed in between: {sorted(begun_again)}")
    assert len(begun_again) <= 4 * 2, "at most the two notebooks that each of the four kills interrupted"


def test_writer_without_lease_cannot_overwrite_its_successor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "TTL_S", 0.0)  # every write checks the lease
    (tmp_path / "store").mkdir()
    store = open_store(str(tmp_path / "store"))
    shelves = {}
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "notebook.ipynb").write_text(name)
        shelves[name] = StoreFolder(str(tmp_path / "store"), tmp_path / name, "bulk/job", name)
    shelves["first"].put("notebook.ipynb")
    with pytest.raises(LeaseHeld):
        shelves["second"].put("notebook.ipynb")
    lease.release(store, "bulk/job", lease.owner_of(tmp_path / "first"))  # as if it had expired
    assert shelves["second"].finish({"notebook.ipynb": b"second", "result.json": b"{}"}) == ""
    assert "belongs to" in shelves["first"].finish({"notebook.ipynb": b"late"})
    assert store.read("bulk/job/notebook.ipynb") == b"second"
