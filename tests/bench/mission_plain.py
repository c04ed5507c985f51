"""Mission in plain Python: reference for the Warp kernels; `tests/bench/mission.py` trains SB3 on it."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np

from kit.tasks.mission.rules import ARENA_M, ATTACKERS, COMMANDS, MOTION_HZ, UNIT_RADIUS_M, Rules

HALF, TICKS = ARENA_M / 2, 5
WAYS = [(0.0, 0.0)] + [(math.cos(k * math.pi / 4), math.sin(k * math.pi / 4)) for k in range(8)]


class PlainMission(gymnasium.Env):
    """One Mission game against stock defenders; times are in ticks of 1/20 s."""

    def __init__(self, **options: Any) -> None:
        self.rules = r = Rules.of(options)
        self.action_space = gymnasium.spaces.MultiDiscrete([9] * ATTACKERS)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (42,), np.float32)
        self.hold, self.out = round(r.hold_s * MOTION_HZ), round(r.out_s * MOTION_HZ)
        self.endurance, self.busy = round(r.endurance_s * MOTION_HZ), round(r.busy_s * MOTION_HZ)
        self.memory = round(r.memory_s * MOTION_HZ)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        number = int(self.np_random.integers(2**31))
        self.build(number % self.rules.maps if self.rules.maps else number)
        return self.observe(), {}

    def build(self, number: int) -> None:
        """Make map `number` and put all units at their start."""
        seed = mixed(number)

        def uniform(k: int) -> float:
            return (mixed((seed + k) % 2**32) >> 8) / 2**24

        home = int(uniform(0) * 8) + 4
        self.zone = ((home % 4 - 1.5) * 50 + 20 * uniform(1) - 10, (home // 4 - 0.5) * 50 + 20 * uniform(2) - 10)
        self.base_x = 150 * uniform(3) - 75
        angle = 2 * math.pi * uniform(4)
        self.discs: list[tuple[float, float, float]] = []
        for cell in range(12):
            left = 11 - cell + (cell > home)
            if cell != home and uniform(5 + cell) * left < self.rules.obstacles - len(self.discs):
                r = 6 + 8 * uniform(20 + 3 * cell)
                x = (cell % 4 - 1.5) * 50 + (22 - r) * (2 * uniform(21 + 3 * cell) - 1)
                y = (cell // 4 - 0.5) * 50 + (22 - r) * (2 * uniform(22 + 3 * cell) - 1)
                self.discs.append((x, y, r))
        self.attackers = [[*self.base(i), 0, self.endurance] for i in range(ATTACKERS)]
        self.round = angle
        self.defenders = []
        for j in range(3):
            x, y = self.slide(*self.post(j))
            way = angle + j * 2 * math.pi / 3
            mind = {"busy": 0, "alert": 0, "goal": (x, y)}
            self.defenders.append({"x": x, "y": y, "look": (math.cos(way), math.sin(way)), **mind})
        self.held = self.given = 0

    def base(self, i: int) -> tuple[float, float]:
        return self.base_x + 6 * (i - 1.5), -90.0

    def post(self, j: int) -> tuple[float, float]:
        way = self.round + j * 2 * math.pi / 3
        r = self.rules.patrol_m
        return inside(self.zone[0] + r * math.cos(way), self.zone[1] + r * math.sin(way))

    def slide(self, x: float, y: float) -> tuple[float, float]:
        """Return the position (x, y), moved out of all obstacles."""
        for cx, cy, r in self.discs:
            far = math.hypot(x - cx, y - cy)
            if 0 < far < r + UNIT_RADIUS_M:
                x, y = cx + (x - cx) * (r + UNIT_RADIUS_M) / far, cy + (y - cy) * (r + UNIT_RADIUS_M) / far
        return x, y

    def hidden(self, ax: float, ay: float, bx: float, by: float) -> bool:
        wx, wy = bx - ax, by - ay
        square = max(wx * wx + wy * wy, 1e-6)
        for cx, cy, r in self.discs:
            t = min(max(((cx - ax) * wx + (cy - ay) * wy) / square, 0.0), 1.0)
            if math.hypot(cx - ax - t * wx, cy - ay - t * wy) < r:
                return True
        return False

    def to_zone(self, x: float, y: float) -> float:
        return math.hypot(x - self.zone[0], y - self.zone[1])

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.lost = self.there = 0
        nearer, before = 0.0, [self.to_zone(a[0], a[1]) for a in self.attackers]
        for j in range(3):
            self.think(j)
        for _ in range(TICKS):
            if self.held < self.hold:
                self.tick(action)
        self.round += TICKS * self.rules.patrol_mps / MOTION_HZ / self.rules.patrol_m
        self.given += 1
        won, r = self.held >= self.hold, self.rules
        for far, (x, y, out, _) in zip(before, self.attackers, strict=True):
            if not out:
                nearer += max(far - r.zone_m, 0.0) - max(self.to_zone(x, y) - r.zone_m, 0.0)
        self.terms = (
            r.progress * nearer / 100,
            self.there / MOTION_HZ,
            r.capture * won,
            -r.losses * self.lost,
        )
        truncated = self.given >= COMMANDS and not won
        return self.observe(), sum(self.terms), won, truncated, {"is_success": won}

    def think(self, j: int) -> None:
        """Choose the goal of defender `j`: an attacker that it sees, the last position of one, or its patrol post."""
        d, r, least = self.defenders[j], self.rules, math.inf
        d["alert"] = max(d["alert"] - TICKS, 0)
        for i, (x, y, out, _) in enumerate(self.attackers):
            far = self.to_zone(x, y)
            cost = math.hypot(x - d["x"], y - d["y"]) + r.threat * far
            if not out and far <= r.leash_m and cost < least and self.seen_by_defender(d, x, y, i < 2):
                least, d["goal"], d["alert"] = cost, (x, y), self.memory + TICKS
        if least == math.inf and math.dist(d["goal"], (d["x"], d["y"])) < 2:
            d["alert"] = 0
        if d["alert"] == 0:
            d["goal"] = self.post(j)

    def seen_by_defender(self, d: dict[str, Any], x: float, y: float, on_ground: bool) -> bool:
        if not within(d, x, y, self.rules.defender_sight_m, self.rules.defender_cone_deg):
            return False
        return not (on_ground and self.hidden(d["x"], d["y"], x, y))

    def seen_by_attackers(self, d: dict[str, Any]) -> bool:
        for i, (x, y, out, _) in enumerate(self.attackers):
            far = math.hypot(d["x"] - x, d["y"] - y)
            if not out and i >= 2 and far <= self.rules.air_sight_m:
                return True
            if not out and i < 2 and far <= self.rules.ground_sight_m and not self.hidden(x, y, d["x"], d["y"]):
                return True
        return False

    def tick(self, action: Any) -> None:
        r = self.rules
        for i, a in enumerate(self.attackers):
            if a[2]:
                a[2] -= 1
                continue
            wx, wy = WAYS[action[i]]
            pace = (r.ground_mps if i < 2 else r.air_mps) / MOTION_HZ
            a[0], a[1] = inside(a[0] + pace * wx, a[1] + pace * wy)
            if i < 2:
                a[0], a[1] = self.slide(a[0], a[1])
            else:
                a[3] -= 1 if action[i] else r.hover_share
            if a[3] <= 0:
                self.lose(i)
        for d in self.defenders:
            if d["busy"]:
                d["busy"] -= 1
                continue
            self.move(d)
            for i, (x, y, out, _) in enumerate(self.attackers):
                if not out and not d["busy"] and within(d, x, y, r.tag_m, r.tag_cone_deg):
                    self.lose(i)
                    d["busy"] = self.busy
        holders = sum(not out and self.to_zone(x, y) <= r.zone_m for x, y, out, _ in self.attackers)
        self.there += r.presence * holders + r.holding * holders * (holders - 1)
        self.held = self.held + 1 if holders >= r.hold_units else max(self.held - 1, 0)

    def lose(self, i: int) -> None:
        self.attackers[i] = [*self.base(i), self.out, self.endurance]
        self.lost += 1

    def move(self, d: dict[str, Any]) -> None:
        wx, wy = d["goal"][0] - d["x"], d["goal"][1] - d["y"]
        far = math.hypot(wx, wy)
        if far <= 0.5:
            return
        now, most = math.atan2(d["look"][1], d["look"][0]), math.radians(self.rules.turn_dps) / MOTION_HZ
        turn = (math.atan2(wy, wx) - now + math.pi) % (2 * math.pi) - math.pi
        now += min(max(turn, -most), most)
        d["look"] = math.cos(now), math.sin(now)
        if d["look"][0] * wx + d["look"][1] * wy > 0:
            pace = (self.rules.chase_mps if d["alert"] else self.rules.patrol_mps) / MOTION_HZ
            moved = inside(d["x"] + pace * d["look"][0], d["y"] + pace * d["look"][1])
            d["x"], d["y"] = self.slide(*moved)

    def observe(self) -> np.ndarray:
        zx, zy = self.zone
        seen: list[float] = []
        for x, y, out, _ in self.attackers:
            seen += [(x - zx) / 30, (y - zy) / 30, out / self.out]
        seen += [a[3] / self.endurance for a in self.attackers[2:]]
        for d in self.defenders:
            if self.seen_by_attackers(d):
                place = (d["x"] - zx) / 30, (d["y"] - zy) / 30
                seen += [1.0, *place, *d["look"], d["busy"] / max(self.busy, 1)]
            else:
                seen += [0.0] * 6
        for x, y, _, _ in self.attackers[:2]:
            nearest = min(self.discs, key=lambda c: math.hypot(x - c[0], y - c[1]) - c[2], default=(x, y, 0.0))
            seen += [(nearest[0] - x) / 50, (nearest[1] - y) / 50, nearest[2] / 10]
        seen += [zx / 100, zy / 100, self.held / self.hold, self.given / COMMANDS]
        return np.array(seen, dtype=np.float32)


def within(d: dict[str, Any], x: float, y: float, far_m: float, cone_deg: float) -> bool:
    """Return whether (x, y) is within `far_m` of defender `d` and within `cone_deg` of its viewing direction."""
    wx, wy = x - d["x"], y - d["y"]
    far = math.hypot(wx, wy)
    return far <= far_m and d["look"][0] * wx + d["look"][1] * wy >= far * math.cos(math.radians(cone_deg))


def inside(x: float, y: float) -> tuple[float, float]:
    edge = HALF - UNIT_RADIUS_M
    return min(max(x, -edge), edge), min(max(y, -edge), edge)


def mixed(x: int) -> int:
    """PCG-RXS-M-XS on 32 bits."""
    state = (x * 747796405 + 2891336453) % 2**32
    word = ((state >> ((state >> 28) + 4)) ^ state) * 277803737 % 2**32
    return (word >> 22) ^ word
