"""Tests that kernels are compiled before they are launched, on several cores, and that nothing else happens."""

from __future__ import annotations

import threading

import mujoco
import torch

from kit.sim import ahead
from kit.sim.kernels import wp
from kit.sim.warp import WarpSim
from tests.sim.test_warp import BALLS

import mujoco_warp as mjw  # isort: skip  initialises Warp, so after kit.sim.kernels


@wp.kernel
def double(x: wp.array(dtype=float)):
    x[wp.tid()] = 2.0 * x[wp.tid()]


def test_kernels_are_loaded_and_not_launched() -> None:
    x, device = wp.ones(3, dtype=float, device="cpu"), wp.get_device("cpu")
    ahead.compile_together(lambda: wp.launch(double, dim=3, inputs=[x], device=device), device)
    assert x.numpy().tolist() == [1.0, 1.0, 1.0] and double.module.execs, "loaded, nothing computed"
    wp.launch(double, dim=3, inputs=[x], device=device)
    assert x.numpy().tolist() == [2.0, 2.0, 2.0]
    with ahead.only_listing():
        beside = threading.Thread(target=lambda: wp.launch(double, dim=3, inputs=[x], device=device))
        beside.start()
        beside.join()
    assert x.numpy().tolist() == [4.0, 4.0, 4.0], "another thread launches as ever"


def test_a_step_launches_only_what_was_noted_and_the_physics_is_as_before() -> None:
    sim = WarpSim(mujoco.MjModel.from_xml_string(BALLS), 4, "cpu")
    sim.step(3)
    before, warp_device = sim.snapshot(), wp.get_device("cpu")
    with ahead.only_listing() as needed:
        mjw.step(sim._model, sim._data)
    assert len(needed) == len(set(needed)) > 10
    after = sim.snapshot()
    assert all(torch.equal(before[name], after[name]) for name in ("qpos", "qvel", "time"))
    ahead.compile_together(lambda: mjw.step(sim._model, sim._data), warp_device)
    missing = {module.name for module, block in needed if (None, block) not in module.execs}
    assert not missing
