"""Tests of `CpuSim`: equals plain MuJoCo on any number of threads, snapshots are exact, divergence is reported."""

from __future__ import annotations

import itertools
import threading
import warnings

import mujoco
import numpy as np
import pytest
import torch

from kit.errors import UserError
from kit.sim import make_sim
from kit.sim.cpu import CpuSim

# A free box with a motorised leg on a floor (contacts, friction), and a mocap marker. A step takes microseconds.
XML = """
<mujoco>
  <option timestep="0.005"/>
  <worldbody>
    <geom name="floor" type="plane" size="5 5 .1"/>
    <body name="box" pos="0 0 .3">
      <freejoint/>
      <geom type="box" size=".1 .1 .05"/>
      <body pos=".1 0 0"><joint name="leg" axis="0 1 0" damping=".1"/><geom type="capsule" fromto="0 0 0 .2 0 -.1" size=".02"/></body>
    </body>
    <body name="marker" mocap="true"><geom type="sphere" size=".01" contype="0" conaffinity="0"/><site name="mark"/></body>
  </worldbody>
  <actuator><motor joint="leg" gear="1"/></actuator>
</mujoco>
"""  # noqa: E501


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(XML)


def random_ctrl(steps: int, n: int) -> torch.Tensor:
    return torch.rand(steps, n, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 - 1


@pytest.mark.parametrize(("threads", "n"), [(1, 5), (3, 5), (3, 13)])
def test_each_env_equals_plain_mujoco(model, threads, n):
    sim = make_sim(model, n, threads=threads)
    xpos, forces = sim.xpos, sim.cfrc_ext  # registers the fields, so that the steps update them
    bare = [mujoco.MjData(model) for _ in range(n)]
    for ctrl in random_ctrl(60, n):
        sim.ctrl.copy_(ctrl)
        sim.step(3)
        for data, value in zip(bare, ctrl, strict=True):
            data.ctrl[:] = value
            mujoco.mj_step(model, data, 3)
            mujoco.mj_rnePostConstraint(model, data)
    assert max(data.ncon for data in bare) > 0, "the test needs contacts"
    for world, data in enumerate(bare):
        assert np.array_equal(sim.qpos[world], data.qpos)
        assert np.array_equal(xpos[world], data.xpos)
        assert np.array_equal(forces[world], data.cfrc_ext)
    sim.close()


def test_a_turn_that_a_helper_thread_queues_last_is_stepped(model, monkeypatch):
    """A helper thread blocks in its first turn until the other turns are done; its second turn must still run."""
    sim, n = make_sim(model, 8, threads=2), 8
    calls, others_done = [], threading.Event()
    mj_step = mujoco.mj_step

    def step(model: mujoco.MjModel, data: mujoco.MjData, substeps: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            assert others_done.wait(200)
        mj_step(model, data, substeps)
        calls.append(substeps)
        if len(calls) == n + 4 - 2:  # all turns but the helper's first one and the second turn that it queues
            others_done.set()

    monkeypatch.setattr(mujoco, "mj_step", step)
    sim.step(5)
    assert sorted(calls) == 4 * [1] + 4 * [4] + 4 * [5]
    alone = make_sim(model, n, threads=1)
    alone.step(5)
    assert torch.equal(sim.qpos, alone.qpos) and torch.equal(sim.qvel, alone.qvel)
    sim.close()


def test_a_field_keeps_its_memory_and_is_current_from_its_first_use(model):
    sim, bare = CpuSim(model, 2), mujoco.MjData(model)
    sim.step(10)
    mujoco.mj_step(model, bare, 10)
    late = sim.geom_xmat
    assert late.shape == (2, model.ngeom, 3, 3)
    mujoco.mj_kinematics(model, bare)  # at its first use, a field is computed from the current state
    assert np.array_equal(late[0].flatten(1), bare.geom_xmat)
    address = late.data_ptr()
    sim.step(10)
    mujoco.mj_step(model, bare, 10)  # later, it has the value that mj_step leaves
    assert sim.geom_xmat is late and late.data_ptr() == address
    assert np.array_equal(late[1].flatten(1), bare.geom_xmat)
    sim.close()


@pytest.mark.parametrize("name", ["nonsense", "efc_force", "nefc", "time"])
def test_only_arrays_of_fixed_size_are_fields(model, name):
    with pytest.raises(AttributeError, match=name):
        getattr(CpuSim(model, 1), name)


def test_inputs_are_read_by_step(model):
    sim = CpuSim(model, 2, threads=1)
    site = sim.site_xpos
    sim.mocap_pos[1, 0] = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    sim.step()
    assert site[1, 0].tolist() == [1.0, 2.0, 3.0]
    assert site[0, 0].tolist() == [0.0, 0.0, 0.0]

    bare = mujoco.MjData(model)
    mujoco.mj_step(model, bare)
    sim.xfrc_applied[0, 1] = torch.arange(6.0)
    sim.qfrc_applied[0, 0] = bare.qfrc_applied[0] = 2.0
    bare.xfrc_applied[1] = np.arange(6.0)
    sim.step(5)
    mujoco.mj_step(model, bare, 5)
    assert np.array_equal(sim.qpos[0], bare.qpos) and np.array_equal(sim.qvel[0], bare.qvel)


def test_reset_touches_only_the_masked_envs(model):
    sim = CpuSim(model, 4, threads=2)
    sim.ctrl[:] = 0.5
    sim.mocap_pos[:, 0, 0] = 7.0
    names = ("qpos", "qvel", "ctrl", "xpos", "mocap_pos", "cfrc_ext", "site_xpos")
    for name in names:
        sim.field(name)
    sim.step(50)
    before = {name: sim.field(name).clone() for name in names}
    mask = torch.tensor([False, True, False, True])
    qpos = torch.as_tensor(model.qpos0).repeat(4, 1)
    qpos[:, 2] = torch.arange(4) + 1.0
    sim.reset(mask, qpos=qpos)
    for name in names:
        assert torch.equal(sim.field(name)[~mask], before[name][~mask]), name
        assert not torch.equal(sim.field(name)[mask], before[name][mask]), name
    box = model.body("box").id
    assert sim.xpos[:, box, 2][mask].tolist() == [2.0, 4.0], "positions must be computed from the new qpos"
    assert sim.ctrl[mask].abs().max() == 0 and sim.qvel[mask].abs().max() == 0

    bare = mujoco.MjData(model)  # a reset env continues like a new simulation
    bare.qpos[2] = 2.0
    mujoco.mj_step(model, bare, 20)
    sim.step(20)
    assert np.array_equal(sim.qpos[1], bare.qpos)
    sim.close()


def test_a_reset_cannot_set_what_follows_from_the_state(model):
    sim = CpuSim(model, 2, threads=1)
    with pytest.raises(UserError, match=r"cannot set \['xpos'\]"):
        sim.reset(torch.ones(2, dtype=torch.bool), xpos=sim.xpos)


def test_sizes_do_not_differ_between_worlds(model):
    """Contacts would need other bounding volumes too."""
    with pytest.raises(AttributeError, match="'geom_size' is not a field of the model that can differ"):
        CpuSim(model, 2).parameter("geom_size")


def test_worlds_with_other_masses_do_not_depend_on_the_threads():
    """Camera and weld have places of their own, which must not be recomputed from a world's masses."""
    model = mujoco.MjModel.from_xml_string("""
      <mujoco><worldbody>
        <body name="hand" mocap="true"/>
        <body name="box" pos="0 0 1"><freejoint/><geom size=".1"/><camera name="eye" mode="trackcom" pos="0 -2 0"/>
          <body pos=".3 0 0"><joint axis="0 1 0"/><geom size=".1"/></body></body>
      </worldbody><equality><weld body1="hand" body2="box"/></equality></mujoco>""")
    model.eq_data[:, :7] = 0, 0, 0, 0, 0, 0, 1  # the hand holds the box in the middle
    ends = []
    for threads in (1, 3):
        sim = CpuSim(model, 6, threads=threads)
        _ = sim.cam_xpos
        sim.parameter("body_mass")[:, 3] *= torch.arange(1, 7)
        sim.derive(torch.ones(6, dtype=torch.bool))
        sim.step(500)
        ends.append((sim.qpos.clone(), sim.cam_xpos.clone()))
        sim.close()
    assert torch.equal(ends[0][0], ends[1][0]) and torch.equal(ends[0][1], ends[1][1])
    assert ends[0][0][:, :3].abs().max() < 0.1, "the box is at the hand"


def test_a_moved_centre_of_mass_hides_no_contact():
    """MuJoCo places the tree of a body's many geoms, by which it finds contacts, relative to the centre of mass."""
    geoms = "".join(f'<geom size=".05" pos="{x / 5} {y / 5} 0"/>' for x in range(-2, 3) for y in range(-2, 3))
    model = mujoco.MjModel.from_xml_string(f"""
      <mujoco><worldbody>
        <body pos="0 0 .2"><geom type="box" size="1 1 .01"/><geom type="box" size="1 .1 .01"/></body>
        <body name="rack" pos="0 0 .258"><freejoint/>{geoms}</body>
      </worldbody></mujoco>""")
    sim, everywhere = CpuSim(model, 2, threads=1), torch.ones(2, dtype=torch.bool)
    sim.parameter("body_ipos")[0, model.body("rack").id, 2] = 0.5  # the other world's stays in the middle
    sim.derive(everywhere)
    sim.reset(everywhere)
    sim.step(20)
    assert (sim.qpos[:, 2] > 0.25).all(), "the racks lie on the tables"


@pytest.mark.parametrize("elsewhere", [False, True], ids=["same simulator", "another simulator"])
def test_restore_is_bit_exact_over_200_random_steps(model, elsewhere):
    sim, ctrl = CpuSim(model, 3, threads=2), random_ctrl(300, 3)
    names = ("qpos", "qvel", "xpos", "cfrc_ext", "qacc", "ctrl")
    for name in names:
        sim.field(name)

    def run(sim: CpuSim, steps: range) -> list[torch.Tensor]:
        seen = []
        for step in steps:
            sim.ctrl.copy_(ctrl[step])
            sim.step(2)
            seen += [sim.field(name).clone() for name in names]
        return seen

    run(sim, range(100))
    saved = sim.snapshot()
    lagging = sim.xpos.clone()
    first = run(sim, range(100, 300))
    target = CpuSim(model, 3, threads=1) if elsewhere else sim
    target.restore(saved)
    assert torch.equal(target.xpos, lagging)
    assert torch.equal(target.snapshot()["state"], saved["state"])  # integration state, with the solver's warm start
    assert all(torch.equal(a, b) for a, b in zip(first, run(target, range(100, 300)), strict=True))
    sim.close()


# The state has more than qpos and qvel: activations, history of a delayed actuator, eq_active, userdata.
ODD = """
<mujoco>
  <size nuserdata="3"/>
  <option timestep="0.005"/>
  <worldbody>
    <geom type="plane" size="5 5 .1"/>
    <body name="a" pos="0 0 .3"><freejoint/><geom size=".1"/></body>
    <body name="b" pos=".5 0 .3"><joint name="j" axis="0 1 0"/><geom size=".1" pos=".1 0 0"/></body>
  </worldbody>
  <equality><connect body1="a" body2="b" anchor="0 0 0"/></equality>
  <actuator>
    <general joint="j" dyntype="filter" dynprm=".1" gainprm="3" delay="0.02" nsample="8" interp="linear"/>
  </actuator>
</mujoco>
"""


def test_every_part_of_the_state_is_per_env_and_saved():
    model = mujoco.MjModel.from_xml_string(ODD)
    assert min(model.na, model.neq, model.nuserdata, mujoco.MjData(model).history.size) > 0
    sim, ctrl, n = CpuSim(model, 5, threads=2), random_ctrl(60, 5), 5
    bare = [mujoco.MjData(model) for _ in range(n)]
    sim.eq_active[1], bare[1].eq_active[0] = False, 0
    for world, data in enumerate(bare):
        sim.userdata[world] = data.userdata[:] = world
    names = ("qpos", "act", "history", "userdata", "eq_active", "qacc", "qfrc_actuator")
    for name in names:
        sim.field(name)

    def step(sim: CpuSim, value: torch.Tensor) -> None:
        sim.ctrl.copy_(value)
        sim.step(3)

    for value in ctrl[:30]:
        step(sim, value)
        for data, number in zip(bare, value, strict=True):
            data.ctrl[:] = number
            mujoco.mj_step(model, data, 3)
        for name, (world, data) in itertools.product(names, enumerate(bare)):
            assert np.array_equal(sim.field(name)[world], getattr(data, name)), name
    other = CpuSim(model, n, threads=1)
    other.restore(sim.snapshot())
    assert all(torch.equal(sim.field(name), other.field(name)) for name in names)
    for value in ctrl[30:]:
        step(sim, value), step(other, value)
    assert all(torch.equal(sim.field(name), other.field(name)) for name in names)
    assert sim.snapshot()["state"][:, 0].tolist() == pytest.approx([180 * 0.005] * n)  # time, s
    sim.close()


def test_a_snapshot_of_another_size_is_refused(model):
    with pytest.raises(UserError, match="3 worlds"):
        CpuSim(model, 2).restore(CpuSim(model, 3).snapshot())


def test_divergence_is_reported_for_the_diverged_env_only(model):
    sim = CpuSim(model, 3, threads=2)
    sim.step()
    assert sim.diverged() is None
    qvel = torch.zeros(3, model.nv, dtype=torch.float64)
    qvel[1, 0] = 1e12
    with pytest.warns(RuntimeWarning, match="1 of 3 worlds diverged \\(first: world 1\\)"):
        sim.reset(torch.tensor([False, True, False]), qvel=qvel)
        sim.step()
    assert sim.diverged().tolist() == [False, True, False]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sim.step()
    assert sim.diverged() is None
    sim.close()


def test_actions_that_are_not_numbers_are_refused(model):
    sim = CpuSim(model, 2, threads=1)
    sim.ctrl[1] = torch.nan
    with pytest.raises(FloatingPointError, match="world 1"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sim.step()


def test_a_warning_during_reset_is_not_attributed_to_another_env(model):
    """All envs of a thread share one MjData and its warning counters."""
    sim = CpuSim(model, 3, threads=1)
    ctrl = torch.full((3, 1), torch.nan, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sim.reset(torch.tensor([False, False, True]), ctrl=ctrl)
        with pytest.raises(FloatingPointError, match="world 2"):
            sim.step()
        sim.ctrl[:] = 0.0
        sim.step()


def test_a_model_that_sleeps_is_refused():
    xml = '<mujoco><option><flag sleep="enable"/></option><worldbody/></mujoco>'
    with pytest.raises(UserError, match='remove sleep="enable"'):
        CpuSim(mujoco.MjModel.from_xml_string(xml), 1)


def test_a_model_without_joints_is_refused():
    with pytest.raises(UserError, match="no joints"):
        CpuSim(mujoco.MjModel.from_xml_string("<mujoco/>"), 1)


def test_mujocos_warnings_become_python_warnings_and_no_file_is_written(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = mujoco.MjData(model)
    data.qpos[0] = np.nan
    with pytest.warns(RuntimeWarning, match="unstable"):
        mujoco.mj_step(model, data)
    assert list(tmp_path.iterdir()) == []
