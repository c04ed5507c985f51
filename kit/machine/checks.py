"""`kit.verify()`: check that this machine has what training needs; suggest a remedy for each problem."""

from __future__ import annotations

import dataclasses
import html
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

from kit.config import RunConfig
from kit.errors import first_line
from kit.machine import gpu, places
from kit.machine.info import Machine, describe, kernels, version

State = Literal["ok", "warn", "fail"]
MARKS = {"ok": "✓", "warn": "!", "fail": "✗"}
COLOURS = {"ok": "#1a9850", "warn": "#e08214", "fail": "#d73027"}
GIB = 2**30


@dataclass(frozen=True)
class Check:
    """Result of one check: `message` describes the state, `remedy` says what to do unless the state is "ok"."""

    name: str
    state: State
    message: str
    remedy: str = ""


@dataclass(frozen=True)
class Report:
    """Result of `verify`. Prints as a list, with colours in a notebook; `to_dict()` is JSON."""

    machine: Machine
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether training can start: no check failed. Warnings do not count."""
        return all(check.state != "fail" for check in self.checks)

    @property
    def summary(self) -> str:
        failed, warned = (sum(c.state == state for c in self.checks) for state in ("fail", "warn"))
        if failed:
            return f"{failed} thing{'s' * (failed > 1)} to fix before training."
        return "Ready to train." + (f" {warned} hint{'s' * (warned > 1)} below." if warned else "")

    def to_dict(self) -> dict[str, Any]:
        checks = [dataclasses.asdict(c) | ({"remedy": ""} if c.state == "ok" else {}) for c in self.checks]
        return {"ok": self.ok, "summary": self.summary, "machine": dataclasses.asdict(self.machine), "checks": checks}

    def __str__(self) -> str:
        width = max(len(check.name) for check in self.checks)
        lines = [f"{self.summary} {self.machine.place}: {self.machine.title}."]
        for check in self.checks:
            lines.append(f"  {MARKS[check.state]} {check.name:<{width}}  {check.message}")
            lines += [] if check.state == "ok" else [f"    {'':<{width}}  → {check.remedy}"]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        text = html.escape(str(self))
        for state, mark in MARKS.items():
            text = text.replace(f"\n  {mark} ", f'\n  <b style="color:{COLOURS[state]}">{mark}</b> ')
        return f'<pre style="white-space:pre-wrap">{text}</pre>'


def verify() -> Report:
    """Check this computer and the installed packages. Takes a few seconds, mostly to import torch."""
    machine = describe()
    return Report(machine, tuple(check for run_check in CHECKS for check in run_check(machine)))


def check_python(machine: Machine) -> Iterator[Check]:
    tested = (3, 11) <= sys.version_info < (3, 14)
    yield Check("Python", "ok" if tested else "warn", machine.python, "use Python 3.11, 3.12 or 3.13")


def check_torch(machine: Machine) -> Iterator[Check]:
    """Check that PyTorch is installed and fits the driver and the GPU."""
    try:
        import torch
    except Exception as error:  # a broken torch can raise any exception; report it
        missing = isinstance(error, ModuleNotFoundError)
        message = "not installed." if missing else f"cannot be imported: {first_line(error)}"
        yield Check("PyTorch", "fail", message, "pip install torch, then restart the kernel")
        return
    built = torch.version.cuda
    yield Check("PyTorch", "ok", f"{torch.__version__} (built for {f'CUDA {built}' if built else 'CPUs'})")
    yield Check("GPU", *_gpu(machine, torch))


def _gpu(machine: Machine, torch: Any) -> tuple[State, str, str]:
    """Return state, message and remedy of the GPU check: is there a GPU, and can this PyTorch compute on it?"""
    if not machine.gpus:
        if gpu.gpu_without_driver():
            return (
                "fail",
                "an NVIDIA GPU is plugged in, but no driver answers.",
                "install NVIDIA's driver, then reboot",
            )
        return "ok", f"none; Reach, Ant and Go1 do not need one, humanoids do ({places.where().get_gpu}).", ""
    device, built = machine.gpus[0], torch.version.cuda
    count = f"{len(machine.gpus)} x " if len(machine.gpus) > 1 else ""
    cuda = device.cuda or "?"
    title = f"{count}{device.name}, {device.memory}, driver {device.driver} (CUDA up to {cuda})"
    if built is None:
        remedy = "install a CUDA build: pip install --force-reinstall torch, then restart the kernel"
        return "fail", f"{title}, but this PyTorch is built for CPUs only and cannot use it.", remedy
    if torch.cuda.is_available():
        try:  # if the GPU is too new or too old for this PyTorch, only computing on it fails
            ones = torch.ones(64, 64, device="cuda")
            right = float((ones @ ones).sum()) == 64.0**3
        except RuntimeError as error:
            reason = first_line(error)
            return "fail", f"{title}, but computing on it fails: {reason}", "install a PyTorch built for this GPU"
        wrong = f"{title}, but it computes wrong results."
        return ("ok", title, "") if right else ("fail", wrong, "give this machine back and rent another")
    if device.cuda and int(device.cuda.split(".")[0]) < int(built.split(".")[0]):  # compare major versions only
        tag = "cu" + device.cuda.replace(".", "")
        remedy = f"choose an image with a newer driver, or a PyTorch built for CUDA {device.cuda} (pytorch.org, {tag})"
        return "fail", f"{title}; PyTorch is built for CUDA {built}, which this driver cannot run.", remedy
    return "fail", f"{title}, but PyTorch cannot use it.", "restart the kernel, then the machine"


def check_physics(machine: Machine) -> Iterator[Check]:
    mujoco, warp = version("mujoco"), version("mujoco-warp")
    if not mujoco or not warp:
        missing = "mujoco" if not mujoco else "mujoco-warp"
        yield Check("Physics", "fail", f"{missing} is not installed.", f"pip install {missing}, then restart")
        return
    major, minor, *_ = mujoco.split(".")
    if warp.split(".")[:2] != [major, minor]:
        remedy = f"pip install 'mujoco-warp=={major}.{minor}.*', then restart the kernel"
        yield Check("Physics", "fail", f"MuJoCo {mujoco} and MuJoCo Warp {warp} are not compatible.", remedy)
        return
    yield Check("Physics", "ok", f"MuJoCo {mujoco}, images by MuJoCo Warp {warp} (no OpenGL needed)")
    torch = sys.modules.get("torch")  # None if the import failed, which check_torch reports
    if machine.gpus and torch is not None and torch.cuda.is_available():
        from kit.machine.warp import NEWER_DRIVER, why_gpu_physics_is_slow, why_warp_cannot_use_gpu

        if reason := why_warp_cannot_use_gpu():  # Warp's wheels may need a newer driver than torch's
            yield Check("GPU physics", "warn", f"{reason}.", NEWER_DRIVER)
        elif reason := why_gpu_physics_is_slow():
            yield Check("GPU physics", "warn", f"{reason}.", "choose an image with driver R550 (CUDA 12.4) or newer")


def check_kernels(machine: Machine) -> Iterator[Check]:
    """Report where Warp's compiled simulation code is cached. Compiling it for CUDA takes minutes, once per machine."""
    folder = kernels()
    modules = sum(1 for _ in folder.glob("wp_*"))
    empty = "no simulation code compiled yet; the first run compiles it, which takes a while, into"
    message = f"{modules} modules of compiled simulation code in" if modules else empty
    lost = places.where().loses_disk and places.volume() is None and "KIT_CACHE" not in os.environ
    hint = "; set KIT_CACHE to a folder that outlives this machine, such as one in Drive"
    yield Check("Compile cache", "ok", f"{message} {folder}{hint if machine.gpus and lost else ''}")


def check_room(machine: Machine) -> Iterator[Check]:
    """Check cores, memory and disk."""
    limited = machine.cores < machine.cores_in_machine
    of = f" of {machine.cores_in_machine} (this container may use no more)" if limited else ""
    yield Check("CPU", "ok", f"{machine.cores} core{'s' * (machine.cores > 1)}{of}, {machine.cpu}")
    memory, disk = machine.memory_free_bytes / GIB, machine.disk_free_bytes / 1e9
    message = f"{memory:.1f} GB free of {machine.memory_bytes / GIB:.1f}"
    yield Check(
        "Memory", "warn" if memory < 1.5 else "ok", message, "shut down other notebook kernels: most runs need more"
    )
    remedy = "delete old runs (kit rm), or set runs_dir to another disk"
    message = f"{disk:,.1f} GB free; a run's checkpoints take at most {RunConfig.disk_budget} (disk_budget)"
    yield Check("Disk", "fail" if disk < 0.2 else "warn" if disk < 2 else "ok", message, remedy)


def check_extras(machine: Machine) -> Iterator[Check]:
    """Check the optional packages for notebooks and videos."""
    extras = {"notebook": ("Notebooks", "ipywidgets", "matplotlib"), "video": ("Videos", "mediapy", "imageio_ffmpeg")}
    for extra, (name, *packages) in extras.items():
        versions = ", ".join(f"{package} {version(package) or 'is missing'}" for package in packages)
        yield Check(name, "ok" if all(map(find_spec, packages)) else "warn", versions, f"pip install 'kit[{extra}]'")


def check_keeping(machine: Machine) -> Iterator[Check]:
    """Warn if files are lost when this machine ends."""
    place = places.where()
    message = "this machine and its files can be taken away." if place.loses_disk else place.keeps
    yield Check("Keeping runs", "warn" if place.loses_disk else "ok", message, place.keeps)


def check_drive(machine: Machine) -> Iterator[Check]:
    """Report a mounted Google Drive; remind the user that files in its bin still use up the quota."""
    if (mount := places.drive()).is_dir():
        trash = "files that other programs deleted in the last 30 days still use space (drive.google.com/drive/trash)"
        yield Check("Google Drive", "ok", f"at {mount}; {trash}; kit empties files before it deletes them")


CHECKS: tuple[Callable[[Machine], Iterator[Check]], ...] = (
    check_python, check_torch, check_physics, check_kernels, check_room, check_extras, check_keeping,
    check_drive,
)  # fmt: skip
