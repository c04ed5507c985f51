"""Rendering of the mission game for people: a map with trails, a legend and a clock."""

from __future__ import annotations

import math
from typing import Any

import torch

from kit.sim.kernels import beside_torch, compiling, wp
from kit.tasks.mission.render_kernels import INK, LEGEND, View, paint
from kit.tasks.mission.rules import ARENA_M, MOTION_HZ, Rules

BAR = 0.085
"""Height of the legend below the map, as a fraction of the image height."""
FADE = 0.975
"""Factor on a trail's opacity per command; a third is left after 11 s."""
GLYPHS = {
    " ": "0000000", "/": "01248G0", "0": "EHJLPHE", "1": "4C4444E", "2": "EH1248V", "3": "V2421HE", "4": "26AIV22",
    "5": "VGU11HE", "6": "68GUHHE", "7": "V124888", "8": "EHHEHHE", "9": "EHHF12C", "A": "EHHVHHH", "D": "UHHHHHU",
    "E": "VGGUGGV", "F": "VGGUGGG", "G": "EHGNHHF", "H": "HHHVHHH", "I": "E44444E", "L": "GGGGGGV", "N": "HPLJHHH",
    "O": "EHHHHHE", "R": "UHHUKIH", "S": "FGGE11U", "U": "HHHHHHE",
}  # fmt: skip
"""Bitmap font of 5 × 7 pixels: one base-32 digit per row."""


def text_mask(texts: torch.Tensor) -> torch.Tensor:
    """Draw `texts` (n, length), indices into `GLYPHS`, as masks (n, 7, 6 · length)."""
    rows = [
        [[int(row, 32) >> (4 - bit) & 1 if bit < 5 else 0 for bit in range(6)] for row in g] for g in GLYPHS.values()
    ]
    return torch.tensor(rows, device=texts.device)[texts].transpose(1, 2).flatten(2).float()


def glyph_ids(text: str, device: torch.device) -> torch.Tensor:
    """Convert a text to indices into `GLYPHS`, (length,)."""
    order = list(GLYPHS)
    return torch.tensor([order.index(letter) for letter in text], device=device)


class MapRenderer:
    """Renders the games of `task` (a `Mission`) at one image size. Trails start at the first call of `draw`."""

    def __init__(self, task: Any, height: int, width: int) -> None:
        self._task, self._height, self._width = task, height, width
        n, device, rules = task.n, task.device, task.rules
        self._pixels = torch.zeros(n, height, width, 3, dtype=torch.uint8, device=device)
        self._trails = torch.zeros(n, height, width, 3, device=device)
        self._before = torch.full((n, 7, 2), 1e6, device=device)  # positions at the last drawing; 1e6: none
        self._fade, self._last_command = torch.zeros(n, device=device), torch.full((n,), -1.0, device=device)
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
            _set_ranges(v, rules)

    def draw(self) -> torch.Tensor:
        """Render the current state of all games, uint8 (n, height, width, 3)."""
        task = self._task
        command = task.field[:, 1, 1]
        passed = command - self._last_command
        self._fade.copy_(torch.where(passed >= 0, FADE**passed, 0.0))  # a new episode clears the trails
        # forget the previous positions after a reset or a gap of over 4 commands; videos may skip fewer
        self._before.masked_fill_(((passed < 1) | (passed > 4)).view(-1, 1, 1), 1e6)
        with beside_torch(task.device), compiling("the game's images"):
            wp.launch(paint, (task.n, self._height, self._width), [self._view])
        self._before.copy_(torch.cat([task.attackers[:, :, :2], task.defenders[:, :, :2]], 1))
        self._last_command.copy_(command)
        if self._view.bar > 0:
            for x, word in LEGEND:
                self._write(glyph_ids(word, task.device).expand(task.n, -1), 17 + x)
            self._write(self._clock(), 222)
        return self._pixels.clone()

    def _clock(self) -> torch.Tensor:
        """Return texts such as "HELD 07/20S 187S": seconds held, seconds required, and seconds left."""
        task = self._task
        zero, hold_s = list(GLYPHS).index("0"), round(task.rules.hold_s)
        text = glyph_ids(f"HELD 00/{hold_s:02d}S 000S", task.device).repeat(task.n, 1)
        held = (task.field[:, 1, 0] / MOTION_HZ).floor()
        left = ((task.episode_steps - task.field[:, 1, 1]) * task.control_dt_s).ceil()
        end = text.shape[1] - 1
        for column, value, unit in (
            (5, held, 10),
            (6, held, 1),
            (end - 3, left, 100),
            (end - 2, left, 10),
            (end - 1, left, 1),
        ):
            text[:, column] = zero + (value / unit).floor().long() % 10
        return text

    def _write(self, text: torch.Tensor, x: float) -> None:
        """Draw `text` (n, length), `GLYPHS` indices, in the legend.

        `x`: left edge, in pixels of a 320-pixel image, scaled to this one.
        """
        mask = text_mask(text).unsqueeze(1)
        if self._unit != 1:
            mask = torch.nn.functional.interpolate(mask, scale_factor=self._unit, mode="bilinear")
        height, width = mask.shape[2:]
        top, left = round(self._view.bar - height / 2), round(x * self._unit)
        area = self._pixels[:, top : top + height, left : left + width]
        ink = torch.tensor(list(INK), device=area.device) * 255
        alpha = mask[:, 0, : area.shape[1], : area.shape[2], None]
        area.copy_((area + (ink - area) * alpha).round().to(torch.uint8))


def _set_ranges(view: Any, rules: Rules) -> None:
    """Copy to `view` the rules that the map shows: zone radius, hold time, endurance, defenders' ranges and cones."""
    view.zone, view.hold, view.endurance = rules.zone_m, rules.hold_s * MOTION_HZ, rules.endurance_s * MOTION_HZ
    view.sight, view.tag = rules.defender_sight_m, rules.tag_m
    view.sight_cos, view.tag_cos = (math.cos(math.radians(a)) for a in (rules.defender_cone_deg, rules.tag_cone_deg))
