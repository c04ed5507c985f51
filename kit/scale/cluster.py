"""Jobs on a Ray cluster: each Ray task starts or resumes one job on a free node and watches it.

    kit batch jobs.yaml --on ray                      # this machine, or the cluster that RAY_ADDRESS names
    kit batch jobs.yaml --on ray://head:10001         # a cluster, from outside

If a worker process or a node is lost, Ray runs the task again in another place, and the job resumes from its run
directory or its store. The job first waits until the lease of the lost machine has expired, so that two machines never
write to the store at the same time.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import inf
from typing import Any

import kit
from kit.errors import UserError, need
from kit.runs.control import ON_REQUEST
from kit.scale.work import POLL_S, Engine, Starter, StoredWork, Work, since

TRIES = 10
"""Maximum number of retries of a job whose machine is lost."""
WATCH_S = 1.0
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # With these values Ray notices a lost connection after 15 s; with its defaults, not within three minutes.
    "RAY_grpc_client_keepalive_time_ms": "10000",
    "RAY_grpc_client_keepalive_timeout_ms": "5000",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "4",
    # With gRPC's fork handlers, the server of `ray://` often dies at its start (ray-project/ray issue 63202).
    "GRPC_ENABLE_FORK_SUPPORT": "0",
    "RAY_worker_niceness": "0",  # with Ray's default of 15, all other processes of the machine have priority
}
"""Environment variables of every Ray process; set them also where `ray start` is called."""
STORE_BYTES = 100 * 2**20
"""Memory for Ray's object store, which holds only small objects; Ray's default is 30 % of the machine's memory."""


class Lost(Exception):
    """A job's process ended without a result; Ray runs the task again."""


@contextlib.contextmanager
def cluster(engine: Engine) -> Iterator[Cluster]:
    """Connect to the cluster `engine.on`. Raises `UserError` if no node has the resources of a job."""
    with _connected(str(engine.on)) as ray:
        yield Cluster(ray, engine.cpus, engine.gpus)


@contextlib.contextmanager
def _connected(where: str) -> Iterator[Any]:
    """Yield the module `ray`, connected to a cluster. A cluster that this function starts ends with the block."""
    match = re.fullmatch(r"ray(://[\w.-]+:\d+)?", where)
    if not match:
        raise UserError(f"on={where!r} is no cluster; write ray or ray://head:10001.")
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    ray: Any = need("ray", "scale")
    if ray.is_initialized():  # the user has connected to a cluster already
        yield ray
        return
    address = where if match[1] else os.environ.get("RAY_ADDRESS")
    settings: dict[str, Any] = {} if address else {"include_dashboard": False, "object_store_memory": STORE_BYTES}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="critical", **settings)
    except Exception as error:  # if a node does not start within 30 s, Ray raises a plain Exception
        reason = _last_line(error)
        problem = "cannot be reached" if address else "cannot be started"
        hint = "check the token in RAY_AUTH_TOKEN." if address else "try again when this machine is less busy."
        raise UserError(f"on={where!r} {problem} ({reason}); {hint}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _last_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[-1]


class _Board:
    """Ray actor on the machine of `kit batch`: receives each job's state (`Work.row`), and tells Ray tasks to stop."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.stopping = set[str]()

    def report(self, row: dict[str, Any]) -> bool:
        """Store a job's row (see `Work.row`); return whether the job must stop."""
        self.rows[row["name"]] = row
        return row["name"] in self.stopping

    def read(self) -> dict[str, dict[str, Any]]:
        return self.rows

    def stop(self, name: str) -> None:
        self.stopping.add(name)


def _attempt(job: Work, board: Any, threads: int, version: str) -> dict[str, Any]:
    """Ray task: run the job, report its rows to `board`, return the last row. Raises `Lost` if Ray must run it again.

    `version`: the version of kit on the machine of `kit batch`.
    """
    import ray

    executor = ThreadPoolExecutor(1)  # `ray.get` in the task's own thread would release the task's cores to other tasks

    def report(row: dict[str, Any]) -> bool:
        return bool(executor.submit(lambda: ray.get(board.report.remote(row))).result())

    if version != kit.__version__:
        message = f"this node has kit {kit.__version__}, and the batch was started with {version}"
        return {**job.row(), "state": "failed", "message": message}
    starter = Starter()
    while not starter.begin(job, threads):
        if report(job.row()):
            return job.row()
        time.sleep(WATCH_S)
    stopping = False
    while job.is_working():
        if report(job.row()) and not stopping:
            job.stop()
            stopping = True
        time.sleep(WATCH_S)
    row = job.row()
    by_user = stopping or str(row["message"]).startswith(ON_REQUEST)
    if row["state"] in ("interrupted", "waiting") and not by_user:
        raise Lost(f"{row['name']}: {row['message']}")
    return row


class Cluster:
    """A connected Ray cluster. `cpus` and `gpus`: resources of each job."""

    def __init__(self, ray: Any, cpus: float, gpus: float) -> None:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        self.room = sum(
            int(min(node.get("CPU", 0) / cpus, node.get("GPU", 0) / gpus if gpus else inf)) for node in nodes
        )
        """Number of jobs that fit at the same time."""
        if not self.room:  # Ray would wait forever without an error
            available = ", ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes)
            message = f"cpus={cpus:g}, gpus={gpus:g}: no node of the cluster has that many; the nodes have {available}."
            raise UserError(message)
        self.ray, self.threads = ray, max(1, int(cpus))
        # the board is on the node of `kit batch`: if that node is lost, the batch ends anyway
        this_node = ray.get_runtime_context().get_node_id()
        pinned = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(this_node, soft=False)
        self.board = ray.remote(_Board).options(num_cpus=0, scheduling_strategy=pinned).remote()
        self.attempt = ray.remote(_attempt).options(
            num_cpus=cpus, num_gpus=gpus, max_retries=TRIES, retry_exceptions=[Lost], name="kit"
        )
        self.refs: list[Any] = []
        self._rows: dict[str, dict[str, Any]] = {}
        self._ended: set[Any] = set()
        self._looked = float("-inf")

    def remote(self, job: StoredWork) -> Work:
        return _Remote(job, self)

    def poll(self) -> tuple[dict[str, dict[str, Any]], set[Any]]:
        """Return job name -> reported row, and the set of ended tasks; both are at most `POLL_S` / 2 old."""
        if time.monotonic() - self._looked > POLL_S / 2:
            self._rows = self.ray.get(self.board.read.remote())
            self._ended = (
                set(self.ray.wait(self.refs, num_returns=len(self.refs), timeout=0)[0]) if self.refs else set()
            )
            self._looked = time.monotonic()
        return self._rows, self._ended


@dataclass
class _Remote(Work):
    """A job that runs on the cluster. `should_restart` stays False, because Ray restarts the job."""

    job: StoredWork
    on: Cluster
    _ref: Any = None
    _started: float = 0.0
    _last: dict[str, Any] = field(default_factory=dict)

    @property
    def run(self) -> Any:
        return self.job.run

    def start(self, threads: int) -> None:
        on, self._started = self.on, time.time()
        self._ref = on.attempt.remote(self.job, on.board, on.threads, kit.__version__)
        on.refs.append(self._ref)

    def is_working(self) -> bool:
        if self._ref is None or self._last:
            return False
        if self._ref not in self.on.poll()[1]:
            return True
        try:
            self._last = self.on.ray.get(self._ref)
        except Exception as error:
            self.error = _last_line(getattr(error, "cause", None) or error)
            self._last = {**self.job.row(), "state": "failed", "message": self.error}
        with contextlib.suppress(UserError):
            self.job.look()  # sets `job.run` if this machine sees the run directory
        return False

    def stop(self) -> None:
        self.on.board.stop.remote(self.job.row()["name"])
        if self.row()["state"] == "waiting":
            self.on.ray.cancel(self._ref)

    def wait(self, seconds: float) -> None:
        self.on.ray.wait([self._ref], timeout=seconds)

    def row(self) -> dict[str, Any]:
        row = self.job.row()
        message = since("the cluster has not started it", self._started) if self._ref is not None else self.note
        return self._last or self.on.poll()[0].get(row["name"]) or {**row, "state": "waiting", "message": message}


if __name__ == "__main__":  # for `eval "$(python -m kit.scale.cluster)"` in the shell that starts Ray
    print("\n".join(f"export {name}={value}" for name, value in ENVIRONMENT.items()))
