"""Videos of the mission game: a map with trails, a legend and a clock, drawn by Pillow on the CPU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from kit.tasks.mission.rules import ARENA_M, ATTACKERS, GROUND, MOTION_HZ

PAPER, GRID, INK, GREY = (241, 241, 235), (222, 224, 219), (64, 71, 79), (153, 153, 153)
ROCK, RIM, GOLD, GREEN = (168, 176, 168), (122, 133, 128), (237, 179, 33), (46, 158, 71)
BLUE, TEAL, RED = (26, 92, 191), (0, 153, 168), (209, 51, 41)
SUPERSAMPLING = 2
"""Factor by which the image is drawn larger along each axis, and then reduced, for smooth edges."""
BAR = 0.085
"""Height of the legend below the map, as a fraction of the image height."""
FADE = 0.975
"""Factor on a trail's opacity per env step (1/4 s). After 11 s 28 % are left, because opacities are rounded down."""
JUMP_M = 18.0
"""Distance, m, beyond which a trail is interrupted: more than a unit moves in four env steps, and usually less than the
way back to its base."""
KINDS = (("GROUND", BLUE), ("AIR", TEAL), ("DEFENDER", RED))
DIAMOND, ARROW = ((1.3, 0.0), (0.0, 1.3), (-1.3, 0.0), (0.0, -1.3)), ((2.0, 0.0), (-1.2, 1.1), (-1.2, -1.1))
"""Corners (ahead, left) of the symbols of air units and defenders, in units of the symbol's size."""


class MapRenderer:
    """Renders the games of `task` (a `Mission`) at one image size. Trails start at the first call of `draw`."""

    def __init__(self, task: Any, height: int, width: int) -> None:
        self._task, self._height, self._width = task, height, width
        self._bar = round(BAR * height) if min(height, width) >= 240 else 0
        self._unit = SUPERSAMPLING * min(height, width) / 320
        self._side = SUPERSAMPLING * (min(height - self._bar, width) - 2)
        self._scale = self._side / ARENA_M
        self._font = ImageFont.load_default(9.5 * self._unit)
        self._trails = [self._no_trails() for _ in range(task.n)]
        self._before = np.full((task.n, 7, 2), np.inf)
        self._command = np.full(task.n, -1.0)

    def draw(self) -> torch.Tensor:
        """Render the current state of all games, uint8 (n, height, width, 3)."""
        task, images = self._task, []
        tensors = torch.cat([task.attackers, task.defenders], 1), task.minds, task.field, task.discs
        for game, (units, minds, field, discs) in enumerate(zip(*(x.cpu().numpy() for x in tensors), strict=True)):
            self._extend_trails(game, units[:, :2], float(field[1, 1]))
            image = Image.new("RGB", (SUPERSAMPLING * self._width, SUPERSAMPLING * self._height), PAPER)
            left = (image.width - self._side) // 2
            top = (image.height - SUPERSAMPLING * self._bar - self._side) // 2
            image.paste(self._map(game, units, minds, field, discs), (left, top))
            frame = (left, top, left + self._side, top + self._side)
            draw = ImageDraw.Draw(image)
            draw.rectangle(frame, outline=INK, width=round(1.6 * self._unit))
            if self._bar:
                self._legend(draw, field)
            images.append(np.asarray(image.reduce(SUPERSAMPLING)))
        return torch.from_numpy(np.stack(images)).to(task.device)

    def _no_trails(self) -> list[Image.Image]:
        """Return empty trail masks, one per entry of `KINDS`."""
        return [Image.new("L", (self._side, self._side)) for _ in KINDS]

    def _extend_trails(self, game: int, positions: np.ndarray, command: float) -> None:
        """Fade the trails of `game`, and extend them to `positions` (7, 2) if at most four commands have passed."""
        passed = command - self._command[game]
        if passed < 0:  # a new episode
            self._trails[game] = self._no_trails()
        trails = self._trails[game] = [trail.point(lambda x: int(x * FADE**passed)) for trail in self._trails[game]]
        moved = np.linalg.norm(positions - self._before[game], axis=1) < JUMP_M
        for unit in np.flatnonzero(moved).tolist() if 1 <= passed <= 4 else []:
            line = [self._at(self._before[game, unit]), self._at(positions[unit])]
            ImageDraw.Draw(trails[kind_of(unit)]).line(line, fill=255, width=round(1.4 * self._unit))
        self._before[game], self._command[game] = positions, command

    def _map(
        self, game: int, units: np.ndarray, minds: np.ndarray, field: np.ndarray, discs: np.ndarray
    ) -> Image.Image:
        """Draw the arena from the state of one game (see `kit.tasks.mission.state`)."""
        rules, scale, unit = self._task.rules, self._scale, self._unit
        image = Image.new("RGB", (self._side, self._side), PAPER)
        draw = ImageDraw.Draw(image, "RGBA")  # blends translucent colours
        for line in (-50, 0, 50):
            draw.line([self._at((line, -100)), self._at((line, 100))], GRID, round(unit))
            draw.line([self._at((-100, line)), self._at((100, line))], GRID, round(unit))
        zone, (x, y) = self._at(field[0, :2]), field[0, 2:]
        draw.rectangle([self._at((x - 13, y + 5)), self._at((x + 13, y - 5))], (*BLUE, 38))
        draw.circle(zone, rules.zone_m * scale, (*GOLD, 76))
        for x, y, radius, _ in discs:
            draw.circle(self._at((x, y)), radius * scale, ROCK, RIM, round(1.5 * unit))
        for (x, y, *look), (pause, alert, *_) in zip(units[ATTACKERS:], minds, strict=True):
            if pause == 0:
                cones = ((rules.defender_sight_m, rules.defender_cone_deg, discs, 51 if alert > 0 else 26),
                         (rules.tag_m, rules.tag_cone_deg, discs[:0], 115))  # fmt: skip
                for reach, half_angle, hiding, alpha in cones:
                    edge = visible(np.array([x, y]), look, reach, half_angle, hiding)
                    draw.polygon([self._at((x, y)), *map(self._at, edge)], (*RED, alpha))
        draw.circle(zone, rules.zone_m * scale + 0.9 * unit, outline=GOLD, width=round(1.8 * unit))
        held = field[1, 0] / (rules.hold_s * MOTION_HZ)
        self._ring(draw, zone, rules.zone_m * scale + 2.2 * unit, held, GREEN, 4.4 * unit)

        for (_, colour), trail, opacity in zip(KINDS, self._trails[game], (0.75, 0.75, 0.55), strict=True):
            image.paste(colour, mask=trail.point(lambda x, opacity=opacity: int(x * opacity)))
        waiting = [*units[:ATTACKERS, 2], *minds[:, 0]]  # waiting time of attackers, pause of defenders
        for number, (x, y, *rest) in enumerate(units):
            kind, place, faint = kind_of(number), self._at((x, y)), waiting[number] > 0
            look = (0.0, 1.0) if number < ATTACKERS else rest
            symbol(draw, kind, place, 5.7 * unit, (255, 255, 255, 128 if faint else 255), look)
            symbol(draw, kind, place, 4.4 * unit, (*GREY, 180) if faint else KINDS[kind][1], look)
            if kind == 1 and not faint:
                self._ring(draw, place, 9.3 * unit, rest[1] / (rules.endurance_s * MOTION_HZ), TEAL, 1.6 * unit)
        return image

    def _legend(self, draw: ImageDraw.ImageDraw, field: np.ndarray) -> None:
        """Draw the legend and the clock: seconds for which the zone has been held, and seconds left."""
        task, unit, y = self._task, self._unit, SUPERSAMPLING * (self._height - self._bar / 2)
        for kind, ((text, colour), x) in enumerate(zip(KINDS, (9, 69, 108), strict=True)):
            symbol(draw, kind, (x * unit, y), 4.4 * unit, colour, (0.0, 1.0))
            draw.text(((x + 8) * unit, y), text, INK, self._font, "lm")
        left = math.ceil((task.episode_steps - field[1, 1]) * task.control_dt_s)
        clock = f"HELD {int(field[1, 0] / MOTION_HZ):02d}/{round(task.rules.hold_s):02d}S  {left:03d}S"
        draw.text((316 * unit, y), clock, INK, self._font, "rm")

    def _ring(self, draw: ImageDraw.ImageDraw, centre: tuple[float, float], radius: float, share: float,
              colour: tuple[int, ...], width: float) -> None:  # fmt: skip
        """Draw the first `share` of a ring of outer `radius`, clockwise from north."""
        x, y = centre
        draw.arc((x - radius, y - radius, x + radius, y + radius), -90, 360 * share - 90, colour, round(width))

    def _at(self, position: Any) -> tuple[float, float]:
        """Convert a position in the arena, m, to pixels of the map. As in Pillow, pixel centres are integers."""
        x, y = position
        return (float(x) + ARENA_M / 2) * self._scale - 0.5, (ARENA_M / 2 - float(y)) * self._scale - 0.5


def kind_of(unit: int) -> int:
    """Return the index in `KINDS` of unit number `unit`; ground units come first, then air units, then defenders."""
    return 0 if unit < GROUND else 1 if unit < ATTACKERS else 2


def symbol(draw: ImageDraw.ImageDraw, kind: int, centre: tuple[float, float], size: float, colour: tuple[int, ...],
           look: Any) -> None:  # fmt: skip
    """Draw a unit: a disc (ground), a diamond (air), or an arrow along the unit vector `look` (defender)."""
    if kind == 0:
        draw.circle(centre, size, colour)
        return
    x, y = centre
    corners = [(ahead * size, aside * size) for ahead, aside in (DIAMOND if kind == 1 else ARROW)]
    draw.polygon([(x + a * look[0] - b * look[1], y - a * look[1] - b * look[0]) for a, b in corners], colour)


def visible(place: np.ndarray, look: Any, reach: float, half_angle_deg: float, discs: np.ndarray) -> np.ndarray:
    """Return the outer edge (points, 2), m, of a cone from `place` along `look`, limited by obstacles `discs`."""
    angles = math.atan2(look[1], look[0]) + np.radians(np.linspace(-half_angle_deg, half_angle_deg, 91))
    rays = np.stack([np.cos(angles), np.sin(angles)], 1)
    to_disc = discs[:, :2] - place
    along = rays @ to_disc.T  # (points, k)
    half_chord = np.sqrt(np.maximum(discs[:, 2] ** 2 - (to_disc**2).sum(1) + along**2, 0.0))
    hit = np.where((half_chord > 0) & (along > 0), along - half_chord, reach)
    return place + rays * hit.min(1, initial=reach)[:, None]
