"""What this computer is: place, cores, memory, disk, GPUs, which packages are installed, and where kernels are kept."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

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


def describe() -> Machine:
    """This computer, as it is now. Takes a few milliseconds, with nvidia-smi up to a second."""
    return Machine(
        place=places.where().name,
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        cpu=cpu_model(),
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


def kernels() -> Path:
    """Where Warp keeps the kernels it has compiled: in $WARP_CACHE_PATH (its own variable) or $KIT_CACHE (on a Drive
    mount for example), else among the user's caches, on a disk that stays if there is one."""
    caches = os.environ.get("KIT_CACHE") or os.environ.get("XDG_CACHE_HOME")
    folder = Path(caches or (places.volume() or Path.home()) / ".cache") / "warp"
    return Path(os.environ.get("WARP_CACHE_PATH") or folder) / version("warp-lang")


def cpu_model() -> str:
    """The processor's name without trademarks and clock, such as "Intel Xeon"."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    name = found.group(1) if found else platform.processor() or platform.machine()
    return " ".join(re.sub(r"\((R|TM|tm)\)|\bCPU\b|@.*$|\b\d+-Core Processor", " ", name).split())
