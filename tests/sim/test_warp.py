"""Tests of `WarpSim` on Warp's CPU device: agreement with MuJoCo in C, snapshots, resets, buffer sizes, rendering."""

from __future__ import annotations

import mujoco
import pytest
import torch

from kit.envs import make_task
from kit.envs.vec import TensorEnv
from kit.errors import Overflow, UserError
from kit.sim.capacity import Capacity, capacity, touching_pairs
from kit.sim.cpu import CpuSim
from kit.sim.warp import WarpSim

import mujoco_warp as mjw  # isort: skip  initialises Warp, so after kit.machine.warp

pytestmark = pytest.mark.timeout(900)  # a first launch on a machine compiles kernels, for minutes on a busy one

BALLS = """
<mujoco>
  <option timestep="0.005"/>
  <worldbody>
    <light pos="0 0 3" dir="0 0 -1"/>
    <camera name="eye" pos="0 -3 1" xyaxes="1 0 0 0 0.3 1"/>
    <geom name="floor" type="plane" size="0 0 1" rgba="0.5 0.6 0.7 1"/>
    <body name="cart" pos="0 0 0.5"><joint name="slide" type="slide" axis="1 0 0" limited="true" range="-1 1"/>
      <geom type="box" size="0.1 0.1 0.1" mass="1" contype="0" conaffinity="0"/><site name="tip" pos="0 0 0.2"/></body>
    <body name="ball" pos="0 0.5 0.1"><freejoint/>
      <geom name="ball" type="sphere" size="0.1" mass="1" rgba="1 0 0 1"/></body>
    <body name="other" pos="0.5 0.5 0.1"><freejoint/><geom type="sphere" size="0.1" mass="1"/></body>
  </worldbody>
  <actuator><motor joint="slide" gear="10"/></actuator>
  <sensor><framelinvel objtype="body" objname="ball"/></sensor>
</mujoco>"""  # fmt: skip


@pytest.fixture(scope="module")
def balls() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(BALLS)


def everywhere(sim) -> torch.Tensor:
    return torch.ones(sim.n, dtype=torch.bool)


def rolling(sim, seed: int = 0) -> None:
    """Reset `sim` with random velocities and controls, different in each env."""
    generator = torch.Generator().manual_seed(seed)
    sim.reset(everywhere(sim), qvel=torch.randn(sim.n, sim.model.nv, generator=generator))
    sim.ctrl.copy_(torch.rand(sim.n, sim.model.nu, generator=generator))


@pytest.mark.parametrize("name", ["Ant", "Reach", "Push", "Slide", "Dishwashing", "Go1Joystick", "G1Joystick"])
def test_warp_and_mujoco_in_c_have_the_same_physics(name):
    """After 1, 10 and 100 physics steps from states with contacts, coordinates (m, rad) differ by rounding.

    For equal problems both solvers converge, and friction cones are elliptic: MuJoCo Warp lays the axes of a pyramid
    differently where a capsule stands steeply on a plane, which moves an Ant by up to 2e-4 in a step. The points where
    Slide's puck, a cylinder, touches the table are found iteratively, in single precision in MuJoCo Warp.
    """
    one, many = ((1e-5, 1e-5), (1e-3, 1e-4)) if name == "Slide" else ((1e-6, 5e-7), (1e-3, 5e-5))
    env = TensorEnv(make_task(name), 4, threads=1)
    generator = torch.Generator().manual_seed(0)
    low, high = (torch.as_tensor(bound) for bound in (env.action_space.low, env.action_space.high))
    for _ in range(10):
        env.step(low + (high - low) * torch.rand(4, len(low), generator=generator))
    model, reached = env.task.model, env.task.sim
    settable = {"ctrl": model.nu, "mocap_pos": model.nmocap, "mocap_quat": model.nmocap}
    names = ["qpos", "qvel", *(field for field, count in settable.items() if count)]
    state = {field: reached.field(field).clone() for field in names}
    model.opt.iterations, model.opt.ls_iterations = 100, 50
    model.opt.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    c, warp = CpuSim(model, 4, threads=1), WarpSim(model, 4, "cpu")
    for sim in (c, warp):
        sim.reset(everywhere(sim), **state)
    assert torch.allclose(warp.xpos.double(), c.xpos, atol=1e-5)
    for steps, (most, median) in ((1, one), (9, many), (90, many)):
        for sim in (c, warp):
            sim.step(steps)
        difference = (warp.qpos.double() - c.qpos).abs().amax(1)
        assert difference.max() < most and difference.median() < median


def test_tensors_are_the_simulators_own_memory(balls):
    sim = WarpSim(balls, 3, "cpu")
    assert sim.qpos.shape == (3, balls.nq) and sim.qpos.dtype == torch.float32
    assert sim.xmat.shape == (3, balls.nbody, 3, 3) and sim.cfrc_ext.shape == (3, balls.nbody, 6)
    address = sim.qpos.data_ptr()
    assert address == sim._data.qpos.ptr and sim.ctrl.data_ptr() == sim._data.ctrl.ptr
    before = sim.qpos.clone()
    sim.ctrl.fill_(1.0)
    sim.step(10)
    assert sim.qpos.data_ptr() == address and (sim.qpos[:, 0] > before[:, 0]).all()
    with pytest.raises(AttributeError, match="'nacon'"):
        _ = sim.nacon


def test_snapshot_continues_bit_for_bit(balls):
    sim = WarpSim(balls, 2, "cpu")
    _ = sim.xpos, sim.sensordata, sim.cfrc_ext
    rolling(sim)
    sim.step(20)
    saved = sim.snapshot()
    assert saved["xpos"].data_ptr() != sim.xpos.data_ptr()
    futures = []
    for target in (sim, WarpSim(balls, 2, "cpu")):  # the same simulator, and a new one, as on another machine
        target.restore(saved)
        assert torch.equal(target.xpos, saved["xpos"])  # xpos lags qpos by one substep
        for _ in range(50):
            target.step(2)
        futures.append(target.snapshot())
    assert futures[0].keys() == futures[1].keys()
    assert all(torch.equal(futures[0][name], futures[1][name]) for name in futures[0])
    assert not torch.equal(futures[0]["qpos"], saved["qpos"])
    with pytest.raises(UserError, match="2 worlds of 15 coordinates, this simulator 3 of 15"):
        WarpSim(balls, 3, "cpu").restore(saved)


def test_reset_touches_only_the_masked_envs(balls):
    sims = [WarpSim(balls, 3, "cpu") for _ in range(2)]
    for sim in sims:
        _ = sim.xpos, sim.qacc, sim.sensordata, sim.cfrc_ext
        rolling(sim)
        sim.step(30)
    disturbed, alone = sims
    qpos = disturbed.qpos.clone()
    qpos[:, 0] = 0.25
    before = disturbed.snapshot()
    disturbed.reset(torch.tensor([False, True, False]), qpos=qpos)
    after = disturbed.snapshot()
    for name in before:
        assert torch.equal(after[name][[0, 2]], before[name][[0, 2]]), name
    assert after["qpos"][1, 0] == 0.25 and after["time"][1] == 0 and (after["qvel"][1] == 0).all()
    assert torch.isclose(after["xpos"][1, 1, 0], torch.tensor(0.25))  # recomputed from the new qpos
    assert (after["cfrc_ext"][1] == 0).all() and (before["cfrc_ext"][1] != 0).any()
    for sim in sims:
        sim.step(10)
    assert torch.equal(disturbed.qpos[[0, 2]], alone.qpos[[0, 2]])  # nor does the reset change their future
    with pytest.raises(UserError, match=r"cannot set \['xpos'\]"):
        disturbed.reset(everywhere(disturbed), xpos=disturbed.xpos)


def test_a_reset_with_an_empty_mask_runs_no_forward_pass(balls):
    """qfrc_bias, which a forward pass overwrites, stays NaN until a reset with a non-empty mask."""
    sim = WarpSim(balls, 4, "cpu")
    mark = sim._tensor("qfrc_bias")
    mark.fill_(torch.nan)
    sim.reset(~everywhere(sim))
    assert mark.isnan().all()
    sim.reset(torch.arange(4) == 2)
    assert not mark.isnan().any()


def test_reset_recovers_a_diverged_env(balls):
    sim = WarpSim(balls, 2, "cpu")
    sim.qvel[1] = float("nan")
    sim.step()
    assert sim.diverged().tolist() == [False, True]
    sim.reset(sim.diverged())
    sim.step(5)
    assert not sim.diverged().any() and sim.qpos.isfinite().all()


def limited(**numerics: int) -> mujoco.MjModel:
    """Return the model with the custom numerics "max_contacts" or "max_constraints"."""
    spec = mujoco.MjSpec.from_string(BALLS)
    for name, value in numerics.items():
        spec.add_numeric(name=name, data=[value], size=1)
    return spec.compile()


def test_overflow_is_an_error_that_names_the_limit():
    # both balls rest on the floor: 2 contacts of 4 constraint rows each, and no other contact
    WarpSim(limited(max_contacts=2, max_constraints=8), 2, "cpu").step(5)
    with pytest.raises(Overflow, match="more than contacts=1 each on average"):
        WarpSim(limited(max_contacts=1, max_constraints=20), 2, "cpu").step(5)
    with pytest.raises(Overflow, match="World 0 needed more than constraints=7 constraint rows"):
        WarpSim(limited(max_constraints=7), 2, "cpu").step(5)


def test_capacity_counts_the_geom_pairs_that_can_touch(balls):
    assert touching_pairs(balls) == [(0, 2), (0, 3), (2, 3)]  # floor and balls; the cart touches nothing
    assert capacity(balls) == Capacity(contacts=3, constraints=3 * 4 + 2)  # 4 edges per cone; 2 limits of the slide
    assert capacity(limited(max_contacts=7)) == Capacity(contacts=7, constraints=7 * 4 + 2)
    chain = """<mujoco><worldbody><geom type="plane" size="1 1 1"/><body><freejoint/><geom size="0.1"/>
      <body><joint/><geom size="0.1"/><body><joint/><geom size="0.1"/></body></body></body></worldbody></mujoco>"""
    floor, links = [(0, 1), (0, 2), (0, 3)], [(1, 3)]  # a link and its parent are not tested for contact
    assert touching_pairs(mujoco.MjModel.from_xml_string(chain)) == floor + links
    ant = make_task("Ant").model
    data, found = mujoco.MjData(ant), set()
    for seed in range(20):
        data.qpos[:] = torch.randn(ant.nq, generator=torch.Generator().manual_seed(seed)).numpy()
        data.qpos[2] *= 0.3
        mujoco.mj_forward(ant, data)
        found |= {tuple(sorted(contact.geom.tolist())) for contact in data.contact}
    assert len(found) > 10 and found <= set(touching_pairs(ant))


def test_model_parameters_may_differ_between_envs(balls):
    sim = WarpSim(balls, 2, "cpu")
    sim.step(4)
    sim.reset(everywhere(sim))
    sim.parameter("body_mass")[1, balls.body("cart").id] *= 4
    sim.ctrl.fill_(0.5)
    sim.step(4)
    assert torch.isclose(sim.qvel[0, 0], 4 * sim.qvel[1, 0], rtol=1e-4)
    saved = sim.snapshot()
    other = WarpSim(balls, 2, "cpu")
    other.restore(saved)
    for each in (sim, other):
        each.step(10)
    assert torch.equal(sim.qpos, other.qpos)
    with pytest.raises(AttributeError, match="'geom_type'"):
        sim.parameter("geom_type")


def test_both_simulators_render_the_same_image(balls):
    pictures = []
    for sim in (WarpSim(balls, 2, "cpu"), CpuSim(balls, 2, threads=1)):
        sim.reset(everywhere(sim), qpos=torch.tensor(balls.qpos0).repeat(2, 1))
        pictures.append(sim.render(("eye",), 24, 32, shadows=True).float())
    assert pictures[0].shape == (2, 1, 24, 32, 3) and pictures[0].std() > 20
    assert (pictures[0] - pictures[1]).abs().mean() < 1.0


@pytest.mark.parametrize("name", ["Reach", "Ant"])
def test_tasks_run_unchanged_on_warp(name, monkeypatch):
    envs = []
    for make in (lambda model, n, *_: WarpSim(model, n, "cpu"), lambda model, n, *_: CpuSim(model, n, threads=1)):
        monkeypatch.setattr("kit.envs.task.make_sim", make)
        from kit.envs.vec import TensorEnv

        envs.append(TensorEnv(make_task(name), 3))
    # the generators draw in different precision, so start both from the same state
    state = {field: getattr(envs[1].task.sim, field).clone() for field in ("qpos", "qvel", "mocap_pos", "mocap_quat")}
    for env in envs:
        env.task.sim.reset(everywhere(env.task.sim), **state)
        env.task.load_state({name: value.to(env.task.sim.dtype) if value.is_floating_point() else value
                             for name, value in envs[1].task.state().items()})  # fmt: skip
        env.task.measure()
    action = torch.rand(3, *envs[0].action_space.shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    for _ in range(2):  # ends before the first contact, which would amplify float32 errors
        warp, c = (env.step(action) for env in envs)
        assert torch.allclose(warp[0], c[0], atol=1e-3)
        assert torch.allclose(warp[1], c[1], atol=1e-3)
        assert torch.equal(warp[2], c[2]) and torch.equal(warp[3], c[3])


def test_deterministic_mode_runs_and_repeats(balls):
    """The CPU device always repeats, so this shows only that the mode is accepted and steps run."""
    futures = []
    for _ in range(2):
        sim = WarpSim(balls, 2, "cpu", deterministic=True)
        assert sim._model.opt.deterministic & mjw.DeterminismType.ATOMICS
        rolling(sim)
        sim.step(20)
        futures.append(sim.qpos.clone())
    assert torch.equal(*futures)


def test_models_with_sleeping_bodies_are_refused():
    xml = """<mujoco><option><flag sleep="enable"/></option><worldbody><body><freejoint/><geom size="0.1"/></body>
      </worldbody></mujoco>"""
    with pytest.raises(UserError, match='remove sleep="enable"'):
        WarpSim(mujoco.MjModel.from_xml_string(xml), 1, "cpu")


def test_a_missing_gpu_raises_a_one_sentence_error(balls):
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA GPU")
    with pytest.raises(UserError, match="device='cuda' cannot be used: torch finds no CUDA GPU"):
        WarpSim(balls, 1, "cuda")
