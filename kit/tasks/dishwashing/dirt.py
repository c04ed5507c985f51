"""Dirt on a plate: where it lies, and how a sponge takes it off."""

from __future__ import annotations

import math

import torch

PATCHES = 4
"""Spots on a plate."""
NUMBERS = 4 * PATCHES
"""Random numbers that a plate takes."""
PATCH_M = (0.015, 0.035)
"""Least and most radius of a spot: where it is 61 % as thick as in its middle."""
THICK = (0.6, 1.0)
"""Least and most thickness in a spot's middle; 1 is the thickest there is."""
TRACE = 0.15
"""Thinner dirt than this is none at the start, so that most of a plate is clean."""


def serve(chance: torch.Tensor, cells: torch.Tensor, radius_m: float) -> torch.Tensor:
    """Thickness (n, cells) of a new plate's dirt in [0, 1]: spots anywhere on it, where they meet the thicker one
    counts. `chance` (n, NUMBERS) in [0, 1); `cells` (cells, 2) are their middles, m."""
    turn, out, width, depth = chance.view(-1, PATCHES, 4).unbind(2)  # (n, patches)
    angle, distance = 2 * math.pi * turn, radius_m * out.sqrt()  # evenly over the disc
    middle = torch.stack([distance * angle.cos(), distance * angle.sin()], 2)
    spread = PATCH_M[0] + (PATCH_M[1] - PATCH_M[0]) * width
    away = (cells - middle.unsqueeze(2)).square().sum(3)  # (n, patches, cells)
    thick = (THICK[0] + (THICK[1] - THICK[0]) * depth).unsqueeze(2)
    dirt = (thick * torch.exp(-away / (2 * spread.square()).unsqueeze(2))).amax(1)
    return torch.where(dirt < TRACE, 0.0, dirt)


def rubbed(
    sponge: torch.Tensor, cells: torch.Tensor, force_n: torch.Tensor, speed_mps: torch.Tensor, radius_m: float,
    wear: float, seconds: float,
) -> torch.Tensor:  # fmt: skip
    """Thickness (n, cells) that a sponge takes off in `seconds`, at `sponge` (n, 2) as `cells` (cells, 2) are given, m,
    pressed with `force_n` (n,) and sliding at `speed_mps` (n,).

    Preston's law of polishing, dh/dt = k p v, which is Archard's of wear per area (F. W. Preston, J. Soc. Glass
    Technology 11, 1927; J. F. Archard, J. Applied Physics 24, 1953): what does not slide, or does not press, takes
    nothing off. `wear` is k, in thicknesses per pascal and metre. Under the sponge the pressure is highest in the
    middle, p(r) = 2 F / (π a²) (1 - r²/a²) up to its radius a, which sums to F.
    """
    away = (cells - sponge.unsqueeze(1)).square().sum(2)  # (n, cells), r²
    shape = (1 - away / radius_m**2).clamp_(min=0.0)
    strength = wear * seconds * 2 / (math.pi * radius_m**2) * force_n * speed_mps
    return strength.unsqueeze(1) * shape
