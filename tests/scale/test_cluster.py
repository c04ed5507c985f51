"""Tests of jobs on a Ray cluster of two nodes: lost workers and nodes, resources, notebooks, tokens, searches."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

import kit
from kit.errors import UserError
from kit.runs.fingerprint import fingerprint
from kit.runs.session import Session
from kit.scale.cluster import ENVIRONMENT
from kit.scale.study import Sweep, plan
from kit.scale.work import Results
from tests.runs.crash import SMALL, create
from tests.scale.shared import batch, wait_for_checkpoint, write_notebook

TOKEN = "0123456789abcdef" * 4
FIELDS: dict[str, Any] = {
    "env": "Reach", "n_envs": 2, "threads": 1, "device": "cpu", "eval_every": 800, "checkpoint_every": 160,
    "total_steps": 1600, "overrides": SMALL["PPO"],
}  # fmt: skip


@contextmanager
def started(**of_head: Any) -> Iterator[Any]:
    """Start a Ray cluster with token authentication: a head and a second node, `node`, one core each."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**ENVIRONMENT, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}.items():
            patch.setenv(name, value)
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # only on loopback addresses
        utils = pytest.importorskip("ray.cluster_utils", reason="could not import 'ray'")
        small = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
        for tries_left in (2, 1, 0):
            found = utils.Cluster()
            try:
                found.add_node(**small, include_dashboard=False, **of_head)
                found.node = found.add_node(**small, node_ip_address="127.0.0.2")
                break
            except Exception:  # a node's agents must start within 15 s, too short beside other tests (Ray issue 65983)
                found.shutdown()
                if not tries_left:
                    raise
        patch.setenv("RAY_ADDRESS", found.address)
        yield found
        found.shutdown()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with started() as found:
        yield found


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.timeout(300)
def test_runs_finish_after_a_worker_and_a_node_are_lost(cluster: Any) -> None:
    lost: dict[str, str] = {}

    def disturb(now: Results) -> None:
        """Kill a worker and a node as soon as both runs have a checkpoint."""
        runs = [Path(f"runs/{row['name']}") for row in now]
        if lost or not all(run.is_dir() and kit.Run(run).checkpoints() for run in runs):
            return
        raylet = cluster.node.all_processes["raylet"][0].process.pid
        for run in map(kit.Run, runs):
            training = psutil.Process(run.status()["process"]["pid"])
            worker, *above = training.parents()
            if raylet in [process.pid for process in above]:
                cluster.remove_node(cluster.node, allow_graceful=False)
                training.kill()  # a lost machine also loses its training process
                lost[run.name] = "node"
            else:
                worker.kill()
                lost[run.name] = "worker"  # the training process survives, and Ray's next attempt finds it

    found = kit.batch([FIELDS], seeds=2, name="far", on="ray", on_progress=disturb)
    assert [row["state"] for row in found] == ["finished"] * 2, found
    assert sorted(lost.values()) == ["node", "worker"]
    for seed, row in enumerate(found):
        run = kit.Run(f"runs/{row['name']}")
        assert run.log().count("resumed from step") == (lost[run.name] == "node")
        quiet = create(Path("quiet"), row["name"], **FIELDS, seed=seed)
        assert Session(quiet.path)() == 0
        assert fingerprint(run) == fingerprint(quiet), row["name"]


def test_resources_that_no_node_has_are_refused(cluster: Any) -> None:
    with pytest.raises(UserError, match=r"cpus=64, gpus=0: no node of the cluster .*; the nodes have 1 CPUs and 0"):
        kit.batch([FIELDS], name="far", on="ray", cpus=64)
    with pytest.raises(UserError, match=r"gpus=0\.25: no node"):
        kit.batch([FIELDS], name="far", on="ray", gpus=0.25)
    with pytest.raises(UserError, match=r"on='slurm' is no cluster; write ray"):
        kit.batch([FIELDS], name="far", on="slurm")
    assert not Path("runs").exists()


def test_a_run_that_the_user_stopped_stays_stopped(cluster: Any) -> None:
    def stop(now: Results) -> None:
        if now[0]["state"] == "running":
            kit.Run(f"runs/{now[0]['name']}").stop()

    (row,) = kit.batch([{**FIELDS, "total_steps": 10**7}], name="far", on="ray", on_progress=stop)
    assert row["state"] == "interrupted" and row["message"].startswith("stopped on request"), row
    assert "resumed from step" not in kit.Run(f"runs/{row['name']}").log()


def test_a_job_that_waits_for_a_slot_says_so(cluster: Any) -> None:
    told: list[str] = []

    def look(now: Results) -> None:
        told.extend(row["message"] for row in now)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kit.batch([FIELDS], seeds=2, name="far", on="ray", at_once=1, on_progress=look)
    assert told[0].startswith("the cluster has not started it, since 2") and told[1].startswith("no slot is free"), told


@pytest.mark.storm
def test_killed_batch_command_continues_when_started_again(cluster: Any) -> None:
    Path("jobs.yaml").write_text(yaml.safe_dump({**FIELDS, "seeds": 2}))
    asked = batch("jobs.yaml", "--on", "ray")
    wait_for_checkpoint("runs/jobs-reach-ppo-s0", asked)
    asked.kill()
    asked.wait()
    again = batch("jobs.yaml", "--on", "ray")
    assert again.communicate() and again.returncode == 0
    for seed in range(2):
        quiet = create(Path("quiet"), f"s{seed}", **FIELDS, seed=seed)
        assert Session(quiet.path)() == 0
        assert fingerprint(kit.Run(f"runs/jobs-reach-ppo-s{seed}")) == fingerprint(quiet)


@pytest.mark.storm
def test_run_of_two_processes_resumes_after_losing_one(cluster: Any) -> None:
    both, killed = {**FIELDS, "processes": 2}, list[int]()

    def disturb(now: Results) -> None:
        run = Path("runs") / now[0]["name"]
        if not killed and run.is_dir() and kit.Run(run).checkpoints():
            (other,) = psutil.Process(kit.Run(run).status()["process"]["pid"]).children()
            killed.append(other.pid)
            other.kill()

    (row,) = kit.batch([both], name="far", on="ray", on_progress=disturb)
    assert killed and row["state"] == "finished", row
    run = kit.Run(f"runs/{row['name']}")
    assert "another process of this run has ended" in run.log() and "resumed from step" in run.log()
    quiet = kit.train(**both, run_name="quiet")
    assert fingerprint(run) == fingerprint(quiet)


@pytest.mark.storm
def test_notebooks_are_executed_on_a_cluster(cluster: Any) -> None:
    write_notebook("divides.ipynb", "seed = 0", "print(6 / seed)")
    Path("bulk.yaml").write_text(yaml.safe_dump({"notebook": "divides.ipynb", "grid": {"seed": [0, 2]}}))
    found = kit.notebooks("bulk.yaml", on="ray")
    assert [row["state"] for row in found] == ["failed", "finished"], found
    assert found[0]["message"] == "ZeroDivisionError: division by zero"
    assert "3.0" in Path("runs/bulk.notebooks/bulk-s2/notebook.ipynb").read_text()


@pytest.mark.storm
def test_wrong_token_is_refused(cluster: Any) -> None:
    Path("jobs.yaml").write_text(yaml.safe_dump(FIELDS))
    asked = batch("jobs.yaml", "--on", "ray", RAY_AUTH_TOKEN="f" * 64)
    _, said = asked.communicate()
    assert asked.returncode == 2 and "check the token in RAY_AUTH_TOKEN" in said, said


@pytest.mark.storm
@pytest.mark.timeout(600)
def test_search_continues_after_the_command_and_a_trial_were_killed() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with started(ray_client_server_port=port):
        search_from_outside(f"ray://127.0.0.1:{port}")


def search_from_outside(head: str) -> None:
    search = {"trials": 3, "pruner": "none", "space": {"gamma": {"min": 0.9, "max": 0.99}}}
    few = {**FIELDS, "total_steps": 960, "eval_every": 480, "at_once": 1}
    Path("search.yaml").write_text(yaml.safe_dump({**few, "sweep": search}))
    asked, second = batch("search.yaml", "--on", head), Path("runs/search-t001")
    wait_for_checkpoint(second, asked)
    asked.kill()
    asked.wait()
    psutil.Process(kit.Run(second).status()["process"]["pid"]).kill()
    again = batch("search.yaml", "--on", head)
    assert again.communicate() and again.returncode == 0
    assert "resumed from step" in kit.Run(second).log()
    far, here = Sweep(plan("search.yaml")[0]), kit.sweep("search.yaml", at_once=1, name="here")
    kept = ("state", "steps", "gamma", "eval mean_return")
    assert [[row[name] for name in kept] for row in far.rows()] == [[row[name] for name in kept] for row in here.rows()]
    assert [row["state"] for row in far.rows()] == ["complete"] * 3
    for trial in range(3):
        assert fingerprint(kit.Run(f"runs/search-t{trial:03d}")) == fingerprint(kit.Run(f"runs/here-t{trial:03d}"))
