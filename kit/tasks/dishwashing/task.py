"""Dishwashing: a sponge on a tool cleans plates; the reward is the profit."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Any

import gymnasium
import numpy as np
import torch

from kit.envs.obs import CRITIC, POLICY, TEACHER, Obs, maybe_any
from kit.envs.task import MujocoTask
from kit.envs.task_info import Field, TaskInfo, numbers
from kit.sim import Simulator
from kit.tasks.dishwashing import dirt, economy
from kit.tasks.dishwashing import model as scene
from kit.tasks.dishwashing.rules import Rules

LOOKS = 5
"""Number of times per step that force and removed dirt are computed: every 20 ms."""
SLOW_MPS = 0.1
"""Speed at which friction is half. Friction at speed v is multiplied by v / (v + `SLOW_MPS`), so it is 0 at rest."""
TINY = 1e-9
"""Lower bound of denominators, such as the initial dirt of a plate, which is 0 for one plate in a million."""
START_M = 0.08
"""Greatest distance of the sponge from the centre of the sink at the start of a shift, along x and along y."""
LIFT_M = 0.1
"""Distance by which a lift in the sink's floor moves the old plate down and the next plate up."""
SEEN = 0.01
"""Dirt thinner than this is invisible in images."""
SAUCE_RGB, BROKEN_RGB = (0.36, 0.17, 0.05), (0.75, 0.25, 0.22)
TURN_M, EDGE_M = 0.04, 0.095
"""Spiral of the wiper: distance between its turns, and radius of its last turn, along the plate's rim."""
SEEKER_GAIN = 30.0
"""Gain of the scripted policy `seeker`: it moves at full speed if the nearby dirt (`_to_dirt`) is farther away than
`scene.WELL_M` / 30 along x or y."""
WIPER = (44.0, 0.4)
"""Force, N, and speed, m/s, of the scripted policy `wiper`: high, but no plate breaks (tests/bench/dishes.py)."""

SEES = (
    Field("position of the sponge", 2, f"{scene.REACH_M} m"),
    Field("height of the sponge", 1, f"{scene.HOVER_M} m"),
    Field("velocity of the sponge", 3, f"{scene.MOST_SPEED_MPS} m/s"),
    Field("position of the plate", 2, f"{scene.REACH_M} m"),
    Field("vector from the sponge to the plate", 2, f"{scene.WELL_M} m"),
    Field("thickness of the dirt in each cell", len(scene.cells())),
    Field("vector from the sponge to nearby dirt", 2, f"{scene.WELL_M} m"),
    Field("contact force, divided by the limit of the weakest plate", 1),
    Field("dirt under the sponge", 1),
    Field("a plate is in place", 1),
    Field("fraction of the dirt that is left", 1),
    Field("time spent on this plate, divided by the time limit per plate", 1),
)
"""Fields of "state", in order."""
PRIVILEGED = (
    Field("contact force at which this plate breaks, divided by that of the weakest plate", 1),
    Field("contact force, divided by the limit of this plate", 1),
    Field("the plate is broken", 1),
    Field("time until a plate is in place", 1, "s"),
    Field("initial thickness of the dirt, mean of all cells", 1),
    Field("advance paid for this plate, divided by its price", 1),
    Field("force of the sponge's motors", 3, f"{scene.MOST_PRESS_N} N"),
    Field("drag of the plate on the sponge along x and y", 2, f"{scene.MOST_PRESS_N} N"),
)
"""Fields of "privileged", in order. The policy does not see them."""


class Dishwashing(MujocoTask):
    """A shift at the sink: a sponge on a tool, controlled at 10 Hz, cleans one plate after the other.

    The action (3,) in [-1, 1] is the sponge's velocity along x and y, in units of 0.4 m/s, and its force, from 10 N
    upward (-1) to 50 N downward (1). Dirt is removed where the sponge presses and slides (module `dirt`). A plate is
    clean when at most 3 % of its dirt is left. A plate breaks when the contact force exceeds its limit, which is 50 to
    100 N and not observed; a sponge that moves down can hit the plate with 56 N. When a plate is clean, broken or has
    taken too long, the tool is lifted automatically, and a lift brings the next plate. An episode is one shift; it
    never terminates early. The reward is money, in units of ten cents (module `economy`). `Rules` has every constant.

    The policy observes `SEES`, with positions along x and y. The groups "critic" and "teacher" also see `PRIVILEGED`.
    The vector to nearby dirt is a mean over the cells, weighted by the dirt and by 1 / (r² + a²)², where r is the
    distance of a cell from the sponge and a is the sponge's radius.
    """

    name = "Dishwashing"
    substeps = 20
    video_speed = 2.0
    cameras = scene.CAMERAS
    shadows = False
    train_steps = 700_000
    obs_groups = MappingProxyType({
        POLICY: ("state",), CRITIC: ("state", "privileged"), TEACHER: ("state", "privileged"),
    })  # fmt: skip
    groups = (POLICY,)
    scripts = ("wiper", "seeker")
    keeps = ("dirt", "plate", "ledger")

    def __init__(self, **options: Any) -> None:
        """`options` are the fields of `Rules`."""
        self.rules = Rules.of(options)
        self.model = scene.build_model()
        self.episode_steps = round(self.rules.shift_s / self.control_dt_s)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
        entries: dict[str, gymnasium.Space] = {"state": numbers(SEES), "privileged": numbers(PRIVILEGED)}
        self.observation_space: gymnasium.Space = gymnasium.spaces.Dict(entries)
        per_usd, price = economy.REWARD_PER_USD, self.rules.price_usd
        self.task_info = TaskInfo(
            sees={"state": SEES, "privileged": PRIVILEGED},
            does=(
                Field("velocity of the sponge along x and y", 2, f"{scene.MOST_SPEED_MPS} m/s"),
                Field(f"downward force on the sponge, from {-scene.LIFT_N:g} to {scene.MOST_PRESS_N:g} N", 1),
            ),
            pays=(
                (per_usd * price * self.rules.advance, "per plate, paid in proportion to the dirt removed"),
                (per_usd * price * (1 - self.rules.advance), "per clean plate; other plates lose the term above"),
                (-per_usd * self.rules.breakage_usd, "per broken plate"),
                (-per_usd * self.rules.energy_usd_kwh, "per kWh of energy"),
                (-per_usd * self.rules.machine_usd_h, "per hour of machine time (a reward of 1 is 0.10 USD)"),
            ),
        )

    def bind(self, sim: Simulator) -> None:
        super().bind(sim)
        model, n = self.model, sim.n
        self._cells = torch.as_tensor(scene.cells(), dtype=sim.dtype, device=sim.device)
        # views of the simulator's tensors, always current
        self._sponge, self._velocity = sim.qpos[:, :3], sim.qvel[:, :3]
        self._middle_w = sim.mocap_pos[:, model.body(scene.PLATE).mocapid[0]]
        self._motors = sim.actuator_force
        self._drag_n = sim.qfrc_applied[:, :2]
        self._contact = sim.sensordata[:, model.sensor(scene.FORCE).adr[0] + 3]

        def zeros(*shape: int) -> torch.Tensor:
            return torch.zeros(n, *shape, dtype=sim.dtype, device=sim.device)

        self.dirt = zeros(len(self._cells))
        self.plate = zeros(8)
        self._place, rest = self.plate[:, :2], self.plate[:, 2:]  # the plate's x and y
        self._waiting_s, self._time_s, self._first_dirt, self._paid_usd = rest[:, :4].unbind(1)
        self._is_broken, self._breaks_at_n = rest[:, 4:].unbind(1)
        self.ledger = zeros(len(economy.LEDGER))
        self._terms_usd = zeros(len(economy.TERMS))
        geoms = [model.geom(scene.DIRT.format(number)).id for number in range(len(self._cells))]
        self._dirt_geoms = slice(geoms[0], geoms[-1] + 1)
        self._well_geom = model.geom(scene.WELL).id
        self._recoloured = (*geoms, self._well_geom)
        self._rgba = torch.as_tensor(model.geom_rgba, dtype=sim.dtype, device=sim.device).repeat(n, 1, 1)
        colours = (scene.CHINA_RGB, SAUCE_RGB, BROKEN_RGB)
        self._palette = torch.tensor(colours, dtype=sim.dtype, device=sim.device)

    # -- plates ----------------------------------------------------------------------------------------------------

    def reset(self, mask: torch.Tensor, generator: torch.Generator) -> None:
        sim, n, self._generator = self.sim, self.n, generator
        start = torch.rand(n, 2, generator=generator, dtype=sim.dtype, device=sim.device)
        qpos = torch.full((n, 3), scene.HOVER_M, dtype=sim.dtype, device=sim.device)
        qpos[:, :2] = START_M * (2 * start - 1)
        self._new_plates(mask)
        self._waiting_s.masked_fill_(mask, 0.0)
        self.ledger.masked_fill_(mask.unsqueeze(1), 0.0)
        middle_w = torch.cat([self._place, torch.zeros_like(self._place[:, :1])], 1)
        sim.reset(mask, qpos=qpos, mocap_pos=middle_w.unsqueeze(1))

    def _new_plates(self, mask: torch.Tensor) -> None:
        """Replace the plate by a new random one in the envs where `mask` (n,) bool is True."""
        shape = self.n, dirt.NUMBERS + 3
        chance = torch.rand(shape, generator=self._generator, dtype=self.sim.dtype, device=self.device)
        new_dirt = dirt.serve(chance[:, 3:], self._cells, scene.WELL_M)
        new = torch.zeros_like(self.plate)
        new[:, :2] = self.rules.offset_m * (2 * chance[:, :2] - 1)
        new[:, 2], new[:, 4] = self._waiting_s, new_dirt.sum(1)
        new[:, 7] = self.rules.force_limit_n + self.rules.force_spread_n * chance[:, 2]
        self.dirt.copy_(torch.where(mask.unsqueeze(1), new_dirt, self.dirt))
        self.plate.copy_(torch.where(mask.unsqueeze(1), new, self.plate))

    def act(self, action: torch.Tensor) -> None:
        present = self._waiting_s <= 0
        press_n = (scene.MOST_PRESS_N + scene.LIFT_N) / 2 * (action[:, 2] + 1) - scene.LIFT_N
        self.sim.ctrl[:, :2] = scene.MOST_SPEED_MPS * action[:, :2]
        self.sim.ctrl[:, 2] = torch.where(present, press_n, -scene.LIFT_N)

    def advance(self, action: torch.Tensor) -> None:
        self.act(action)
        before, hardest_n = self.dirt.sum(1), torch.zeros_like(self._contact)
        energy_j = torch.full_like(hardest_n, self.rules.standby_w * self.control_dt_s)
        seconds, present = self.control_dt_s / LOOKS, self._waiting_s <= 0
        for _ in range(LOOKS):
            self.sim.step(self.substeps // LOOKS)
            on_plate = self._sponge[:, :2] - self._place
            force_n = self._contact.abs() * (present & (on_plate.norm(dim=1) < scene.PLATE_M))
            speed_mps = self._velocity[:, :2].norm(dim=1)
            drag = scene.FRICTION * force_n / (speed_mps + SLOW_MPS)  # Coulomb friction, smoothed at low speed
            torch.mul(self._velocity[:, :2], -drag.unsqueeze(1), out=self._drag_n)
            self.dirt -= dirt.rubbed(
                on_plate, self._cells, force_n, speed_mps, self.rules.sponge_m, self.rules.wear, seconds
            )
            self.dirt.clamp_(min=0.0)
            hardest_n = torch.maximum(hardest_n, force_n)
            energy_j += seconds * (self._motors * self._velocity).abs().sum(1)
        self._hardest_n = hardest_n
        self._account(present, before, energy_j)
        self._move_plates()

    def _account(self, present: torch.Tensor, before: torch.Tensor, energy_j: torch.Tensor) -> None:
        """Compute which plates became clean, broke or were rejected in this step, and the reward terms.

        `present` (n,) bool: whether a plate was in place; `before` (n,): dirt before the step; `energy_j` (n,): energy
        used in the step.
        """
        rules, dt_s = self.rules, self.control_dt_s
        left = self.dirt.sum(1)
        self._time_s += dt_s * present
        broken = present & (self._hardest_n > self._breaks_at_n)
        clean = present & ~broken & (left <= rules.clean_share * self._first_dirt)
        rejected = present & ~broken & ~clean & (self._time_s >= rules.patience_s)
        enough = rules.clean_share * self._first_dirt
        done = torch.maximum(before, enough) - torch.maximum(left, enough)
        progress = done / (self._first_dirt - enough).clamp(min=TINY)
        self._paid_usd += rules.price_usd * rules.advance * progress
        outcome = economy.StepOutcome(progress, self._paid_usd, clean, broken, rejected, energy_j, dt_s)
        self._terms_usd = economy.reward_terms_usd(rules, outcome)
        entries = [clean, broken, rejected, energy_j, torch.full_like(energy_j, dt_s)]
        self.ledger += torch.stack([entry.to(energy_j.dtype) for entry in entries], 1)
        over = clean | broken | rejected
        wait_s = rules.change_s + dt_s + rules.sweep_s * broken.to(left.dtype)  # `_move_plates` subtracts dt_s at once
        self._waiting_s.copy_(torch.where(over, wait_s, self._waiting_s))
        self._is_broken.copy_(self._is_broken.bool() | broken)

    def _move_plates(self) -> None:
        """Move finished plates down on the lift, and the next plates up."""
        dt_s, half_s = self.control_dt_s, self.rules.change_s / 2
        old = self._waiting_s > half_s
        self._waiting_s.sub_(dt_s).clamp_(min=0.0)
        self._waiting_s.masked_fill_(self._waiting_s < dt_s / 2, 0.0)  # remove rounding errors
        replaced = old & (self._waiting_s <= half_s)
        if maybe_any(replaced):
            self._new_plates(replaced)
        down = torch.where(self._waiting_s > half_s, 2 * half_s - self._waiting_s, self._waiting_s).clamp(min=0.0)
        self._middle_w[:, :2] = self._place
        self._middle_w[:, 2] = -LIFT_M / half_s * down

    # -- observation and reward ------------------------------------------------------------------------------------

    def measure(self) -> None:
        self._to_cells = self._cells + (self._place - self._sponge[:, :2]).unsqueeze(1)  # (n, cells, 2), m
        self._present = self._waiting_s <= 0

    def observe(self) -> Obs:
        return self._vectors()

    def _vectors(self) -> dict[str, Obs]:
        """Return those of the entries "state" and "privileged" that are in `delivered`."""
        entries = {"state": self._state, "privileged": self._privileged}
        return {name: entries[name]() for name in self.delivered if name in entries}

    def _privileged(self) -> torch.Tensor:
        rules, price = self.rules, max(self.rules.price_usd, TINY)
        return torch.cat(
            [
                torch.stack([
                    self._breaks_at_n / rules.force_limit_n,
                    self._contact.abs() / self._breaks_at_n,
                    self._is_broken,
                    self._waiting_s,
                    self._first_dirt / len(self._cells),
                    self._paid_usd / price,
                ], 1),
                self._motors / scene.MOST_PRESS_N,
                self._drag_n / scene.MOST_PRESS_N,
            ],
            dim=1,
        )  # fmt: skip

    def _state(self) -> torch.Tensor:
        rules = self.rules
        distance2 = self._to_cells.square().sum(2)
        under = (self.dirt * (1 - distance2 / rules.sponge_m**2).clamp(min=0.0)).sum(1)
        return torch.cat(
            [
                self._sponge[:, :2] / scene.REACH_M,
                self._sponge[:, 2:] / scene.HOVER_M,
                self._velocity / scene.MOST_SPEED_MPS,
                self._place / scene.REACH_M,
                (self._place - self._sponge[:, :2]) / scene.WELL_M,
                self.dirt,
                self._to_dirt() / scene.WELL_M,
                torch.stack([
                    self._contact.abs() / rules.force_limit_n,
                    under,
                    self._present.to(under.dtype),
                    self.dirt.sum(1) / self._first_dirt.clamp(min=TINY),
                    self._time_s / rules.patience_s,
                ], 1),
            ],
            dim=1,
        )  # fmt: skip

    def _to_dirt(self) -> torch.Tensor:
        """Return the vector (n, 2) from the sponge to nearby dirt, m: a mean over the cells, see the class."""
        weight = self.dirt / (self._to_cells.square().sum(2) + self.rules.sponge_m**2).square()
        return (weight.unsqueeze(2) * self._to_cells).sum(1) / weight.sum(1, keepdim=True).clamp(min=TINY)

    def reward(self, action: torch.Tensor) -> torch.Tensor:
        return economy.REWARD_PER_USD * self._terms_usd.sum(1)

    def terminated(self) -> torch.Tensor:
        return torch.zeros(self.n, dtype=torch.bool, device=self.device)

    def info(self) -> dict[str, torch.Tensor]:
        terms = (economy.REWARD_PER_USD * self._terms_usd).unbind(1)
        rewards = {f"reward/{name}": value for name, value in zip(economy.TERMS, terms, strict=True)}
        shift = economy.metrics(self.rules, self.ledger)
        return {**rewards, **{f"shift/{name}": value for name, value in shift.items()}}

    def colours(self) -> dict[str, Any]:
        """Return arguments of `Simulator.render`: dirt is brown by thickness, a broken plate red."""
        china, sauce, broken = self._palette
        self._rgba[:, self._dirt_geoms, :3] = china + (sauce - china) * self.dirt.sqrt().unsqueeze(2)
        self._rgba[:, self._dirt_geoms, 3] = (self.dirt > SEEN).to(self.dirt.dtype)
        self._rgba[:, self._well_geom, :3] = torch.where(self._is_broken.bool().unsqueeze(1), broken, china)
        return {"poses": {"geom_rgba": self._rgba}, "recoloured": self._recoloured}

    def render(self, cameras: tuple[str, ...], height: int, width: int) -> torch.Tensor:
        return self.sim.render(cameras, height, width, shadows=self.shadows, **self.colours())

    def wiper(self) -> torch.Tensor:
        """Wipe every plate in the same way, hard and fast."""
        return self.wipe(*WIPER)

    def seeker(self) -> torch.Tensor:
        """Move towards the dirt nearby with constant force: actions (n, 3)."""
        velocity = (SEEKER_GAIN * self._to_dirt() / scene.WELL_M).clamp(-1.0, 1.0)
        return torch.cat([velocity, self._press(WIPER[0]).expand(self.n, 1)], 1).to(torch.float32)

    def wipe(self, press_n: float, speed_mps: float) -> torch.Tensor:
        """Return the actions (n, 3) of a scripted policy that wipes with constant force and speed.

        The sponge follows a spiral from the plate's centre to the rim, goes once around the rim, and returns. The
        policy ignores the dirt.
        """
        per_rad = TURN_M / (2 * math.pi)
        spiral_m = EDGE_M**2 / (2 * per_rad)  # length of the spiral r = b φ: nearly b φ² / 2
        whole_m = spiral_m + 2 * math.pi * EDGE_M  # the spiral and one turn around the rim
        travelled_m = torch.remainder(self._time_s * speed_mps, 2 * whole_m)
        along_m = torch.minimum(travelled_m, 2 * whole_m - travelled_m)
        radius = (2 * per_rad * along_m.clamp(max=spiral_m)).sqrt()
        angle = radius / per_rad + (along_m - spiral_m).clamp(min=0.0) / EDGE_M
        target = self._place + radius.unsqueeze(1) * torch.stack([angle.cos(), angle.sin()], 1)
        velocity = (target - self._sponge[:, :2]) / self.control_dt_s  # m/s, to reach the target in one step
        velocity *= (speed_mps / velocity.norm(dim=1, keepdim=True).clamp(min=TINY)).clamp(max=1.0)
        press = self._press(press_n).expand(self.n, 1)
        return torch.cat([velocity / scene.MOST_SPEED_MPS, press], 1).to(torch.float32)

    def _press(self, force_n: float) -> torch.Tensor:
        """Return the action (1, 1) that presses with `force_n`, N."""
        value = 2 * (force_n + scene.LIFT_N) / (scene.MOST_PRESS_N + scene.LIFT_N) - 1
        return torch.full((1, 1), value, dtype=self.dtype, device=self.device)
