"""Tests of machine info: providers, description without secrets, title, kernel cache, thread settings."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from kit.machine import info, places, settings
from kit.machine.gpu import Gpu
from kit.machine.info import Machine


def machine(**changes: object) -> Machine:
    values: dict[str, object] = {
        "place": "This computer", "system": "Debian", "python": "3.11.7", "cpu": "AMD EPYC", "cores": 2,
        "cores_in_machine": 2, "memory_bytes": 24 * 2**30, "memory_free_bytes": 20 * 2**30,
        "disk_free_bytes": 70 * 2**30, "gpus": (), "torch": "2.13.0",
    }  # fmt: skip
    return Machine(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({"COLAB_RELEASE_TAG": "release"}, "Google Colab"),
        ({"RUNPOD_POD_ID": "abc", "RUNPOD_API_KEY": "secret"}, "RunPod"),
        ({"KAGGLE_KERNEL_RUN_TYPE": "Interactive"}, "Kaggle"),
        ({"SLURM_JOB_ID": "7"}, "Slurm cluster"),
        ({}, "This computer"),
    ],
)
def test_place_by_environment(environment: dict[str, str], name: str, tmp_path: Path) -> None:
    assert places.where(environment, tmp_path).name == name


@pytest.mark.parametrize(
    ("vendor", "product", "name"),
    [
        ("Amazon EC2", "g5.xlarge", "AWS EC2"),
        ("Google", "Google Compute Engine", "Google Compute Engine"),
        ("Google", "Eve", "This computer"),  # a Chromebook
        ("Microsoft Corporation", "Virtual Machine", "Azure"),
        ("Microsoft Corporation", "Surface Laptop 4", "This computer"),
    ],
)
def test_place_by_folder_and_firmware(vendor: str, product: str, name: str, tmp_path: Path) -> None:
    firmware = tmp_path / "sys/class/dmi/id"
    firmware.mkdir(parents=True)
    (firmware / "sys_vendor").write_text(f"{vendor}\n")
    (firmware / "product_name").write_text(f"{product}\n")
    assert places.where({}, tmp_path).name == name
    (tmp_path / "lambda/nfs").mkdir(parents=True)
    assert places.where({}, tmp_path).name == "Lambda"


def test_this_machine_can_be_described_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNPOD_POD_ID", "pod-1234")
    monkeypatch.setenv("RUNPOD_API_KEY", "top-secret")
    text = json.dumps(dataclasses.asdict(info.describe()))
    assert "RunPod" in text
    assert "top-secret" not in text
    assert "pod-1234" not in text


def test_title() -> None:
    cards = (Gpu("Tesla T4", 15 * 2**30, "550", "12.4"),) * 2
    assert machine().title == "2 cores of AMD EPYC, 24 GB memory, no GPU"
    assert machine(cores=1, gpus=cards).title == "1 core of AMD EPYC, 24 GB memory, 2 x Tesla T4 15 GB"


def test_compiled_kernels_are_cached_on_a_persistent_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "workspace").mkdir()
    assert places.volume({"RUNPOD_POD_ID": ""}, tmp_path) == tmp_path / "workspace"
    assert places.volume({"COLAB_GPU": ""}, tmp_path) is None
    (tmp_path / "lambda/nfs/disk").mkdir(parents=True)
    assert places.volume({}, tmp_path) == tmp_path / "lambda/nfs/disk"
    for name in ("KIT_CACHE", "XDG_CACHE_HOME", "WARP_CACHE_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(places, "volume", lambda: tmp_path)
    assert info.kernels().parent == tmp_path / ".cache/warp"
    monkeypatch.setenv("KIT_CACHE", str(tmp_path / "own"))
    assert info.kernels().parent == tmp_path / "own/warp"


def test_thread_settings_of_workers() -> None:
    assert settings.apply("cpu") == "full"
    environment = settings.worker_environment(3, {"OMP_NUM_THREADS": "1", "HOME": "/home/me"})
    assert environment["OMP_NUM_THREADS"] == "1", "a variable that the user has set is kept"
    assert environment["MKL_NUM_THREADS"] == "3"
    assert environment["HOME"] == "/home/me"
