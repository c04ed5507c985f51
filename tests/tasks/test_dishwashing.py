"""Tests of Dishwashing: cleaning, friction, payment, broken and rejected plates, business metrics, Warp, images."""

from __future__ import annotations

import math
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

import kit
from kit.envs import TensorEnv
from kit.errors import UserError
from kit.sim.warp import WarpSim
from kit.tasks.dishwashing import dirt, economy
from kit.tasks.dishwashing.model import (
    CELL_M,
    FORCE,
    HOVER_M,
    LIFT_N,
    MOST_PRESS_N,
    MOST_SPEED_MPS,
    WELL_M,
    build_model,
)
from kit.tasks.dishwashing.model import cells as middles
from kit.tasks.dishwashing.rules import Rules
from kit.tasks.dishwashing.task import Dishwashing

PLATE = ("x_m", "y_m", "waiting_s", "time_s", "first_dirt", "paid_usd", "is_broken", "stands_n")
"""The columns of a task's tensor `plate`."""


def sink(n: int = 1, name: str = "Dishwashing", **options: Any) -> Any:
    return kit.make_vec(name, n, seed=0, threads=1, env_options={"offset_m": 0.0, **options})


def do(x: float = 0.0, y: float = 0.0, press_n: float = -LIFT_N) -> torch.Tensor:
    """Return the action (1, 3) for velocities in m/s and a force in N."""
    press = 2 * (press_n + LIFT_N) / (MOST_PRESS_N + LIFT_N) - 1
    return torch.tensor([[x / MOST_SPEED_MPS, y / MOST_SPEED_MPS, press]])


def column(env: Any, name: str) -> torch.Tensor:
    """Return a column of the task's `plate`, (n,), as a view: writing to it changes the plates."""
    return env.task.plate[:, PLATE.index(name)]  # type: ignore[no-any-return]


def force_n(env: Any) -> float:
    """Return the force between sponge and plate in the only env, N."""
    return abs(env.task.sim.sensordata[0, env.task.model.sensor(FORCE).adr[0] + 3].item())


def put(env: Any, x: float, y: float, z: float = 0.0, plate: float = 0.0) -> None:
    """Put the only env's sponge at (x, y, z), at rest, and its plate at x = `plate`."""
    qpos = torch.tensor([[x, y, z]], dtype=torch.float64)
    middle = torch.tensor([[[plate, 0.0, 0.0]]], dtype=torch.float64)
    env.task.plate[:, :2] = middle[0, :, :2]
    env.task.sim.reset(torch.tensor([True]), qpos=qpos, mocap_pos=middle)
    env.task.measure()


def soil(env: Any, thickness: float = 1.0) -> None:
    """Set the same dirt thickness in all cells."""
    env.task.dirt.fill_(thickness)
    column(env, "first_dirt").fill_(env.task.dirt.sum(1)[0])


def test_the_dirt_grid_covers_the_plate() -> None:
    assert middles().shape == (52, 2)  # 8 × 8, without three in each corner
    assert np.linalg.norm(middles(), axis=1).max() < WELL_M and np.allclose(middles().mean(0), 0)
    assert len({tuple(np.round(m, 6)) for m in middles()}) == 52


def test_rubbing_follows_prestons_law() -> None:
    at = torch.tensor([[0.0, 0.0], [0.02, 0.0], [0.0, 0.05]], dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)
    taken = dirt.rubbed(torch.zeros(1, 2), at, 30 * one, 0.4 * one, 0.04, 3e-4, 0.1)[0]
    middle = 3e-4 * (2 * 30 / (math.pi * 0.04**2)) * 0.4 * 0.1  # k p v t, with the pressure p in the middle
    assert taken.tolist() == pytest.approx([middle, 0.75 * middle, 0.0])  # at 2 of 4 cm: 1 - (2/4)²; at 5 cm: 0
    fine = torch.cartesian_prod(*[torch.arange(-0.04, 0.04, 5e-4, dtype=torch.float64) + 2.5e-4] * 2)
    whole = dirt.rubbed(torch.zeros(1, 2), fine, 30 * one, one, 0.04, 1.0, 1.0).sum() * 5e-4**2
    assert whole.item() == pytest.approx(30, rel=1e-3), "the integral of the pressure is the force"


def test_only_pressing_and_sliding_cleans() -> None:
    env = sink()
    put(env, 0.0, 0.0)
    soil(env)
    for _ in range(10):
        env.step(do(press_n=30))
    standing = 52 - env.task.dirt.sum().item()
    assert standing < 0.02 and force_n(env) == pytest.approx(30, rel=0.01)
    put(env, -0.06, 0.0, HOVER_M)
    soil(env)
    for _ in range(10):
        env.step(do(x=0.1))
    assert env.task.dirt.sum().item() == 52 and force_n(env) == 0

    put(env, -0.06, 0.0)
    soil(env)
    env.step(do(press_n=30))
    before, start = env.task.dirt.sum().item(), env.task.sim.qpos[0, 0].item()
    for _ in range(6):
        env.step(do(x=0.2, press_n=30))
    way = env.task.sim.qpos[0, 0].item() - start
    # The removed dirt is k F × distance / area of a cell. Friction slows the tool a little.
    assert before - env.task.dirt.sum().item() == pytest.approx(3e-4 * 30 * way / CELL_M**2, rel=0.05)
    assert 0.1 < way <= 0.12


def test_friction_slows_the_sponge_and_takes_work() -> None:
    speed, work = {}, {}
    for press in (0.0, 40.0):
        env = sink(standby_w=0.0)
        put(env, -0.06, 0.0)
        for _ in range(3):
            env.step(do(x=0.3, press_n=press))
        speed[press] = env.task.sim.qvel[0, 0].item()
        work[press] = -env.step(do(x=0.3, press_n=press))[4]["reward/energy"].item()
    # kv (v* - v) = μ F v / (v + 0.1), by hand for v* = 0.3, F = 40, μ = 0.4, kv = 500: v = 0.276
    assert speed[0.0] == pytest.approx(0.3, abs=1e-3) and speed[40.0] == pytest.approx(0.2761, abs=2e-3)
    joules = 0.4 * 40 * 0.2761 / 0.3761 * 0.2761 * 0.1
    assert work[40.0] == pytest.approx(10 * 0.13 / 3.6e6 * joules, rel=0.1) and work[0.0] < work[40.0] / 5


def test_a_clean_plate_pays_its_price_and_the_next_one_comes() -> None:
    env = sink(price_usd=0.5)
    put(env, 0.0, 0.0)
    left = env.task.dirt.clone()
    env.task.dirt.copy_(0.5 * (torch.as_tensor(middles()).norm(dim=1) < 0.03).double())  # the four cells in the middle
    column(env, "first_dirt").fill_(2.0)
    paid, steps = {name: 0.0 for name in economy.TERMS}, 0
    for steps in range(1, 200):
        info = env.step(do(x=0.3 if steps % 2 else -0.3, press_n=30))[4]
        for name in paid:
            paid[name] += info[f"reward/{name}"].item()
        if env.task.ledger[0, 0]:
            break
    assert env.task.ledger[0].tolist()[:3] == [1, 0, 0] and 5 < steps < 100
    assert paid["cleaning"] == pytest.approx(10 * 0.5 / 2) and paid["cleaning"] + paid["delivery"] == pytest.approx(5)
    assert paid["time"] == pytest.approx(-10 * 3 * steps * 0.1 / 3600) and paid["breakage"] == 0
    assert info["shift/plates_per_hour"].item() == pytest.approx(3600 / (0.1 * steps))

    for step in range(1, 21):  # two seconds, in which the tool is lifted whatever the action
        assert column(env, "waiting_s").item() == pytest.approx(2.0 - 0.1 * (step - 1))
        env.step(do(press_n=30))
        if step == 10:
            assert env.task.sim.mocap_pos[0, 0, 2].item() == pytest.approx(-0.1), "the lift is down at half the time"
    assert column(env, "waiting_s").item() == 0 and env.task.sim.mocap_pos[0, 0, 2].item() == 0
    assert env.task.sim.qpos[0, 2].item() > 0.04 and column(env, "time_s").item() == 0
    assert env.task.dirt.sum() > 1 and not torch.equal(env.task.dirt, left)


def test_a_plate_breaks_above_the_limit_and_costs() -> None:
    env = sink(force_limit_n=35.0, force_spread_n=0.0)
    put(env, 0.0, 0.0)
    soil(env)
    for _ in range(10):
        env.step(do(x=0.1, press_n=32))
    assert env.task.ledger[0, 1] == 0
    paid = column(env, "paid_usd").item()
    assert paid > 0
    _, reward, terminated, _, info = env.step(do(press_n=40))
    assert env.task.ledger[0].tolist()[:3] == [0, 1, 0] and not terminated
    assert info["reward/breakage"].item() == -10 and info["shift/breakage_rate"].item() == 1
    lost = info["reward/cleaning"].item() + info["reward/delivery"].item()
    assert lost == pytest.approx(-10 * paid), "the advance is taken back"
    assert reward.item() == pytest.approx(sum(info[f"reward/{name}"].item() for name in economy.TERMS))
    assert column(env, "waiting_s").item() == pytest.approx(5), "2 s for the next plate, 3 s to sweep up"
    for _ in range(60):
        env.step(do())
    assert env.task.ledger[0, 1] == 1 and column(env, "time_s").item() == pytest.approx(1.0)


def test_force_limits_differ_between_plates_and_the_mat_has_none() -> None:
    env = sink(256, force_limit_n=20.0, force_spread_n=20.0)
    for _ in range(15):
        env.step(do(press_n=30.0).expand(256, 3))
    assert 0.4 < env.task.ledger[:, 1].mean() < 0.75, "half break below 30 N; the sponge lands with more"
    env = sink(force_limit_n=1.0)
    put(env, 0.119, 0.0, plate=-0.03)
    for _ in range(5):
        env.step(do(press_n=40.0))
    assert force_n(env) == pytest.approx(40, rel=0.05) and env.task.ledger[0, 1] == 0


def test_a_plate_that_takes_too_long_is_taken_away_unpaid() -> None:
    env = sink(patience_s=3.0)
    soil(env)
    for _ in range(29):
        env.step(do(x=0.1, press_n=30))
    assert env.task.ledger[0, 2] == 0 and column(env, "paid_usd") > 0
    info = env.step(do())[4]
    assert env.task.ledger[0].tolist()[:3] == [0, 0, 1] and column(env, "waiting_s").item() == pytest.approx(2)
    assert info["shift/error_rate"].item() == 1 and info["shift/breakage_rate"].item() == 0
    assert info["reward/delivery"].item() == pytest.approx(-10 * column(env, "paid_usd").item())


def test_business_metrics_by_hand() -> None:
    rules = Rules(price_usd=0.2, breakage_usd=3.0, energy_usd_kwh=0.5, machine_usd_h=4.0, wage_usd_h=20.0)
    half_hour = torch.tensor([[30.0, 1.0, 2.0, 3.6e6, 1800.0]])
    found = {name: value.item() for name, value in economy.metrics(rules, half_hour).items()}
    assert found == pytest.approx({
        "plates_per_hour": 60.0, "breakage_rate": 1 / 33, "error_rate": 3 / 33,
        "profit_per_hour": 2 * (0.2 * 30 - 3.0 - 0.5 - 2.0), "value_to_wage": 0.2 * 60 / 20,
    })  # fmt: skip
    nothing = economy.metrics(rules, torch.zeros(1, 5))
    assert all(value.isfinite().all() for value in nothing.values())


def test_a_shift_ends_by_time_and_its_profit_is_what_was_paid() -> None:
    env = sink(8, shift_s=30.0)
    assert env.episode_steps == 300
    for _ in range(300):
        _, _, terminated, truncated, info = env.step(env.task.wipe(30.0, 0.4))
    assert truncated.all() and not terminated.any()
    assert (info["shift/plates_per_hour"] > 0).any() and (env.task.ledger == 0).all(), "the next shift has a new ledger"
    # The return is the profit plus the advance on the plate that is still in the sink, at most 6 cents.
    profit = info["shift/profit_per_hour"] * 30 / 3600
    advance = info["episode_return"] / economy.REWARD_PER_USD - profit
    assert (advance > -1e-9).all() and (advance < 0.06 + 1e-9).all()


def test_a_greedy_policy_earns_more_than_the_wiper() -> None:
    """A policy that moves towards dirt earns more than twice as much as the scripted wiper, with the same force."""

    def profit(choose: Any) -> float:
        env = sink(8, offset_m=0.03)
        obs = env.reset(seed=3)
        for _ in range(600):
            obs, *_, info = env.step(choose(env, obs))
        return float(info["shift/profit_per_hour"].mean())

    generator = torch.Generator().manual_seed(0)

    def greedy(env: Any, obs: torch.Tensor) -> torch.Tensor:
        towards = obs[:, 62:64] / obs[:, 62:64].norm(dim=1, keepdim=True).clamp(min=1e-6)
        angle = 2 * math.pi * torch.rand(env.num_envs, generator=generator)
        way = towards + 0.3 * torch.stack([angle.cos(), angle.sin()], 1)
        return torch.cat([way / way.norm(dim=1, keepdim=True), do(press_n=35.0)[:, 2:].expand(len(way), 1)], 1)

    plain = profit(lambda env, obs: env.task.wipe(35.0, 0.4))
    assert 15 < plain < 35 and profit(greedy) > 2 * plain


def test_warp_agrees_with_mujoco(monkeypatch: pytest.MonkeyPatch) -> None:
    env = sink(3)
    monkeypatch.setattr("kit.envs.task.make_sim", lambda model, n, *_: WarpSim(model, n, "cpu"))
    other = TensorEnv(Dishwashing(offset_m=0.0), 3)
    names = ("dirt", "plate", "ledger")
    other.task.load_state({name: getattr(env.task, name).float() for name in names})
    everywhere = torch.ones(3, dtype=torch.bool)
    other.task.sim.reset(everywhere, qpos=env.task.sim.qpos.float(), mocap_pos=env.task.sim.mocap_pos.float())
    for step in range(25):
        action = env.task.wipe(30.0, 0.3)
        obs, reward, *_ = env.step(action)
        again, paid, *_ = other.step(action)
        assert torch.allclose(obs, again, atol=2e-2), step
        assert torch.allclose(reward, paid, atol=1e-3)
    assert (env.task.dirt.sum(1) < column(env, "first_dirt") - 1).all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"price_usd": -1}, "price_usd=-1 must be a number from 0 to 1000"),
        ({"force_limit_n": "hard"}, "force_limit_n='hard' must be a number"),
        ({"price": 1}, "price=1 is not one of Dishwashing's; did you mean price_usd"),
        ({"shift_s": True}, "shift_s=True must be a number"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        kit.make_vec("Dishwashing", 1, env_options=options)


def test_invalid_image_size_is_refused() -> None:
    with pytest.raises(UserError, match="size=8 must be a whole number of at least 16"):
        kit.make_vec("DishwashingVideo", 1, env_options={"size": 8})


def test_clips_show_the_dirt_the_sponge_and_what_moved() -> None:
    env = sink(2, "DishwashingVideo")
    obs = env.reset(seed=0)
    assert obs.shape == (2, 8, 3, 64, 64) and obs.dtype == torch.uint8
    newest = obs[:, -1].int()
    china = (newest.amin(1) > 200).float().mean((1, 2))
    brown = ((newest[:, 0] - newest[:, 2]) > 40).float().mean((1, 2))
    assert (china > 0.1).all() and (brown > 0.05).all() and (china + brown > 0.35).all(), "the plate fills the image"
    env.task.dirt.zero_()
    washed = env.task.observe()["clip"].int()
    changed = (washed - newest).abs().sum(1) > 60
    assert (changed.float().mean((1, 2)) > 0.05).all()
    assert ((washed[:, 0] - washed[:, 2]) > 100).float().mean((1, 2)).amax() < 0.05, "only the sponge is left"
    for _ in range(3):
        obs = env.step(do(x=0.4).expand(2, 3))[0]
    frames = obs[0].int()
    assert ((frames[-1] - frames[-2]).abs().sum(0) > 60).any() and torch.equal(frames[0], frames[1])


def test_all_dirt_is_in_the_policys_image() -> None:
    model = build_model()
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    camera = model.camera("eye").id
    corners = np.array([(x, y) for x in (-0.03, 0.03) for y in (-0.03, 0.03)])
    places = np.concatenate([np.pad(middles() + corner, ((0, 0), (0, 1))) for corner in corners])
    seen = (places - data.cam_xpos[camera]) @ data.cam_xmat[camera].reshape(3, 3)  # x right, y up, z backward
    half = np.tan(np.radians(model.cam_fovy[camera]) / 2) * -seen[:, 2]
    assert (np.abs(seen[:, :2]).max(1) < half).all()
