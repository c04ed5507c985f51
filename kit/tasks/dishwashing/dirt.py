"""Dirt on a plate: its random initial thickness per cell, and its removal by a sponge (Preston's law)."""

from __future__ import annotations

import math

import torch

PATCHES = 4
"""Number of dirt spots on a plate."""
NUMBERS = 4 * PATCHES
"""Number of random numbers from which the dirt of a plate is made."""
PATCH_M = (0.015, 0.035)
"""Range of a spot's radius, m: the standard deviation of its Gaussian profile."""
THICK = (0.6, 1.0)
"""Range of the thickness in a spot's centre, as a fraction of the thickest possible dirt."""
TRACE = 0.15
"""Initial dirt thinner than this is set to 0, so that most of a plate is clean."""


def serve(chance: torch.Tensor, cells: torch.Tensor, radius_m: float) -> torch.Tensor:
    """Return the dirt of new plates, thickness (n, cells) in [0, 1]: the maximum over randomly placed spots.

    `chance` (n, NUMBERS) are random numbers in [0, 1); `cells` (cells, 2) are the centres of the cells, m; spots are
    placed within `radius_m` of the plate's centre.
    """
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
    """Return the thickness (n, cells) that the sponge removes in `seconds`.

    The sponge has the radius `radius_m`, presses with `force_n` (n,) and slides at `speed_mps` (n,). Its position
    `sponge` (n, 2) and the centres of the `cells` (cells, 2) are relative to the plate's centre, m.

    The model is Preston's law of polishing, dh/dt = k p v, which is Archard's law of wear per area (F. W. Preston,
    J. Soc. Glass Technology 11, 1927; J. F. Archard, J. Applied Physics 24, 1953). Without pressure or without sliding,
    nothing is removed. `wear` is k: the fraction of the thickest possible dirt, per pascal and metre of sliding. The
    pressure at distance r from the sponge's centre is p(r) = 2 F / (π a²) (1 - r²/a²), up to the sponge's radius a; its
    integral is F.
    """
    away = (cells - sponge.unsqueeze(1)).square().sum(2)  # (n, cells), r²
    shape = (1 - away / radius_m**2).clamp_(min=0.0)
    strength = wear * seconds * 2 / (math.pi * radius_m**2) * force_n * speed_mps
    return strength.unsqueeze(1) * shape
