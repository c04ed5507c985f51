"""Process group of a distributed run: start the ranks, all-reduce, broadcast, gather.

Rank 0 starts the other ranks on its machine, or torchrun starts all of them, possibly on several machines. Tensors on
GPUs are sent by nccl; tensors on CPUs and Python objects by gloo. After a rank has ended, the next collective operation
of the others raises `Interrupted`; in rank 0 it raises `RuntimeError` if rank 0 started that process and it failed.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from kit.errors import Interrupted, UserError

if TYPE_CHECKING:
    import torch

PATIENCE = timedelta(days=365)
"""Time-out of collective operations: rank 0 may evaluate, save, or be paused for days. The end of a
process is noticed without a time-out, because its connections close at once."""
TOKEN = "KIT_GROUP_TOKEN"
"""Environment variable with the secret that a process needs to join a group started on its machine."""
LOCALHOST = "127.0.0.1"
_JOINED = "joined"
"""Key of the store that counts the ranks that have joined."""
EXIT_CODE_S = 5.0
"""Seconds to wait for the exit code of a rank after its connection has closed."""


@cache
def from_torchrun() -> ProcessGroup | None:
    """Return the group of this process if torchrun started the process, else None. Restricts the process to one GPU."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or os.environ["WORLD_SIZE"] == "1":
        return None
    local = int(os.environ["LOCAL_RANK"])
    os.environ["CUDA_VISIBLE_DEVICES"] = _gpu(local)
    return ProcessGroup(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"]))


def start(size: int, device: str, program: str, environment: Mapping[str, str]) -> ProcessGroup:
    """Start the ranks above 0 on this machine and return the group; this process is rank 0.

    The other ranks run `python -m program RANK SIZE PORT` with the environment variables `environment`, each on its own
    GPU. Raises `UserError` if the machine has too few GPUs.
    """
    import torch
    from torch.distributed import PrefixStore, TCPStore

    if device != "cpu" and torch.cuda.device_count() < size:
        n_gpus = torch.cuda.device_count()
        raise UserError(f"processes={size} need a GPU each, and this machine has {n_gpus}; choose {n_gpus} or fewer.")
    token, listening = secrets.token_hex(), socket.create_server((LOCALHOST, 0))  # torch would listen on all interfaces
    port = listening.getsockname()[1]
    fd = listening.detach()
    tcp = TCPStore(LOCALHOST, port, size, is_master=True, wait_for_workers=False, master_listen_fd=fd)
    store = PrefixStore(token, tcp)
    others = [
        subprocess.Popen(
            [sys.executable, "-m", program, str(rank), str(size), str(port)], stdin=subprocess.DEVNULL,
            start_new_session=True, env={**environment, TOKEN: token, "CUDA_VISIBLE_DEVICES": _gpu(rank)},
        )
        for rank in range(1, size)
    ]  # fmt: skip
    while store.add(_JOINED, 0) < size - 1:  # torch would wait for hours for a process that has died
        if any(other.poll() is not None for other in others):
            for other in others:
                other.kill()
            raise RuntimeError("another process of this run could not start")
        time.sleep(0.05)
    return ProcessGroup(0, size, size, store, others)


def connect(rank: int, size: int, port: int) -> ProcessGroup:
    """Join the group of rank 0, which listens at `port` of this machine. Needs the environment variable `TOKEN`."""
    from torch.distributed import PrefixStore, TCPStore

    store = PrefixStore(os.environ[TOKEN], TCPStore(LOCALHOST, port, size, timeout=timedelta(seconds=30)))
    store.add(_JOINED, 1)
    return ProcessGroup(rank, size, size, store)


def _gpu(local: int) -> str:
    """Return the value of CUDA_VISIBLE_DEVICES for process number `local` of this machine."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return str(local) if visible is None else (visible.split(",")[local:] or [""])[0]


class ProcessGroup:
    """Collective operations of `size` processes. Rank 0 has the run directory.

    `on_this_machine`: number of the processes that run on this machine. Without a `store`, torchrun's store is used.
    `others` are the processes that this process started.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        on_this_machine: int,
        store: torch.distributed.Store | None = None,
        others: Sequence[subprocess.Popen[bytes]] = (),
    ) -> None:
        import torch
        from torch import distributed

        self.rank, self.size, self.on_this_machine, self._others = rank, size, on_this_machine, others
        self._distributed = distributed
        if store is not None:  # all ranks are on this machine
            loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
            os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        distributed.init_process_group(backend, timeout=PATIENCE, store=store, rank=rank, world_size=size)

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum `tensor` over all processes, in place."""
        with self._collective():
            self._distributed.all_reduce(tensor)
        return tensor

    def mean_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Average `tensor` over all processes, in place."""
        return self.sum_(tensor).div_(self.size)

    def broadcast_(self, tensor: torch.Tensor) -> None:
        """Broadcast rank 0's `tensor` to all processes, in place."""
        with self._collective():
            self._distributed.broadcast(tensor, 0)

    def broadcast(self, *objects: Any) -> Any:
        """Broadcast rank 0's `objects` to all processes; the other ranks pass none."""
        message = [objects]
        with self._collective():
            self._distributed.broadcast_object_list(message, 0)
        return message[0]

    def gather(self, value: Any = None) -> list[Any]:
        """Return the `value` of every process, by rank, in rank 0; [] in the other ranks."""
        values = [None] * self.size if self.rank == 0 else None
        with self._collective():
            self._distributed.gather_object(value, values)
        return values or []

    def close(self) -> None:
        """Kill the processes that this process started, and close the connections.

        If connections stayed open, a thread that waits on one could abort this process at exit.
        """
        for other in self._others:
            other.kill()
            other.wait()
        if self._distributed.is_initialized():
            self._distributed.destroy_process_group()

    @contextmanager
    def _collective(self) -> Iterator[None]:
        """Raise `Interrupted` if another rank has ended, or `RuntimeError` if it failed and this process started it."""
        try:
            yield
        except RuntimeError as error:  # gloo and nccl have no exception class of their own
            for rank, other in enumerate(self._others, 1):
                with suppress(subprocess.TimeoutExpired):
                    if other.wait(EXIT_CODE_S) == 1:
                        raise RuntimeError(f"process {rank} of this run failed") from error
            raise Interrupted("another process of this run has ended") from error
