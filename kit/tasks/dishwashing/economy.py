"""What washing dishes costs and brings: prices as options, and pure functions from what happened to money and figures.

Amounts are US dollars. Every price is an option of the task, with the source of its default, or the words "an
assumption" where there is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from kit.envs.options import Options, number

HOUR_S = 3600.0
JOULES_PER_KWH = 3.6e6
REWARD_PER_USD = 10.0
"""Rewards are money in units of ten cents: a plate is worth about one, which suits networks."""
TERMS = ("cleaning", "delivery", "breakage", "energy", "time")
"""What the money of a step is made of."""
LEDGER = ("clean", "broken", "rejected", "energy_j", "elapsed_s")
"""What is counted in a shift: three kinds of plates that left the sink, joules and seconds."""


@dataclass(frozen=True, kw_only=True)
class Economy(Options):
    """The prices."""

    price_usd: float = number(0.12, 0.0, 1000.0)
    """Paid for a clean plate; an assumption: about what a person is paid for a piece, at 16 dollars an hour and the 12
    place settings (140 pieces) that people wash by hand in an hour (Berkholz et al., Int. J. Consumer Studies 34, 2010:
    a full dishwasher load of EN 50242 took 60 minutes on average)."""
    advance: float = number(0.5, 0.0, 1.0)
    """Share of the price that is paid for dirt as it goes, and taken back if the plate is not delivered; the rest comes
    with the clean plate. An assumption that changes no sum, only when the money comes."""
    breakage_usd: float = number(1.0, 0.0, 1000.0)
    """Cost of a broken plate; an assumption: a plain white one, bought by the dozen."""
    energy_usd_kwh: float = number(0.13, 0.0, 100.0)
    """Of a kWh; US commercial customers paid about that in 2023 (EIA, Electric Power Monthly, table 5.6)."""
    standby_w: float = number(50.0, 0.0, 10_000.0)
    """What the machine draws besides the work of its motors; an assumption."""
    machine_usd_h: float = number(3.0, 0.0, 1000.0)
    """Of an hour of the machine, working or waiting; an assumption: 18,000 dollars over three years of 2,000 hours."""
    wage_usd_h: float = number(16.0, 0.01, 1000.0)
    """Of a person who washes dishes, to compare with: the median of US dishwashers was 33,670 dollars a year (Bureau
    of Labor Statistics, occupation 35-9021)."""


class Happened(NamedTuple):
    """What a step did, (n,) each."""

    progress: torch.Tensor
    """Share of the plate's way to clean that was made, in [0, 1]."""
    paid_usd: torch.Tensor
    """What was paid in advance for the plate, this step included."""
    clean: torch.Tensor
    broken: torch.Tensor
    rejected: torch.Tensor
    """Whether the plate has just left the sink, and how, bool."""
    energy_j: torch.Tensor
    seconds: float


def money(economy: Economy, step: Happened) -> torch.Tensor:
    """The `TERMS` of a step (n, 5), USD. Of one plate, "cleaning" and "delivery" sum to the price if it was delivered
    clean, and to nothing if it was not."""
    clean = step.clean.to(step.progress.dtype)
    lost = (step.broken | step.rejected).to(step.progress.dtype)
    return torch.stack(
        [
            economy.price_usd * economy.advance * step.progress,
            clean * (economy.price_usd - step.paid_usd) - lost * step.paid_usd,
            -economy.breakage_usd * step.broken.to(step.progress.dtype),
            -economy.energy_usd_kwh / JOULES_PER_KWH * step.energy_j,
            torch.full_like(step.energy_j, -economy.machine_usd_h / HOUR_S * step.seconds),
        ],
        dim=1,
    )


def profit_usd(economy: Economy, ledger: torch.Tensor) -> torch.Tensor:
    """Of a shift so far (n,), from its `LEDGER` (n, 5); a plate that is still in the sink brings nothing yet."""
    clean, broken, _, energy_j, elapsed_s = ledger.unbind(1)
    running = economy.energy_usd_kwh / JOULES_PER_KWH * energy_j + economy.machine_usd_h / HOUR_S * elapsed_s
    return economy.price_usd * clean - economy.breakage_usd * broken - running


def figures(economy: Economy, ledger: torch.Tensor) -> dict[str, torch.Tensor]:
    """What an owner asks of a shift, from its `LEDGER` (n, 5), each (n,): clean plates per hour; of the plates that
    left the sink the shares broken, and broken or not clean; USD of profit per hour; and the value of the clean plates
    in wages of a person for the same time."""
    clean, broken, rejected, _, elapsed_s = ledger.unbind(1)
    hours = elapsed_s.clamp(min=1e-9) / HOUR_S
    plates = (clean + broken + rejected).clamp(min=1.0)
    return {
        "plates_per_hour": clean / hours,
        "breakage_rate": broken / plates,
        "error_rate": (broken + rejected) / plates,
        "profit_per_hour": profit_usd(economy, ledger) / hours,
        "value_to_wage": economy.price_usd * clean / hours / economy.wage_usd_h,
    }
