"""CUDA graphs: record a function of tensors once and replay it with one launch.

This saves time on a GPU, where the kernels of a small network's update run faster than Python can launch them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from kit.machine.memory import no_garbage_collection

Tensors = tuple[torch.Tensor, ...]
Function = Callable[..., Tensors]
Recording = tuple[Tensors, Tensors, Callable[[], object]]
"""Static inputs, static outputs, and the call that replays the graph."""


class Recorded:
    """A function of tensors as CUDA graphs, one for each set of argument shapes. Works on CUDA devices only.

    Apart from its arguments, `function` may only read and write tensors with fixed addresses; it must not synchronise
    or draw random numbers. `changes` are the tensors that it changes in place; they are restored after the warm-up.
    Numbers among the arguments reach `function` as scalar tensors. The next call overwrites the returned outputs.
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
        for static, argument in zip(inputs, arguments, strict=True):
            static.copy_(argument) if isinstance(argument, torch.Tensor) else static.fill_(argument)
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
    """Capture `function` as a CUDA graph on `device`; return its outputs and the function that replays the graph.

    Three warm-up calls on a side stream initialise the libraries, as PyTorch's notes on CUDA graphs require. Other
    threads may use the GPU during capture. `device` becomes the current device, because work on other devices would not
    be captured.
    """
    with torch.cuda.device(device):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                function(*inputs)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # without `stream`, torch captures on one stream of the whole process, which is on the first GPU that was used
        with no_garbage_collection(), torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            outputs = function(*inputs)
    return outputs, graph.replay
