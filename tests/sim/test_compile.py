"""Tests that Warp kernels compile for GPUs that are not here: kit's own, and by hand (minutes) MuJoCo Warp's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.compile import ARCHS, ROBOTS, build, of_task, own, parameters_read_as_local


@pytest.mark.parametrize("arch", ARCHS)
def test_own_kernels_compile_for_gpus_that_are_not_here(tmp_path: Path, arch: int) -> None:
    for (module, block), kernels in own().items():
        (binary,) = build(module, block, arch, tmp_path).rglob("*.cubin")
        code = binary.read_bytes()
        assert code.startswith(b"\x7fELF") and all(f"{kernel}_".encode() in code for kernel in kernels)


def test_no_kernel_reads_its_parameters_as_local_memory(tmp_path: Path) -> None:
    """What the compiler does before it turns to the architecture: the same code came for 75 and 90."""
    for module, block in own():
        assert not parameters_read_as_local(module, block, 90, tmp_path)


@pytest.mark.bench
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("task", ROBOTS)
def test_mujoco_warps_kernels_compile_for_an_h100(tmp_path: Path, task: str) -> None:
    for module, block in of_task(task):
        assert list(build(module, block, 90, tmp_path).rglob("*.cubin")), module.name
