"""What this computer is: place, cores, memory, disk, GPUs, and which torch is installed."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import os
import platform
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.machine import gpu, limits, places


@dataclass(frozen=True)
class Machine:
    """A description that may be shown, saved and shared: it holds no host name, user name or environment."""

    place: str
    """Google Colab, RunPod, AWS EC2, ..., or "This computer"."""
    system: str
    python: str
    cpu: str
    cores: int
    """Cores that this process may use."""
    cores_in_machine: int
    memory_bytes: int
    memory_free_bytes: int
    disk_free_bytes: int
    """Free on the disk of the working directory."""
    gpus: tuple[gpu.Gpu, ...]
    torch: str
    """Version of the installed torch, such as "2.13.0+cpu"; empty without one."""

    @property
    def title(self) -> str:
        """Such as "2 cores of AMD EPYC, 24 GB memory, no GPU"."""
        cards = ", ".join(dict.fromkeys(f"{g.name} {g.memory_bytes / 2**30:.0f} GB" for g in self.gpus)) or "no GPU"
        count = f"{len(self.gpus)} x " if len(self.gpus) > 1 else ""
        plural = "" if self.cores == 1 else "s"
        return f"{self.cores} core{plural} of {self.cpu}, {self.memory_bytes / 2**30:.0f} GB memory, {count}{cards}"

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"gpus": [dataclasses.asdict(g) for g in self.gpus]}


def describe() -> Machine:
    """This computer, as it is now. Takes a few milliseconds, with nvidia-smi up to a second."""
    return Machine(
        place=places.where().name,
        system=_system(),
        python=platform.python_version(),
        cpu=_cpu_model(),
        cores=limits.usable_cores(),
        cores_in_machine=os.cpu_count() or 1,
        memory_bytes=limits.memory_bytes(),
        memory_free_bytes=limits.memory_free_bytes(),
        disk_free_bytes=shutil.disk_usage(Path.cwd()).free,
        gpus=gpu.gpus(),
        torch=version("torch"),
    )


def version(package: str) -> str:
    """The installed version of `package`, or "" without one."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _system() -> str:
    if platform.system() != "Linux":
        return f"{platform.system()} {platform.release()}"
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        return "Linux"


@functools.cache
def _cpu_model(path: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name without trademarks and clock, such as "Intel Xeon"."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", path.read_text(), re.MULTILINE)
    except OSError:
        found = None
    name = found.group(1) if found else platform.processor() or platform.machine()
    name = re.sub(r"\((R|TM|tm)\)|\bCPU\b|@.*$|\b\d+-Core Processor", " ", name)
    return re.sub(r"\s+", " ", name).strip()
