"""Tests that kit's own Warp kernels compile for GPUs that are not here; tests/bench/compile.py does MuJoCo Warp's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.compile import ARCHS, build, own


@pytest.mark.parametrize("arch", ARCHS)
def test_own_kernels_compile_for_gpus_that_are_not_here(tmp_path: Path, arch: int) -> None:
    for (module, block), kernels in own().items():
        (binary,) = build(module, block, arch, tmp_path).rglob("*.cubin")
        code = binary.read_bytes()
        assert code.startswith(b"\x7fELF") and all(f"{kernel}_".encode() in code for kernel in kernels)
