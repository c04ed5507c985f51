"""Every constant of dishwashing with its unit, its bounds and its source: what `env_options` may say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kit.envs.options import number
from kit.tasks.dishwashing.economy import Economy


@dataclass(frozen=True, kw_only=True)
class Rules(Economy):
    """The work; the prices are those of `Economy`."""

    task: ClassVar[str] = "Dishwashing"

    shift_s: float = number(60.0, 1.0, 36_000.0)
    """Length of an episode."""
    force_limit_n: float = number(50.0, 1.0, 1000.0)
    """Contact force that the weakest plate stands; pressed harder, it breaks. An assumption. The tool pushes with up to
    50 N, and a little harder as it comes down. With a lower limit plates break often while a policy tries things out,
    and it easily learns not to touch them at all."""
    force_spread_n: float = number(50.0, 0.0, 1000.0)
    """The strongest plate stands so much more, and those between are as many each; an assumption."""
    clean_share: float = number(0.03, 0.0, 0.9)
    """A plate is clean when this share of its dirt is left; an assumption."""
    patience_s: float = number(60.0, 1.0, 36_000.0)
    """A plate that is not clean after this time is taken away unpaid; an assumption."""
    change_s: float = number(2.0, 0.2, 600.0)
    """From one plate to the next, during which the tool is lifted; an assumption."""
    sweep_s: float = number(3.0, 0.0, 3600.0)
    """To sweep up a broken plate, before the next comes; an assumption."""
    offset_m: float = number(0.03, 0.0, 0.04)
    """Plates come to lie so far from the middle at most, along x and along y; an assumption."""
    sponge_m: float = number(0.04, 0.01, 0.1)
    """Radius of the sponge's contact; an assumption."""
    wear: float = number(3e-4, 0.0, 1.0)
    """Preston's coefficient, in thicknesses of the thickest dirt per pascal of pressure and metre of rubbing; an
    assumption: one pass pressed with 30 N takes a fifth of it off."""
