"""Jobs on a Ray cluster: each is a task that begins or resumes its job where Ray finds room, and watches it.

    kit batch jobs.yaml --on ray                      # this machine, or the cluster that RAY_ADDRESS names
    kit batch jobs.yaml --on ray://head:10001         # a cluster, from outside

A task whose worker or node is lost is tried again elsewhere, and its job goes on from its run directory or its store.
There it waits until the lost machine's lease has run out, so that of two attempts only one can write.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import kit
from kit.errors import UserError, need
from kit.scale.work import POLL_S, Engine, Kept, Patience, Work, since

TRIES = 10
"""How often a job is begun whose machine goes away."""
WATCH_S = 1.0
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # A cut link is noticed after 15 s; with Ray's own values tasks behind it were not tried again in three minutes.
    "RAY_grpc_client_keepalive_time_ms": "10000",
    "RAY_grpc_client_keepalive_timeout_ms": "5000",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "4",
    # With gRPC's fork handlers the server behind `ray://` often dies as it starts (ray-project/ray issue 63202).
    "GRPC_ENABLE_FORK_SUPPORT": "0",
    "RAY_worker_niceness": "0",  # Ray's 15 would put jobs behind whatever else the machine does
}
"""Of every process of Ray's; set it where `ray start` is called, too."""
STORE_BYTES = 100 * 2**20
"""Of memory for Ray's objects, which are small here: it would take 30 % of the machine's."""


def _room(cores: float, cpus: float, cards: float, gpus: float) -> int:
    """How many jobs a node takes."""
    return int(min(cores / cpus if cpus else 1, cards / gpus if gpus else float("inf")))


class Lost(Exception):
    """A job's process went without a word; Ray tries it again."""


@contextlib.contextmanager
def cluster(engine: Engine) -> Iterator[Cluster]:
    """The cluster that `engine` names. Raises `UserError` if none of its nodes has what a job is to have."""
    with _joined(str(engine.on)) as ray:
        yield Cluster(ray, engine.cpus, engine.gpus)


@contextlib.contextmanager
def _joined(where: str) -> Iterator[Any]:
    """Ray, connected to the cluster. One that is started here ends with this, and only who has its token can join."""
    match = re.fullmatch(r"ray(://[\w.-]+:\d+)?", where)
    if not match:
        raise UserError(f"on={where!r} is no cluster; write ray, or ray://head:10001.")
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    ray: Any = need("ray", "scale")
    if ray.is_initialized():  # by whoever called
        yield ray
        return
    address = where if match[1] else os.environ.get("RAY_ADDRESS")
    settings: dict[str, Any] = {} if address else {"include_dashboard": False, "object_store_memory": STORE_BYTES}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="critical", **settings)
    except Exception as error:  # Ray raises that itself of a node that does not start in 30 s
        said = str(error).strip().splitlines()[-1]
        what = "cannot be reached" if address else "cannot be started"
        hint = "is RAY_AUTH_TOKEN the cluster's?" if address else "try again when this machine is less busy."
        raise UserError(f"on={where!r} {what} ({said}); {hint}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


class _Board:
    """Where tasks write how their jobs stand; an actor of Ray's on the machine that asked for them."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.stopping = set[str]()

    def tell(self, row: dict[str, Any]) -> bool:
        """Whether to stop."""
        self.rows[row["name"]] = row
        return row["name"] in self.stopping

    def read(self) -> dict[str, dict[str, Any]]:
        return self.rows

    def stop(self, name: str) -> None:
        self.stopping.add(name)


def _attempt(job: Work, board: Any, threads: int, gpu_share: int, version: str) -> dict[str, Any]:
    """In a worker of Ray's: do the job and tell how it stands; its last row. Raises `Lost` if that is not its end."""
    import ray

    aside = ThreadPoolExecutor(1)  # a task that waits in its own thread gives its cores to others meanwhile

    def tell(row: dict[str, Any]) -> bool:
        return bool(aside.submit(lambda: ray.get(board.tell.remote(row))).result())

    if version != kit.__version__:
        return {**job.row(), "state": "failed", "message": f"kit {kit.__version__} is here, and {version} asked for it"}
    patience = Patience()
    while not patience.begin(job, threads, gpu_share):
        if tell(job.row()):
            return job.row()
        time.sleep(WATCH_S)
    stopping = False
    while job.is_working():
        if tell(job.row()) and not stopping:
            job.stop()
            stopping = True
        time.sleep(WATCH_S)
    row = job.row()
    if row["state"] in ("interrupted", "waiting") and not stopping:
        raise Lost(f"{row['name']}: {row['message']}")
    return row


class Cluster:
    """What tasks have told, asked for once for all jobs."""

    def __init__(self, ray: Any, cpus: float, gpus: float) -> None:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        rooms = [_room(node.get("CPU", 0), cpus, node.get("GPU", 0), gpus) for node in nodes]
        self.room = sum(rooms)
        """How many jobs find room at a time."""
        if not self.room:  # Ray itself would wait for ever
            has = "; ".join(f"{node.get('CPU', 0):g} and {node.get('GPU', 0):g}" for node in nodes)
            raise UserError(f"cpus={cpus:g}, gpus={gpus:g}: no node of the cluster has that many; they have {has}.")
        self.ray, self.threads = ray, max(1, int(cpus))
        self.gpu_share = round(1 / gpus) if 0 < gpus < 1 else 1
        here = ray.get_runtime_context().get_node_id()  # whose end is this one's
        pinned = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(here, soft=False)
        self.board = ray.remote(_Board).options(num_cpus=0, scheduling_strategy=pinned).remote()
        self.attempt = ray.remote(_attempt).options(
            num_cpus=cpus, num_gpus=gpus, max_retries=TRIES, retry_exceptions=[Lost], name="kit"
        )
        self.refs: list[Any] = []
        self._rows: dict[str, dict[str, Any]] = {}
        self._ended: set[Any] = set()
        self._looked = float("-inf")

    def remote(self, job: Kept) -> Work:
        """The same job, done there."""
        return _Remote(job, self)

    def look(self) -> tuple[dict[str, dict[str, Any]], set[Any]]:
        """The rows by name, and what is over; at most twice a second."""
        if time.monotonic() - self._looked > POLL_S / 2:
            self._rows = self.ray.get(self.board.read.remote())
            self._ended = (
                set(self.ray.wait(self.refs, num_returns=len(self.refs), timeout=0)[0]) if self.refs else set()
            )
            self._looked = time.monotonic()
        return self._rows, self._ended


@dataclass
class _Remote:
    """A job that is done on the cluster, as a batch sees it."""

    job: Kept
    on: Cluster
    error: str = ""
    note: str = ""
    _ref: Any = None
    _begun: float = 0.0
    _last: dict[str, Any] = field(default_factory=dict)

    @property
    def run(self) -> Any:
        return self.job.run

    def start(self, threads: int, gpu_share: int) -> None:
        on, self._begun = self.on, time.time()
        self._ref = on.attempt.remote(self.job, on.board, on.threads, on.gpu_share, kit.__version__)
        on.refs.append(self._ref)

    def is_working(self) -> bool:
        if self._ref is None or self._last:
            return False
        if self._ref not in self.on.look()[1]:
            return True
        try:
            self._last = self.on.ray.get(self._ref)
        except Exception as error:
            self.error = str(getattr(error, "cause", None) or error).strip().splitlines()[-1]
            self._last = {**self.job.row(), "state": "failed", "message": self.error}
        with contextlib.suppress(UserError):
            self.job.look()  # its folder may be seen from here
        return False

    def again(self) -> bool:
        return False  # Ray does

    def held_for(self) -> float:
        return 0.0

    def stop(self) -> None:
        self.on.board.stop.remote(self.job.row()["name"])
        if self.row()["state"] == "waiting":
            self.on.ray.cancel(self._ref)

    def wait(self, seconds: float) -> None:
        self.on.ray.wait([self._ref], timeout=seconds)

    def row(self) -> dict[str, Any]:
        row = self.job.row()
        waits = {"state": "waiting", "message": since("the cluster has not begun it", self._begun)}
        return self._last or self.on.look()[0].get(row["name"]) or {**row, **waits}


if __name__ == "__main__":  # for `eval` in the shell that starts Ray
    print("\n".join(f"export {name}={value}" for name, value in ENVIRONMENT.items()))
