"""A function of tensors, recorded once as a CUDA graph and replayed: one launch in place of dozens.

On a GPU a small network's update is a queue of kernels that take less time than Python needs to ask for them. A graph
holds them all, with the addresses that they read and write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from kit.machine.memory import no_garbage_collection

Tensors = tuple[torch.Tensor, ...]
Function = Callable[..., Tensors]
Recording = tuple[Tensors, Tensors, Callable[[], object]]
"""The inputs, the outputs, and what computes these from those."""


class Recorded:
    """`function` of tensors, recorded for each new set of shapes.

    Beside its arguments it may read and write only tensors that stay where they are, ask the device nothing, and draw
    no random numbers. `changes` are the tensors that it writes in place: warming up, which recording needs, leaves no
    trace in them. What it returns holds until the next call. An argument that is a number reaches `function` as a
    scalar tensor. On a CPU there is nothing to record with.
    """

    def __init__(self, function: Function, device: torch.device, changes: Sequence[torch.Tensor] = ()) -> None:
        self._function, self._device, self._changes = function, device, changes
        self._recordings: dict[tuple[torch.Size, ...], Recording] = {}

    @torch.no_grad()
    def __call__(self, *arguments: torch.Tensor | float) -> Tensors:
        shapes = tuple(a.shape if isinstance(a, torch.Tensor) else torch.Size() for a in arguments)
        if shapes not in self._recordings:
            self._recordings[shapes] = self._record(arguments)
        inputs, outputs, replay = self._recordings[shapes]
        for kept, argument in zip(inputs, arguments, strict=True):
            kept.copy_(argument) if isinstance(argument, torch.Tensor) else kept.fill_(argument)
        replay()
        return outputs

    def _record(self, arguments: Sequence[torch.Tensor | float]) -> Recording:
        inputs = tuple(
            a.clone() if isinstance(a, torch.Tensor) else torch.full((), a, device=self._device) for a in arguments
        )
        before = [tensor.clone() for tensor in self._changes]
        outputs, replay = cuda_graph(self._function, inputs, self._device)
        for tensor, value in zip(self._changes, before, strict=True):
            tensor.copy_(value)
        return inputs, outputs, replay


def cuda_graph(function: Function, inputs: Tensors, device: torch.device) -> tuple[Tensors, Callable[[], object]]:
    """A CUDA graph of `function`. Libraries set themselves up in the calls before, on a stream of their own, as
    PyTorch's notes on CUDA graphs ask; other threads (checkpoints on their way to disk) may use the GPU meanwhile.
    Of several devices `device` is the one whose streams are meant: work on another's would run and not be recorded."""
    with torch.cuda.device(device):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                function(*inputs)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with no_garbage_collection(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            outputs = function(*inputs)
    return outputs, graph.replay
