"""A map of the mission game from above, drawn by one Warp kernel, a pixel a thread, the same on CPU and CUDA.

Shapes are drawn by their distance from the pixel's middle, so that edges are smooth without drawing any pixel twice.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from kit.envs.mission_kernels import Discs, hidden, place
from kit.envs.mission_rules import ARENA_M, MOTION_HZ, OBSTACLES, Rules
from kit.sim.kernels import beside_torch, compiling, wp

wp.set_module_options({"enable_backward": False, "max_unroll": OBSTACLES})

BAR = 0.085
"""Of the picture's height: the legend below the map."""
FADE = 0.975
"""Of a trail's strength is left after each command: a third after 11 s."""
JUMP_M = 5.0
"""Further in one command than anybody moves: a unit that was tagged."""

PAPER, GRID, WALL = wp.vec3(0.945, 0.945, 0.92), wp.vec3(0.87, 0.88, 0.86), wp.vec3(0.25, 0.28, 0.31)
ROCK, RIM = wp.vec3(0.66, 0.69, 0.66), wp.vec3(0.48, 0.52, 0.50)
GOLD, GREEN, WHITE = wp.vec3(0.93, 0.70, 0.13), wp.vec3(0.18, 0.62, 0.28), wp.vec3(1.0, 1.0, 1.0)
BLUE, TEAL, RED, GREY = wp.vec3(0.10, 0.36, 0.75), wp.vec3(0.0, 0.60, 0.66), wp.vec3(0.82, 0.20, 0.16), wp.vec3(0.6, 0.6, 0.6)
(PAPER_, GRID_, WALL_, ROCK_, RIM_, GOLD_, GREEN_, WHITE_, BLUE_, TEAL_, RED_, GREY_) = (
    wp.constant(colour) for colour in (PAPER, GRID, WALL, ROCK, RIM, GOLD, GREEN, WHITE, BLUE, TEAL, RED, GREY)
)
HALF = wp.constant(0.5 * ARENA_M)
JUMP = wp.constant(JUMP_M)
FADE_ = wp.constant(FADE)


@wp.struct
class View:
    """What a picture is made of."""

    attackers: wp.array2d(dtype=wp.vec4)  # type: ignore[valid-type]
    defenders: wp.array2d(dtype=wp.vec4)  # type: ignore[valid-type]
    minds: wp.array2d(dtype=wp.vec4)  # type: ignore[valid-type]
    field: wp.array2d(dtype=wp.vec4)  # type: ignore[valid-type]
    discs: wp.array2d(dtype=wp.vec4)  # type: ignore[valid-type]
    before: wp.array2d(dtype=wp.vec2)  # type: ignore[valid-type]
    fade: wp.array(dtype=float)  # type: ignore[valid-type]
    trails: wp.array3d(dtype=wp.vec3)  # type: ignore[valid-type]
    pixels: wp.array4d(dtype=wp.uint8)  # type: ignore[valid-type]
    px: float  # a metre, in pixels
    unit: float  # what a pixel is to a picture 320 high
    middle: wp.vec2  # of the map
    bar: float  # the legend's middle
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
    """How much of a pixel lies within a shape whose edge is so many pixels away (negative: inside)."""
    return wp.clamp(0.5 - distance, 0.0, 1.0)


@wp.func
def arrow(p: wp.vec2, look: wp.vec2, r: float) -> float:
    """A triangle that points along `look`."""
    u = wp.dot(p, look)
    v = wp.abs(p[0] * look[1] - p[1] * look[0])
    return wp.max(-u - 0.6 * r, 0.325 * (u - r) + 0.946 * v)


@wp.func
def unit_shape(p: wp.vec2, kind: int, look: wp.vec2, r: float) -> float:
    """A disc on the ground, a diamond in the air, an arrow for a defender."""
    found = wp.length(p) - r
    if kind == 1:
        found = (wp.abs(p[0]) + wp.abs(p[1]) - 1.3 * r) * 0.7071
    if kind == 2:
        found = arrow(p, look, 2.0 * r)
    return found


@wp.func
def turned_by(p: wp.vec2) -> float:
    """Clockwise from north, as a share of the whole round."""
    return wp.atan2(-p[0], -p[1]) / 6.2831853 + 0.5


@wp.func
def segment(p: wp.vec2, a: wp.vec2, b: wp.vec2) -> float:
    way = b - a
    t = wp.clamp(wp.dot(p - a, way) / wp.max(wp.dot(way, way), 1.0e-6), 0.0, 1.0)
    return wp.length(p - a - way * t)


@wp.kernel
def paint(v: View):
    """Every pixel, uint8 (n, height, width, 3); row 0 is the picture's upper edge."""
    w, row, column = wp.tid()
    at = wp.vec2((float(column) + 0.5 - v.middle[0]) / v.px, (v.middle[1] - float(row) - 0.5) / v.px)  # m
    f = v.field[w, 0]
    g = v.field[w, 1]
    colour = PAPER_
    edge = wp.max(wp.abs(at[0]), wp.abs(at[1])) - HALF
    if edge < 0.0:
        line = wp.min(wp.abs(at[0] - 50.0 * wp.round(at[0] / 50.0)), wp.abs(at[1] - 50.0 * wp.round(at[1] / 50.0)))
        colour = over(colour, GRID_, filled(line * v.px - 0.5 * v.unit))
        home = wp.vec2(wp.abs(at[0] - f[2]) - 13.0, wp.abs(at[1] - f[3]) - 5.0)
        colour = over(colour, BLUE_, 0.15 * filled(wp.max(home[0], home[1]) * v.px))
        to_zone = at - place(f)
        rim = (wp.length(to_zone) - v.zone) * v.px
        colour = over(colour, GOLD_, 0.30 * filled(rim))
        discs = Discs()
        for k in range(OBSTACLES):
            discs[k] = v.discs[w, k]
        for k in range(OBSTACLES):
            away = (wp.length(at - place(discs[k])) - discs[k, 2]) * v.px
            colour = over(colour, RIM_, filled(away))
            colour = over(colour, ROCK_, filled(away + 1.5 * v.unit))
        for j in range(3):
            d = v.defenders[w, j]
            m = v.minds[w, j]
            to = at - place(d)
            far = wp.length(to)
            ahead = to[0] * d[2] + to[1] * d[3]
            if m[0] == 0.0 and far < v.sight and ahead >= v.sight_cos * far:
                if not hidden(discs, place(d), at):
                    colour = over(colour, RED_, wp.where(m[1] > 0.0, 0.20, 0.10))
            if m[0] == 0.0 and far < v.tag and ahead >= v.tag_cos * far:
                colour = over(colour, RED_, 0.45)
        colour = over(colour, GOLD_, filled(wp.abs(rim) - 0.9 * v.unit))
        if g[0] > 0.0 and turned_by(to_zone) <= g[0] / v.hold:
            colour = over(colour, GREEN_, filled(wp.abs(rim) - 2.2 * v.unit))

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
        colour = over(colour, BLUE_, 0.75 * trail[0])
        colour = over(colour, TEAL_, 0.75 * trail[1])
        colour = over(colour, RED_, 0.55 * trail[2])

        for k in range(7):
            kind = int(2)
            own = RED_
            there = wp.vec4()
            faint = bool(False)
            if k < 4:
                there = v.attackers[w, wp.min(k, 3)]
                kind = wp.where(k < 2, 0, 1)
                own = wp.where(k < 2, BLUE_, TEAL_)
                faint = there[2] > 0.0
            else:
                there = v.defenders[w, k - 4]
                faint = v.minds[w, k - 4][0] > 0.0
            p = (at - place(there)) * v.px
            if wp.length(p) < 14.0 * v.unit:
                shape = unit_shape(p, kind, wp.vec2(there[2], there[3]), 4.4 * v.unit)
                colour = over(colour, WHITE_, filled(shape - 1.3 * v.unit) * wp.where(faint, 0.5, 1.0))
                colour = over(colour, wp.where(faint, GREY_, own), filled(shape) * wp.where(faint, 0.7, 1.0))
                if kind == 1 and not faint and turned_by(p) <= there[3] / v.endurance:
                    colour = over(colour, TEAL_, 0.8 * filled(wp.abs(wp.length(p) - 8.5 * v.unit) - 0.8 * v.unit))
    colour = over(colour, WALL_, filled(wp.abs(edge) * v.px - 0.8 * v.unit))
    for kind in range(3):
        p = wp.vec2(float(column) + 0.5 - (9.0 + LEGEND_AT[kind]) * v.unit, v.bar - float(row) - 0.5)
        if wp.length(p) < 9.0 * v.unit:
            own = wp.where(kind == 0, BLUE_, wp.where(kind == 1, TEAL_, RED_))
            colour = over(colour, own, filled(unit_shape(p, kind, wp.vec2(0.0, 1.0), 4.4 * v.unit)))
    for i in range(3):
        v.pixels[w, row, column, i] = wp.uint8(wp.clamp(colour[i], 0.0, 1.0) * 255.0 + 0.5)


LEGEND = ((0, "GROUND"), (56, "AIR"), (94, "DEFENDER"))
"""Where each word of the legend begins in a picture 320 wide, and the word."""
LEGEND_AT = wp.constant(wp.vec3(*(float(at) for at, _ in LEGEND)))

GLYPHS = {
    " ": "0000000", "/": "01248G0", "0": "EHJLPHE", "1": "4C4444E", "2": "EH1248V", "3": "V2421HE", "4": "26AIV22",
    "5": "VGU11HE", "6": "68GUHHE", "7": "V124888", "8": "EHHEHHE", "9": "EHHF12C", "A": "EHHVHHH", "D": "UHHHHHU",
    "E": "VGGUGGV", "F": "VGGUGGG", "G": "EHGNHHF", "H": "HHHVHHH", "I": "E44444E", "L": "GGGGGGV", "N": "HPLJHHH",
    "O": "EHHHHHE", "R": "UHHUKIH", "S": "FGGE11U", "U": "HHHHHHE",
}  # fmt: skip
"""Five pixels by seven: a row is a number in base 32."""


def lettering(texts: torch.Tensor) -> torch.Tensor:
    """Of `texts` (n, length), numbers into `GLYPHS`, a mask (n, 7, 6 · length)."""
    rows = [[[int(row, 32) >> (4 - bit) & 1 if bit < 5 else 0 for bit in range(6)] for row in g] for g in GLYPHS.values()]
    return torch.tensor(rows, device=texts.device)[texts].transpose(1, 2).flatten(2).float()


def spelled(text: str, device: torch.device) -> torch.Tensor:
    """Numbers into `GLYPHS`, (length,)."""
    order = list(GLYPHS)
    return torch.tensor([order.index(letter) for letter in text], device=device)


class Picture:
    """Draws the worlds of `task` (a `Mission`) at one size. Trails begin where it is first asked to draw."""

    def __init__(self, task: Any, height: int, width: int) -> None:
        self._task, self._height, self._width = task, height, width
        n, device, rules = task.n, task.device, task.rules
        self._pixels = torch.zeros(n, height, width, 3, dtype=torch.uint8, device=device)
        self._trails = torch.zeros(n, height, width, 3, device=device)
        self._before = torch.full((n, 7, 2), 1e6, device=device)
        self._fade, self._given = torch.zeros(n, device=device), torch.full((n,), -1.0, device=device)
        self._unit = min(height, width) / 320
        bar = round(BAR * height) if self._unit >= 0.75 else 0
        side = min(height - bar, width) - 2
        with beside_torch(device):
            self._view = v = View()
            for name in ("attackers", "defenders", "minds", "field", "discs"):
                setattr(v, name, wp.from_torch(getattr(task, name), dtype=wp.vec4))
            v.before, v.fade = wp.from_torch(self._before, dtype=wp.vec2), wp.from_torch(self._fade)
            v.trails, v.pixels = wp.from_torch(self._trails, dtype=wp.vec3), wp.from_torch(self._pixels)
            v.px, v.unit, v.bar = side / ARENA_M, self._unit, (height - bar / 2) if bar else -1e6
            v.middle = wp.vec2(width / 2, (height - bar) / 2)
            _fill(v, rules)

    def draw(self) -> torch.Tensor:
        """uint8 (n, height, width, 3), as the worlds are now."""
        task = self._task
        given = task.field[:, 1, 1]
        passed = given - self._given
        self._fade.copy_(torch.where(passed >= 0, FADE**passed, 0.0))  # where an episode has begun anew: none
        self._before.masked_fill_((passed != 1).view(-1, 1, 1), 1e6)
        with beside_torch(task.device), compiling("the game's pictures"):
            wp.launch(paint, (task.n, self._height, self._width), [self._view])
        self._before.copy_(torch.cat([task.attackers[:, :, :2], task.defenders[:, :, :2]], 1))
        self._given.copy_(given)
        if self._view.bar > 0:
            for at, word in LEGEND:
                self._write(spelled(word, task.device).expand(task.n, -1), 17 + at)
            self._write(self._clock(), 222)
        return self._pixels.clone()

    def _clock(self) -> torch.Tensor:
        """Such as "HELD 07/20 S 187 S": seconds held, of how many, and seconds left."""
        task = self._task
        zero, hold_s = list(GLYPHS).index("0"), round(task.rules.hold_s)
        text = spelled(f"HELD 00/{hold_s:02d}S 000S", task.device).repeat(task.n, 1)
        held = (task.field[:, 1, 0] / MOTION_HZ).floor()
        left = ((task.episode_steps - task.field[:, 1, 1]) * task.control_dt_s).ceil()
        end = text.shape[1] - 1
        for column, value, unit in ((5, held, 10), (6, held, 1), (end - 3, left, 100), (end - 2, left, 10), (end - 1, left, 1)):
            text[:, column] = zero + (value / unit).floor().long() % 10
        return text

    def _write(self, text: torch.Tensor, at: float) -> None:
        """`text` (n, length) of `GLYPHS` into the legend, from `at` on in a picture 320 wide."""
        mask = lettering(text).unsqueeze(1)
        if self._unit != 1:
            mask = torch.nn.functional.interpolate(mask, scale_factor=self._unit, mode="bilinear")
        height, width = mask.shape[2:]
        top, left = round(self._view.bar - height / 2), round(at * self._unit)
        there = self._pixels[:, top : top + height, left : left + width]
        ink = torch.tensor(list(WALL), device=there.device) * 255
        alpha = mask[:, 0, : there.shape[1], : there.shape[2], None]
        there.copy_((there + (ink - there) * alpha).round().to(torch.uint8))


def _fill(view: Any, rules: Rules) -> None:
    view.zone, view.hold, view.endurance = rules.zone_m, rules.hold_s * MOTION_HZ, rules.endurance_s * MOTION_HZ
    view.sight, view.tag = rules.defender_sight_m, rules.tag_m
    view.sight_cos, view.tag_cos = (math.cos(math.radians(a)) for a in (rules.defender_cone_deg, rules.tag_cone_deg))
