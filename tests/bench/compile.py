"""Compile every Warp kernel that kit's tasks launch on a GPU, for GPUs that this machine does not have:

    python tests/bench/compile.py                                # kit's own kernels, five architectures, a minute
    python tests/bench/compile.py --tasks Ant Reach --arch 75 90 # and MuJoCo Warp's, minutes per architecture

The kernels are found by stepping each task with launches that do nothing. Warp's wheel contains the compiler. With
`pip install nvidia-cuda-cuobjdump`, the registers and the stack of kit's own kernels are printed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

ARCHS = (75, 80, 89, 90, 100)
"""Compute capabilities of T4, A100, L4 and RTX 40, H100 and H200, B200."""
ROBOTS = (
    "Ant", "Reach", "Push", "PickAndPlace", "Slide", "Go1Joystick", "G1Joystick", "G1Legs", "Dishwashing",
)  # fmt: skip

Modules = dict[tuple[Any, int], set[str]]
"""(Warp module, threads per block) -> names of its kernels."""


def own() -> Modules:
    """Return the modules of kit's own kernels."""
    from kit.tasks.mission import kernels
    from kit.tasks.mission.task import BLOCK

    return {(kernels.step.module, BLOCK): {"step", "reset"}}


class _Card:
    """Warp's CPU device, which says that it is a GPU where MuJoCo Warp asks to choose its kernels."""

    is_cuda, is_cpu, sm_count, arch = True, False, 132, 90

    def __init__(self, device: Any) -> None:
        self.device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self.device, name)


ASKING = ("constraint", "derivative", "solver", "collision_driver")
"""Modules of MuJoCo Warp that choose other kernels on a GPU."""


@contextmanager
def _found() -> Iterator[Modules]:
    """Collect the modules of all kernels launched inside, with their number of threads per block; launch none."""
    import warp._src.context as context

    from kit.sim.ahead import only_listing
    from kit.sim.kernels import wp

    found: Modules = {}
    launched: list[tuple[Any, int]] = []
    tiled: list[int] = []
    launch, launch_tiled = context.launch, context.launch_tiled
    runtime_device, get_device = type(context.runtime).get_device, wp.get_device

    def note_launch(kernel: Any, dim: Any, *args: Any, block_dim: int = 256, **options: Any) -> Any:
        launched.append((kernel, tiled[-1] if tiled else block_dim))
        try:
            return launch(kernel, dim, *args, block_dim=launched[-1][1], **options)
        finally:
            launched.pop()

    def note_tiled(*args: Any, **options: Any) -> Any:
        tiled.append(options["block_dim"])
        try:
            return launch_tiled(*args, **options)
        finally:
            tiled.pop()

    def load(module: Any, *_: Any, **__: Any) -> None:
        if launched:
            kernel, block = launched[-1]
            found.setdefault((module, block), set()).add(kernel.key)

    def device(*args: Any) -> Any:
        asking = sys._getframe(1).f_globals["__name__"].rpartition(".")[2] in ASKING
        return _Card(get_device(*args)) if asking else get_device(*args)

    def block_size(kernel: Any, device: Any = None) -> tuple[int, int]:
        found.setdefault((kernel.module, 256), set()).add(kernel.key)
        return 256, 264

    def of_runtime(runtime: Any, ident: Any = None) -> Any:
        return runtime_device(runtime, ident.device if isinstance(ident, _Card) else ident)

    replaced = {"launch": note_launch, "launch_tiled": note_tiled, "get_device": device,
                "get_suggested_block_size": block_size}  # fmt: skip
    with (
        only_listing(),  # of loops and branches; here it would list the CPU's blocks of one thread
        mock.patch.multiple(wp, **replaced),
        mock.patch.multiple(context, launch=note_launch, launch_tiled=note_tiled),
        mock.patch.object(context.Module, "load", load),
        mock.patch.object(type(context.runtime), "get_device", of_runtime),
    ):
        yield found


def of_task(name: str) -> Modules:
    """Return the modules that a step, a reset and an image of the task `name` need on a GPU."""
    import mujoco
    import numpy as np

    from kit.envs import make_task
    from kit.sim.capacity import capacity
    from kit.sim.render import POSES, Renderer

    import mujoco_warp as mjw  # isort: skip  after kit.sim, which sets Warp up

    task: Any = make_task(name)
    model, sizes = task.model, capacity(task.model)
    state = mujoco.MjData(model)
    mujoco.mj_forward(model, state)
    with _found() as found:
        warp_model = mjw.put_model(model)
        warp_model.opt.warn_overflow, warp_model.opt.graph_conditional = 0, True  # as `WarpSim` does
        data = mjw.make_data(model, 8, nconmax=sizes.contacts, njmax=sizes.constraints)
        mjw.step(warp_model, data)
        mjw.forward(warp_model, data)
        mjw.rne_postconstraint(warp_model, data)
        for shadows in (False, True):
            renderer = Renderer(model, 2, task.cameras[:1], 64, 64, threads=1, shadows=shadows)
            renderer._culling = None
            renderer.render({pose: np.stack([getattr(state, pose)] * 2) for pose in POSES})
    return found


def build(module: Any, block: int, arch: int, folder: Path, ptx: bool = False) -> Path:
    """Compile `module` to machine code, or to PTX; return the folder with the file. Raises if the compiler does."""
    from kit.sim.kernels import wp

    options = module.resolve_options(wp.config, block)
    module.get_module_hash(block)
    into = folder / f"{arch}{'-ptx' * ptx}" / module.get_module_identifier(block)
    module._compile(None, str(into), output_arch=arch, use_ptx=ptx, options=options)
    return into


def parameters_read_as_local(module: Any, block: int, arch: int, folder: Path) -> list[str]:
    """Return the lines of `module`'s PTX that read a kernel's parameter as local memory, an illegal access on a GPU.

    NVRTC 12.9 makes such code of a struct parameter that a branch passes on to a function; found on an H100.
    """
    (file,) = build(module, block, arch, folder, ptx=True).glob("*.ptx")
    found = []
    for kernel in file.read_text(errors="replace").split(".entry"):  # each numbers its registers anew
        parameters = "|".join(map(re.escape, re.findall(r"cvta\.param\.u64\s+(%rd\d+)", kernel))) or "none"
        found += re.findall(rf".*cvta\.to\.local\.u64\s+%rd\d+, (?:{parameters});", kernel)
    return found


def resources(folder: Path) -> dict[str, tuple[int, int]]:
    """Return kernel -> (registers per thread, bytes of stack) of the .cubin in `folder`; empty without cuobjdump."""
    tool = next(Path(sysconfig.get_paths()["purelib"]).glob("nvidia/*/bin/cuobjdump"), None)
    (cubin,) = folder.rglob("*.cubin")
    if tool is None:
        return {}
    text = subprocess.run([tool, "--dump-resource-usage", cubin], capture_output=True, text=True, check=True).stdout
    uses = re.findall(r"Function (\w+?)_[0-9a-f]{8}_cuda\w*:\s+REG:(\d+) STACK:(\d+)", text)
    return {name: (int(registers), int(stack)) for name, registers, stack in uses}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="*", choices=ROBOTS, default=[], help="with MuJoCo Warp's kernels for these")
    parser.add_argument("--arch", nargs="+", type=int, default=ARCHS)
    args = parser.parse_args()
    modules = own()
    for name in args.tasks:
        for key, kernels in of_task(name).items():
            modules.setdefault(key, set()).update(kernels)
    print(f"{len(modules)} modules, {sum(map(len, modules.values()))} kernels", flush=True)
    failures = 0
    for arch in args.arch:
        started, failed = time.perf_counter(), 0
        with tempfile.TemporaryDirectory() as folder:
            for (module, block), kernels in modules.items():
                try:
                    into = build(module, block, arch, Path(folder))
                except Exception as error:
                    failed += 1
                    print(f"sm_{arch}: {module.name} ({', '.join(sorted(kernels))}): {error}", flush=True)
                    continue
                if arch == args.arch[0] and (wrong := parameters_read_as_local(module, block, arch, Path(folder))):
                    failed += 1
                    print(f"sm_{arch}: {module.name} reads parameters as local memory: {wrong}", flush=True)
                if module.name.startswith("kit."):
                    for kernel, (registers, stack) in resources(into).items():
                        print(f"sm_{arch}: {kernel}: {registers} registers, {stack} bytes of stack", flush=True)
        done = f"{len(modules) - failed} of {len(modules)} modules"
        print(f"sm_{arch}: {done} compiled in {time.perf_counter() - started:.0f} s", flush=True)
        failures += failed
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
