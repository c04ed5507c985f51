"""Places that rent machines (Colab, RunPod, ...): how to recognise each, which files survive, how to get a GPU.

A place is recognised by the presence of an environment variable or a path, or by the firmware's vendor. The values of
these variables are not read, because they may be keys.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Place:
    """One kind of rented machine: what happens to its files, and how to get a GPU."""

    name: str
    keeps: str
    """What happens to files when the machine ends, and which `store` keeps them: a sentence for the user."""
    get_gpu: str = "rent one with an NVIDIA GPU"
    """How to get a GPU."""
    env: tuple[str, ...] = ()
    """Environment variables; the place is recognised if any of them is set."""
    paths: tuple[str, ...] = ()
    """Files or folders; the place is recognised if any of them exists."""
    vendor: str = ""
    """Start of the firmware's names, vendor and product, such as "Amazon EC2 g5.xlarge". With the product where the
    vendor also makes laptops."""
    loses_disk: bool = True
    volumes: str = ""
    """Glob pattern of mount points of disks that outlive the machine."""


PLACES = (
    Place("Google Colab", 'files are deleted when the session ends; set store = "drive:kit" to keep runs in your Drive',
          "Runtime menu > Change runtime type > T4 GPU", env=("COLAB_RELEASE_TAG", "COLAB_GPU")),
    Place("Kaggle", 'only saved versions keep /kaggle/working; set store = "hf://you/runs" to keep runs as they train',
          "Settings > Accelerator > GPU", env=("KAGGLE_KERNEL_RUN_TYPE",)),
    Place("RunPod",
          'only the volume /workspace survives a stop; set runs_dir to a folder there, such as "/workspace/runs"',
          "Deploy a pod with a GPU, from a PyTorch template", env=("RUNPOD_POD_ID",), volumes="workspace"),
    Place("Vast.ai", 'files are deleted when the instance is destroyed; set store = "hf://you/runs"',
          env=("VAST_CONTAINERLABEL",)),
    Place("Lambda", 'terminating deletes the disk; set store to your filesystem, such as "/lambda/nfs/NAME/runs"',
          paths=("lambda/nfs", "var/lib/dpkg/info/lambda-stack-cuda.list"), volumes="lambda/nfs/*"),
    Place("SageMaker",
          'notebook files live on its volume, /tmp does not; set store = "s3://your-bucket/runs" to keep runs',
          "choose an ml.g5 instance", env=("SAGEMAKER_APP_TYPE",), paths=("opt/ml/metadata/resource-metadata.json",)),
    Place("Binder", "files are deleted when the tab closes; download what you want to keep",
          env=("BINDER_SERVICE_HOST",)),
    Place("GitHub Codespaces", "files stay until the codespace is deleted", env=("CODESPACES",), loses_disk=False),
    Place("Slurm cluster", "local scratch is deleted with the job; set store to a folder on the shared file system",
          "ask the scheduler with --gres=gpu:1", env=("SLURM_JOB_ID",)),
    Place("AWS EC2", 'a spot instance may be taken away with two minutes\' notice; set store = "s3://your-bucket/runs"',
          "launch a g5 or g6 instance from a Deep Learning image", vendor="Amazon EC2"),
    Place("Google Compute Engine", 'a spot machine may be taken away at any time; set store = "gs://your-bucket/runs"',
          "add a GPU and use a Deep Learning image", vendor="Google Google Compute Engine"),
    Place("Azure", "set store to keep runs beyond this machine", "choose an NC-series size",
          vendor="Microsoft Corporation Virtual Machine"),
)  # fmt: skip
LOCAL = Place("This computer", "only on this disk; a store keeps a copy", "any NVIDIA GPU will do", loses_disk=False)


def where(environment: Mapping[str, str] | None = None, root: Path = Path("/")) -> Place:
    """Return the place this process runs in; `LOCAL` if none is recognised."""
    names = os.environ if environment is None else environment
    files = [root / "sys/class/dmi/id" / name for name in ("sys_vendor", "product_name")]
    try:
        firmware = " ".join(file.read_text().strip() for file in files)
    except OSError:
        firmware = ""
    for place in PLACES:
        marked = any(name in names for name in place.env) or any((root / path).exists() for path in place.paths)
        if marked or (place.vendor and firmware.startswith(place.vendor)):
            return place
    return LOCAL


def drive() -> Path:
    """Return Google Drive's mount point: $KIT_DRIVE_ROOT, or Colab's. It may not be mounted."""
    return Path(os.environ.get("KIT_DRIVE_ROOT", "/content/drive/MyDrive"))


def volume(environment: Mapping[str, str] | None = None, root: Path = Path("/")) -> Path | None:
    """Return a writable folder on a disk that outlives the machine; None if there is none."""
    pattern = where(environment, root).volumes
    disks = sorted(root.glob(pattern)) if pattern else []
    return next((disk for disk in disks if disk.is_dir() and os.access(disk, os.W_OK)), None)


def risk(runs_dir: str) -> str:
    """Return a sentence, with a leading space, why runs in `runs_dir` need a store; "" if their disk stays."""
    place, folder = where(), Path(runs_dir).expanduser().resolve()
    if not place.loses_disk or any(folder.is_relative_to(disk) for disk in (volume(), drive()) if disk is not None):
        return ""
    return f" Without a store, the run may be lost with this machine ({place.name}: {place.keeps})."
