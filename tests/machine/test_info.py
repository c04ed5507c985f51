"""Places, cards and the description of this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kit.machine import cache, gpu, info, places, prices
from kit.machine.gpu import Gpu
from kit.machine.info import Machine

SMI = {
    "--query": "Tesla T4, 15360, 550.54.15\nTesla T4, 15360, 550.54.15\n",
    "plain": "| NVIDIA-SMI 550.54.15    Driver Version: 550.54.15    CUDA Version: 12.4 |",
}


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


def test_place_by_folder_and_firmware(tmp_path: Path) -> None:
    vendor = tmp_path / "sys/class/dmi/id/sys_vendor"
    vendor.parent.mkdir(parents=True)
    vendor.write_text("Amazon EC2\n")
    assert places.where({}, tmp_path).name == "AWS EC2"
    (tmp_path / "lambda/nfs").mkdir(parents=True)
    assert places.where({}, tmp_path).name == "Lambda"


def test_cards_from_nvidia_smi() -> None:
    cards = gpu.gpus(lambda command: SMI["--query" if len(command) > 1 else "plain"])
    assert cards == (Gpu("Tesla T4", 15360 * 2**20, "550.54.15", "12.4"),) * 2


@pytest.mark.parametrize("answer", ["", "No devices were found\n", "NVIDIA-SMI has failed, because, it could not\n"])
def test_no_card(answer: str) -> None:
    assert gpu.gpus(lambda command: answer) == ()


def test_a_card_without_a_driver(tmp_path: Path) -> None:
    assert not gpu.card_without_driver(tmp_path)
    device = tmp_path / "sys/bus/pci/devices/0000:00:04.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030200\n")
    assert gpu.card_without_driver(tmp_path)
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("570")
    assert not gpu.card_without_driver(tmp_path)


def test_this_machine_can_be_described_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNPOD_POD_ID", "pod-1234")
    monkeypatch.setenv("RUNPOD_API_KEY", "top-secret")
    text = json.dumps(info.describe().to_dict())
    assert "RunPod" in text
    assert "top-secret" not in text
    assert "pod-1234" not in text


def test_title_names_what_matters() -> None:
    cards = (Gpu("Tesla T4", 15 * 2**30, "550", "12.4"),) * 2
    assert machine().title == "2 cores of AMD EPYC, 24 GB memory, no GPU"
    assert machine(cores=1, gpus=cards).title == "1 core of AMD EPYC, 24 GB memory, 2 x Tesla T4 15 GB"


def test_cost_is_told_where_a_price_is_known() -> None:
    card = (Gpu("NVIDIA GeForce RTX 4090", 24 * 2**30, "550", "12.4"),)
    assert prices.cost(machine(place="RunPod", gpus=card), 3600) == "about $0.79 as last documented"
    assert prices.cost(machine(place="RunPod", gpus=card), 2) == "under 1 cent as last documented"
    assert prices.cost(machine(place="Google Colab"), 3600) == "free"
    assert prices.cost(machine(), 3600) == "free"
    assert prices.cost(machine(place="Azure"), 3600) == ""


def test_kernels_and_readings_are_kept_on_a_disk_that_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "workspace").mkdir()
    assert places.volume({"RUNPOD_POD_ID": ""}, tmp_path) == tmp_path / "workspace"
    assert places.volume({"COLAB_GPU": ""}, tmp_path) is None
    (tmp_path / "lambda/nfs/disk").mkdir(parents=True)
    assert places.volume({}, tmp_path) == tmp_path / "lambda/nfs/disk"
    for name in ("KIT_CACHE", "XDG_CACHE_HOME", "WARP_CACHE_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(places, "volume", lambda: tmp_path)
    assert cache.folder() == tmp_path / ".cache/kit"
    assert cache.kernels().parent == tmp_path / ".cache/warp"
    monkeypatch.setenv("KIT_CACHE", str(tmp_path / "own"))
    assert (cache.folder(), cache.kernels().parent) == (tmp_path / "own", tmp_path / "own/warp")
