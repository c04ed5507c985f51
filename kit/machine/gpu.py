"""NVIDIA GPUs, as the driver sees them: through NVML where it is installed, else through nvidia-smi. No torch."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Shell = Callable[[list[str]], str]


@dataclass(frozen=True)
class Gpu:
    """One card."""

    name: str
    memory_bytes: int
    driver: str
    """The driver's version, such as "570.124.06"."""
    cuda: str
    """The newest CUDA version that this driver can run, such as "12.8"; empty when unknown."""


def gpus(shell: Shell | None = None) -> tuple[Gpu, ...]:
    """The cards that the driver offers; empty without a card or without a working driver."""
    return _from_smi(shell) if shell else _from_nvml() or _from_smi(_run)


def card_without_driver(root: Path = Path("/")) -> bool:
    """Whether an NVIDIA graphics card is plugged in that no driver answers for."""
    for device in (root / "sys/bus/pci/devices").glob("*"):
        try:
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
        except OSError:
            continue
        if vendor == "0x10de" and kind.startswith("0x03"):  # NVIDIA, display controller
            return not (root / "proc/driver/nvidia/version").exists()
    return False


def _from_nvml() -> tuple[Gpu, ...]:
    try:
        import pynvml
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        version = pynvml.nvmlSystemGetCudaDriverVersion_v2()  # 12080 for 12.8
        cuda = f"{version // 1000}.{version % 1000 // 10}"
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        memory = [int(pynvml.nvmlDeviceGetMemoryInfo(h).total) for h in handles]
        names = [_text(pynvml.nvmlDeviceGetName(h)) for h in handles]
        return tuple(Gpu(name, size, driver, cuda) for name, size in zip(names, memory, strict=True))
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()


def _from_smi(shell: Shell) -> tuple[Gpu, ...]:
    rows = shell(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"])
    found = [[cell.strip() for cell in row.split(",")] for row in rows.splitlines() if row.count(",") == 2]
    if not found:
        return ()
    header = re.search(r"CUDA Version:\s*([\d.]+)", shell(["nvidia-smi"]))
    cuda = header.group(1) if header else ""
    return tuple(
        Gpu(name, int(mebibytes) * 2**20, driver, cuda) for name, mebibytes, driver in found if mebibytes.isdigit()
    )


def _run(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
