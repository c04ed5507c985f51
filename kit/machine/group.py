"""Processes that train one run together: who they are, and what they tell each other. Whoever leads starts the others
on its machine, or torchrun starts all of them, on several.

Tensors go between cards by nccl and otherwise by gloo, words by gloo. Who is gone is missed by the others at their next
exchange, which raises `Interrupted`.
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
"""For who leads to evaluate, to save, or to stand still as long as somebody has paused the run, while the others wait.
Whose process ends is missed at once, for its connections close."""
TOKEN = "KIT_GROUP_TOKEN"
"""The environment variable that lets a process join a group begun on its machine."""
HERE = "127.0.0.1"
LAST_WORDS_S = 5.0


@cache
def joined() -> Group | None:
    """The group that torchrun made this process a member of, or None. Each process of a machine sees one card."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or os.environ["WORLD_SIZE"] == "1":
        return None
    local = int(os.environ["LOCAL_RANK"])
    os.environ["CUDA_VISIBLE_DEVICES"] = _card(local)
    return Group(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"]))


def begin(size: int, device: str, program: str, environment: Mapping[str, str]) -> Group:
    """A group that this process leads; the others, each on a card of its own, run `python -m program RANK SIZE PORT`
    in `environment`. Raises `UserError` where there are too few cards."""
    import torch
    from torch.distributed import PrefixStore, TCPStore

    if device != "cpu" and torch.cuda.device_count() < size:
        has = torch.cuda.device_count()
        raise UserError(f"processes={size} need a card each, and this machine shows {has}; choose {has} or fewer.")
    token, listening = secrets.token_hex(), socket.create_server((HERE, 0))  # torch itself would listen to everybody
    port = listening.getsockname()[1]
    fd = listening.detach()
    tcp = TCPStore(HERE, port, size, is_master=True, wait_for_workers=False, master_listen_fd=fd)
    store = PrefixStore(token, tcp)
    others = [
        subprocess.Popen(
            [sys.executable, "-m", program, str(rank), str(size), str(port)], stdin=subprocess.DEVNULL,
            start_new_session=True, env={**environment, TOKEN: token, "CUDA_VISIBLE_DEVICES": _card(rank)},
        )
        for rank in range(1, size)
    ]  # fmt: skip
    while store.add(HERE, 0) < size - 1:  # torch itself would wait for hours for one that died
        if any(other.poll() is not None for other in others):
            raise RuntimeError("another process of this run could not start")
        time.sleep(0.05)
    return Group(0, size, size, store, others)


def follow(rank: int, size: int, port: int) -> Group:
    """The group of whoever began it at `port` of this machine, and gave this process its token."""
    from torch.distributed import PrefixStore, TCPStore

    store = PrefixStore(os.environ[TOKEN], TCPStore(HERE, port, size, timeout=timedelta(seconds=30)))
    store.add(HERE, 1)
    return Group(rank, size, size, store)


def _card(local: int) -> str:
    """The one card, of those that can be seen, that is left to process `local` of this machine; "" for none."""
    cards = os.environ.get("CUDA_VISIBLE_DEVICES")
    return str(local) if cards is None else (cards.split(",")[local:] or [""])[0]


class Group:
    """Of `size` processes, `on_this_machine` of them here. The first, of rank 0, leads: it alone has the run's
    directory."""

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

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Add up `tensor` over the processes, in place."""
        with self._nobody_gone():
            self._all.all_reduce(tensor)
        return tensor

    def mean_(self, tensor: torch.Tensor) -> torch.Tensor:
        """The mean of `tensor` over the processes, in place."""
        return self.sum_(tensor).div_(self.size)

    def give(self, tensor: torch.Tensor) -> None:
        """The leader's `tensor` to all, in place."""
        with self._nobody_gone():
            self._all.broadcast(tensor, 0)

    def tell(self, *words: Any) -> Any:
        """What the leader says, to all of them. The others say nothing, and hear it."""
        said = [words]
        with self._nobody_gone():
            self._all.broadcast_object_list(said, 0)
        return said[0]

    def gather(self, part: Any = None) -> list[Any]:
        """Each process's `part`, to the leader; the others get nothing."""
        parts = [None] * self.size if self.leads else None
        with self._nobody_gone():
            self._all.gather_object(part, parts)
        return parts or []

    def leave(self) -> None:
        """End those that this process began, and close what connects it to the others: a thread that waits there could
        abort one that exits."""
        for other in self._others:
            other.kill()
            other.wait()
        if self._all.is_initialized():
            self._all.destroy_process_group()

    @contextmanager
    def _nobody_gone(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # what gloo and nccl raise has no class of its own
            for rank, other in enumerate(self._others, 1):
                with suppress(subprocess.TimeoutExpired):
                    if other.wait(LAST_WORDS_S) == 1:
                        raise RuntimeError(f"process {rank} of this run failed") from error
            raise Interrupted("another process of this run is gone") from error
