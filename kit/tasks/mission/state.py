"""State of the mission game: tensors, constants, and Warp functions for geometry and visibility.

The state of n games consists of these tensors, all float32, with rows of four numbers. Times are in motion
ticks (1/20 s). They are whole numbers, which float32 counts exactly; only the endurance can have fractions.

    attackers  (n, 4, 4)  x, y (m), waiting time left (ticks; 0: in the game), endurance left (ticks)
    defenders  (n, 3, 4)  x, y (m), viewing direction (unit vector)
    minds      (n, 3, 4)  ticks until the next tag is possible; stock defenders: ticks of chase left, goal x, y (m)
    field      (n, 2, 4)  zone x, y, base x, y (m); time held (ticks), commands given, patrol direction (unit vector)
    discs      (n, 8, 4)  obstacles: x, y, radius (m), unused; missing obstacles lie far away
    near       (n, 5, 4)  the obstacle that a unit can hit until the next command: the nearest one for each of the 2
                          ground attackers; the one within `REACH`, or `NOWHERE`, for each of the 3 defenders
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from kit.sim.kernels import wp
from kit.tasks.mission.rules import ARENA_M, COMMAND_HZ, COMMANDS, MOTION_HZ, OBSTACLES, UNIT_RADIUS_M, Rules

wp.set_module_options({"enable_backward": False, "max_unroll": OBSTACLES, "optimization_level": 3})

Three, Four, Discs = (wp.types.matrix(shape=(rows, 4), dtype=float) for rows in (3, 4, OBSTACLES))
HALF = wp.constant(0.5 * ARENA_M)
UNIT = wp.constant(UNIT_RADIUS_M)
NOWHERE = wp.constant(wp.vec4(1.0e4, 1.0e4, 0.0, 0.0))
NEAR = wp.constant(1.0 / 30.0)
"""Scale of observed positions, 1/m. It is large because a few metres matter: a defender tags within 5 m."""
REACH = wp.constant(UNIT_RADIUS_M + 8.0 / COMMAND_HZ)
"""Unit radius plus the longest way on the ground per command (2 m), m. At most one obstacle is within this distance."""
EPISODE = wp.constant(float(COMMANDS))
BASE_Y = wp.constant(-90.0)
CELL_M = wp.constant(50.0)


@wp.struct
class Constants:
    """`Rules` in the kernels' units: ticks, metres per tick, cosines of angles."""

    ticks: int  # ticks per command; not a constant, so that Warp does not unroll the loop over ticks
    maps: int
    obstacles: int
    zone: float
    hold: float
    hold_units: int
    out: float
    ground_step: float
    air_step: float
    ground_sight: float
    air_sight: float
    endurance: float
    hover_share: float
    tag: float
    tag_cos: float
    busy: float
    sight: float
    sight_cos: float
    guarded: int  # whether to compute the defenders' observation
    turn_cos: float
    turn_sin: float
    patrol: float
    patrol_step: float
    patrol_cos: float
    patrol_sin: float
    chase_step: float
    leash: float
    memory: float
    threat: float
    presence: float
    holding: float
    pay: wp.vec4


@wp.struct
class Games:
    """State, observations and reward terms of all games; the arrays share memory with torch tensors.

    `obs` is the observation of the attackers, `guard` that of the defenders. `hold` is the number of ticks for which
    the zone must be held, fewer in early stages of training.
    """

    attackers: wp.array2d(dtype=wp.vec4)
    defenders: wp.array2d(dtype=wp.vec4)
    minds: wp.array2d(dtype=wp.vec4)
    field: wp.array2d(dtype=wp.vec4)
    discs: wp.array2d(dtype=wp.vec4)
    near: wp.array2d(dtype=wp.vec4)
    obs: wp.array2d(dtype=float)
    guard: wp.array2d(dtype=float)
    terms: wp.array(dtype=wp.vec4)
    hold: wp.array(dtype=float)


def constants(rules: Rules, guarded: bool) -> Any:
    """Convert `rules` to kernel constants. `guarded`: also compute the defenders' observation."""
    values = {f.name: getattr(rules, f.name) for f in fields(rules)}
    c = Constants()
    c.ticks, c.guarded = MOTION_HZ // COMMAND_HZ, int(guarded)
    for name in ("maps", "obstacles", "hold_units", "hover_share", "threat", "presence", "holding"):
        setattr(c, name, values[name])
    for name in ("zone", "ground_sight", "air_sight", "tag", "patrol", "leash"):
        setattr(c, name, values[f"{name}_m"])
    for name in ("hold", "out", "endurance", "busy", "memory"):
        setattr(c, name, float(round(values[f"{name}_s"] * MOTION_HZ)))
    for name in ("ground", "air", "patrol", "chase"):
        setattr(c, f"{name}_step", values[f"{name}_mps"] / MOTION_HZ)
    c.sight = rules.defender_sight_m
    c.tag_cos, c.sight_cos = (math.cos(math.radians(a)) for a in (rules.tag_cone_deg, rules.defender_cone_deg))
    turn, patrol_turn = math.radians(rules.turn_dps) / MOTION_HZ, c.ticks * c.patrol_step / rules.patrol_m
    c.turn_cos, c.turn_sin = math.cos(min(turn, math.pi)), math.sin(min(turn, math.pi))
    c.patrol_cos, c.patrol_sin = math.cos(patrol_turn), math.sin(patrol_turn)
    c.pay = wp.vec4(rules.progress / 100.0, 1.0 / MOTION_HZ, rules.capture, -rules.losses)
    return c


@wp.func
def compass(k: int) -> wp.vec2:
    """Return the direction of command `k`: 0: stay; 1: east, 2: north-east, 3: north, ... 8: south-east."""
    diagonal = 0.7071067811865476
    x = float(0.0)
    y = float(0.0)
    if k == 1:
        x = 1.0
    elif k == 2:
        x = diagonal
        y = diagonal
    elif k == 3:
        y = 1.0
    elif k == 4:
        x = -diagonal
        y = diagonal
    elif k == 5:
        x = -1.0
    elif k == 6:
        x = -diagonal
        y = -diagonal
    elif k == 7:
        y = -1.0
    elif k == 8:
        x = diagonal
        y = -diagonal
    return wp.vec2(x, y)


@wp.func
def place(v: wp.vec4) -> wp.vec2:
    """Return the position x, y in a row of the state."""
    return wp.vec2(v[0], v[1])


@wp.func
def turned(v: wp.vec2, cos_: float, sin_: float) -> wp.vec2:
    """Rotate `v` counterclockwise by the angle with this cosine and sine."""
    return wp.vec2(v[0] * cos_ - v[1] * sin_, v[0] * sin_ + v[1] * cos_)


@wp.func
def inside(p: wp.vec2) -> wp.vec2:
    """Clamp a position to the arena."""
    return wp.vec2(wp.clamp(p[0], -HALF + UNIT, HALF - UNIT), wp.clamp(p[1], -HALF + UNIT, HALF - UNIT))


@wp.func
def nearest(discs: Discs, p: wp.vec2) -> wp.vec4:
    """Return the obstacle whose border is nearest to `p`."""
    best = wp.vec4(0.0, 0.0, 0.0, 0.0)
    least = float(1.0e9)
    for k in range(OBSTACLES):
        gap = wp.length(p - place(discs[k])) - discs[k, 2]
        closer = gap < least
        least = wp.where(closer, gap, least)
        best = wp.where(closer, discs[k], best)
    return best


@wp.func
def within_reach(discs: Discs, p: wp.vec2) -> wp.vec4:
    """Return the obstacle within `REACH` of `p`, or `NOWHERE`. Compares squared distances, for speed."""
    found = NOWHERE
    for k in range(OBSTACLES):
        to = place(discs[k]) - p
        far = discs[k, 2] + REACH
        found = wp.where(wp.dot(to, to) < far * far, discs[k], found)
    return found


@wp.func
def stopped(p: wp.vec2, disc: wp.vec4) -> wp.vec2:
    """Move the position `p` out of `disc`; units on the ground thus slide along obstacles."""
    d = wp.vec2(p[0] - disc[0], p[1] - disc[1])
    r = disc[2] + UNIT
    square = wp.dot(d, d)
    out = p
    if disc[2] > 0.0 and square < r * r and square > 0.0:
        out = wp.vec2(disc[0], disc[1]) + d * (r / wp.sqrt(square))
    return out


@wp.func
def hidden(discs: Discs, p: wp.vec2, q: wp.vec2) -> bool:
    """Return whether an obstacle lies between `p` and `q`."""
    way = q - p
    share = 1.0 / wp.max(wp.dot(way, way), 1.0e-6)
    found = bool(False)
    for k in range(OBSTACLES):
        to = place(discs[k]) - p
        off = to - way * wp.clamp(wp.dot(to, way) * share, 0.0, 1.0)
        found = found or wp.dot(off, off) < discs[k, 2] * discs[k, 2]
    return found


@wp.func
def base(field: wp.vec4, i: int) -> wp.vec2:
    """Return the start position of attacker `i`; attackers start side by side, 6 m apart."""
    return wp.vec2(field[2] + 6.0 * (float(i) - 1.5), field[3])


@wp.func
def seen_by_defender(sight: float, sight_cos: float, discs: Discs, d: wp.vec4, a: wp.vec4, on_ground: bool) -> bool:
    """Return whether the defender `d` sees the attacker `a`, up to `sight` m away.

    It takes numbers instead of `Constants`: for a struct passed on inside a branch, the code of NVRTC 12.9 read the
    kernel's parameter as local memory (`cvta.param` then `cvta.to.local`), an illegal memory access on an H100.
    tests/sim/test_compile.py checks for it.
    """
    seen = bool(False)
    to = place(a) - place(d)
    square = wp.dot(to, to)
    if a[2] == 0.0 and square <= sight * sight:
        seen = wp.dot(to, wp.vec2(d[2], d[3])) >= sight_cos * wp.sqrt(square)
        if seen and on_ground:
            seen = not hidden(discs, place(d), place(a))
    return seen


@wp.func
def seen_by_attacker(sight: float, discs: Discs, a: wp.vec4, d: wp.vec4, on_ground: bool) -> bool:
    """Return whether the attacker `a` sees the defender `d`, up to `sight` m away."""
    seen = bool(False)
    to = place(d) - place(a)
    square = wp.dot(to, to)
    if a[2] == 0.0 and square <= sight * sight:
        seen = True
        if on_ground:
            seen = not hidden(discs, place(a), place(d))
    return seen
