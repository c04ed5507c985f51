"""`kit.verify()`: is everything here that training needs? Each check answers with one plain sentence."""

from __future__ import annotations

import dataclasses
import html
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

from kit.machine import cache, gpu, places
from kit.machine.info import Machine, describe, version

State = Literal["ok", "warn", "fail"]
MARKS = {"ok": "✓", "warn": "!", "fail": "✗"}
GIB = 2**30


@dataclass(frozen=True)
class Check:
    """One answer: `message` says what is there, `remedy` what to click or type if that is not enough."""

    name: str
    state: State
    message: str
    remedy: str = ""


@dataclass(frozen=True)
class Report:
    """What `verify` found. Prints as a list, shows as a table in a notebook, `to_dict()` is JSON."""

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
        hints = f" {warned} hint{'s' * (warned > 1)} below." if warned else ""
        return f"Ready to train.{hints}"

    def to_dict(self) -> dict[str, Any]:
        checks = [dataclasses.asdict(check) for check in self.checks]
        return {"ok": self.ok, "summary": self.summary, "machine": self.machine.to_dict(), "checks": checks}

    def __str__(self) -> str:
        width = max(len(check.name) for check in self.checks)
        lines = [f"{self.summary} {self.machine.place}: {self.machine.title}."]
        for check in self.checks:
            lines.append(f"  {MARKS[check.state]} {check.name:<{width}}  {check.message}")
            if check.remedy:
                lines.append(f"    {'':<{width}}  → {check.remedy}")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        colours = {"ok": "#1a9850", "warn": "#e08214", "fail": "#d73027"}
        rows = "".join(
            f'<tr><td style="color:{colours[c.state]};font-weight:700;text-align:center">{MARKS[c.state]}</td>'
            f'<td style="text-align:left;white-space:nowrap"><b>{html.escape(c.name)}</b></td>'
            f'<td style="text-align:left">{html.escape(c.message)}'
            + (f'<br><span style="color:{colours[c.state]}">→ {html.escape(c.remedy)}</span>' if c.remedy else "")
            + "</td></tr>"
            for c in self.checks
        )
        colour = colours["ok" if self.ok else "fail"]
        where = html.escape(f"{self.machine.place}: {self.machine.title}")
        return (
            f'<div style="font-size:14px;max-width:900px"><p style="margin:4px 0"><b style="color:{colour}">'
            f'{html.escape(self.summary)}</b> {where}.</p><table style="font-size:13px">{rows}</table></div>'
        )


def verify() -> Report:
    """Look at this computer and at what is installed. Takes a few seconds, most of them torch's import."""
    machine = describe()
    checks = [check for look in LOOKS for check in look(machine)]
    return Report(machine, tuple(checks))


def check_python(machine: Machine) -> Iterator[Check]:
    if (3, 11) <= sys.version_info < (3, 14):
        yield Check("Python", "ok", machine.python)
    else:
        yield Check("Python", "warn", f"{machine.python} is not tested.", "use Python 3.11, 3.12 or 3.13")


def check_torch(machine: Machine) -> Iterator[Check]:
    """PyTorch, and whether it fits the driver and the card."""
    try:
        import torch
    except Exception as error:  # a broken torch fails in many ways, and each must be reported rather than raised
        missing = isinstance(error, ModuleNotFoundError)
        message = "not installed." if missing else f"cannot be imported: {str(error).splitlines()[0]}"
        yield Check("PyTorch", "fail", message, "pip install torch, then restart the kernel")
        return
    yield Check("PyTorch", "ok", f"{torch.__version__} ({_cuda_built(torch.version.cuda)})")
    if not machine.gpus:
        yield _no_gpu(machine)
        return
    card = machine.gpus[0]
    count = f"{len(machine.gpus)} x " if len(machine.gpus) > 1 else ""
    seen = f"{count}{card.name}, {card.memory_bytes / GIB:.0f} GB, driver {card.driver} (CUDA up to {card.cuda or '?'})"
    if torch.version.cuda is None:
        remedy = "install a CUDA build: pip install --force-reinstall torch, then restart the kernel"
        yield Check("GPU", "fail", f"{seen}, but this PyTorch is built for CPUs only and cannot use it.", remedy)
    elif torch.cuda.is_available():
        yield _use_gpu(torch, seen)
    elif card.cuda and _older(card.cuda, torch.version.cuda):
        tag = "cu" + card.cuda.replace(".", "")
        yield Check(
            "GPU", "fail", f"{seen}; PyTorch is built for CUDA {torch.version.cuda}, which this driver cannot run.",
            f"choose an image with a newer driver, or a PyTorch built for CUDA {card.cuda} (pytorch.org, {tag})",
        )  # fmt: skip
    else:
        yield Check("GPU", "fail", f"{seen}, but PyTorch cannot use it.", "restart the kernel, then the machine")


def _no_gpu(machine: Machine) -> Check:
    place = places.where()
    if gpu.card_without_driver():
        message = "an NVIDIA card is plugged in, but no driver answers."
        return Check("GPU", "fail", message, "install NVIDIA's driver, then reboot")
    if place.name == "Google Colab":
        return Check("GPU", "ok", "none, which is fine for Reach; humanoids need one.", place.get_gpu)
    cores = f"{machine.cores} CPU core{'s' * (machine.cores > 1)}"
    return Check("GPU", "ok", f"none; training uses {cores} ({place.get_gpu}).")


def _use_gpu(torch: Any, seen: str) -> Check:
    """Multiply two small matrices: a card too new or too old for this PyTorch fails only when it is used."""
    try:
        ones = torch.ones(64, 64, device="cuda")
        right = float((ones @ ones).sum()) == 64.0**3
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        remedy = "install a PyTorch built for this card"
        return Check("GPU", "fail", f"{seen}, but computing on it fails: {reason}", remedy)
    if not right:
        remedy = "give this machine back and rent another"
        return Check("GPU", "fail", f"{seen}, but it computes wrong results.", remedy)
    return Check("GPU", "ok", seen)


def check_physics(machine: Machine) -> Iterator[Check]:
    simulator, renderer = version("mujoco"), version("mujoco-warp")
    if not simulator or not renderer:
        missing = "mujoco" if not simulator else "mujoco-warp"
        yield Check("Physics", "fail", f"{missing} is not installed.", f"pip install {missing}, then restart")
    elif simulator.split(".")[:2] != renderer.split(".")[:2]:
        remedy = f"pip install 'mujoco-warp=={'.'.join(simulator.split('.')[:2])}.*', then restart the kernel"
        yield Check("Physics", "fail", f"MuJoCo {simulator} beside MuJoCo Warp {renderer} do not fit together.", remedy)
    else:
        yield Check("Physics", "ok", f"MuJoCo {simulator}, pictures by MuJoCo Warp {renderer} (no OpenGL needed)")
        if machine.gpus:
            yield from _gpu_physics()


def _gpu_physics() -> Iterator[Check]:
    """Warp's wheels may need a newer driver than torch's."""
    import torch

    if torch.cuda.is_available():
        from kit.sim.kernels import NEWER_DRIVER, out_of_reach

        if reason := out_of_reach():
            yield Check("GPU physics", "warn", f"{reason}.", NEWER_DRIVER)


def check_cores(machine: Machine) -> Iterator[Check]:
    limited = machine.cores < machine.cores_in_machine
    of = f" of {machine.cores_in_machine} (this container may use no more)" if limited else ""
    yield Check("CPU", "ok", f"{machine.cores} core{'s' * (machine.cores > 1)}{of}, {machine.cpu}")


def check_memory(machine: Machine) -> Iterator[Check]:
    free, total = machine.memory_free_bytes / GIB, machine.memory_bytes / GIB
    message = f"{free:.1f} GB free of {total:.1f}"
    if free < 1.5:
        yield Check("Memory", "warn", f"{message}: too little for most trainings.", "shut down other kernels")
    else:
        yield Check("Memory", "ok", message)


def check_disk(machine: Machine) -> Iterator[Check]:
    free = machine.disk_free_bytes / GIB
    if free < 0.2:
        yield Check("Disk", "fail", f"{free * 1024:.0f} MB free.", "delete old runs, or set runs_dir to another disk")
    elif free < 2:
        yield Check("Disk", "warn", f"{free:.1f} GB free.", "delete old runs, or set runs_dir to another disk")
    else:
        yield Check("Disk", "ok", f"{free:.0f} GB free")


def check_kernels(machine: Machine) -> Iterator[Check]:
    """Where compiled kernels are kept: on CUDA compiling them takes minutes, once."""
    folder = cache.kernels()
    modules = sum(1 for _ in folder.glob("wp_*"))
    there = f"{modules} compiled" if modules else "none compiled yet; the first use takes a while"
    lost = places.where().loses_disk and places.volume() is None and "KIT_CACHE" not in os.environ
    hint = "; KIT_CACHE names a folder that stays, such as one in Drive" if machine.gpus and lost else ""
    yield Check("Kernels", "ok", f"{there}, kept in {folder}{hint}")


def check_notebook(machine: Machine) -> Iterator[Check]:
    missing = [name for name in ("ipywidgets", "matplotlib") if find_spec(name) is None]
    if missing:
        yield Check("Notebooks", "warn", f"{' and '.join(missing)} not installed.", "pip install 'kit[notebook]'")
    else:
        yield Check("Notebooks", "ok", f"ipywidgets {version('ipywidgets')}, matplotlib {version('matplotlib')}")


def check_video(machine: Machine) -> Iterator[Check]:
    if find_spec("mediapy") is None or not (find_spec("imageio_ffmpeg") or shutil.which("ffmpeg")):
        yield Check("Videos", "warn", "mediapy or ffmpeg is missing.", "pip install 'kit[video]'")
    else:
        yield Check("Videos", "ok", f"mediapy {version('mediapy')} with ffmpeg")


def check_keeping(machine: Machine) -> Iterator[Check]:
    place = places.where()
    if place.loses_disk:
        yield Check("Keeping runs", "warn", "this machine can be taken away.", place.keeps)
    else:
        yield Check("Keeping runs", "ok", place.keeps)


LOOKS: tuple[Callable[[Machine], Iterator[Check]], ...] = (
    check_python, check_torch, check_physics, check_kernels, check_cores, check_memory, check_disk,
    check_notebook, check_video, check_keeping,
)  # fmt: skip


def _cuda_built(cuda: str | None) -> str:
    return f"built for CUDA {cuda}" if cuda else "built for CPUs"


def _older(version_a: str, version_b: str) -> bool:
    """Whether CUDA version a cannot run what was built for b. Within one major version all minors can."""
    return int(version_a.split(".")[0]) < int(version_b.split(".")[0])
