"""Hugging Face Jobs: rent a machine by the minute, with the account that hf:// stores use, up to a limit in dollars.

The job runs the same shell commands as a SkyPilot task (`kit.scale.cloud`). When the dollars are used up, every run
writes a checkpoint, uploads it, and stops; the same command continues on the next machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.errors import UserError, need
from kit.scale import cloud
from kit.stores.redact import one_line

if TYPE_CHECKING:
    import pandas as pd

IMAGE = "pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime"
"""The machine's Docker image: PyTorch for drivers with CUDA 12.8."""
ENDING_S = 300.0
"""Seconds for the last checkpoints and their uploads, at the end of the paid time."""
INSTALL_S = 300.0
"""Seconds of the paid time that are reserved for installing kit, which takes one to five minutes."""
LEAST_S = 900.0
"""Minimum paid time in seconds."""


@dataclass(frozen=True)
class Machine:
    """One kind of machine, called a flavor by the Hub."""

    name: str
    vcpus: float
    gpu: str
    gpus: int
    usd_per_h: float


@dataclass(frozen=True)
class Job:
    """What is sent to the Hub. `secrets` are names of environment variables; `launch` sends their values."""

    machine: Machine
    script: str
    secrets: tuple[str, ...]
    timeout_s: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "image": IMAGE, "flavor": self.machine.name, "timeout": self.timeout_s, "secrets": list(self.secrets),
            "command": ["bash", "-ec", self.script],
        }  # fmt: skip


def machines() -> list[Machine]:
    """Ask the Hub for its machines and prices, the cheapest first. Raises `UserError` if it does not answer."""
    hub = need("huggingface_hub", "stores")
    if not hasattr(hub.HfApi, "list_jobs_hardware"):
        raise UserError(f"huggingface_hub {hub.__version__} lists no machines; pip install -U huggingface_hub.")
    try:
        listed = hub.HfApi().list_jobs_hardware()
    except Exception as error:
        raise UserError(f"the Hub's list of machines cannot be read ({one_line(error)}); try again later.") from None
    per_hour = {"minute": 60.0, "hour": 1.0, "second": 3600.0}
    found = [
        Machine(
            each.name, float(each.cpu.split()[0]), each.accelerator.model if each.accelerator else "",
            int(each.accelerator.quantity) if each.accelerator else 0, each.unit_cost_usd * per_hour[each.unit_label],
        )
        for each in listed if each.unit_label in per_hour
    ]  # fmt: skip
    return sorted(found, key=lambda machine: machine.usd_per_h)


def catalogue() -> pd.DataFrame:
    """Return the machines in the columns of SkyPilot's catalogue, for `kit.scale.cloud.plan`."""
    import pandas as pd

    rows = [("hf", each.name, each.gpu or None, each.gpus, each.vcpus, each.usd_per_h) for each in machines()]
    columns = ["cloud", "InstanceType", "AcceleratorName", "AcceleratorCount", "vCPUs", "Price"]
    return pd.DataFrame(rows, columns=columns).assign(SpotPrice=float("nan"))


def job(path: str | Path, name: str, dollars: float) -> Job:
    """Return the job for the file at `path` (a config, jobs, a search or notebooks) on the machine `name`.

    It ends before it costs more than `dollars`. Raises `UserError` for an unknown machine or too few dollars.
    """
    if not 0 < dollars < math.inf:
        raise UserError(f"dollars={dollars:g} must be a number above 0, such as 2.")
    listed = {machine.name: machine for machine in machines()}
    if name not in listed:
        prices = ", ".join(f"{each.name} ({each.usd_per_h:.2f} $/h)" for each in listed.values())
        raise UserError(f"gpu={name!r} is no machine of the Hub; valid are {prices}.")
    machine = listed[name]
    paid_s = 3600 * dollars / machine.usd_per_h if machine.usd_per_h else 24 * 3600.0
    if paid_s < LEAST_S:
        least = machine.usd_per_h * LEAST_S / 3600
        pays = f"dollars={dollars:g} pays for {paid_s / 60:.0f} minutes of {name}"
        raise UserError(f"{pays}; give at least {least:.2f}, for 15 minutes.")
    task = cloud.task(path, spot=False, hours=(paid_s - INSTALL_S - ENDING_S) / 3600, own_python=False)
    return Job(machine, task["setup"] + task["run"], tuple(task.get("secrets", {})), int(paid_s))


def launch(planned: Job) -> str:
    """Start the job; return its page on the Hub. Raises `UserError` if a secret is missing or the Hub refuses."""
    hub = need("huggingface_hub", "stores")
    secrets = cloud.secret_values(planned.secrets, {"HF_TOKEN": hub.get_token()})
    request = {**planned.to_dict(), "secrets": secrets}
    try:
        return str(hub.HfApi().run_job(**request).url)
    except Exception as error:
        raise UserError(f"the Hub did not start the job ({one_line(error)}).") from None
