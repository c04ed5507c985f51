"""Compile the kernels of a step on all cores. By default, Warp compiles each kernel at its first launch, one by one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from kit.machine import limits
from kit.machine.warp import wp


def compile_together(step: Callable[[], object], device: wp.Device) -> None:
    """Compile and load on `device` all kernels that `step` launches. `step` runs, but none of its kernels does."""
    with only_listing() as needed:
        step()
    for block in {block for _, block in needed}:
        modules = [module for module, its_block in needed if its_block == block]
        wp.force_load(device, modules, block_dim=block, max_workers=limits.usable_cores())


@contextmanager
def only_listing() -> Iterator[list[tuple[wp.Module, int]]]:
    """Launch no kernel inside; list (module, threads per block) of those that would be launched.

    `wp.capture_while` calls its body once and `wp.capture_if` both branches, because no kernel computes the condition.
    """
    needed: list[tuple[wp.Module, int]] = []

    def load(module: wp.Module, device: Any, block_dim: int | None = None, *_: Any, **__: Any) -> None:
        block: Any = block_dim or module.options["block_dim"]
        entry = module, int(block)
        if entry not in needed:
            needed.append(entry)  # and return None: Warp then launches nothing

    def once(condition: Any, while_body: Callable[..., object], graph: Any = None, **arguments: Any) -> None:
        while_body(**arguments)

    def both(condition: Any, on_true: Any = None, on_false: Any = None, graph: Any = None, **arguments: Any) -> None:
        for branch in (on_true, on_false):
            if callable(branch):
                branch(**arguments)

    def block_size(kernel: Any, device: Any = None) -> tuple[int, int]:
        load(kernel.module, device)
        return kernel.module.options["block_dim"], 1

    this_thread = threading.get_ident()

    def in_this_thread(stand_in: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls `stand_in` in this thread and `original` in others, such as a viewer's."""

        def chosen(*arguments: Any, **named: Any) -> Any:
            return (stand_in if threading.get_ident() == this_thread else original)(*arguments, **named)

        return chosen

    with ExitStack() as stack:
        for owner, name, stand_in in (
            (wp.Module, "load", load), (wp, "capture_while", once), (wp, "capture_if", both),
            (wp, "get_suggested_block_size", block_size),
        ):  # fmt: skip
            original = getattr(owner, name)
            stack.callback(setattr, owner, name, original)
            setattr(owner, name, in_this_thread(stand_in, original))
        yield needed
