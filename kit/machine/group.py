"""The processes that share one run under torchrun: how they exchange tensors, and how all of them follow one.

    rank 0 leads                                     the others follow
      ...trains as it would alone, and
      before each env step and each minibatch:
        order(GO)        ── one byte ──▶             ...do the same step, or minibatch, on their share
        order(SNAPSHOT)  ── one byte ──▶             ...hand over the state of their worlds, and wait again
        order(LOAD), order(STOP), leave(code)

Tensors go through torch.distributed: nccl on GPUs, gloo on CPUs. Orders go through sockets of our own. Who waits for
the next order may wait for hours, for the run may be paused, where a collective has a time limit; a byte is sent in
microseconds and waits for nobody; and when a process dies, the system closes its sockets, which the others notice.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import select
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

GO, SNAPSHOT, LOAD, STOP, OVER = b"gsltx"
"""Orders: carry on; hand over your worlds; take over a checkpoint; leave the iteration; the session is over."""
LOST = 75
"""Exit code of a process that another one left alone: the run can be resumed."""
TIMEOUT = timedelta(minutes=30)
"""How long a collective waits for a process that lives and does not come."""
JOIN_S = 60.0
GRACE_S = 15.0
"""How long a process may take to notice by itself that another is gone. One that waits for a GPU that waits for the
other's GPU never does: it is ended."""


class ProcessLost(Exception):
    """Another process of the run is gone."""


def size() -> int:
    """How many processes torchrun has started for this run; 1 without torchrun."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in names) else 1


def rank() -> int:
    """Which of them this is; 0 leads."""
    return int(os.environ["RANK"]) if size() > 1 else 0


def local_rank() -> int:
    """Which of those on this machine."""
    return int(os.environ["LOCAL_RANK"]) if size() > 1 else 0


def local_size() -> int:
    """How many of them are on this machine."""
    return int(os.environ["LOCAL_WORLD_SIZE"]) if size() > 1 else 1


class Group:
    """This process among its like. Making one waits until all have come."""

    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        self.rank, self.size = rank(), size()
        self.leads = self.rank == 0
        self.lost: str | None = None
        """A sentence, once another process is gone."""
        one_machine = local_size() == self.size
        if one_machine:  # gloo would look up the machine's own name, which in containers often leads nowhere
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=TIMEOUT)
        self._noticed = threading.Event()
        self._peers = self._call("127.0.0.1" if one_machine else "") if self.leads else self._answer(one_machine)
        threading.Thread(target=self._watch, name="peers", daemon=True).start()

    def _call(self, address: str) -> dict[int, socket.socket]:
        """The leader's connections: one to each rank. `address` is where to listen."""
        token = secrets.token_bytes(16)
        peers: dict[int, socket.socket] = {}
        with socket.create_server((address, 0)) as server:
            server.settimeout(JOIN_S)
            self.share((server.getsockname()[1], token))
            while len(peers) < self.size - 1:
                peer, _ = server.accept()
                peer.settimeout(JOIN_S)
                said = peer.recv(20, socket.MSG_WAITALL)
                if hmac.compare_digest(said[:16], token):  # one of ours, not somebody who scans ports
                    peer.settimeout(None)
                    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    peers[int.from_bytes(said[16:])] = peer
        return peers

    def _answer(self, one_machine: bool) -> dict[int, socket.socket]:
        """A follower's connection to the leader."""
        port, token = self.share()
        peer = socket.create_connection(("127.0.0.1" if one_machine else os.environ["MASTER_ADDR"], port), JOIN_S)
        peer.sendall(token + self.rank.to_bytes(4))
        peer.settimeout(None)
        return {0: peer}

    # -- tensors ---------------------------------------------------------------------------------------------------

    def gather(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """For tensors of the same leading size n in every process, those of size n · processes: the rows of rank 0,
        then those of rank 1, ... All lie on one device; one collective serves all of them."""
        import torch
        import torch.distributed as dist

        parts = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in tensors.values()]
        own = torch.cat(parts)
        everyone = own.new_empty(self.size, len(own))
        with self._together():
            dist.all_gather(list(everyone.unbind()), own)
        whole, start = {}, 0
        for (name, tensor), part in zip(tensors.items(), parts, strict=True):
            columns = everyone[:, start : start + len(part)].reshape(-1)  # a copy, so that it starts where any type may
            whole[name] = columns.view(tensor.dtype).view(self.size * tensor.shape[0], *tensor.shape[1:])
            start += len(part)
        return whole

    def sum_(self, tensor: torch.Tensor) -> None:
        """Put the sum over all processes in `tensor`'s place, the same bits in each."""
        import torch.distributed as dist

        with self._together():
            dist.all_reduce(tensor)

    def share(self, value: Any = None) -> Any:
        """What the leader gave as `value`, in every process."""
        import torch.distributed as dist

        values = [value]
        with self._together():
            dist.broadcast_object_list(values, 0)
        return values[0]

    def mine(self, n: int) -> slice:
        """This process's part of `n` rows."""
        part = n // self.size
        return slice(self.rank * part, (self.rank + 1) * part)

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """Around a collective: what it raises when another process is gone becomes `ProcessLost`."""
        try:
            yield
        except RuntimeError as error:
            if self.leads and not self._hung_up(timeout_s=5.0):
                raise
            raise self._say_lost() from error

    # -- orders ----------------------------------------------------------------------------------------------------

    def order(self, order: int, *details: int) -> None:
        """If this process leads: tell all others what comes next. Raises `ProcessLost`."""
        if not self.leads:
            return
        for peer in self._peers.values():
            try:
                peer.sendall(bytes([order, *details]))
            except OSError:
                raise self._say_lost() from None

    def receive(self) -> int:
        """A follower waits for the leader's next order, however long that takes. The process ends here if the session
        is over, with the leader's exit code, or if the leader is gone."""
        order = self._byte()
        if order == OVER:
            code = self._byte()
            self._end()
            self._byte()  # until the leader's own process has ended: torchrun kills the rest when one returns not 0
            raise SystemExit(code)
        if order is None:
            self._noticed.set()
            raise SystemExit(LOST)
        return order

    def _byte(self) -> int | None:
        """The leader's next byte; None if it is gone."""
        try:
            return next(iter(self._peers[0].recv(1)), None)
        except OSError:
            return None

    def leave(self, code: int) -> None:
        """The leader's last word: its session ended with exit `code`."""
        with contextlib.suppress(ProcessLost):
            self.order(OVER, code)
        self._end()

    def _end(self) -> None:
        import torch.distributed as dist

        self._noticed.set()
        if self.lost is None:
            dist.destroy_process_group()

    # -- who is still there ----------------------------------------------------------------------------------------

    def _hung_up(self, timeout_s: float | None = None) -> list[int]:
        """The ranks that are gone; waits for the first, but no longer than `timeout_s`."""
        poller = select.poll()
        for peer in self._peers.values():
            poller.register(peer, select.POLLRDHUP)
        gone = {file for file, _ in poller.poll(None if timeout_s is None else 1000 * timeout_s)}
        return [number for number, peer in self._peers.items() if peer.fileno() in gone]

    def _say_lost(self) -> ProcessLost:
        self._noticed.set()
        ranks = " and ".join(str(number) for number in self._hung_up(0.0)) or "another"
        self.lost = f"the process of rank {ranks} was lost"
        return ProcessLost(self.lost)

    def _watch(self) -> None:
        """End this process when another is gone and this one cannot notice."""
        gone = self._hung_up()
        if not self._noticed.wait(GRACE_S):
            if self.leads:
                print(f"kit: the process of rank {gone[0]} was lost; resume goes on from the last checkpoint",
                      file=sys.stderr, flush=True)  # fmt: skip
            os._exit(LOST)
