"""Processes that train one run together, as torchrun starts them: who they are, and what they tell each other.

Tensors go between cards by nccl and otherwise by gloo, words by gloo. Who is gone is missed by the others at their next
exchange, which raises `Interrupted`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from kit.errors import Interrupted

if TYPE_CHECKING:
    import torch

PATIENCE = timedelta(hours=2)
"""For who leads to evaluate or to save, while the others wait."""


@cache
def joined() -> Group | None:
    """The group that this process belongs to, or None: it was not started by torchrun, or alone. Each process of a
    machine sees one card."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or os.environ["WORLD_SIZE"] == "1":
        return None
    local = int(os.environ["LOCAL_RANK"])
    cards = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = str(local) if cards is None else (cards.split(",")[local:] or [""])[0]
    return Group()


class Group:
    """Of `size` processes. The first, of rank 0, leads: it alone has the run's directory."""

    def __init__(self) -> None:
        import torch
        from torch import distributed

        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        distributed.init_process_group(backend, timeout=PATIENCE)
        self._all = distributed
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        self.on_this_machine = int(os.environ["LOCAL_WORLD_SIZE"])

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def sum_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Add up `tensor` over the processes, in place."""
        with _nobody_gone():
            self._all.all_reduce(tensor)
        return tensor

    def mean_(self, tensor: torch.Tensor) -> torch.Tensor:
        """The mean of `tensor` over the processes, in place."""
        return self.sum_(tensor).div_(self.size)

    def give(self, tensor: torch.Tensor) -> None:
        """The leader's `tensor` to all, in place."""
        with _nobody_gone():
            self._all.broadcast(tensor, 0)

    def tell(self, *words: Any) -> Any:
        """What the leader says, to all of them. The others say nothing, and hear it."""
        said = [words]
        with _nobody_gone():
            self._all.broadcast_object_list(said, 0)
        return said[0]

    def gather(self, part: Any = None) -> list[Any]:
        """Each process's `part`, to the leader; the others get nothing."""
        parts = [None] * self.size if self.leads else None
        with _nobody_gone():
            self._all.gather_object(part, parts)
        return parts or []

    def leave(self) -> None:
        """Close what connects the processes: a thread that waits there could abort one that exits."""
        self._all.destroy_process_group()


@contextmanager
def _nobody_gone() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # what gloo and nccl raise has no class of its own
        raise Interrupted("another process of this run is gone") from error
