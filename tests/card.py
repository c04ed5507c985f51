"""A pretended CUDA GPU: tensors on "cuda:0" that compute on the CPU, to run kit's CUDA code on machines without a GPU.

    pytest -p tests.card -o addopts= tests/sim/test_cuda.py        # the tests that need a GPU, on the pretended one
    python tests/bench/waits.py                                    # waits and torch kernels per env step

`install` replaces parts of torch and Warp for the rest of the process. The numbers are real. As on a GPU,
 - an operation on tensors of two devices raises;
 - operations that wait for the GPU (item, nonzero, indexing by a mask, blocking copies) are counted, or raise under
   `torch.cuda.set_sync_debug_mode("error")`, as do operations that cannot be captured in a CUDA graph;
 - `torch.cuda.graph` captures operations and replays them on the same memory.
It cannot show errors in the order of streams, in memory reuse, in kernels that Warp compiles for GPUs only, or speed.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
ROOT = str(Path(__file__).parents[1])
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
WAITING = {
    "_local_scalar_dense", "nonzero", "equal", "masked_select", "unique_dim", "_unique2", "unique_consecutive",
    "repeat_interleave", "is_nonzero", "bincount", "histc", "_linalg_check_errors",
}  # fmt: skip
"""Operations whose result's shape or value the CPU must know."""
NO_KERNEL = {
    "view", "_unsafe_view", "expand", "unsqueeze", "squeeze", "select", "slice", "transpose", "t", "permute", "split",
    "split_with_sizes", "unbind", "detach", "alias", "as_strided", "diagonal", "unfold", "narrow", "lift_fresh",
    "reshape",
}  # fmt: skip
"""Operations that launch no kernel."""


@dataclass
class Counts:
    """What the pretended GPU was asked to do."""

    waits: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(operation, line of kit) -> how often the CPU waited."""
    kernels: Counter[str] = field(default_factory=Counter)
    """Line of kit -> operations launched one by one, without those that were replayed; "" if `lines` is False."""
    replays: int = 0
    lines: bool = False


class _State(threading.local):
    capture: list[tuple] | None = None
    """Operations captured so far, or None if no graph is being captured in this thread."""


_state = _State()
_counts = Counts()
_debug_mode = "default"


@contextlib.contextmanager
def counting(lines: bool = False) -> Iterator[Counts]:
    """Count waits, kernels and replays inside; with `lines`, say which line of kit launched each kernel."""
    global _counts
    before, _counts = _counts, Counts(lines=lines)
    try:
        yield _counts
    finally:
        _counts = before


def _line() -> str:
    """Return file and line of the innermost frame in kit, or else in the tests."""
    frame, line = sys._getframe(1), ""  # `traceback` would read the source of every frame, at every kernel
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(ROOT) and file != __file__:
            here = f"{file.removeprefix(f'{ROOT}/')}:{frame.f_lineno}"
            if file.startswith(f"{ROOT}/kit/"):
                return here
            line = line or here
        frame = frame.f_back
    return line or "?"


def _wait(operation: str) -> None:
    if _state.capture is not None:
        raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing ({operation}, {_line()})")
    _counts.waits[operation, _line()] += 1
    if _debug_mode == "error":
        raise RuntimeError(f"called a synchronizing CUDA operation ({operation}, {_line()})")
    if _debug_mode == "warn":
        warnings.warn(f"called a synchronizing CUDA operation ({operation}, {_line()})", stacklevel=2)


def _is_cuda(device: object) -> bool:
    return device is not None and torch.device(device).type == "cuda"  # type: ignore[arg-type]


class Card(torch.Tensor):
    """A tensor on the pretended GPU; `inner` is the CPU tensor that it really is."""

    inner: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: torch.Tensor, requires_grad: bool = False) -> Card:
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=inner.device, requires_grad=requires_grad,
        )  # fmt: skip
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _dispatch(func, args, kwargs or {})

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    def get_device(self) -> int:
        return 0

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def untyped_storage(self):
        return self.inner.untyped_storage()

    def is_pinned(self, *_: object) -> bool:
        return False

    def tolist(self):
        _wait("tolist")
        return self.inner.tolist()

    def numpy(self, *_: object, **__: object):
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")

    __array__ = numpy

    def __repr__(self, *_: object, **__: object) -> str:
        return f"Card({self.inner})"

    def __deepcopy__(self, memo: dict):
        copied = Card(self.inner.detach().clone())
        memo[id(self)] = made = (
            torch.nn.Parameter(copied, self.requires_grad) if isinstance(self, torch.nn.Parameter) else copied
        )
        return made

    def __reduce_ex__(self, protocol: int):
        return self.inner.__reduce_ex__(protocol)

    def _get_data(self) -> Card:
        return Card(self.inner.detach())

    def _set_data(self, value: Card) -> None:
        assert isinstance(value, Card) and value.shape == self.shape
        torch.Tensor.data.__set__(self, value)
        self.inner = value.inner

    data = property(_get_data, _set_data)


def _wrap(x: Any) -> Any:
    return Card(x) if isinstance(x, torch.Tensor) and not isinstance(x, Card) else x


def _unwrap(x: Any) -> Any:
    return x.inner if isinstance(x, Card) else x


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _dispatch(func: Any, args: tuple, kwargs: dict) -> Any:
    """Run the operation `func` on the CPU; first do what a GPU would do: wait, launch a kernel, or raise."""
    name = func.overloadpacket.__name__
    given = _tensors((args, kwargs))
    on_card = any(isinstance(x, Card) for x in given)
    device = kwargs.get("device")
    if not on_card and not _is_cuda(device):
        return func(*args, **kwargs)
    if name in ("copy_", "_to_copy"):
        moved = _moves(name, args, kwargs)
        result_on_card = isinstance(args[0], Card) if name == "copy_" else _target_is_card(args, kwargs)
    else:
        moved, result_on_card = False, True
        _check(func, name, args, kwargs, [x for x in given if not isinstance(x, Card)])
    if name not in NO_KERNEL:
        _counts.kernels[_line() if _counts.lines else ""] += 1

    inner_args, inner_kwargs = tree_map(_unwrap, args), tree_map(_unwrap, kwargs)
    if "device" in inner_kwargs:
        inner_kwargs["device"] = CPU
    if inner_kwargs.get("pin_memory"):
        del inner_kwargs["pin_memory"]
    out = func(*inner_args, **inner_kwargs)
    if moved and name == "_to_copy":
        out = out.clone() if out is inner_args[0] else out
        return _wrap(out) if result_on_card else out
    if _state.capture is not None:
        _state.capture.append((func, inner_args, inner_kwargs, _tensors(out)))
    if name == "copy_" and not result_on_card:
        return args[0]
    wrapped = tree_map(_wrap, out)
    return return_and_correct_aliasing(func, args, kwargs, wrapped) if on_card else wrapped


def _target_is_card(args: tuple, kwargs: dict) -> bool:
    device = kwargs.get("device")
    return isinstance(args[0], Card) if device is None else _is_cuda(device)


def _moves(name: str, args: tuple, kwargs: dict) -> bool:
    """Return whether a copy crosses between CPU and GPU; it waits unless it is non-blocking."""
    source = args[1] if name == "copy_" else args[0]
    to_card = isinstance(args[0], Card) if name == "copy_" else _target_is_card(args, kwargs)
    if isinstance(source, Card) == to_card:
        return False
    if not (kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2])):
        _wait("copy to the GPU" if to_card else "copy from the GPU")
    elif _state.capture is not None:
        raise RuntimeError(f"a copy between CPU and GPU while a graph is captured ({_line()})")
    return True


def _check(func: Any, name: str, args: tuple, kwargs: dict, plain: list[torch.Tensor]) -> None:
    """Raise where CUDA would; count a wait. `plain`: the CPU tensors among the arguments."""
    if name in INDEXING:
        indices = [x for x in args[1] if isinstance(x, torch.Tensor)]
        if isinstance(args[0], Card) and (from_cpu := [x for x in indices if not isinstance(x, Card)]):
            _wait("index from the CPU")  # torch copies it
            plain = [x for x in plain if not any(x is y for y in from_cpu)]
        if any(x.dtype in (torch.bool, torch.uint8) for x in indices):
            fills = name != "index" and args[2].numel() == 1 and len(indices) == 1  # becomes masked_fill
            if not fills:
                _wait(f"{name} by mask")
    if any(x.dim() > 0 for x in plain):
        both = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
        raise RuntimeError(f"{both} ({func}, {_line()})")
    if name in WAITING:
        _wait(name)
    generator = kwargs.get("generator")
    if generator is not None and _state.capture is not None and id(generator) not in _registered:
        raise RuntimeError(f"a generator that the graph does not know draws while the graph is captured ({_line()})")


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _dispatch(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """Handle what torch decides before operations are dispatched: conversions and the device of new tensors."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        device = kwargs.get("device")
        if func in (torch.tensor, torch.as_tensor, torch.asarray) and _is_cuda(device):
            if not isinstance(args[0], Card):
                del kwargs["device"]
                made = func(*args, **kwargs)
                _wait(f"torch.{name} to the GPU")
                return Card(made.clone())
        elif func is torch.Tensor.new_tensor and isinstance(args[0], Card):
            kwargs.setdefault("dtype", args[0].dtype)
            kwargs.pop("device", None)
            made = torch.tensor(*args[1:], **kwargs)
            if device is not None and not _is_cuda(device):
                return made
            _wait("new_tensor to the GPU")
            return Card(made)
        elif name == "one_hot" and isinstance(args[0], Card):
            if len(args) == 1 and "num_classes" not in kwargs:
                _wait(name)
            return Card(func(args[0].inner, *args[1:], **kwargs))
        elif func in (torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.cuda):
            return _to(name, *args, **kwargs)
        elif name == "pin_memory" and args:
            return args[0]
        like = name.endswith("_like") or name.startswith("new_")
        if device is not None and not _is_cuda(device) and args and isinstance(args[0], Card) and like:
            return func(args[0].inner, *args[1:], **{**kwargs, "pin_memory": False})
        if _is_cuda(device):
            kwargs["device"] = CUDA
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return func(*args, **kwargs)


def _to(name: str, x: torch.Tensor, *args: Any, dtype=None, device=None, non_blocking=False, copy=False,
        memory_format=None) -> torch.Tensor:  # fmt: skip
    """`Tensor.to`, `cpu` and `cuda`."""
    if name != "to":
        device, args = (CPU if name == "cpu" else CUDA), ()
    for argument in args:
        if isinstance(argument, (str, torch.device)):
            device = argument
        elif isinstance(argument, torch.dtype):
            dtype = argument
        elif isinstance(argument, torch.Tensor):
            device, dtype = argument.device, argument.dtype
        elif isinstance(argument, bool):
            non_blocking = argument
    here = isinstance(x, Card)
    there = here if device is None else _is_cuda(device)
    dtype = dtype or x.dtype
    if here == there and dtype == x.dtype and not copy and memory_format is None:
        return x
    options = {"dtype": dtype} | ({} if memory_format is None else {"memory_format": memory_format})
    if here != there:
        options |= {"device": CUDA if there else CPU, "non_blocking": non_blocking}
    return torch.ops.aten._to_copy(x, **options)


class _Generator(torch.Generator):
    def __new__(cls, device: object = "cpu"):
        made = super().__new__(cls)
        made.where = CUDA if _is_cuda(device) else CPU
        return made

    device = property(lambda self: self.where)


_registered: set[int] = set()


class _Stream:
    cuda_stream = 0

    def __init__(self, *_: object, **__: object) -> None: ...

    def wait_stream(self, other: object) -> None: ...

    def wait_event(self, event: object) -> None: ...

    def record_event(self, event: object = None) -> _Event:
        return _Event()

    def synchronize(self) -> None:
        _wait("Stream.synchronize")


class _Event:
    def __init__(self, *_: object, **__: object) -> None: ...

    def query(self) -> bool:
        return True

    def record(self, *_: object) -> None: ...

    def wait(self, *_: object) -> None: ...

    def synchronize(self) -> None:
        _wait("Event.synchronize")

    def elapsed_time(self, other: object) -> float:
        return 1.0


class _Graph:
    """A CUDA graph: captured operations, replayed on the memory that they used when captured."""

    def __init__(self, *_: object, **__: object) -> None:
        self.operations: list[tuple] = []

    def register_generator_state(self, generator: torch.Generator) -> None:
        _registered.add(id(generator))

    def replay(self) -> None:
        _counts.replays += 1
        for func, args, kwargs, outputs in self.operations:
            for kept, new in zip(outputs, _tensors(func(*args, **kwargs)), strict=True):
                if kept.data_ptr() != new.data_ptr() or kept.stride() != new.stride():
                    kept.copy_(new)


class _Capture:
    """`torch.cuda.graph`."""

    def __init__(self, graph: _Graph, *_: object, **__: object) -> None:
        self._graph = graph

    def __enter__(self) -> None:
        assert _state.capture is None
        _state.capture = []

    def __exit__(self, *_: object) -> None:
        self._graph.operations, _state.capture = _state.capture or [], None


class _Current:
    """`torch.cuda.device` and `torch.cuda.stream`."""

    def __init__(self, *_: object) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def _set_debug_mode(mode: str) -> None:
    global _debug_mode
    _debug_mode = mode


NAME = "pretended GPU"


def is_installed() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_name() == NAME


def install() -> None:
    """Pretend that this machine has a GPU, in this process and until it ends."""
    from kit.sim import kernels

    stand_ins = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True, "is_initialized": lambda: True, "current_device": lambda: 0,
        "device_count": lambda: 1, "get_device_name": lambda *_: NAME,
        "get_device_capability": lambda *_: (9, 0), "synchronize": lambda *_: None,
        "mem_get_info": lambda *_: (8 << 30, 16 << 30), "empty_cache": lambda: None,
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "set_rng_state": lambda state, *_: torch.set_rng_state(state),
        "manual_seed": lambda seed: None, "manual_seed_all": lambda seed: None,
        "memory_allocated": lambda *_: 0, "max_memory_allocated": lambda *_: 0,
        "reset_peak_memory_stats": lambda *_: None, "is_current_stream_capturing": lambda: _state.capture is not None,
        "Stream": _Stream, "Event": _Event, "current_stream": lambda *_: _Stream(), "stream": _Current,
        "CUDAGraph": _Graph, "graph": _Capture, "device": _Current, "set_sync_debug_mode": _set_debug_mode,
    }  # fmt: skip
    for name, value in stand_ins.items():
        setattr(torch.cuda, name, value)
    torch.Generator = _Generator  # type: ignore[misc]
    _install_in_warp(kernels)
    run_thread = threading.Thread.run

    def run(self: threading.Thread) -> None:
        with _Functions(), _Dispatch():
            run_thread(self)

    threading.Thread.run = run  # type: ignore[method-assign]
    load = torch.nn.Module.load_state_dict

    def load_state_dict(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        torch.__future__.set_swap_module_params_on_conversion(False)  # fails for an LSTM, whose weights have references
        try:
            return load(self, *args, **kwargs)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(True)

    torch.nn.Module.load_state_dict = load_state_dict  # type: ignore[method-assign]
    torch.__future__.set_swap_module_params_on_conversion(True)
    _Functions().__enter__()
    _Dispatch().__enter__()


def _install_in_warp(kernels: Any) -> None:
    """Let Warp compute on the CPU; arrays made while the "GPU" is its current device become `Card`s."""
    wp, current = kernels.wp, threading.local()
    to_torch, from_torch = wp.to_torch, wp.from_torch

    def device_from_torch(device: object) -> Any:
        current.on_card = _is_cuda(device)
        return wp.get_device("cpu")

    def as_tensor(array: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        made = to_torch(array, *args, **kwargs)
        return Card(made) if getattr(current, "on_card", False) else made

    kernels.why_warp_cannot_use_gpu = lambda: None
    wp.device_from_torch, wp.to_torch = device_from_torch, as_tensor
    wp.from_torch = lambda x, *args, **kwargs: from_torch(_unwrap(x), *args, **kwargs)
    wp.is_conditional_graph_supported = lambda: True


def pytest_configure(config: object) -> None:
    install()
