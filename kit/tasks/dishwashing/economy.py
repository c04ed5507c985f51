"""Income and costs of dishwashing: prices, which are options, and functions for rewards and business metrics.

Amounts are in US dollars.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from kit.envs.options import Options, number

HOUR_S = 3600.0
JOULES_PER_KWH = 3.6e6
REWARD_PER_USD = 10.0
"""Reward per US dollar: a reward of 1 is 0.10 USD, about the pay for a clean plate."""
TERMS = ("cleaning", "delivery", "breakage", "energy", "time")
"""Reward terms."""
LEDGER = ("clean", "broken", "rejected", "energy_j", "elapsed_s")
"""Totals of a shift: number of clean plates, of broken plates, and of plates taken away dirty; energy, J; time, s."""


@dataclass(frozen=True, kw_only=True)
class Economy(Options):
    """Prices and costs, in USD."""

    price_usd: float = number(0.12, 0.0, 1000.0)
    """Price of a clean plate; an assumption: about a person's wage per piece, 0.11 dollars at 16 dollars and 140 pieces
    an hour. People take an hour on average to wash 12 place settings by hand (140 pieces, a full dishwasher load of
    EN 50242; Berkholz et al., Int. J. Consumer Studies 34, 2010)."""
    advance: float = number(0.5, 0.0, 1.0)
    """Fraction of the price paid in advance, in proportion to the dirt removed.

    The advance is taken back if the plate does not leave the sink clean. The rest of the price is paid when the clean
    plate leaves. An assumption: this fraction changes when money is paid, but not how much."""
    breakage_usd: float = number(1.0, 0.0, 1000.0)
    """Cost of a broken plate; an assumption: the price of a plain white plate, bought by the dozen."""
    energy_usd_kwh: float = number(0.13, 0.0, 100.0)
    """Price of a kWh: about that of US commercial customers in 2023 (EIA, Electric Power Monthly, table 5.6)."""
    standby_w: float = number(50.0, 0.0, 10_000.0)
    """Power of the machine in addition to the mechanical power of its motors; an assumption."""
    machine_usd_h: float = number(3.0, 0.0, 1000.0)
    """Cost of the machine per hour, also while it waits; an assumption: 18,000 dollars over three years of 2,000 hours
    each."""
    wage_usd_h: float = number(16.0, 0.01, 1000.0)
    """Hourly wage of a human dishwasher, for the metric "value_to_wage". The median in the US was 33,670 dollars a year
    (Bureau of Labor Statistics, occupation 35-9021)."""


class StepOutcome(NamedTuple):
    """Outcome of one step, (n,) each."""

    progress: torch.Tensor
    """Dirt removed in this step, divided by all the dirt to be removed until the plate counts as clean, in [0, 1]."""
    paid_usd: torch.Tensor
    """Advance paid for the plate so far, including this step."""
    clean: torch.Tensor
    """Whether the plate left the sink clean in this step, bool."""
    broken: torch.Tensor
    """Whether the plate broke in this step, bool."""
    rejected: torch.Tensor
    """Whether the plate was taken away dirty in this step, bool."""
    energy_j: torch.Tensor
    seconds: float


def reward_terms_usd(economy: Economy, step: StepOutcome) -> torch.Tensor:
    """Return the reward terms of a step, (n, 5), USD, in the order of `TERMS`.

    Summed over all steps of a plate, "cleaning" and "delivery" are the price if the plate left clean, and 0 if it broke
    or was rejected.
    """
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
    """Return the profit of a shift so far, (n,), USD, from its totals `ledger` (n, 5); see `LEDGER`.

    A plate that is still in the sink does not count.
    """
    clean, broken, _, energy_j, elapsed_s = ledger.unbind(1)
    running = economy.energy_usd_kwh / JOULES_PER_KWH * energy_j + economy.machine_usd_h / HOUR_S * elapsed_s
    return economy.price_usd * clean - economy.breakage_usd * broken - running


def metrics(economy: Economy, ledger: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return business metrics of a shift, each (n,), from its totals `ledger` (n, 5), in the order of `LEDGER`.

     - "plates_per_hour": clean plates per hour.
     - "breakage_rate": fraction of the plates that broke; "error_rate": fraction that broke or stayed dirty.
     - "profit_per_hour": USD.
     - "value_to_wage": price of all clean plates, divided by a person's wage for the same time.
    """
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
