"""What we would choose on this machine, in plain sentences, from its description and a speed probe."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kit import envs
from kit.config import RunConfig, byte_count
from kit.machine import places, settings
from kit.machine.info import Machine, describe
from kit.measure.speed import Speed, duration

if TYPE_CHECKING:
    import pandas as pd

PROOF_STEPS, PROOF_WORLDS = 8192, 32
"""What takes a CPU a minute: nothing is learnt by it, but everything is used."""
WANT_A_GPU = ("G1Joystick",)
"""Tasks that take a CPU a day or more."""
DOLLARS_PER_HOUR = {
    ("This computer", ""): 0.0, ("Google Colab", "T4"): 0.0, ("Google Colab", "no GPU"): 0.0, ("RunPod", "4090"): 0.79,
    ("AWS EC2", "A10G"): 1.01, ("Lambda", "3090"): 0.50,
}  # fmt: skip
"""Of a place and a part of its machine's title, as last documented: a guide, never a quote."""


@dataclass(frozen=True)
class Advice:
    """A preset and the reasons. Prints as sentences."""

    preset: str
    sentences: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join((f'preset = "{self.preset}"', *(f"  - {sentence}" for sentence in self.sentences)))

    __repr__ = __str__


def advise(config: RunConfig, speed: Speed, machine: Machine | None = None) -> Advice:
    """What to choose for `config` here, given what the probe said about it."""
    machine = machine or describe()
    found = [f"{config.total_steps:,} steps of {speed.env} with {speed.algo} take {estimate(config, speed, machine)}."]
    share = min(1.0, speed.steps_per_s / speed.env_steps_per_s)
    if share > 0.75:
        found.append(f"Physics takes {share:.0%} of the time: more cores help, a GPU for the network would not.")
    elif share < 0.4:
        found.append(f"The network takes {1 - share:.0%} of the time: a smaller one would be quicker.")
    else:
        found.append(f"Physics takes {share:.0%} of the time, the network the rest: a good balance.")
    if not machine.gpus:
        found.append("Without a GPU, Reach and Ant train well; humanoids and vision want one.")
    elif speed.device == "cpu":
        found.append(f'{machine.gpus[0].name} is not used; presets fast, heavy and beast with device = "cuda" do.')
    place = places.where()
    if place.loses_disk:
        found.append(f"This machine can be taken away: {place.keeps}.")
    return Advice(_preset(machine), tuple(found))


def estimate(
    config: RunConfig, speed: Speed, machine: Machine | None = None, dollars_per_hour: float | None = None
) -> str:
    """How long `config` will take, such as "about 2 min on this machine (1,450 steps/s), free"."""
    seconds = speed.seconds(config)
    price = cost(machine or describe(), seconds) if dollars_per_hour is None else dollars(dollars_per_hour, seconds)
    takes = f"about {duration(seconds)} on this machine ({speed.steps_per_s:,.0f} steps/s)"
    return f"{takes}, {price}" if price else takes


def cost(machine: Machine, seconds: float) -> str:
    """Such as "free", "about $0.12 as last documented", or "" where no price is known."""
    for (place, part), dollars_per_hour in DOLLARS_PER_HOUR.items():
        if place == machine.place and part in machine.title:
            price = dollars(dollars_per_hour, seconds)
            return f"{price} as last documented" if dollars_per_hour else price
    return ""


def dollars(per_hour: float, seconds: float) -> str:
    """Such as "free", "under 1 cent", "about $0.12"."""
    spent = per_hour * seconds / 3600
    return f"about ${spent:.2f}" if spent >= 0.005 else "under 1 cent" if spent else "free"


def rented(seconds: float) -> pd.DataFrame:
    """A table to read: what a run of so many `seconds` costs on machines to rent. How long they take is another matter:
    so long as here, is what is reckoned with."""
    import pandas as pd

    lines = {
        " ".join(place): [f"{price:.2f}", f"{price * seconds / 3600:.2f}"]
        for place, price in DOLLARS_PER_HOUR.items()
        if place[1]
    }
    heads = ["dollars per hour, as last documented", f"dollars for {duration(seconds)}"]
    return pd.DataFrame.from_dict(lines, orient="index", columns=heads)


def keeping(config: RunConfig) -> str:
    """What checkpoints may take of the disk, such as "checkpoints take at most 10GB of the 71 GB that are free"."""
    folder = Path(config.runs_dir).expanduser().absolute()
    free = shutil.disk_usage(next(there for there in (folder, *folder.parents) if there.exists())).free
    budget = byte_count("disk_budget", config.disk_budget)
    there = f"{free / 1e9:,.3g} GB"
    of = f" of the {there} that are free" if budget <= free else f", but only {there} are free"
    return f"checkpoints take at most {config.disk_budget}{of}"


def _preset(machine: Machine) -> str:
    """The named presets are for big networks on a GPU; everything else is better off with what fits the task."""
    gib = max((card.memory_bytes for card in machine.gpus), default=0) / 2**30
    return "beast" if gib >= 40 else "heavy" if gib >= 20 else "fast" if gib else "auto"


def within_reach(config: RunConfig) -> RunConfig:
    """`config` where it has a GPU or wants none. Where it lacks one, a tiny one of the same kind, which proves that
    everything works, and a printed sentence that says so. Raises `UserError` if the task's model cannot be had."""
    envs.describe(config.env, config.env_options)
    if config.env not in WANT_A_GPU or (config.device != "cpu" and settings.gpu_works()):
        return config
    steps = min(config.total_steps, PROOF_STEPS)
    print(
        f"No GPU here, which {config.env} wants. {steps:,} steps instead of {config.total_steps:,} follow, to prove "
        f"that everything works; little is learnt by them. To get one: {places.where().get_gpu}."
    )
    worlds = config.n_envs if isinstance(config.n_envs, str) else min(config.n_envs, PROOF_WORLDS)
    return config.replace(total_steps=steps, n_envs=worlds, eval_every=steps)
