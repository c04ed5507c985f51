"""Warp kernel that paints a map of the mission game, one thread per pixel, the same code on CPU and CUDA.

Shapes are signed distances from the centre of the pixel, which gives smooth edges with one sample per pixel.
"""

from __future__ import annotations

from kit.sim.kernels import wp
from kit.tasks.mission.rules import ARENA_M, OBSTACLES
from kit.tasks.mission.state import Discs, hidden, place

wp.set_module_options({"enable_backward": False, "max_unroll": OBSTACLES})

PAPER, GRID = wp.constant(wp.vec3(0.945, 0.945, 0.92)), wp.constant(wp.vec3(0.87, 0.88, 0.86))
ROCK, RIM = wp.constant(wp.vec3(0.66, 0.69, 0.66)), wp.constant(wp.vec3(0.48, 0.52, 0.50))
INK, WHITE = wp.constant(wp.vec3(0.25, 0.28, 0.31)), wp.constant(wp.vec3(1.0, 1.0, 1.0))
GOLD, GREEN = wp.constant(wp.vec3(0.93, 0.70, 0.13)), wp.constant(wp.vec3(0.18, 0.62, 0.28))
BLUE, TEAL = wp.constant(wp.vec3(0.10, 0.36, 0.75)), wp.constant(wp.vec3(0.0, 0.60, 0.66))
RED, GREY = wp.constant(wp.vec3(0.82, 0.20, 0.16)), wp.constant(wp.vec3(0.6, 0.6, 0.6))
HALF = wp.constant(0.5 * ARENA_M)
JUMP = wp.constant(18.0)
"""Distance, m, beyond which a unit's trail is interrupted: no unit moves further in four commands, so it was tagged."""
LEGEND = ((0, "GROUND"), (56, "AIR"), (94, "DEFENDER"))
"""Legend: x position in an image 320 pixels wide, and text."""
LEGEND_AT = wp.constant(wp.vec3(*(float(at) for at, _ in LEGEND)))


@wp.struct
class View:
    """Inputs and outputs of `paint`."""

    attackers: wp.array2d(dtype=wp.vec4)
    defenders: wp.array2d(dtype=wp.vec4)
    minds: wp.array2d(dtype=wp.vec4)
    field: wp.array2d(dtype=wp.vec4)
    discs: wp.array2d(dtype=wp.vec4)
    before: wp.array2d(dtype=wp.vec2)
    fade: wp.array(dtype=float)
    trails: wp.array3d(dtype=wp.vec3)
    pixels: wp.array4d(dtype=wp.uint8)
    px: float  # pixels per metre
    unit: float  # size of the image relative to one of 320 pixels
    middle: wp.vec2  # centre of the map, pixels
    bar: float  # vertical centre of the legend, pixels
    zone: float
    hold: float
    endurance: float
    sight: float
    sight_cos: float
    tag: float
    tag_cos: float


@wp.func
def over(under: wp.vec3, colour: wp.vec3, share: float) -> wp.vec3:
    return under + (colour - under) * share


@wp.func
def filled(distance: float) -> float:
    """Return the coverage of a pixel by a shape whose edge is `distance` pixels away (negative: inside)."""
    return wp.clamp(0.5 - distance, 0.0, 1.0)


@wp.func
def arrow(p: wp.vec2, look: wp.vec2, r: float) -> float:
    """Return the signed distance to a triangle of size `r` that points along `look`."""
    u = wp.dot(p, look)
    v = wp.abs(p[0] * look[1] - p[1] * look[0])
    return wp.max(-u - 0.6 * r, 0.325 * (u - r) + 0.946 * v)


@wp.func
def unit_shape(p: wp.vec2, kind: int, look: wp.vec2, r: float) -> float:
    """Return the signed distance to a unit's symbol: a disc (ground), a diamond (air) or an arrow (defender)."""
    found = wp.length(p) - r
    if kind == 1:
        found = (wp.abs(p[0]) + wp.abs(p[1]) - 1.3 * r) * 0.7071
    if kind == 2:
        found = arrow(p, look, 2.0 * r)
    return found


@wp.func
def turned_by(p: wp.vec2) -> float:
    """Return the direction of `p`, clockwise from north, as a fraction of a full turn."""
    return wp.atan2(-p[0], -p[1]) / 6.2831853 + 0.5


@wp.func
def segment(p: wp.vec2, a: wp.vec2, b: wp.vec2) -> float:
    way = b - a
    t = wp.clamp(wp.dot(p - a, way) / wp.max(wp.dot(way, way), 1.0e-6), 0.0, 1.0)
    return wp.length(p - a - way * t)


@wp.kernel
def paint(v: View):
    """Paint all pixels, uint8 (n, height, width, 3); row 0 is the top of the image."""
    w, row, column = wp.tid()
    at = wp.vec2((float(column) + 0.5 - v.middle[0]) / v.px, (v.middle[1] - float(row) - 0.5) / v.px)  # m
    f = v.field[w, 0]
    g = v.field[w, 1]
    colour = PAPER
    edge = wp.max(wp.abs(at[0]), wp.abs(at[1])) - HALF
    if edge < 0.0:
        line = wp.min(wp.abs(at[0] - 50.0 * wp.round(at[0] / 50.0)), wp.abs(at[1] - 50.0 * wp.round(at[1] / 50.0)))
        colour = over(colour, GRID, filled(line * v.px - 0.5 * v.unit))
        home = wp.vec2(wp.abs(at[0] - f[2]) - 13.0, wp.abs(at[1] - f[3]) - 5.0)
        colour = over(colour, BLUE, 0.15 * filled(wp.max(home[0], home[1]) * v.px))
        to_zone = at - place(f)
        rim = (wp.length(to_zone) - v.zone) * v.px
        colour = over(colour, GOLD, 0.30 * filled(rim))
        discs = Discs()
        for k in range(OBSTACLES):
            discs[k] = v.discs[w, k]
        for k in range(OBSTACLES):
            away = (wp.length(at - place(discs[k])) - discs[k, 2]) * v.px
            colour = over(colour, RIM, filled(away))
            colour = over(colour, ROCK, filled(away + 1.5 * v.unit))
        for j in range(3):
            d = v.defenders[w, j]
            m = v.minds[w, j]
            to = at - place(d)
            far = wp.length(to)
            ahead = to[0] * d[2] + to[1] * d[3]
            if m[0] == 0.0 and far < v.sight and ahead >= v.sight_cos * far:
                if not hidden(discs, place(d), at):
                    colour = over(colour, RED, wp.where(m[1] > 0.0, 0.20, 0.10))
            if m[0] == 0.0 and far < v.tag and ahead >= v.tag_cos * far:
                colour = over(colour, RED, 0.45)
        colour = over(colour, GOLD, filled(wp.abs(rim) - 0.9 * v.unit))
        if g[0] > 0.0 and turned_by(to_zone) <= g[0] / v.hold:
            colour = over(colour, GREEN, filled(wp.abs(rim) - 2.2 * v.unit))

        trail = v.trails[w, row, column] * v.fade[w]
        for k in range(7):
            now = wp.vec2()
            if k < 4:
                now = place(v.attackers[w, wp.min(k, 3)])
            else:
                now = place(v.defenders[w, k - 4])
            old = v.before[w, k]
            if wp.length(now - old) < JUMP and wp.length(at - now) < JUMP + 2.0:
                stroke = filled(segment(at, old, now) * v.px - 0.7 * v.unit)
                kind = wp.where(k < 2, 0, wp.where(k < 4, 1, 2))
                trail[kind] = wp.max(trail[kind], stroke)
        v.trails[w, row, column] = trail
        colour = over(colour, BLUE, 0.75 * trail[0])
        colour = over(colour, TEAL, 0.75 * trail[1])
        colour = over(colour, RED, 0.55 * trail[2])

        for k in range(7):
            kind = int(2)
            own = RED
            there = wp.vec4()
            faint = bool(False)
            if k < 4:
                there = v.attackers[w, wp.min(k, 3)]
                kind = wp.where(k < 2, 0, 1)
                own = wp.where(k < 2, BLUE, TEAL)
                faint = there[2] > 0.0
            else:
                there = v.defenders[w, k - 4]
                faint = v.minds[w, k - 4][0] > 0.0
            p = (at - place(there)) * v.px
            if wp.length(p) < 14.0 * v.unit:
                shape = unit_shape(p, kind, wp.vec2(there[2], there[3]), 4.4 * v.unit)
                colour = over(colour, WHITE, filled(shape - 1.3 * v.unit) * wp.where(faint, 0.5, 1.0))
                colour = over(colour, wp.where(faint, GREY, own), filled(shape) * wp.where(faint, 0.7, 1.0))
                if kind == 1 and not faint and turned_by(p) <= there[3] / v.endurance:
                    colour = over(colour, TEAL, 0.8 * filled(wp.abs(wp.length(p) - 8.5 * v.unit) - 0.8 * v.unit))
    colour = over(colour, INK, filled(wp.abs(edge) * v.px - 0.8 * v.unit))
    for kind in range(3):
        p = wp.vec2(float(column) + 0.5 - (9.0 + LEGEND_AT[kind]) * v.unit, v.bar - float(row) - 0.5)
        if wp.length(p) < 9.0 * v.unit:
            own = wp.where(kind == 0, BLUE, wp.where(kind == 1, TEAL, RED))
            colour = over(colour, own, filled(unit_shape(p, kind, wp.vec2(0.0, 1.0), 4.4 * v.unit)))
    for i in range(3):
        v.pixels[w, row, column, i] = wp.uint8(wp.clamp(colour[i], 0.0, 1.0) * 255.0 + 0.5)
