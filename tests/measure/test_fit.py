"""How many envs fit: the arithmetic with a made-up GPU, and one real probe."""

from __future__ import annotations

import pytest

from kit.config import RunConfig
from kit.errors import UserError
from kit.measure.auto import resolve
from kit.measure.fit import fit, measure_in_child

GB, MB = 10**9, 10**6


def gpu(total: int, fixed: int, world: int):
    """A GPU on which `n` envs take fixed + n * world bytes."""
    return lambda config, n: (fixed + n * world, total)


@pytest.mark.parametrize(
    ("total", "fixed", "world", "n_envs"),
    [
        (16 * GB, 1 * GB, 12 * MB, 1024),  # 12.6 GB / 12 MB = 1050, down to a multiple of 64
        (16 * GB, 1 * GB, 1 * MB, 8192),  # 12,600 would fit; more than 8,192 is not asked for
        (2 * GB, 1 * GB, 10 * MB, 64),
    ],
)
def test_the_largest_multiple_of_64_within_the_margin(total, fixed, world, n_envs):
    assert fit(RunConfig(), gpu(total, fixed, world)) == n_envs
    assert fixed + n_envs * world <= 0.85 * total


def test_a_full_card_is_said():
    with pytest.raises(UserError, match=r"64 envs of Reach .* 2\.0 GB, of which 1\.5 GB are taken"):
        fit(RunConfig(), gpu(2 * GB, int(1.5 * GB), 10 * MB))


def test_a_real_probe_reports_memory_and_failure(registered):
    config = resolve(RunConfig(env=registered, device="cpu", overrides={"n_steps": 8, "batch_size": 64}))
    used, memory = measure_in_child(config, 8)
    assert 10**8 < used < memory
    with pytest.raises(UserError, match=rf"probe with 4 envs of {registered} failed \(.*gama.*\); set n_envs yourself"):
        measure_in_child(config.replace(overrides={"gama": 1}), 4)
