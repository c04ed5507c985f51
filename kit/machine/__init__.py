"""This computer: hardware, limits, GPUs, and rented machines such as Colab. `kit.verify()` reports what is missing."""

from kit.machine.checks import Check, Report, verify
from kit.machine.info import Machine, describe
from kit.machine.limits import usable_cores

__all__ = ["Check", "Machine", "Report", "describe", "usable_cores", "verify"]
