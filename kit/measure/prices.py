"""What an hour on a rented machine costs, as last documented. A guide, never a quote."""

from __future__ import annotations

from dataclasses import dataclass

from kit.machine import places
from kit.machine.info import Machine


@dataclass(frozen=True)
class Price:
    """An hour of one kind of machine."""

    place: str
    card: str
    """Part of the GPU's name; "" fits any machine of the place."""
    dollars_per_hour: float
    note: str = ""


PRICES = (
    Price("Google Colab", "T4", 0.0, "free; Pro is 10 dollars a month, Pro+ 50"),
    Price("RunPod", "4090", 0.79),
    Price("AWS EC2", "A10G", 1.01, "g5.xlarge on demand"),
    Price("Lambda", "3090", 0.50),
)


def price(machine: Machine) -> Price | None:
    """The documented price of a machine like this one, or None."""
    cards = " ".join(g.name for g in machine.gpus)
    if machine.place == "Google Colab" and not cards:
        return Price("Google Colab", "", 0.0, "free")
    return next((p for p in PRICES if p.place == machine.place and p.card in cards), None)


def cost(machine: Machine, seconds: float) -> str:
    """Such as "free", "about $0.12 as last documented", or "" where no price is known."""
    known = price(machine)
    if known is None:
        return "free" if machine.place == places.LOCAL.name else ""
    if known.dollars_per_hour == 0:
        return "free"
    dollars = known.dollars_per_hour * seconds / 3600
    return f"about ${dollars:.2f} as last documented" if dollars >= 0.005 else "under 1 cent as last documented"
