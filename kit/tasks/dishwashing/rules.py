"""Options of the dishwashing task: every constant with its unit, bounds and source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kit.envs.options import number
from kit.tasks.dishwashing.economy import Economy


@dataclass(frozen=True, kw_only=True)
class Rules(Economy):
    """Options of the dishwashing task. Prices and costs are in the base class `Economy`."""

    task: ClassVar[str] = "Dishwashing"

    shift_s: float = number(60.0, 1.0, 36_000.0)
    """Length of a shift, s. An episode is one shift."""
    force_limit_n: float = number(50.0, 1.0, 1000.0)
    """Contact force at which the weakest plate breaks; an assumption. The tool presses with up to 50 N, and slightly
    more when it comes down. With a lower limit, plates often break during exploration, and a policy easily learns not
    to touch plates at all."""
    force_spread_n: float = number(50.0, 0.0, 1000.0)
    """Each plate's limit is drawn uniformly from `force_limit_n` to `force_limit_n + force_spread_n`; an assumption."""
    clean_share: float = number(0.03, 0.0, 0.9)
    """A plate counts as clean when at most this fraction of its initial dirt is left; an assumption."""
    patience_s: float = number(60.0, 1.0, 36_000.0)
    """Time per plate; a plate that is not clean by then is taken away and not paid; an assumption."""
    change_s: float = number(2.0, 0.2, 600.0)
    """Time between two plates, during which the tool is lifted; an assumption."""
    sweep_s: float = number(3.0, 0.0, 3600.0)
    """Additional time to sweep up a broken plate; an assumption."""
    offset_m: float = number(0.03, 0.0, 0.04)
    """Greatest random offset of a plate from the centre of the sink, along x and along y; an assumption."""
    sponge_m: float = number(0.04, 0.01, 0.1)
    """Radius of the sponge's contact; an assumption."""
    wear: float = number(3e-4, 0.0, 1.0)
    """Preston's coefficient: dirt removed per pascal of pressure and metre of rubbing, in units of the greatest dirt
    thickness; an assumption: one pass at 30 N removes a fifth of the greatest thickness."""
