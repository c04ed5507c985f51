"""Dishwashing: a sponge, plates, dirt that rubbing takes off, and what it earns."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import Any

import gymnasium
import numpy as np
import torch

from kit.envs.obs import CRITIC, POLICY, TEACHER, Obs
from kit.envs.task import MujocoTask, maybe_any
from kit.envs.task_info import Field, TaskInfo, numbers
from kit.sim import Simulator
from kit.tasks.dishwashing import dirt, economy
from kit.tasks.dishwashing import model as scene
from kit.tasks.dishwashing.rules import Rules

LOOKS = 5
"""A step's force and rubbing are looked at so often, every 20 ms."""
SLOW_MPS = 0.1
"""Well below this speed friction fades like a damper's, so that a sponge at rest stays at rest."""
TINY = 1e-9
"""Keeps quotients finite: once in a million, a plate comes clean."""
START_M = 0.08
"""At the start of a shift the sponge hovers so far from the sink's middle at most, along x and along y."""
LIFT_M = 0.1
"""Plates go down and come up so far, by a lift in the sink's floor."""
SEEN = 0.01
"""Thinner dirt than this does not show."""
SAUCE_RGB, BROKEN_RGB = (0.36, 0.17, 0.05), (0.75, 0.25, 0.22)
TURN_M, EDGE_M = 0.04, 0.095
"""The scripted wiper's spiral: from one turn to the next, and its radius at the rim."""
WIPER = (44.0, 0.4)
"""Its pressure, N, and its speed, m/s: hard and fast, with plates that all stand it (tests/bench/dishes.py)."""

SEES = (
    Field("the sponge's place", 2, f"{scene.REACH_M} m"),
    Field("its height", 1, f"{scene.HOVER_M} m"),
    Field("its velocity", 3, f"{scene.MOST_SPEED_MPS} m/s"),
    Field("the plate's place", 2, f"{scene.REACH_M} m"),
    Field("from the sponge to the plate", 2, f"{scene.WELL_M} m"),
    Field("thickness of the dirt in each cell", len(scene.cells())),
    Field("from the sponge to dirt near it", 2, f"{scene.WELL_M} m"),
    Field("contact force, of what the weakest plate stands", 1),
    Field("dirt under the sponge", 1),
    Field("a plate is there", 1),
    Field("share of the dirt that is left", 1),
    Field("time with this plate, of the patience", 1),
)
"""In this order."""
PRIVILEGED = (
    Field("contact force that this plate stands, of what the weakest does", 1),
    Field("contact force, of what this plate stands", 1),
    Field("the plate is broken", 1),
    Field("time until a plate is there", 1, "s"),
    Field("thickness of the dirt that the plate came with, mean of all cells", 1),
    Field("paid in advance for this plate, of its price", 1),
    Field("force of the sponge's motors", 3, f"{scene.MOST_PRESS_N} N"),
    Field("drag of the plate on the sponge along x and y", 2, f"{scene.MOST_PRESS_N} N"),
)
"""What cannot be seen, in this order."""


class Dishwashing(MujocoTask):
    """A shift at the sink: a sponge on a tool rubs plates clean, one after the other. It is told what to do 10 times a
    second.

    The action (3,) in [-1, 1]: the sponge's velocity along x and y, of 0.4 m/s, and how hard it is pressed, from 10 N
    upward (-1) to 50 N downward (1). Dirt goes where the sponge presses and slides (`dirt.py` here). A plate is clean
    when 3 % of its dirt is left; it breaks when the sponge presses harder than it stands: 50 to 100 N, which cannot be
    seen, and the sponge may press 51 N as it comes down. Then the tool is lifted by itself and a lift brings the next
    plate. An episode is a shift; it has no end of its own. The reward is money (`economy.py` here) in units of ten
    cents. `Rules` has every constant.

    `SEES` says what is seen, places along x and y; critics and teachers may know `PRIVILEGED` besides. "Dirt near it"
    is the mean of where dirt is, weighted by its thickness and by 1 / (r² + a²)², with r the distance from the sponge
    and a the sponge's radius.
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
    keeps = ("dirt", "plate", "ledger")

    def __init__(self, **options: Any) -> None:
        """`options` are those of `Rules`."""
        self.rules = Rules.of(options)
        self.model = scene.build_model()
        self.episode_steps = round(self.rules.shift_s / self.control_dt_s)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)
        entries: dict[str, gymnasium.Space] = {"state": numbers(SEES), "privileged": numbers(PRIVILEGED)}
        self.observation_space: gymnasium.Space = gymnasium.spaces.Dict(entries)
        ten_cents, price = economy.REWARD_PER_USD, self.rules.price_usd
        self.task_info = TaskInfo(
            sees={"state": SEES, "privileged": PRIVILEGED},
            does=(
                Field("velocity of the sponge along x and y", 2, f"{scene.MOST_SPEED_MPS} m/s"),
                Field(f"how hard it is pressed, from {-scene.LIFT_N:g} to {scene.MOST_PRESS_N:g} N", 1),
            ),
            pays=(
                (ten_cents * price * self.rules.advance, "all the dirt of a plate, as it goes"),
                (ten_cents * price * (1 - self.rules.advance), "a clean plate; else that is taken back"),
                (-ten_cents * self.rules.breakage_usd, "a broken plate"),
                (-ten_cents * self.rules.energy_usd_kwh, "a kWh"),
                (-ten_cents * self.rules.machine_usd_h, "an hour"),
            ),
        )

    def bind(self, sim: Simulator) -> None:
        super().bind(sim)
        model, n = self.model, sim.n
        self._cells = torch.as_tensor(scene.cells(), dtype=sim.dtype, device=sim.device)
        # Views of the simulator's memory, always current:
        self._sponge, self._velocity = sim.qpos[:, :3], sim.qvel[:, :3]
        self._middle_w = sim.mocap_pos[:, model.body(scene.PLATE).mocapid[0]]
        self._motors = sim.actuator_force
        self._drag_n = sim.qfrc_applied[:, :2]
        self._contact = sim.sensordata[:, model.sensor(scene.FORCE).adr[0] + 3]

        def zeros(*shape: int) -> torch.Tensor:
            return torch.zeros(n, *shape, dtype=sim.dtype, device=sim.device)

        self.dirt = zeros(len(self._cells))
        self.plate = zeros(8)
        self._place, rest = self.plate[:, :2], self.plate[:, 2:]  # where this plate lies, or will
        self._waiting_s, self._time_s, self._first_dirt, self._paid_usd = rest[:, :4].unbind(1)
        self._is_broken, self._stands_n = rest[:, 4:].unbind(1)
        self.ledger = zeros(len(economy.LEDGER))
        self._terms_usd = zeros(len(economy.TERMS))
        dirts = [model.geom(scene.DIRT.format(number)).id for number in range(len(self._cells))]
        self._dirt_geoms = slice(dirts[0], dirts[-1] + 1)
        self._well_geom = model.geom(scene.WELL).id
        self._rgba = torch.as_tensor(model.geom_rgba, dtype=sim.dtype, device=sim.device).repeat(n, 1, 1)
        colours = (scene.CHINA_RGB, SAUCE_RGB, BROKEN_RGB)
        self._palette = torch.tensor(colours, dtype=sim.dtype, device=sim.device)

    # -- plates ----------------------------------------------------------------------------------------------------

    def reset(self, mask: torch.Tensor, generator: torch.Generator) -> None:
        sim, n, self._generator = self.sim, self.n, generator
        start = torch.rand(n, 2, generator=generator, dtype=sim.dtype, device=sim.device)
        qpos = torch.full((n, 3), scene.HOVER_M, dtype=sim.dtype, device=sim.device)
        qpos[:, :2] = START_M * (2 * start - 1)
        self._serve(mask)
        self._waiting_s.masked_fill_(mask, 0.0)
        self.ledger.masked_fill_(mask.unsqueeze(1), 0.0)
        middle_w = torch.cat([self._place, torch.zeros_like(self._place[:, :1])], 1)
        sim.reset(mask, qpos=qpos, mocap_pos=middle_w.unsqueeze(1))

    def _serve(self, mask: torch.Tensor) -> None:
        """A new plate in the worlds of `mask` (n,)."""
        shape = self.n, dirt.NUMBERS + 3
        chance = torch.rand(shape, generator=self._generator, dtype=self.sim.dtype, device=self.device)
        served = dirt.serve(chance[:, 3:], self._cells, scene.WELL_M)
        new = torch.zeros_like(self.plate)
        new[:, :2] = self.rules.offset_m * (2 * chance[:, :2] - 1)
        new[:, 2], new[:, 4] = self._waiting_s, served.sum(1)
        new[:, 7] = self.rules.force_limit_n + self.rules.force_spread_n * chance[:, 2]
        self.dirt.copy_(torch.where(mask.unsqueeze(1), served, self.dirt))
        self.plate.copy_(torch.where(mask.unsqueeze(1), new, self.plate))

    def act(self, action: torch.Tensor) -> None:
        there = self._waiting_s <= 0
        press_n = (scene.MOST_PRESS_N + scene.LIFT_N) / 2 * (action[:, 2] + 1) - scene.LIFT_N
        self.sim.ctrl[:, :2] = scene.MOST_SPEED_MPS * action[:, :2]
        self.sim.ctrl[:, 2] = torch.where(there, press_n, -scene.LIFT_N)

    def advance(self, action: torch.Tensor) -> None:
        self.act(action)
        before, hardest_n = self.dirt.sum(1), torch.zeros_like(self._contact)
        energy_j = torch.full_like(hardest_n, self.rules.standby_w * self.control_dt_s)
        seconds, there = self.control_dt_s / LOOKS, self._waiting_s <= 0
        for _ in range(LOOKS):
            self.sim.step(self.substeps // LOOKS)
            on_plate = self._sponge[:, :2] - self._place
            force_n = self._contact.abs() * (there & (on_plate.norm(dim=1) < scene.PLATE_M))
            speed_mps = self._velocity[:, :2].norm(dim=1)
            drag = scene.FRICTION * force_n / (speed_mps + SLOW_MPS)  # Coulomb's, made smooth where the sponge rests
            torch.mul(self._velocity[:, :2], -drag.unsqueeze(1), out=self._drag_n)
            self.dirt -= dirt.rubbed(
                on_plate, self._cells, force_n, speed_mps, self.rules.sponge_m, self.rules.wear, seconds
            )
            self.dirt.clamp_(min=0.0)
            hardest_n = torch.maximum(hardest_n, force_n)
            energy_j += seconds * (self._motors * self._velocity).abs().sum(1)
        self._hardest_n = hardest_n
        self._settle(there, before, energy_j)
        self._change()

    def _settle(self, there: torch.Tensor, before: torch.Tensor, energy_j: torch.Tensor) -> None:
        """What became of the plates in this step, and the money."""
        rules, dt_s = self.rules, self.control_dt_s
        left = self.dirt.sum(1)
        self._time_s += dt_s * there
        broken = there & (self._hardest_n > self._stands_n)
        clean = there & ~broken & (left <= rules.clean_share * self._first_dirt)
        rejected = there & ~broken & ~clean & (self._time_s >= rules.patience_s)
        enough = rules.clean_share * self._first_dirt
        done = torch.maximum(before, enough) - torch.maximum(left, enough)
        progress = done / (self._first_dirt - enough).clamp(min=TINY)
        self._paid_usd += rules.price_usd * rules.advance * progress
        happened = economy.Happened(progress, self._paid_usd, clean, broken, rejected, energy_j, dt_s)
        self._terms_usd = economy.money(rules, happened)
        counted = [clean, broken, rejected, energy_j, torch.full_like(energy_j, dt_s)]
        self.ledger += torch.stack([c.to(energy_j.dtype) for c in counted], 1)
        over = clean | broken | rejected
        wait_s = rules.change_s + dt_s + rules.sweep_s * broken.to(left.dtype)  # this step's is taken off at once
        self._waiting_s.copy_(torch.where(over, wait_s, self._waiting_s))
        self._is_broken.copy_(self._is_broken.bool() | broken)

    def _change(self) -> None:
        """Bring plates down and the next ones up."""
        dt_s, half_s = self.control_dt_s, self.rules.change_s / 2
        old = self._waiting_s > half_s
        self._waiting_s.sub_(dt_s).clamp_(min=0.0)
        self._waiting_s.masked_fill_(self._waiting_s < dt_s / 2, 0.0)  # what rounding leaves
        served = old & (self._waiting_s <= half_s)
        if maybe_any(served):
            self._serve(served)
        down = torch.where(self._waiting_s > half_s, 2 * half_s - self._waiting_s, self._waiting_s).clamp(min=0.0)
        self._middle_w[:, :2] = self._place
        self._middle_w[:, 2] = -LIFT_M / half_s * down

    # -- what is seen and paid -------------------------------------------------------------------------------------

    def measure(self) -> None:
        self._to_cells = self._cells + (self._place - self._sponge[:, :2]).unsqueeze(1)  # (n, cells, 2), m
        self._there = self._waiting_s <= 0

    def observe(self) -> Obs:
        return self._numbers()

    def _numbers(self) -> dict[str, Obs]:
        """Those of "state" and "privileged" that somebody sees."""
        known = {"state": self._state, "privileged": self._privileged}
        return {name: known[name]() for name in self.delivered if name in known}

    def _privileged(self) -> torch.Tensor:
        """`PRIVILEGED` (n, 11)."""
        rules, price = self.rules, max(self.rules.price_usd, TINY)
        return torch.cat(
            [
                torch.stack([
                    self._stands_n / rules.force_limit_n,
                    self._contact.abs() / self._stands_n,
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
        """`SEES` (n, 69)."""
        rules = self.rules
        away = self._to_cells.square().sum(2)
        weight = self.dirt / (away + rules.sponge_m**2).square()
        towards = (weight.unsqueeze(2) * self._to_cells).sum(1) / weight.sum(1, keepdim=True).clamp(min=TINY)
        under = (self.dirt * (1 - away / rules.sponge_m**2).clamp(min=0.0)).sum(1)
        return torch.cat(
            [
                self._sponge[:, :2] / scene.REACH_M,
                self._sponge[:, 2:] / scene.HOVER_M,
                self._velocity / scene.MOST_SPEED_MPS,
                self._place / scene.REACH_M,
                (self._place - self._sponge[:, :2]) / scene.WELL_M,
                self.dirt,
                towards / scene.WELL_M,
                torch.stack([
                    self._contact.abs() / rules.force_limit_n,
                    under,
                    self._there.to(under.dtype),
                    self.dirt.sum(1) / self._first_dirt.clamp(min=TINY),
                    self._time_s / rules.patience_s,
                ], 1),
            ],
            dim=1,
        )  # fmt: skip

    def reward(self, action: torch.Tensor) -> torch.Tensor:
        return economy.REWARD_PER_USD * self._terms_usd.sum(1)

    def terminated(self) -> torch.Tensor:
        return torch.zeros(self.n, dtype=torch.bool, device=self.device)

    def info(self) -> dict[str, torch.Tensor]:
        terms = (economy.REWARD_PER_USD * self._terms_usd).unbind(1)
        paid = {f"reward/{name}": value for name, value in zip(economy.TERMS, terms, strict=True)}
        shift = economy.figures(self.rules, self.ledger)
        return {**paid, **{f"shift/{name}": value for name, value in shift.items()}}

    def colours(self) -> dict[str, torch.Tensor]:
        """Of every shape in every world, "geom_rgba" (n, ngeom, 4): dirt the browner the thicker, none where it is
        gone."""
        china, sauce, broken = self._palette
        self._rgba[:, self._dirt_geoms, :3] = china + (sauce - china) * self.dirt.sqrt().unsqueeze(2)
        self._rgba[:, self._dirt_geoms, 3] = (self.dirt > SEEN).to(self.dirt.dtype)
        self._rgba[:, self._well_geom, :3] = torch.where(self._is_broken.bool().unsqueeze(1), broken, china)
        return {"geom_rgba": self._rgba}

    def render(self, cameras: tuple[str, ...], height: int, width: int) -> torch.Tensor:
        return self.sim.render(cameras, height, width, shadows=self.shadows, poses=self.colours())

    def scripted(self) -> torch.Tensor:
        return self.wipe(*WIPER)

    def wipe(self, press_n: float, speed_mps: float) -> torch.Tensor:
        """What a plain machine would do, an action (n, 3): with one pressure and one speed along a spiral from the
        plate's middle to its rim, once around, and back, wherever there is dirt. It is told where the plate lies."""
        per_rad = TURN_M / (2 * math.pi)
        spiral_m = EDGE_M**2 / (2 * per_rad)  # of r = b φ: b φ² / 2, nearly; then once around
        whole_m = spiral_m + 2 * math.pi * EDGE_M
        gone_m = torch.remainder(self._time_s * speed_mps, 2 * whole_m)
        along_m = torch.minimum(gone_m, 2 * whole_m - gone_m)
        radius = (2 * per_rad * along_m.clamp(max=spiral_m)).sqrt()
        angle = radius / per_rad + (along_m - spiral_m).clamp(min=0.0) / EDGE_M
        spot = self._place + radius.unsqueeze(1) * torch.stack([angle.cos(), angle.sin()], 1)
        wanted = (spot - self._sponge[:, :2]) / self.control_dt_s  # m/s, to be there a step later
        wanted *= (speed_mps / wanted.norm(dim=1, keepdim=True).clamp(min=TINY)).clamp(max=1.0)
        press = torch.full_like(radius, 2 * (press_n + scene.LIFT_N) / (scene.MOST_PRESS_N + scene.LIFT_N) - 1)
        return torch.cat([wanted / scene.MOST_SPEED_MPS, press.unsqueeze(1)], 1).to(torch.float32)
