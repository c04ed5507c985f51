"""What this computer is and how fast: `kit.verify()` says what is missing, `probe()` how long a training would take."""

from kit.machine.advice import Advice, advise, within_reach
from kit.machine.checks import Check, Report, verify
from kit.machine.info import Machine, describe
from kit.machine.limits import usable_cores
from kit.machine.monitor import GpuMonitor
from kit.machine.speed import Speed, probe

__all__ = [
    "Advice",
    "Check",
    "GpuMonitor",
    "Machine",
    "Report",
    "Speed",
    "advise",
    "describe",
    "probe",
    "usable_cores",
    "verify",
    "within_reach",
]
