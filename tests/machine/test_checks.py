"""Tests of `kit.verify`: torch, drivers, GPUs, versions, disk, memory, lost disks, videos; problems have remedies."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kit.config import RunConfig
from kit.errors import UserError
from kit.machine import checks, gpu, places
from kit.machine.gpu import Gpu
from kit.machine.warp import why_warp_cannot_use_gpu, wp
from kit.measure.auto import resolve
from kit.sim.kernels import numbered
from tests.machine.test_info import machine

T4 = (Gpu("Tesla T4", 15 * 2**30, "470.1", "11.4"),)


def only(found: Any) -> checks.Check:
    (check,) = [check for check in found if check.state != "ok"]
    return check


def test_this_machine_passes() -> None:
    report = checks.verify()
    assert report.ok, str(report)
    assert {check.name for check in report.checks} >= {"Python", "PyTorch", "GPU", "Physics", "CPU", "Memory", "Disk"}
    told = json.loads(json.dumps(report.to_dict()))
    assert told["ok"] is True
    assert told["machine"]["cores"] >= 1


def test_a_failed_check_and_its_remedy_show_in_text_and_html() -> None:
    bad = checks.Check("GPU", "fail", "no <driver>.", "install it")
    report = checks.Report(machine(), (checks.Check("Disk", "ok", "70 GB free"), bad))
    assert not report.ok
    assert str(report).splitlines()[0].startswith("1 thing to fix before training.")
    assert "✗ GPU   no <driver>." in str(report)
    assert "→ install it" in str(report)
    assert "no &lt;driver&gt;." in report._repr_html_()
    assert report._repr_html_().count("color:") == 2


def test_cpu_torch_on_a_gpu_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    check = only(checks.check_torch(machine(gpus=T4)))
    assert (check.name, check.state) == ("GPU", "fail")
    assert "built for CPUs only" in check.message
    assert "pip install" in check.remedy


def test_torch_newer_than_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    check = only(checks.check_torch(machine(gpus=T4)))
    assert "built for CUDA 13.0, which this driver cannot run" in check.message
    assert "newer driver" in check.remedy


def test_a_driver_new_enough_for_torch_but_too_old_for_warp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(wp, "is_cuda_available", lambda: False)
    monkeypatch.setattr(wp, "get_cuda_toolkit_version", lambda: (13, 4))
    monkeypatch.setattr(wp, "get_cuda_driver_version", lambda: (12, 4))
    check = only(checks.check_physics(machine(gpus=T4)))
    assert (check.name, check.state) == ("GPU physics", "warn")
    assert "built for CUDA 13.4, the driver offers 12.4" in check.message and "newer NVIDIA driver" in check.remedy
    assert resolve(RunConfig(env="Reach", preset="fast", device="auto")).device == "cpu"
    with pytest.raises(UserError, match=r"device='cuda' cannot be used: Warp .* the driver offers 12\.4; use a"):
        numbered("cuda")


def test_a_gpu_too_old_for_warp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wp, "is_cuda_available", lambda: True)
    card = SimpleNamespace(arch=75, name="Tesla T4", is_mempool_supported=True)
    monkeypatch.setattr(wp, "get_cuda_devices", lambda: [card])
    assert why_warp_cannot_use_gpu() is None
    card.arch, card.name = 35, "Tesla K40"
    assert "no kernels for a GPU as old as Tesla K40" in (why_warp_cannot_use_gpu() or "")


def test_a_virtual_gpu_without_memory_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    card = SimpleNamespace(arch=80, name="GRID A100-4C", is_mempool_supported=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(wp, "is_cuda_available", lambda: True)
    monkeypatch.setattr(wp, "get_cuda_devices", lambda: [card])
    check = only(checks.check_physics(machine(gpus=T4)))
    assert (check.name, check.state) == ("GPU physics", "warn")
    assert "GRID A100-4C has no memory pools" in check.message and "device='cpu'" in check.remedy
    with pytest.raises(UserError, match="GRID A100-4C has no memory pools"):
        numbered("cuda")


def test_a_driver_without_loops_in_cuda_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    card = SimpleNamespace(arch=75, name="Tesla T4", is_mempool_supported=True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(wp, "is_cuda_available", lambda: True)
    monkeypatch.setattr(wp, "get_cuda_devices", lambda: [card])
    monkeypatch.setattr(wp, "get_cuda_driver_version", lambda: (12, 2))
    monkeypatch.setattr(wp, "is_conditional_graph_supported", lambda: False)
    check = only(checks.check_physics(machine(gpus=T4)))
    assert "driver (CUDA 12.2) has no conditional CUDA graphs" in check.message and "R550" in check.remedy


def test_a_gpu_that_fails_when_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_kernel(*_: object, **__: object) -> None:
        raise RuntimeError("no kernel image is available for execution on the device")

    monkeypatch.setattr(torch.version, "cuda", "11.8")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "ones", no_kernel)
    assert "no kernel image" in only(checks.check_torch(machine(gpus=T4))).message


def test_no_gpu_is_no_fault_but_a_dead_driver_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(check.state == "ok" for check in checks.check_torch(machine()))
    monkeypatch.setattr(gpu, "gpu_without_driver", lambda: True)
    assert "no driver answers" in only(checks.check_torch(machine())).message


def test_incompatible_versions_of_mujoco_and_mujoco_warp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "version", lambda name: {"mujoco": "4.1.0", "mujoco-warp": "4.0.2"}[name])
    check = only(checks.check_physics(machine()))
    assert check.state == "fail"
    assert "mujoco-warp==4.1.*" in check.remedy


@pytest.mark.parametrize(("free", "state"), [(10 * 2**20, "fail"), (2**30, "warn")])
def test_little_disk(free: int, state: str) -> None:
    check = only(checks.check_room(machine(disk_free_bytes=free)))
    assert check.state == state and "a run's checkpoints take at most 10GB (disk_budget)" in check.message


def test_little_memory() -> None:
    assert only(checks.check_room(machine(memory_free_bytes=2**30))).state == "warn"


def test_colab_warns_that_files_are_lost_and_suggests_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "where", lambda: next(p for p in places.PLACES if p.name == "Google Colab"))
    assert 'store = "drive:kit"' in only(checks.check_keeping(machine())).remedy


def test_videos_need_imageio_ffmpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    found = checks.find_spec
    monkeypatch.setattr(checks, "find_spec", lambda name: None if name == "imageio_ffmpeg" else found(name))
    check = only(checks.check_extras(machine()))
    assert (check.name, check.state) == ("Videos", "warn") and "kit[video]" in check.remedy
