"""Tests of simulation and training on CUDA: shared memory, CUDA graphs, no synchronisation, overflow, whole runs.

They need a GPU, or the pretended one: `pytest -p tests.card -o addopts= tests/sim/test_cuda.py`.
"""

from __future__ import annotations

import gc
import threading
from dataclasses import replace
from types import MappingProxyType

import mujoco
import pytest
import torch

import kit
from kit.envs import TensorEnv, make_task, make_vec
from kit.envs.randomize import ActionDelay, ModelTerm, ObservationNoise
from kit.errors import Overflow, UserError
from kit.measure.auto import resolve
from kit.runs.session import Session
from kit.sim.kernels import beside_torch
from kit.sim.render import POSES, Renderer
from kit.sim.warp import _CHECK_EVERY, WarpSim
from kit.tasks.mission.task import Mission
from kit.trainers import make_trainer
from kit.trainers.ppo import ALGORITHM, PPO
from kit.trainers.recorded import Recorded
from tests import card
from tests.envs.chase import ChaseState
from tests.envs.slide import Slide
from tests.runs.crash import SLIDE, SMALL, create
from tests.sim.test_warp import BALLS, limited
from tests.trainers.iteration import one_iteration

import mujoco_warp as mjw  # isort: skip  initialises Warp, so after kit.machine.warp

DEVICE = "cuda"
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.timeout(900),
]

CART = """
<mujoco><option timestep="0.005"/><worldbody><body><joint name="slide" type="slide" axis="1 0 0" damping="0.3"/>
  <geom size="0.1" mass="1"/></body></worldbody><actuator><motor joint="slide"/></actuator></mujoco>"""  # fmt: skip


CHASE, CORRIDOR = "tests.envs.chase:ChaseState", "tests.envs.corridor:Corridor"


@pytest.fixture(scope="module")
def balls() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(BALLS)


def rolling(model: mujoco.MjModel, n: int = 4) -> WarpSim:
    sim = WarpSim(model, n, DEVICE)
    generator = torch.Generator().manual_seed(0)
    qvel = torch.randn(n, model.nv, generator=generator).to(sim.device)
    sim.reset(torch.ones(n, dtype=torch.bool, device=sim.device), qvel=qvel)
    sim.ctrl.copy_(torch.rand(n, model.nu, generator=generator))
    return sim


def test_torch_and_warp_share_memory(balls):
    sim = WarpSim(balls, 4, DEVICE)
    assert sim.qpos.device.type == DEVICE
    assert sim.qpos.data_ptr() == sim._data.qpos.ptr and sim.ctrl.data_ptr() == sim._data.ctrl.ptr
    before = sim.qpos.clone()
    sim.ctrl.fill_(1.0)  # torch writes ctrl, Warp reads it and writes qpos, torch reads qpos
    sim.step(20)
    assert (sim.qpos[:, 0] > before[:, 0]).all()


def test_the_cuda_graph_equals_its_kernels_launched_one_by_one(balls):
    recorded, eager = rolling(balls), rolling(balls)
    for _ in range(5):
        recorded.step(2)
        with beside_torch(eager.device):
            for _ in range(2):
                mjw.step(eager._model, eager._data)
    assert torch.allclose(recorded.qpos, eager.qpos, atol=1e-5)
    assert torch.allclose(recorded.qvel, eager.qvel, atol=1e-3)


def test_cuda_graphs_are_recorded_beside_other_threads_and_garbage(balls):
    """Meanwhile a checkpoint thread may use torch's default stream, and the garbage collector may free older graphs."""
    over, device = threading.Event(), torch.device(DEVICE)

    def copy() -> None:
        while not over.is_set():
            torch.ones(1000, device=DEVICE).cpu()

    before = gc.get_threshold()
    gc.set_threshold(20)
    thread = threading.Thread(target=copy)
    thread.start()
    try:
        for substeps in range(1, 9):
            sim = rolling(balls)
            older = [sim, plus_one := Recorded(lambda x: (x + 1,), device)]
            older.append(older)  # a reference cycle, freed by the garbage collector in a later iteration
            sim.step(substeps)
            (two,) = plus_one(torch.ones(substeps, device=DEVICE))
            assert (two == 2).all() and sim.qpos.isfinite().all()
    finally:
        gc.set_threshold(*before)
        over.set()
        thread.join()


def test_a_single_chain_without_contacts_repeats_bit_for_bit():
    model, ends = mujoco.MjModel.from_xml_string(CART), []
    for _ in range(2):
        sim = rolling(model, 256)
        for _ in range(50):
            sim.step(4)
        ends.append(sim.snapshot())
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_a_snapshot_is_restored_exactly_and_its_future_is_nearly_equal(balls):
    sim = rolling(balls)
    _ = sim.xpos, sim.sensordata, sim.cfrc_ext
    sim.step(20)
    saved, futures = sim.snapshot(), []
    for target in (sim, WarpSim(balls, sim.n, DEVICE)):
        target.restore(saved)
        again = target.snapshot()
        assert all(torch.equal(again[name], saved[name]) for name in saved)
        target.step(5)
        futures.append(target.qpos.clone())
    assert torch.allclose(*futures, atol=1e-4)  # atomic sums over contacts round in any order


def test_reset_touches_only_the_masked_envs(balls):
    sim = rolling(balls)
    _ = sim.xpos, sim.sensordata
    sim.step(20)
    before = sim.snapshot()
    sim.reset(torch.tensor([False, True, False, False], device=sim.device))
    after = sim.snapshot()
    assert all(torch.equal(after[name][[0, 2, 3]], before[name][[0, 2, 3]]) for name in before)
    assert after["time"][1] == 0


def test_overflow_is_reported_by_snapshot_and_by_a_later_step():
    sim = rolling(limited(max_contacts=1, max_constraints=20))
    sim.step()
    with pytest.raises(Overflow, match="contacts=1 each on average"):
        sim.snapshot()
    with pytest.raises(Overflow, match="contacts=1 each on average"):
        for _ in range(3 * _CHECK_EVERY):
            sim.step()
            torch.cuda.synchronize()


def test_images_equal_those_rendered_on_the_cpu():
    """More than 99 % of the pixels differ by at most 2 of 255 levels; edges may differ more."""
    env = make_vec("Reach", 4, threads=1)
    env.reset(seed=0)
    for _ in range(5):
        env.step(2 * torch.rand(4, 7) - 1)
    fields = {name: env.task.sim.field(name) for name in POSES}
    cameras, model = ("front", "side", "top"), env.task.model
    here, there = (Renderer(model, 4, cameras, 64, 64, device).render(fields).cpu() for device in ("cpu", DEVICE))
    apart = (here.int() - there.int()).abs().amax(-1)
    assert (apart > 2).float().mean() < 0.01


def test_mission_is_played_as_on_the_cpu():
    """From the same states with the same commands. Rounding may decide otherwise in a few of 256 games in 200 steps."""
    here, there = (TensorEnv(make_task("Mission"), 256, device, autoreset=False) for device in ("cpu", DEVICE))
    obs, generator, chases = here.reset(seed=0), torch.Generator().manual_seed(0), 0
    there.task.load_state(here.task.state())
    for _ in range(200):
        commands = torch.where(torch.rand(256, 4, generator=generator) < 0.7, Mission.straight(obs), 0)
        obs = here.step(commands)[0]
        there.step(commands.to(there.device))
        chases += int((here.task.minds[..., 1] > 0).sum())
    apart = (here.task.attackers - there.task.attackers.cpu()).abs().amax((1, 2))
    assert (apart < 0.01).float().mean() > 0.95
    assert chases > 1000, "defenders must see attackers"


@pytest.mark.parametrize(
    ("env", "algo"), [("Ant", "PPO"), ("Reach", "PPO"), ("Go1Joystick", "PPO"), ("Reach", "A2C"), ("Reach", "SAC")]
)
def test_nothing_waits_for_the_gpu_inside_a_rollout_or_an_update(tmp_path, env, algo):
    if card.is_installed() and (env, algo) != ("Reach", "PPO"):
        pytest.skip("test_waits counts them on the pretended GPU")
    if env == "Go1Joystick":
        menagerie = pytest.importorskip("mujoco_menagerie")
        try:
            menagerie.load("unitree_go1", "scene")
        except menagerie.MenagerieError as error:
            pytest.skip(f"no model of the Go1: {error}")
    steps = {"SAC": {"train_freq": 40}}.get(algo, {"n_steps": 40})  # more than _CHECK_EVERY: includes an overflow check
    run = create(tmp_path, "run", algo, {**steps, "normalize": True}, env=env, n_envs=16, device=DEVICE)
    trainer = make_trainer(run.config, make_vec(env, 16, DEVICE))
    trainer.learn(2 * 40 * 16)  # records the CUDA graphs, because recording synchronises
    _, callback = trainer._setup_learn(10**9, None, False)
    trainer._log_now = False
    torch.cuda.set_sync_debug_mode("error")
    try:
        one_iteration(trainer, callback, gradient_steps=4)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("algo", ["PPO", "A2C", "SAC"])
def test_a_short_run_trains_resumes_and_evaluates(tmp_path, algo):
    if card.is_installed() and algo == "A2C":
        pytest.skip("on the pretended GPU it shows what PPO shows")
    few = {"train_freq": 8, "gradient_steps": 4} if algo == "SAC" else {}
    sizes = {"n_envs": 16, "total_steps": 768, "eval_every": 768}
    run = create(tmp_path, "run", algo, SMALL[algo] | few, env=SLIDE, device=DEVICE, **sizes)
    assert Session(run.path)() == 0, run.log()
    rows = run.rows()
    assert any("eval/mean_return" in row for row in rows) and any("train/n_updates" in row for row in rows)
    from kit import resume

    again = resume(run.path, total_steps=1024)
    assert again.status()["state"] == "finished" and again.status()["step"] >= 1024


def test_a_clone_learns_from_recorded_actions(tmp_path):
    dataset = str(kit.record("scripted", tmp_path / "recorded", env=CHASE, episodes=4))
    overrides = {"batch_size": 32, "gradient_steps": 4, "normalize": True, "policy_kwargs": {"net_arch": [16]}}
    run = create(tmp_path, "clone", "BC", overrides, env=CHASE, device=DEVICE, dataset=dataset, total_steps=512)
    assert Session(run.path)() == 0, run.log()


class Spoilt(ChaseState):
    """Its reward is NaN in step 40 of an episode."""

    episode_steps = 1000
    keeps = (*ChaseState.keeps, "steps")

    def build(self, n, device, threads=None):
        super().build(n, device, threads)
        self.steps = torch.zeros(n, dtype=torch.int64, device=device)

    def reset(self, mask, generator):
        super().reset(mask, generator)
        self.steps.masked_fill_(mask, 0)

    def advance(self, action):
        super().advance(action)
        self.steps += 1

    def reward(self, action):
        return torch.where(self.steps == 40, torch.nan, super().reward(action))


@pytest.mark.parametrize("algo", ["PPO", "SAC"])
def test_no_checkpoint_holds_weights_that_are_nan(tmp_path, algo):
    few = {"train_freq": 4, "learning_starts": 8} if algo == "SAC" else {"n_steps": 8}
    sizes = {"n_envs": 2, "total_steps": 4000, "eval_every": 0, "checkpoint_every": 32}
    run = create(tmp_path, "run", algo, few, env=f"{__name__}:Spoilt", device=DEVICE, **sizes)
    with pytest.raises(UserError, match="NaN or infinite"):
        Session(run.path)()
    assert run.checkpoints()
    for saved in run.checkpoints():
        assert all(weights.isfinite().all() for weights in saved.read(False)["policy"].values()), saved.step


class Growing(PPO):
    """A loss whose coefficient changes while it trains."""

    def loss(self, new, batch, clip_range, clip_range_vf=None):
        return self.iteration * new.values.mean() + 0.0 * new.log_prob.mean()


RECORD = replace(ALGORITHM, name="Growing", trainer=Growing)
GROWING = f"{__name__}:RECORD"


def test_numbers_that_a_loss_reads_may_change(monkeypatch):
    """The gradient of ε mean V + 0 with respect to V's bias is ε; of the loss of PPO, -ent_coef per log σ."""
    for algo, coefficient, parameter in ((GROWING, "iteration", "value_net.bias"), ("PPO", "ent_coef", "log_std")):
        overrides = SMALL["PPO"] | {"n_epochs": 1, "batch_size": 64}
        config = resolve(kit.RunConfig(env=CHASE, algo=algo, n_envs=4, threads=1, device=DEVICE, overrides=overrides))
        trainer = make_trainer(config, make_vec(CHASE, 4, DEVICE))
        _, callback = trainer._setup_learn(10**9, None, True)
        trainer._log_now, gradients = False, []
        for number in (1, 10, 1000):
            setattr(trainer, coefficient, number)
            monkeypatch.setattr(trainer.networks, "step", lambda norm: None)
            one_iteration(trainer, callback)
            gradients.append(abs(trainer.policy.get_parameter(parameter).grad.cpu()).sum().item())
        assert gradients == pytest.approx([1, 10, 1000], rel=0.2)


def test_discrete_observations_and_an_lstm_train_and_resume(tmp_path):
    overrides = {"policy_kwargs": {"net_arch": [8], "lstm_hidden_size": 8}}
    sizes = {"n_envs": 2, "total_steps": 32, "eval_every": 0}
    run = create(tmp_path, "run", "RecurrentPPO", overrides, env=CORRIDOR, device=DEVICE, **sizes)
    assert Session(run.path)() == 0, run.log()
    assert kit.resume(run.path, total_steps=64).status()["state"] == "finished"


def test_randomised_physics_and_delays_train_and_resume(tmp_path):
    sizes = {"n_envs": 4, "total_steps": 64, "eval_every": 0, "env_options": {"randomize": True}}
    run = create(tmp_path, "run", env=f"{__name__}:Shaken", device=DEVICE, **sizes)
    assert Session(run.path)() == 0, run.log()
    assert kit.resume(run.path, total_steps=128).status()["state"] == "finished"


class Shaken(Slide):
    random_terms = MappingProxyType({
        "mass": ModelTerm(("body_mass", "body_inertia"), low=0.5, high=2.0),
        "damping": ModelTerm(("dof_damping",), low=0.5, high=2.0, every_s=0.02),
        "delay": ActionDelay(low=0, high=2),
        "noise": ObservationNoise(low=-0.1, high=0.1),
    })  # fmt: skip


def test_state_dependent_noise_acts_before_the_first_rollout():
    config = resolve(kit.RunConfig(env=CHASE, n_envs=4, device=DEVICE, overrides=SMALL["PPO"] | {"use_sde": True}))
    trainer = make_trainer(config, make_vec(CHASE, 4, DEVICE))
    assert trainer.act(trainer._last_obs, deterministic=False).device.type == DEVICE


def test_a_run_moves_between_gpu_and_cpu(tmp_path):
    from kit import resume

    run = create(tmp_path, "run", env="Ant", n_envs=8, device=DEVICE, overrides=SMALL["PPO"], total_steps=128)
    assert Session(run.path)() == 0, run.log()
    for total, device in ((256, "cpu"), (384, DEVICE)):
        assert resume(run.path, total_steps=total, device=device).status()["state"] == "finished"
