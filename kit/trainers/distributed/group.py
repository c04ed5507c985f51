"""The process group of a distributed run. Rank 0 starts the other ranks on its machine, or torchrun starts all, on
several machines.

Tensors travel by nccl between GPUs and by gloo otherwise, objects by gloo. A rank that ends is noticed at the others'
next exchange, which raises `Interrupted`.
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
"""Time-out of an exchange: rank 0 may evaluate, save, or be paused for days while the others wait. A process that ends
is noticed at once, for its connections close."""
TOKEN = "KIT_GROUP_TOKEN"
"""The environment variable that lets a process join a group started on its machine."""
HERE = "127.0.0.1"
EXIT_CODE_S = 5.0
"""How long to wait for the exit code of a rank whose connection is closed."""


@cache
def from_torchrun() -> ProcessGroup | None:
    """The group of this process if torchrun has started it, else None. Each process of a machine sees one GPU."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or os.environ["WORLD_SIZE"] == "1":
        return None
    local = int(os.environ["LOCAL_RANK"])
    os.environ["CUDA_VISIBLE_DEVICES"] = _gpu(local)
    return ProcessGroup(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"]))


def start(size: int, device: str, program: str, environment: Mapping[str, str]) -> ProcessGroup:
    """A group of which this process is rank 0. The others, each on a GPU of its own, run `python -m program RANK SIZE
    PORT` in `environment`. Raises `UserError` where there are too few GPUs."""
    import torch
    from torch.distributed import PrefixStore, TCPStore

    if device != "cpu" and torch.cuda.device_count() < size:
        has = torch.cuda.device_count()
        raise UserError(f"processes={size} need a GPU each, and this machine shows {has}; choose {has} or fewer.")
    token, listening = secrets.token_hex(), socket.create_server((HERE, 0))  # torch itself would listen to everybody
    port = listening.getsockname()[1]
    fd = listening.detach()
    tcp = TCPStore(HERE, port, size, is_master=True, wait_for_workers=False, master_listen_fd=fd)
    store = PrefixStore(token, tcp)
    others = [
        subprocess.Popen(
            [sys.executable, "-m", program, str(rank), str(size), str(port)], stdin=subprocess.DEVNULL,
            start_new_session=True, env={**environment, TOKEN: token, "CUDA_VISIBLE_DEVICES": _gpu(rank)},
        )
        for rank in range(1, size)
    ]  # fmt: skip
    while store.add(HERE, 0) < size - 1:  # torch itself would wait for hours for one that died
        if any(other.poll() is not None for other in others):
            raise RuntimeError("another process of this run could not start")
        time.sleep(0.05)
    return ProcessGroup(0, size, size, store, others)


def connect(rank: int, size: int, port: int) -> ProcessGroup:
    """The group that rank 0 started at `port` of this machine, and whose token is in this process's environment."""
    from torch.distributed import PrefixStore, TCPStore

    store = PrefixStore(os.environ[TOKEN], TCPStore(HERE, port, size, timeout=timedelta(seconds=30)))
    store.add(HERE, 1)
    return ProcessGroup(rank, size, size, store)


def _gpu(local: int) -> str:
    """The GPU of process `local` of this machine, among those visible; "" for none."""
    cards = os.environ.get("CUDA_VISIBLE_DEVICES")
    return str(local) if cards is None else (cards.split(",")[local:] or [""])[0]


class ProcessGroup:
    """Of `size` processes, `on_this_machine` of them here. Rank 0 alone has the run's directory."""

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
        self._all = distributed
        if store is not None:  # all are on this machine
            loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
            os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        distributed.init_process_group(backend, timeout=PATIENCE, store=store, rank=rank, world_size=size)

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Add up `tensor` over the processes, in place."""
        with self._complete():
            self._all.all_reduce(tensor)
        return tensor

    def mean_(self, tensor: torch.Tensor) -> torch.Tensor:
        """The mean of `tensor` over the processes, in place."""
        return self.sum_(tensor).div_(self.size)

    def broadcast_(self, tensor: torch.Tensor) -> None:
        """Rank 0's `tensor` to all, in place."""
        with self._complete():
            self._all.broadcast(tensor, 0)

    def broadcast(self, *objects: Any) -> Any:
        """Rank 0's `objects`, in every process; the others pass none."""
        message = [objects]
        with self._complete():
            self._all.broadcast_object_list(message, 0)
        return message[0]

    def gather(self, part: Any = None) -> list[Any]:
        """Each process's `part` in rank 0; the others get nothing."""
        parts = [None] * self.size if self.rank == 0 else None
        with self._complete():
            self._all.gather_object(part, parts)
        return parts or []

    def close(self) -> None:
        """End the processes that this one has started, and close its connections: a thread that waits on one could
        abort a process that exits."""
        for other in self._others:
            other.kill()
            other.wait()
        if self._all.is_initialized():
            self._all.destroy_process_group()

    @contextmanager
    def _complete(self) -> Iterator[None]:
        """An exchange between all ranks. Raises `Interrupted` if one is gone."""
        try:
            yield
        except RuntimeError as error:  # what gloo and nccl raise has no class of its own
            for rank, other in enumerate(self._others, 1):
                with suppress(subprocess.TimeoutExpired):
                    if other.wait(EXIT_CODE_S) == 1:
                        raise RuntimeError(f"process {rank} of this run failed") from error
            raise Interrupted("another process of this run is gone") from error
