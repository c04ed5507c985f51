"""Tests of `kit batch`: run names, refused jobs, waiting jobs, slots, kills, failed jobs, stores."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

import kit
from kit.cli import main
from kit.errors import UserError
from kit.runs import api, directory
from kit.runs.fingerprint import fingerprint
from kit.runs.session import Session
from kit.scale import work
from kit.scale.batch import check, plan_jobs, read_jobs, run_batch, slots
from kit.scale.files import standing
from kit.scale.study import TrialJob, plan
from kit.scale.work import Results
from kit.stores import lease, open_store
from tests.runs.crash import SMALL, create, kill_everything_in
from tests.scale.shared import batch, wait_for_checkpoint

JOBS = """
env: Reach
n_envs: 2
threads: 1
total_steps: 960
eval_every: 0
checkpoint_every: 320
jobs:
  - {algo: PPO, overrides: {n_steps: 16, batch_size: 16, n_epochs: 2, policy_kwargs: {net_arch: [16, 16]}}, seed: 7}
  - {env: "breaks:Breaks", algo: A2C, total_steps: 400}
  - {algo: A2C, total_steps: 64}
"""
BREAKS = """
from tests.envs.corridor import Corridor

class Breaks(Corridor):
    def advance(self, action):
        raise RuntimeError("the floor gave way")

class Keyed(Corridor):
    def __init__(self, key):
        super().__init__()
"""
SECRET = "hf_" + "aB3dE6gH9j" * 3


def test_every_job_gets_a_unique_run_name() -> None:
    jobs = [{"algo": "PPO"}, {"algo": "PPO", "overrides": {"gamma": 0.9}}, {"algo": "A2C", "run_name": "mine"}]
    names = [job.config.run_name for job in plan_jobs(jobs, 2, "night")]
    assert names == [
        *("night-reach-ppo-s0", "night-reach-ppo-s1", "night-reach-ppo-s0-2", "night-reach-ppo-s1-2"),
        *("mine-s0", "mine-s1"),
    ]
    assert [job.config.seed for job in plan_jobs([{}], [3, 5], "b")] == [3, 5]
    assert [job.config.run_name for job in plan_jobs([{"run_name": "mine"}], None, "b")] == ["mine"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: kit.batch([{"algo": "PPO"}, {"algo": "SAC", "env": "CartPole-v1"}], name="b"),
            "job b-cartpole-v1-sac-s0",
        ),
        (lambda: kit.batch([{"total_step": 5}]), "did you mean total_steps"),
        (lambda: kit.batch([{}], seeds=0), "seeds="),
        (lambda: kit.batch([{"seed": 1}, {"algo": "A2C"}, {"seed": 1}]), "jobs 1 and 3 are the same run"),
        (lambda: kit.batch([{}], at_once=10_000), "at_once=10000"),
        (lambda: kit.batch([{}], at_once=0, on="ray"), "at_once=0 must be a whole number of at least 1"),
        (lambda: kit.sweep({"at_once": "2", "sweep": {"space": {"gamma": [0.9]}}}), "at_once='2' must be a whole"),
        (lambda: kit.batch([]), r"jobs=\[\] is not a list of configs or mappings"),
        (lambda: kit.launch_batch(["Reach"]), r"jobs=\['Reach'\] is not a list of configs or mappings"),
        (lambda: kit.batch([{"start_from": "runs/nothing"}]), "runs/nothing"),
        (lambda: kit.batch("no.yaml"), "no.yaml does not exist"),
        (lambda: kit.batch([{"runs_dir": None}], on="ray"), "runs_dir=None is empty; give a text"),
        (lambda: kit.batch([{"store": "gone/store"}]), "store='gone/store'"),
        (lambda: kit.batch([{"store": "gone/store"}], on="ray"), "gone/store' cannot be reached"),
        (lambda: kit.sweep({"store": "gone/store", "sweep": {"space": {"gamma": [0.9]}}}), "store='gone/store'"),
    ],
    ids=["one that cannot be trained", "no such field", "no seeds", "twice the same", "too many at once",
         "none at once", "a text at once", "no jobs", "texts", "no such run", "no such file", "no folder",
         "no such store", "nor for Ray", "nor for a search"],
)
def test_invalid_batch_is_refused_in_one_sentence_and_creates_nothing(tmp_path, monkeypatch, call, words) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=words) as refused:
        call()
    assert "\n" not in str(refused.value) and not list(tmp_path.iterdir())


def test_waiting_job_reports_the_reason_and_since_when(tmp_path, monkeypatch, capsys) -> None:
    """In `on_progress`, in the progress bar, and in another process, which reads the store itself."""
    monkeypatch.chdir(tmp_path)
    held = {"run_name": "held", "store": str(tmp_path / "held")}
    lost = {"run_name": "lost", "store": str(tmp_path / "lost")}
    fields = {"env": "Reach", "n_envs": 2, "device": "cpu", "total_steps": 6400, "overrides": SMALL["PPO"]}
    Path("jobs.yaml").write_text(json.dumps({**fields, "jobs": [held, lost, {"run_name": "a"}, {"run_name": "b"}]}))
    lease.acquire(open_store(tmp_path / "held", write=True), "held", "another", ttl_s=1000)
    jobs, engine = read_jobs("jobs.yaml", at_once=1)
    told: list[list[str]] = []

    def look(now: Results) -> None:
        told.append([row["message"] for row in now])
        if "no slot" in told[-1][3]:
            rows = {row["name"]: row for row in json.loads(batch("status", "jobs.yaml", "--json").communicate()[0])}
            assert [rows[name]["state"] for name in ("held", "lost", "b")] == ["waiting"] * 3
            assert rows["held"]["message"].startswith("another machine holds its lease (until")
            assert rows["lost"]["message"].startswith("its store does not answer (store=")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_batch(jobs, [job.config for job in jobs], engine, look)
    when = r"since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
    assert re.fullmatch(rf"another machine holds its lease \(until {when[6:]} unless renewed\), {when}", told[0][0])
    assert re.fullmatch(rf"its store does not answer \(store='.*lost' cannot be reach.*\), {when}", told[0][1])
    assert re.fullmatch(rf"no slot is free \(1 at work\), {when}", told[-1][3])
    with work.bar("step") as tell:
        tell(Results([], [{"name": "b", "state": "waiting", "step": 0, "total_steps": 1, "message": told[-1][3]}]))
    assert f"0 of 1 done, 0 at work; 1 waiting: {told[-1][3]}" in capsys.readouterr().err
    rows = [{"name": state, "state": state, "step": 1, "total_steps": 1, "message": ""}
            for state in ("finished", "interrupted", "running", "failed")]  # fmt: skip
    with work.bar("step") as tell:
        tell(Results([], rows))
    assert "1 of 4 done, 1 at work, 1 stopped, 1 failed" in capsys.readouterr().err
    (tmp_path / "lost").mkdir()
    odd = {"owner": "another", "host": "x", "since": 0, "expires": float("inf")}
    open_store(tmp_path / "held").put({"held/lease.json": json.dumps(odd).encode()})
    left = {row["name"]: row["message"] for row in standing("jobs.yaml")}
    assert left["lost"] == "", "its store answers again"
    assert left["held"] == "another machine holds its lease (until 2096-10-02 07:06:40 UTC unless renewed)"


@pytest.mark.parametrize("content", ["[Reach, Ant]", "[]", "jobs: []"])
def test_a_file_without_jobs_is_refused(tmp_path, content) -> None:
    (tmp_path / "jobs.yaml").write_text(content)
    with pytest.raises(UserError, match=r"jobs\.yaml: jobs=\[.*\] is not a list of mappings"):
        kit.batch(tmp_path / "jobs.yaml")


def test_a_batch_in_the_background_starts_once_and_hides_no_other(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("store").mkdir()
    first, second = ({"device": "cpu", "store": "store", "seed": seed} for seed in (0, 1))
    lease.acquire(open_store("store", write=True), "batch-reach-ppo-s0", "another", ttl_s=1000)
    waits = kit.launch_batch(first)
    try:
        assert kit.launch_batch([first]) is waits, "the cell was executed twice"
        with pytest.raises(UserError, match=r"batch batch in runs is at work with other jobs; give another name"):
            kit.launch_batch([second])
    finally:
        waits.stop()
    with pytest.raises(UserError, match="was stopped"):
        waits.wait()


def test_a_cluster_runs_as_many_jobs_side_by_side_as_asked_for(monkeypatch) -> None:
    asked: list[int] = []
    place = SimpleNamespace(remote=lambda job: job)
    monkeypatch.setattr("kit.scale.cluster.cluster", lambda engine: nullcontext(place))
    monkeypatch.setattr("kit.scale.batch.run_all", lambda jobs, at_once, *rest: asked.append(at_once))
    for at_once in (2, None):
        run_batch(plan_jobs([{}], 5, "b"), [], work.Engine(on="ray", at_once=at_once))
    assert asked == [2, 5]


def test_a_resume_that_is_refused_is_a_failed_job(tmp_path, monkeypatch, capsys) -> None:
    """The file was edited to fewer steps than the run has."""
    monkeypatch.chdir(tmp_path)
    run = create(tmp_path / "runs", "run", total_steps=128)
    assert Session(run.path)() == 0
    Path("jobs.yaml").write_text(json.dumps({"run_name": "run", "total_steps": 64, "n_envs": 2}))
    with pytest.raises(SystemExit) as ended:
        main(["batch", "jobs.yaml"])
    assert ended.value.code == 1, "75 would make a managed job start again for ever"
    said = capsys.readouterr().out
    assert "failed" in said and "total_steps=64 is less than the 128 steps" in said


def test_ctrl_c_does_not_fail_if_a_run_takes_long_to_stop(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(work, "STOPPING_S", 0.1)
    run = create(tmp_path / "runs", "run", device="cpu")

    def interrupt(_: Results) -> None:
        raise KeyboardInterrupt

    with directory.lock(run.path), pytest.raises(KeyboardInterrupt):  # the lock of a process that does not stop
        kit.batch([{"run_name": "run"}], on_progress=interrupt)


def test_slots_are_limited_by_free_memory(monkeypatch) -> None:
    jobs = plan_jobs([{"device": "cpu"}], 8, "b")
    monkeypatch.setattr("kit.machine.limits.usable_cores", lambda: 8)
    monkeypatch.setattr("kit.machine.limits.memory_free_bytes", lambda: 3_500_000_000)
    assert slots([job.config for job in jobs], 8, None) == 3 and slots([], 8, 2) == 2
    assert slots([jobs[0].config.replace(processes=2)], 8, None) == 1
    with pytest.raises(UserError, match=r"at_once=4 needs about 4 GB of memory and 3\.5 GB are free"):
        slots([], 8, 4)


def test_slots_follow_the_resolved_device(monkeypatch) -> None:
    """With a GPU, device `auto` becomes cuda for the preset `fast`, but cpu for Reach with the preset `auto`."""
    monkeypatch.setattr("kit.machine.limits.usable_cores", lambda: 4)
    monkeypatch.setattr("kit.machine.limits.memory_free_bytes", lambda: 100_000_000_000)
    big, small = (plan_jobs([{"preset": preset}], 4, "b") for preset in ("fast", "auto"))
    search = {"sweep": {"space": {"preset": ["auto", "fast"]}}}
    for works, room in ((False, 4), (True, 1)):
        monkeypatch.setattr("kit.machine.settings.gpu_works", lambda works=works: works)
        assert slots(check(big), 4, None) == room and slots(check(small), 4, None) == 4
        assert slots(check([*small, *big]), 8, None) == room, "one of the runs uses the GPU"
        assert slots(check(big), 4, 2) == 2, "at_once has priority"
        assert slots(plan(search)[0].kinds, 4, None) == room


def test_killed_batch_resumes_and_a_failed_job_stops_no_other(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("jobs.yaml").write_text(JOBS)
    Path("breaks.py").write_text(BREAKS)
    process, first = batch("jobs.yaml"), Path("runs/jobs-reach-ppo-s7")
    wait_for_checkpoint(first, process)
    kill_everything_in(tmp_path)
    process.wait()
    told: list[list[str]] = []
    found = kit.batch("jobs.yaml", on_progress=lambda now: told.append([row["state"] for row in now]))
    assert [row["state"] for row in found] == ["finished", "failed", "finished"], found
    assert "the floor gave way" in found[1]["message"]
    assert "resumed from step" in kit.Run(first).log(), "it was not started anew"
    assert told[-1] == [row["state"] for row in found]
    quiet = create(
        tmp_path / "quiet", first.name, overrides=SMALL["PPO"], total_steps=960, seed=7, checkpoint_every=320
    )
    assert Session(quiet.path)() == 0
    assert fingerprint(kit.Run(first)) == fingerprint(quiet)
    with pytest.raises(UserError, match="exists with seed=7, not 8"):
        kit.batch([{"run_name": "jobs-reach-ppo-s7", "seed": 8}])


def test_status_and_collect_read_the_runs_of_another_machine_from_the_store(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "store").mkdir()
    fields = {"n_envs": 2, "threads": 1, "total_steps": 64, "eval_every": 0, "store": str(tmp_path / "store")}
    there = create(tmp_path / "there", "run", overrides={}, device="cpu", **fields)
    assert Session(there.path)() == 0
    monkeypatch.chdir(tmp_path)
    job = {"env": "Reach", "run_name": "run", "device": "cpu", **fields, "overrides": SMALL["PPO"]}
    Path("jobs.yaml").write_text(json.dumps({"jobs": [job, {**job, "run_name": "next"}]}))

    def says(action: str) -> list[list[str]]:
        with pytest.raises(SystemExit) as ended:
            main(["batch", action, "jobs.yaml"])
        assert ended.value.code == 75, "75 means that some job is not finished"
        return [line.split()[:3] for line in capsys.readouterr().out.splitlines()]

    assert says("status") == [["run", "finished", "64"], ["next", "waiting", "0"]] and not Path("runs").exists()
    assert says("collect") == [["run", "finished", "64"], ["next", "waiting", "0"]]
    assert fingerprint(kit.Run("runs/run")) == fingerprint(there) and not Path("runs/next").exists()
    Path("jobs.yaml").write_text(json.dumps({"jobs": [{**job, "total_steps": 128}]}))
    assert says("status") == [["run", "interrupted", "64"]], "kit batch would train it further"
    shutil.rmtree("runs")
    assert says("status") == [["run", "interrupted", "64"]]


def test_a_relative_store_is_the_same_folder_in_every_working_directory(tmp_path, monkeypatch) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    fields = {"run_name": "run", "runs_dir": str(tmp_path / "runs"), "env": "Reach", "total_steps": 64, "n_envs": 2}
    run = api.create(None, {**fields, "store": "store"})
    here, there = (str(tmp_path / name / "store") for name in ("here", "there"))
    assert run.config.store == run.requested.store == here
    relative = plan_jobs([{**fields, "store": "store"}], None, "b")[0]
    assert relative.changes() == plan_jobs([{**fields, "store": here}], None, "b")[0].changes() == {}
    monkeypatch.chdir(tmp_path / "there")
    assert relative.changes() == {"store": there}, "the file's folder, seen from here"
    assert kit.resume(run.path, store="store").config.store == there
    assert Path("store/run/latest.json").is_file() and not Path(here).joinpath("run").exists()
    config = run.config.replace(store="store").to_yaml()  # a run of kit 0.2
    (run.path / "config.yaml").write_text(config)
    assert relative.changes() == {} and kit.Run(run.path).config.store == "store"


def test_collect_goes_on_after_a_job_that_cannot_be_fetched(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("store").mkdir()
    jobs = [{"run_name": "lost", "store": "gone/store"}, {"run_name": "run", "store": "store"}]
    Path("jobs.yaml").write_text(json.dumps({"n_envs": 2, "total_steps": 64, "jobs": jobs}))
    there = create(tmp_path / "there", "run", device="cpu", total_steps=64, store=str(tmp_path / "store"))
    assert Session(there.path)() == 0
    with pytest.raises(SystemExit) as ended:
        main(["batch", "collect", "jobs.yaml"])
    said = capsys.readouterr().out
    assert ended.value.code == 1 and "cannot be fetched: store='gone/store'" in said, said
    assert kit.Run("runs/run").status()["state"] == "finished"


def test_stored_run_without_latest_json_finishes_on_another_machine(tmp_path, monkeypatch) -> None:
    """The first machine was lost after it had stored a checkpoint, but before it wrote latest.json.

    The store has no secrets: the job brings the one in `env_options` again.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("safe.py").write_text(BREAKS)
    fields = {"env": "safe:Keyed", "n_envs": 2, "device": "cpu", "eval_every": 0, "overrides": SMALL["PPO"]}
    fields["env_options"] = {"key": SECRET}
    job = {**fields, "run_name": "cut", "total_steps": 320, "store": str(tmp_path / "store")}
    Path("store").mkdir()
    there = fingerprint(kit.train(kit.RunConfig(**job)))
    for name in ("latest.json", "lease.json", "status.json"):
        Path("store/cut", name).unlink(missing_ok=True)
    assert SECRET not in Path("store/cut/config.yaml").read_text()
    shutil.rmtree("runs")
    (row,) = kit.batch([job], name="b")
    assert row["state"] == "finished", row["message"]
    with pytest.raises(UserError, match=r"exists with env_options=\{'key': '\(hidden\)'\}, not \{'key': 'none'\}"):
        kit.batch([{**job, "env_options": {"key": "none"}}])
    assert fingerprint(kit.Run("runs/cut")) == there


@pytest.mark.parametrize("overrides", [{"net_arch": [16, 16]}, {"policy_kwargs": {"net_arch": [16, 16]}}])
def test_a_job_or_trial_that_sets_the_network_can_be_continued(tmp_path, monkeypatch, overrides) -> None:
    """The run's config has the network in `policy_kwargs`, beside the preset's noise."""
    monkeypatch.chdir(tmp_path)
    fields = {"run_name": "run", "env": "Ant", "overrides": overrides}
    run = api.create(None, fields)
    assert set(run.config.overrides["policy_kwargs"]) == {"net_arch", "log_std_init"}
    (job,) = plan_jobs([fields], None, "b")
    assert job.changes() == TrialJob(job.config, job.config.non_defaults()).changes() == {}
    with pytest.raises(UserError, match=r"exists with overrides=.*\[16, 16\].*, not .*\[8\]"):
        plan_jobs([{**fields, "overrides": {"net_arch": [8]}}], None, "b")


def test_a_setting_that_was_removed_from_the_file_is_refused(tmp_path, monkeypatch) -> None:
    """It would show the results of the run with that setting."""
    monkeypatch.chdir(tmp_path)
    fields = {"run_name": "run", "env": "Reach", "n_envs": 4, "overrides": {"gamma": 0.5, "n_steps": 64}}
    api.create(None, fields)
    assert plan_jobs([fields], None, "b")[0].changes() == {}
    for name, left in (("n_envs", None), ("overrides", None), ("overrides", {"n_steps": 64})):
        edited = {key: value for key, value in fields.items() if key != name} | ({name: left} if left else {})
        with pytest.raises(UserError, match=f"exists with {name}=.*; choose another name"):
            plan_jobs([edited], None, "b")
    with pytest.raises(UserError, match="seed=3 has no effect beside seeds; leave one"):
        plan_jobs([{"env": "Reach", "seed": 3}], 2, "b")
