"""The worlds of the mission game, and who is where and sees whom in them: what its Warp kernels are made of.

A world is five rows of numbers, all float32; times are ticks of the motion (1/20 s), so that counting is exact:

    attackers  (n, 4) of x, y (m), ticks until it is back (0: it plays), endurance left (ticks)
    defenders  (n, 3) of x, y (m), and where it looks, a unit vector
    minds      (n, 3) of ticks busy, ticks on alert, x, y (m) of where the stock defender goes then
    field      (n, 2) of zone x, y, base x, y (m); ticks held, commands given, and the patrol's direction, a unit vector
    discs      (n, 8) of x, y, radius (m) and nothing: the obstacles; those that are not there lie far away
    near       (n, 5) of the one obstacle that each ground unit and each defender can reach within a command
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from kit.sim.kernels import wp
from kit.tasks.mission.rules import ARENA_M, COMMAND_HZ, COMMANDS, MOTION_HZ, OBSTACLES, UNIT_M, Rules

wp.set_module_options({"enable_backward": False, "max_unroll": OBSTACLES, "optimization_level": 3})

Three, Four, Discs = (wp.types.matrix(shape=(rows, 4), dtype=float) for rows in (3, 4, OBSTACLES))
HALF = wp.constant(0.5 * ARENA_M)
UNIT = wp.constant(UNIT_M)
NOWHERE = wp.constant(wp.vec4(1.0e4, 1.0e4, 0.0, 0.0))
NEAR = wp.constant(1.0 / 30.0)
"""Places near the zone must differ by much: a tag is a matter of five metres."""
REACH = wp.constant(UNIT_M + 8.0 / COMMAND_HZ)
"""A unit's radius and how far the fastest gets on the ground within a command: half of what lies between obstacles."""
EPISODE = wp.constant(float(COMMANDS))
BASE_Y = wp.constant(-90.0)
CELL_M = wp.constant(50.0)


@wp.struct
class Constants:
    """`Rules` as kernels want them: ticks, metres in a tick, cosines of angles."""

    ticks: int  # in a command; not a constant, so that its loop is not unrolled
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
    guarded: int  # whether somebody wants to know what the defenders see
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
class Worlds:
    """Rows of all worlds."""

    attackers: wp.array2d(dtype=wp.vec4)
    defenders: wp.array2d(dtype=wp.vec4)
    minds: wp.array2d(dtype=wp.vec4)
    field: wp.array2d(dtype=wp.vec4)
    discs: wp.array2d(dtype=wp.vec4)
    near: wp.array2d(dtype=wp.vec4)
    obs: wp.array2d(dtype=float)
    guard: wp.array2d(dtype=float)
    terms: wp.array(dtype=wp.vec4)


def constants(rules: Rules, guarded: bool) -> Any:
    """Of one game; `guarded`: the defenders are a policy's."""
    given = {f.name: getattr(rules, f.name) for f in fields(rules)}
    found = Constants()
    found.ticks, found.guarded = MOTION_HZ // COMMAND_HZ, int(guarded)
    for name in ("maps", "obstacles", "hold_units", "hover_share", "threat", "presence", "holding"):
        setattr(found, name, given[name])
    for name in ("zone", "ground_sight", "air_sight", "tag", "patrol", "leash"):
        setattr(found, name, given[f"{name}_m"])
    for name in ("hold", "out", "endurance", "busy", "memory"):
        setattr(found, name, float(round(given[f"{name}_s"] * MOTION_HZ)))
    for name in ("ground", "air", "patrol", "chase"):
        setattr(found, f"{name}_step", given[f"{name}_mps"] / MOTION_HZ)
    found.sight = rules.defender_sight_m
    found.tag_cos, found.sight_cos = (math.cos(math.radians(a)) for a in (rules.tag_cone_deg, rules.defender_cone_deg))
    turn, round_ = math.radians(rules.turn_dps) / MOTION_HZ, found.ticks * found.patrol_step / rules.patrol_m
    found.turn_cos, found.turn_sin = math.cos(min(turn, math.pi)), math.sin(min(turn, math.pi))
    found.patrol_cos, found.patrol_sin = math.cos(round_), math.sin(round_)
    found.pay = wp.vec4(rules.progress / 100.0, 1.0 / MOTION_HZ, rules.capture, -rules.losses)
    return found


@wp.func
def compass(k: int) -> wp.vec2:
    """The direction of command `k`: 1 to 8 go round from east to south-east; 0 is to stand."""
    diagonal = 0.7071067811865476
    x = 0.0
    y = 0.0
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
    return wp.vec2(v[0], v[1])


@wp.func
def turned(v: wp.vec2, cos_: float, sin_: float) -> wp.vec2:
    return wp.vec2(v[0] * cos_ - v[1] * sin_, v[0] * sin_ + v[1] * cos_)


@wp.func
def inside(p: wp.vec2) -> wp.vec2:
    """Held by the walls."""
    return wp.vec2(wp.clamp(p[0], -HALF + UNIT, HALF - UNIT), wp.clamp(p[1], -HALF + UNIT, HALF - UNIT))


@wp.func
def nearest(discs: Discs, p: wp.vec2) -> wp.vec4:
    """The obstacle whose border is."""
    best = wp.vec4(0.0, 0.0, 0.0, 0.0)
    least = 1.0e9
    for k in range(OBSTACLES):
        gap = wp.length(p - place(discs[k])) - discs[k, 2]
        closer = gap < least
        least = wp.where(closer, gap, least)
        best = wp.where(closer, discs[k], best)
    return best


@wp.func
def within_reach(discs: Discs, p: wp.vec2) -> wp.vec4:
    """The obstacle that may be touched within one command from `p`, if there is one: without roots."""
    found = NOWHERE
    for k in range(OBSTACLES):
        to = place(discs[k]) - p
        far = discs[k, 2] + REACH
        found = wp.where(wp.dot(to, to) < far * far, discs[k], found)
    return found


@wp.func
def stopped(p: wp.vec2, disc: wp.vec4) -> wp.vec2:
    """Pushed out of `disc`, so that what moves on the ground slides along it."""
    d = wp.vec2(p[0] - disc[0], p[1] - disc[1])
    r = disc[2] + UNIT
    square = wp.dot(d, d)
    out = p
    if disc[2] > 0.0 and square < r * r and square > 0.0:
        out = wp.vec2(disc[0], disc[1]) + d * (r / wp.sqrt(square))
    return out


@wp.func
def hidden(discs: Discs, p: wp.vec2, q: wp.vec2) -> bool:
    """Whether an obstacle lies between `p` and `q`."""
    way = q - p
    share = 1.0 / wp.max(wp.dot(way, way), 1.0e-6)
    found = False
    for k in range(OBSTACLES):
        to = place(discs[k]) - p
        off = to - way * wp.clamp(wp.dot(to, way) * share, 0.0, 1.0)
        found = found or wp.dot(off, off) < discs[k, 2] * discs[k, 2]
    return found


@wp.func
def base(field: wp.vec4, i: int) -> wp.vec2:
    """Where attacker `i` begins: side by side, 6 m apart."""
    return wp.vec2(field[2] + 6.0 * (float(i) - 1.5), field[3])


@wp.func
def seen_by_defender(c: Constants, discs: Discs, d: wp.vec4, a: wp.vec4, on_ground: bool) -> bool:
    """Whether the defender `d` sees the attacker `a`."""
    seen = False
    to = place(a) - place(d)
    square = wp.dot(to, to)
    if a[2] == 0.0 and square <= c.sight * c.sight:
        seen = wp.dot(to, wp.vec2(d[2], d[3])) >= c.sight_cos * wp.sqrt(square)
        if seen and on_ground:
            seen = not hidden(discs, place(d), place(a))
    return seen


@wp.func
def seen_by_attacker(c: Constants, discs: Discs, a: wp.vec4, d: wp.vec4, on_ground: bool) -> bool:
    """Whether the attacker `a` sees the defender `d`."""
    seen = False
    to = place(d) - place(a)
    square = wp.dot(to, to)
    if a[2] == 0.0:
        if on_ground:
            if square <= c.ground_sight * c.ground_sight:
                seen = not hidden(discs, place(a), place(d))
        else:
            seen = square <= c.air_sight * c.air_sight
    return seen
