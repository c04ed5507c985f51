"""Describe this computer: place, cores, memory, disk, GPUs, package versions, and the cache of Warp kernels."""

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
    """Description of a computer, safe to share: it holds no host name, user name or environment variable."""

    place: str
    """Google Colab, RunPod, AWS EC2, ..., or "This computer"."""
    system: str
    python: str
    cpu: str
    cores: int
    """CPU cores that this process may use."""
    cores_in_machine: int
    memory_bytes: int
    memory_free_bytes: int
    disk_free_bytes: int
    """Free bytes on the disk of the working directory."""
    gpus: tuple[gpu.Gpu, ...]
    torch: str
    """Version of torch, such as "2.13.0+cpu"; empty if it is not installed."""

    @property
    def title(self) -> str:
        """One line, such as "2 cores of AMD EPYC, 24 GB memory, no GPU"."""
        gpus = ", ".join(dict.fromkeys(f"{g.name} {g.memory}" for g in self.gpus)) or "no GPU"
        count = f"{len(self.gpus)} x " if len(self.gpus) > 1 else ""
        plural = "" if self.cores == 1 else "s"
        return f"{self.cores} core{plural} of {self.cpu}, {self.memory_bytes / 2**30:.0f} GB memory, {count}{gpus}"


def describe() -> Machine:
    """Describe this computer as it is now. Takes a few milliseconds; with nvidia-smi up to a second."""
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
    """Return the installed version of `package`, or "" if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def kernels() -> Path:
    """Return the folder of Warp's compiled kernels.

    Its parent is the first of these that is set or exists: $WARP_CACHE_PATH (Warp's own variable), $KIT_CACHE/warp,
    $XDG_CACHE_HOME/warp, .cache/warp on a disk that outlives the machine (`places.volume`), ~/.cache/warp.
    """
    caches = os.environ.get("KIT_CACHE") or os.environ.get("XDG_CACHE_HOME")
    folder = Path(caches or (places.volume() or Path.home()) / ".cache") / "warp"
    return Path(os.environ.get("WARP_CACHE_PATH") or folder) / version("warp-lang")


def cpu_model() -> str:
    """Return the processor's name without trademarks and clock rate, such as "Intel Xeon"."""
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    name = match.group(1) if match else platform.processor() or platform.machine()
    return " ".join(re.sub(r"\((R|TM|tm)\)|\bCPU\b|@.*$|\b\d+-Core Processor", " ", name).split())
