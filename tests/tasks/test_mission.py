"""Tests of Mission: rules by hand, kernels against a plain Python version, staggering, options, maps, images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import kit
from kit.errors import UserError
from kit.tasks.mission.task import Mission
from kit.trainers import make_trainer
from tests.bench.mission_plain import PlainMission

STAND, EAST, NORTH = 0, 1, 3
FAR_M = 95.0


def game(n: int = 1, **options: Any) -> Any:
    """Make `n` envs in a fixed state, in which each test then places the units it needs.

    The zone is at (0, 0); there are no obstacles. Attackers are in the north-east corner. Defenders start in the
    south-west corner, look north and move at only 0.5 m/s.
    """
    env = kit.make_vec("Mission", n, env_options={"obstacles": 0, "patrol_mps": 0.5, **options})
    task = env.task
    task.field[:, 0] = torch.tensor([0.0, 0.0, 0.0, -90.0])
    task.field[:, 1] = torch.tensor([0.0, 0.0, 1.0, 0.0])
    task.attackers[:, :, :2] = FAR_M
    task.defenders[:] = torch.tensor([-FAR_M, -FAR_M, 0.0, 1.0])
    task.minds.zero_()
    return env


def step(env: Any, *commands: int, times: int = 1) -> Any:
    for _ in range(times):
        found = env.step(torch.tensor([list(commands)] * env.num_envs))
    return found


def place(env: Any, unit: int, x: float, y: float) -> None:
    env.task.attackers[0, unit, :2] = torch.tensor([x, y])


def guard(env: Any, x: float, y: float, still: bool = True) -> None:
    """Put defender 0 at (x, y), looking north. It stands if `still`; else it walks north until it sees an attacker."""
    env.task.defenders[0, 0] = torch.tensor([x, y, 0.0, 1.0])
    env.task.minds[0, 0] = torch.tensor([0.0, 1000.0, x, y + 2.5])
    env.task._commands["defenders"][0, 0] = 0 if still else -1


def test_a_command_is_five_steps_in_one_of_eight_directions() -> None:
    env = game()
    for unit in range(4):
        place(env, unit, 30.0 * unit - 50.0, 60.0)
    step(env, EAST, 2, 8, STAND)
    diagonal = 2**-0.5
    expected = [
        [-49.0, 60.0],
        [-20.0 + diagonal, 60.0 + diagonal],
        [10.0 + 2 * diagonal, 60.0 - 2 * diagonal],
        [40.0, 60.0],
    ]
    torch.testing.assert_close(
        env.task.attackers[0, :, :2], torch.tensor(expected), msg="4 and 8 m/s for a quarter of a second"
    )


@pytest.mark.parametrize(
    ("angle_deg", "distance_m", "tagged"),
    [(0, 4.9, True), (0, 5.1, False), (39, 4.9, True), (41, 4.9, False), (180, 3.0, False)],
)
def test_a_tag_needs_range_and_cone(angle_deg: float, distance_m: float, tagged: bool) -> None:
    """A defender tags within 5 m and 40° of its viewing direction."""
    env = game()
    guard(env, 0.0, 60.0)
    angle = np.radians(90 - angle_deg)
    place(env, 2, distance_m * np.cos(angle), 60.0 + distance_m * np.sin(angle))
    info = step(env, *[STAND] * 4)[4]
    assert bool(env.task.attackers[0, 2, 2] > 0) == tagged
    assert info["reward/losses"].item() == pytest.approx(-0.03 * tagged)


def test_a_tagged_attacker_waits_at_its_base() -> None:
    env = game(out_s=2.0, busy_s=1.0)
    guard(env, 0.0, 60.0)
    place(env, 2, 0.0, 63.0)
    place(env, 3, 1.0, 63.0)
    step(env, *[STAND] * 4)
    # The first tick tags the first of the two, now at (3, -90), and keeps the defender busy for 20 ticks; 4 are over.
    assert env.task.attackers[0, 2].tolist() == [3.0, -90.0, 36.0, 2400.0]
    assert env.task.attackers[0, 3, 2] == 0 and env.task.minds[0, 0, 0] == 16
    step(env, *[NORTH] * 4, times=7)
    assert env.task.attackers[0, 2].tolist() == [3.0, -90.0, 1.0, 2400.0], "it still ignores commands"
    step(env, STAND, STAND, NORTH, STAND)
    assert env.task.attackers[0, 2].tolist() == pytest.approx([3.0, -90.0 + 4 * 0.4, 0.0, 2400.0 - 4])


def test_two_units_hold_the_zone_and_capture_it() -> None:
    """Two units must hold the zone for 20 s, 80 commands. One alone does not hold it: the time counts down as fast."""
    env = game()
    place(env, 0, 0.0, 14.9)
    place(env, 2, 15.1, 0.0)
    step(env, *[STAND] * 4, times=3)
    assert env.task.field[0, 1, 0] == 0, "one unit is inside, one 10 cm outside"
    place(env, 2, -14.9, 0.0)
    _, reward, *_, info = step(env, *[STAND] * 4, times=40)
    assert env.task.field[0, 1, 0] == 200
    assert info["reward/holding"].item() == pytest.approx((2 * 0.03 + 2 * 0.06) / 4) == reward.item()
    place(env, 2, 50.0, 0.0)
    _, _, _, _, info = step(env, *[STAND] * 4, times=4)
    assert env.task.field[0, 1, 0] == 180 and info["reward/holding"].item() == pytest.approx(0.03 / 4), "for one unit"
    place(env, 2, 0.0, 0.0)
    _, _, terminated, _, info = step(env, *[STAND] * 4, times=43)
    assert not terminated.item()
    _, reward, terminated, truncated, info = step(env, *[STAND] * 4)
    assert terminated.item() and not truncated.item() and info["success"].item() and info["win_rate"].item()
    assert info["reward/capture"].item() == 30 and reward.item() == pytest.approx(30 + (2 * 0.03 + 2 * 0.06) / 4)


def test_in_early_stages_of_training_the_zone_must_be_held_for_less() -> None:
    """A tenth of 20 s in the first stage, 8 commands of 0.25 s; 20, 40 and 80 commands in the later ones."""
    for stage, commands in enumerate((8, 20, 40, 80)):
        env = game()
        env.task.stage.fill_(stage)
        place(env, 0, 0.0, 14.9)
        place(env, 2, -14.9, 0.0)
        *_, terminated, _, info = step(env, *[STAND] * 4, times=commands - 1)
        assert not terminated.item() and info["reward/capture"].item() == 0
        *_, terminated, _, info = step(env, *[STAND] * 4)
        assert terminated.item() and info["success"].item() and info["reward/capture"].item() == 30, stage
        assert info["final_obs"][0, 40].item() == pytest.approx(commands / 80), "the fraction of the whole time"
    assert game(side="defenders").task.curriculum is None


def test_progress_reward_by_distance_but_no_loss_of_it_for_a_tag() -> None:
    env = game()
    place(env, 0, 0.0, 60.0)

    def paid(command: int) -> float:
        return step(env, command, *[STAND] * 3)[4]["reward/progress"].item()

    south = 7
    assert paid(south) == pytest.approx(0.0005, abs=1e-6), "0.05 per 100 m, for 1 m"
    assert paid(NORTH) == pytest.approx(-0.0005, abs=1e-6)
    place(env, 0, 0.0, 10.0)
    assert paid(south) == 0, "no progress reward inside the zone"
    place(env, 0, 0.0, 60.0)
    guard(env, 0.0, 57.0)
    assert paid(south) == 0 and env.task.attackers[0, 0, 1] == -90.0


def test_obstacles_stop_ground_units_and_not_air_units() -> None:
    env = game()
    disc = torch.tensor([0.0, 60.0, 10.0, 0.0])
    env.task.discs[0, 0] = disc
    env.task.near[0, 0] = env.task.near[0, 1] = disc
    place(env, 0, -11.5, 60.0)
    place(env, 1, -7.0, 60.0 - 11.0)
    place(env, 2, -11.5, 60.0)
    step(env, EAST, NORTH, EAST, STAND, times=8)
    x, y = env.task.attackers[0, 0, :2].tolist()
    assert (x, y) == pytest.approx((-11.0, 60.0), abs=1e-4), "the unit's radius is 1 m"
    assert env.task.attackers[0, 2, 0] == pytest.approx(-11.5 + 16.0)
    x, y = env.task.attackers[0, 1, :2].tolist()
    assert np.hypot(x, y - 60.0) >= 11.0 - 1e-4 and x < -7.5 and y > 50.0, "slides along the obstacle"


def test_flying_uses_endurance_and_hovering_half_as_much() -> None:
    env = game(endurance_s=10.0)
    step(env, STAND, STAND, EAST, STAND, times=39)
    assert env.task.attackers[0, :, 3].tolist() == [200.0, 200.0, 5.0, 102.5]
    _, _, _, _, info = step(env, STAND, STAND, EAST, STAND)
    assert env.task.attackers[0, 2].tolist() == [3.0, -90.0, 300.0, 200.0], "no endurance left: at its base, refilled"
    assert info["reward/losses"].item() == pytest.approx(-0.03)


def test_obstacles_hide_ground_units_and_defenders_from_each_other() -> None:
    env = game(leash_m=60.0)
    guard(env, 0.0, 30.0, still=False)
    place(env, 0, 0.0, 55.0)
    step(env, *[STAND] * 4)
    assert env.task.minds[0, 0, 2:].tolist() == [0.0, 55.0] and env.task.obs[0, 14] == 1, "they see each other"
    env = game(leash_m=60.0)
    env.task.discs[0, 0] = torch.tensor([0.0, 45.0, 6.0, 0.0])
    guard(env, 0.0, 30.0, still=False)
    place(env, 0, 0.0, 55.0)
    step(env, *[STAND] * 4)
    assert env.task.minds[0, 0, 2:].tolist() == [0.0, 32.5] and env.task.obs[0, 14:20].tolist() == [0.0] * 6
    place(env, 3, 10.0, 55.0)
    obs = step(env, *[STAND] * 4)[0]
    assert env.task.minds[0, 0, 2:].tolist() == [10.0, 55.0] and obs[0, 14] == 1, "they see each other over it"


@pytest.mark.parametrize(
    "options",
    [
        {"hold_units": 1},
        {"level": "hard", "obstacles": 5, "hold_units": 1},
        {"level": "easy", "maps": 3},
        {"obstacles": 0, "capture": 0.0, "hold_units": 1},
    ],
    ids=str,
)
def test_the_kernels_agree_with_a_plain_version_step_for_step(options: dict[str, Any]) -> None:
    """Five envs, 400 steps, commands straight to the zone or random. Errors add up: no state is copied in between."""
    n = 5
    env = kit.make_vec("Mission", n, seed=4, env_options=options)
    obs, worlds = env.reset(seed=4), [PlainMission(**options) for _ in range(n)]
    for world, seed in zip(worlds, env.task._seeds.tolist(), strict=True):
        world.build(seed % (options.get("maps") or 2**31))
    draw = np.random.default_rng(0)
    tags = holds = 0
    for k in range(400):
        if k % 12 == 0:
            commands = draw.integers(0, 9, (n, 4))
        straight = env.task.straight(obs).numpy()
        action = np.where(draw.random((n, 1)) < 0.7, straight, commands)
        obs, reward, terminated, _, info = env.step(torch.as_tensor(action))
        for w, world in enumerate(worlds):
            seen, paid, won, _, _ = world.step(action[w])
            off = np.abs(seen - info["final_obs"][w].numpy())
            assert off.max() < 0.02, (k, w)  # units of 30 m: 60 cm; rounding shows if a defender turns to a near point
            assert paid == pytest.approx(reward[w].item(), abs=1e-3) and won == terminated[w].item()
            tags, holds = tags + world.lost, holds + (world.held > 0)
            if won:
                world.build(int(env.task._seeds[w]) % (options.get("maps") or 2**31))
    assert tags > 10 and holds > 10, "the comparison must include tags and held zones"


def test_a_capture_without_reward_is_still_a_win() -> None:
    env = game(capture=0.0, hold_s=1.0)
    place(env, 0, 0.0, 0.0)
    place(env, 1, 5.0, 0.0)
    *_, terminated, truncated, info = step(env, *[STAND] * 4, times=3)
    assert not terminated.item()
    *_, terminated, truncated, info = step(env, *[STAND] * 4)
    assert terminated.item() and not truncated.item() and info["success"].item()


def test_obstacle_observations_are_zero_without_obstacles() -> None:
    """The columns are vectors to the nearest obstacle and its radius, for ground units and for defenders."""
    assert kit.make_vec("Mission", 8, env_options={"obstacles": 0}).reset(seed=0)[:, 32:38].abs().max() == 0
    guards = kit.make_vec("Mission", 8, env_options={"obstacles": 0, "side": "defenders"})
    assert guards.reset(seed=0)[:, 27:36].abs().max() == 0


def test_first_episodes_are_staggered_also_after_loading_into_more_envs() -> None:
    """Attackers stand, so episodes end at the limit of 1,200 steps; first episodes have random, shorter limits."""
    trained, other = (trainer_of(n) for n in (8, 16))
    assert not other.load_state(trained.state()), "twice as many envs"
    env, ends = other.tensor_env, set()
    for at in range(1200):
        *_, terminated, truncated, _ = env.step(torch.zeros(16, 4, dtype=torch.int64))
        ends |= {at} if (terminated | truncated).any() else set()
    assert len(ends) > 8


def trainer_of(n: int) -> Any:
    config = kit.RunConfig(env="Mission", n_envs=n, device="cpu", threads=1, total_steps=10_000)
    return make_trainer(kit.resolve(config), kit.make_vec("Mission", n, "cpu", 0, 1))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"zone_m": 50}, "zone_m=50 must be a number from 5 to 22"),
        ({"hold_units": 2.5}, "hold_units=2.5 must be a whole number from 1 to 4"),
        ({"tag_range": 3}, "tag_range=3 is not one of Mission's; did you mean"),
        ({"level": "brutal"}, "level='brutal' is unknown; valid are easy, standard, hard"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        Mission(**options)


def test_number_of_maps_and_size_of_obstacles() -> None:
    env = kit.make_vec("Mission", 64, seed=0, env_options={"maps": 2})
    assert len(env.task.field[:, 0].unique(dim=0)) == 2
    assert len(kit.make_vec("Mission", 64, seed=0).task.field[:, 0].unique(dim=0)) == 64
    discs = env.task.discs
    gaps = (discs[:, :, None, :2] - discs[:, None, :, :2]).norm(dim=3) - discs[:, :, None, 2] - discs[:, None, :, 2]
    gaps[:, range(8), range(8)] = 6.0
    assert gaps.min() >= 6.0 - 1e-3 and discs[:, :, 2].min() >= 6 and discs[:, :, 2].max() <= 14


def test_the_image_shows_zone_defender_trail_and_held_time() -> None:
    """The map of 200 m has 291 pixels and its centre at row 146.5, column 160. The zone is at (0, 0)."""
    env = game()
    guard(env, 50.0, 0.0)
    place(env, 2, -60.0, 40.0)
    first = env.render(height=320, width=320)
    assert first.shape == (1, 1, 320, 320, 3) and first.dtype == torch.uint8

    def colour(picture: torch.Tensor, x: float, y: float) -> list[int]:
        scale = 291 / 200
        return picture[0, 0, int(146.5 - y * scale), int(160 + x * scale)].tolist()

    red, green, blue = colour(first, 50.0, 0.0)
    assert red > 180 and green < 80, "a red defender"
    assert colour(first, 50.0, 20.0)[1] < colour(first, 50.0, -20.0)[1], "its field of view, to the north, is reddish"
    red, green, blue = colour(first, 0.0, 0.0)
    assert red > 200 and blue < green < red, "the zone is golden"
    assert colour(first, -60.0, 36.0)[0] > 200 > 60 > colour(first, -60.0, 40.0)[0], "a teal diamond on light paper"
    for _ in range(4):
        step(env, STAND, STAND, NORTH, STAND)
        picture = env.render(height=320, width=320)
    assert colour(picture, -60.0, 41.0)[0] < 150, "the unit's trail"
    place(env, 0, 0.0, 0.0)
    place(env, 2, 0.0, 5.0)
    step(env, *[STAND] * 4, times=60)
    red, green, blue = colour(env.render(height=320, width=320), 15.0, 0.0)
    assert green > red and green > blue, "held for 15 of 20 s: the ring is green at a quarter"
    assert env.render(("map", "map"), height=64, width=48).shape == (1, 2, 64, 48, 3)
