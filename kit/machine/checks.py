"""`kit.verify()`: is everything here that training needs? Each check answers with one plain sentence."""

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
from kit.machine import gpu, places
from kit.machine.info import Machine, describe, kernels, version

State = Literal["ok", "warn", "fail"]
MARKS = {"ok": "✓", "warn": "!", "fail": "✗"}
COLOURS = {"ok": "#1a9850", "warn": "#e08214", "fail": "#d73027"}
GIB = 2**30


@dataclass(frozen=True)
class Check:
    """One answer: `message` says what is there, `remedy` what to click or type if that is not ok."""

    name: str
    state: State
    message: str
    remedy: str = ""


@dataclass(frozen=True)
class Report:
    """What `verify` found. Prints as a list, in a notebook with colours; `to_dict()` is JSON."""

    machine: Machine
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether a run can be trained here. Warnings do not count."""
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
    """Look at this computer and at what is installed. Takes a few seconds, most of them torch's import."""
    machine = describe()
    return Report(machine, tuple(check for look in LOOKS for check in look(machine)))


def check_python(machine: Machine) -> Iterator[Check]:
    tested = (3, 11) <= sys.version_info < (3, 14)
    yield Check("Python", "ok" if tested else "warn", machine.python, "use Python 3.11, 3.12 or 3.13")


def check_torch(machine: Machine) -> Iterator[Check]:
    """PyTorch, and whether it fits the driver and the card."""
    try:
        import torch
    except Exception as error:  # a broken torch fails in many ways, and each must be reported rather than raised
        missing = isinstance(error, ModuleNotFoundError)
        message = "not installed." if missing else f"cannot be imported: {str(error).splitlines()[0]}"
        yield Check("PyTorch", "fail", message, "pip install torch, then restart the kernel")
        return
    built = torch.version.cuda
    yield Check("PyTorch", "ok", f"{torch.__version__} (built for {f'CUDA {built}' if built else 'CPUs'})")
    yield Check("GPU", *_gpu(machine, torch))


def _gpu(machine: Machine, torch: Any) -> tuple[State, str, str]:
    """Whether there is one that this PyTorch can compute with."""
    if not machine.gpus:
        if gpu.gpu_without_driver():
            return (
                "fail",
                "an NVIDIA card is plugged in, but no driver answers.",
                "install NVIDIA's driver, then reboot",
            )
        return "ok", f"none, which is fine for Reach, Ant and Go1; humanoids want one ({places.where().get_gpu}).", ""
    card, built = machine.gpus[0], torch.version.cuda
    count = f"{len(machine.gpus)} x " if len(machine.gpus) > 1 else ""
    seen = f"{count}{card.name}, {card.memory_bytes / GIB:.0f} GB, driver {card.driver} (CUDA up to {card.cuda or '?'})"
    if built is None:
        remedy = "install a CUDA build: pip install --force-reinstall torch, then restart the kernel"
        return "fail", f"{seen}, but this PyTorch is built for CPUs only and cannot use it.", remedy
    if torch.cuda.is_available():
        try:  # a card too new or too old for this PyTorch fails only when it is used
            ones = torch.ones(64, 64, device="cuda")
            right = float((ones @ ones).sum()) == 64.0**3
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            return "fail", f"{seen}, but computing on it fails: {reason}", "install a PyTorch built for this card"
        wrong = f"{seen}, but it computes wrong results."
        return ("ok", seen, "") if right else ("fail", wrong, "give this machine back and rent another")
    if card.cuda and int(card.cuda.split(".")[0]) < int(built.split(".")[0]):  # minor versions do not matter
        tag = "cu" + card.cuda.replace(".", "")
        remedy = f"choose an image with a newer driver, or a PyTorch built for CUDA {card.cuda} (pytorch.org, {tag})"
        return "fail", f"{seen}; PyTorch is built for CUDA {built}, which this driver cannot run.", remedy
    return "fail", f"{seen}, but PyTorch cannot use it.", "restart the kernel, then the machine"


def check_physics(machine: Machine) -> Iterator[Check]:
    simulator, renderer = version("mujoco"), version("mujoco-warp")
    if not simulator or not renderer:
        missing = "mujoco" if not simulator else "mujoco-warp"
        yield Check("Physics", "fail", f"{missing} is not installed.", f"pip install {missing}, then restart")
        return
    major, minor, *_ = simulator.split(".")
    if renderer.split(".")[:2] != [major, minor]:
        remedy = f"pip install 'mujoco-warp=={major}.{minor}.*', then restart the kernel"
        yield Check("Physics", "fail", f"MuJoCo {simulator} beside MuJoCo Warp {renderer} do not fit together.", remedy)
        return
    yield Check("Physics", "ok", f"MuJoCo {simulator}, pictures by MuJoCo Warp {renderer} (no OpenGL needed)")
    torch = sys.modules.get("torch")  # missing if it could not be imported, which was said
    if machine.gpus and torch is not None and torch.cuda.is_available():
        from kit.machine.warp import NEWER_DRIVER, why_warp_cannot_use_gpu

        if reason := why_warp_cannot_use_gpu():  # Warp's wheels may need a newer driver than torch's
            yield Check("GPU physics", "warn", f"{reason}.", NEWER_DRIVER)


def check_kernels(machine: Machine) -> Iterator[Check]:
    """Where compiled kernels are kept: on CUDA compiling them takes minutes, once."""
    folder = kernels()
    modules = sum(1 for _ in folder.glob("wp_*"))
    there = f"{modules} compiled" if modules else "none compiled yet; the first use takes a while"
    lost = places.where().loses_disk and places.volume() is None and "KIT_CACHE" not in os.environ
    hint = "; KIT_CACHE names a folder that stays, such as one in Drive" if machine.gpus and lost else ""
    yield Check("Kernels", "ok", f"{there}, kept in {folder}{hint}")


def check_room(machine: Machine) -> Iterator[Check]:
    """Cores, memory, disk."""
    limited = machine.cores < machine.cores_in_machine
    of = f" of {machine.cores_in_machine} (this container may use no more)" if limited else ""
    yield Check("CPU", "ok", f"{machine.cores} core{'s' * (machine.cores > 1)}{of}, {machine.cpu}")
    memory, disk = machine.memory_free_bytes / GIB, machine.disk_free_bytes / GIB
    message = f"{memory:.1f} GB free of {machine.memory_bytes / GIB:.1f}"
    yield Check(
        "Memory", "warn" if memory < 1.5 else "ok", message, "shut down other kernels: most trainings want more"
    )
    remedy = "delete old runs (kit rm), or set runs_dir to another disk"
    message = f"{disk:,.1f} GB free; a run's checkpoints take at most {RunConfig.disk_budget} (disk_budget)"
    yield Check("Disk", "fail" if disk < 0.2 else "warn" if disk < 2 else "ok", message, remedy)


def check_extras(machine: Machine) -> Iterator[Check]:
    """Packages that notebooks and films use."""
    extras = {"notebook": ("Notebooks", "ipywidgets", "matplotlib"), "video": ("Videos", "mediapy", "imageio_ffmpeg")}
    for extra, (name, *packages) in extras.items():
        found = ", ".join(f"{package} {version(package) or 'is missing'}" for package in packages)
        yield Check(name, "ok" if all(map(find_spec, packages)) else "warn", found, f"pip install 'kit[{extra}]'")


def check_keeping(machine: Machine) -> Iterator[Check]:
    place = places.where()
    message = "this machine can be taken away." if place.loses_disk else place.keeps
    yield Check("Keeping runs", "warn" if place.loses_disk else "ok", message, place.keeps)


def check_drive(machine: Machine) -> Iterator[Check]:
    """Google Drive's bin, whose files still count."""
    if (mount := places.drive()).is_dir():
        held = "its bin may hold what other programs deleted in 30 days, which counts (drive.google.com/drive/trash)"
        yield Check("Google Drive", "ok", f"at {mount}; {held}; what kit removes there is emptied first")


LOOKS: tuple[Callable[[Machine], Iterator[Check]], ...] = (
    check_python, check_torch, check_physics, check_kernels, check_room, check_extras, check_keeping,
    check_drive,
)  # fmt: skip
