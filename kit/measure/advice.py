"""Advice in sentences: duration, price and disk use of a run on this machine, from its measured speed."""

from __future__ import annotations

import re
import shutil
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kit import envs
from kit.config import RunConfig, byte_count
from kit.machine import places, settings
from kit.machine.info import Machine, describe
from kit.machine.progress import percent
from kit.measure.speed import Speed, duration, rough_duration
from kit.presets import NAMED, PPO_ON_CUDA

if TYPE_CHECKING:
    import pandas as pd

PROOF_STEPS, PROOF_ENVS = 8192, 32
"""Steps and envs of a trial run: about a minute on a CPU, uses every part of training, learns little."""
NEED_GPU = ("G1Joystick",)
"""Tasks that take a day or more on a CPU."""
DOLLARS_PER_HOUR = {
    ("This computer", ""): 0.0, ("Google Colab", "T4"): 0.0, ("Google Colab", "no GPU"): 0.0, ("RunPod", "4090"): 0.79,
    ("AWS EC2", "A10G"): 1.01, ("Lambda", "3090"): 0.50,
}  # fmt: skip
"""(`Place.name`, text in `Machine.title`) -> last known price per hour; the current price may differ."""
LITTLE_BYTES = 5e8
"""A replay buffer below this size is not worth a sentence."""


@dataclass(frozen=True)
class Advice:
    """What to know before training. Prints as sentences."""

    sentences: tuple[str, ...]

    def __str__(self) -> str:
        # in JupyterLab a line that is longer than the page breaks inside a word
        fill = textwrap.TextWrapper(100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False).fill
        return "\n".join(fill(f"- {sentence}") for sentence in self.sentences)

    __repr__ = __str__


def advise(config: RunConfig, speed: Speed, machine: Machine | None = None) -> Advice:
    """Say how long `config` takes at its measured `speed`, the price, and what would make it faster here."""
    machine = machine or describe()
    takes = estimate(config, speed, machine)
    sentences = [f"{config.total_steps:,} steps of {speed.env} with {speed.algo} take {takes}."]
    share = 1 - speed.update_share
    if share > 0.75:
        helps = "more cores help, a GPU for the network would not"
        sentences.append(f"The envs take {percent(share)} of the time: {helps}.")
    elif share < 0.4:
        sentences.append(f"The networks take {percent(1 - share)} of the time: smaller ones would be faster.")
    else:
        sentences.append(f"The envs take {percent(share)} of the time, the networks the rest: a good balance.")
    if not machine.gpus:
        sentences.append("Without a GPU, arms, dogs and Ant train well, vision slowly; a humanoid needs one.")
    elif speed.device == "cpu":
        gpu, n_envs = machine.gpus[0].name, PPO_ON_CUDA["n_envs"]
        sentences.append(f'{gpu} is not used. device = "cuda" lets PPO step {n_envs:,} envs at once on it.')
    if config.preset in NAMED:
        sentences.append(f'preset = "{config.preset}" has a larger network and is tuned for no task; "auto" is.')
    place = places.where()
    if place.loses_disk:
        sentences.append(f"This machine can be taken away: {place.keeps}.")
    return Advice(tuple(sentences))


def estimate(
    config: RunConfig, speed: Speed, machine: Machine | None = None, dollars_per_hour: float | None = None
) -> str:
    """Return duration (with start and evaluations) and price: "about 2 min on this machine (...), about $0.12"."""
    seconds = speed.seconds(config)
    price = cost(machine or describe(), seconds) if dollars_per_hour is None else dollars(dollars_per_hour, seconds)
    measured = f"about {float(f'{speed.steps_per_s:.2g}'):,.0f} steps/s, measured once"
    takes = f"about {rough_duration(seconds)} on this machine ({measured}; with start and evaluations)"
    return f"{takes}, {price}" if price else takes


def cost(machine: Machine, seconds: float) -> str:
    """Return the price as text, such as "free of charge" or "about $0.12 at the last known price"; "" if unknown."""
    for (place, part), dollars_per_hour in DOLLARS_PER_HOUR.items():
        if place == machine.place and part in machine.title:
            price = dollars(dollars_per_hour, seconds)
            return f"{price} at the last known price" if dollars_per_hour else price
    return ""


def dollars(per_hour: float, seconds: float) -> str:
    """Format a price, such as "free of charge", "under 1 cent" or "about $0.12"."""
    spent = per_hour * seconds / 3600
    return f"about ${spent:.2f}" if spent >= 0.005 else "under 1 cent" if spent else "free of charge"


def rented(seconds: float) -> pd.DataFrame:
    """Return a table of prices of a run on rented machines, if it takes `seconds` on each of them."""
    import pandas as pd

    rows = {
        " ".join(place): [f"{price:.2f}", f"{price * seconds / 3600:.2f}"]
        for place, price in DOLLARS_PER_HOUR.items()
        if place[1]
    }
    columns = ["dollars per hour, last known price", f"dollars for {duration(seconds)}"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns)


def disk_use(config: RunConfig) -> str:
    """Describe the disk use, such as "checkpoints take at most 10 GB of 71 GB of free disk space"."""
    folder = Path(config.runs_dir).expanduser().absolute()
    free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
    budget = byte_count("disk_budget", config.disk_budget)
    space = f"{free / 1e9:,.3g} GB of free disk space"
    limit = f" of {space}" if budget <= free else f", but there are only {space}"
    most = re.sub(r"(?<=\d)(?=[A-Za-z])", " ", config.disk_budget)
    return f"checkpoints take at most {most}{limit}"


def memory_use(config: RunConfig, speed: Speed, machine: Machine | None = None) -> str:
    """Describe the replay buffer's memory, such as "stored steps take 2.6 GB of 24 GB of memory"; "" if it is small."""
    if (need := speed.replay_use(config)) < LITTLE_BYTES:
        return ""
    machine = machine or describe()
    on_gpu = config.device.startswith("cuda") and machine.gpus
    memory = machine.gpus[0].memory_bytes if on_gpu else machine.memory_bytes
    space, takes = f"{memory / 1e9:,.3g} GB of memory", f"stored steps take {need / 1e9:,.2g} GB"
    return f"{takes} of {space}" if need < memory else f"{takes}, but there are only {space}: lower buffer_size"


def within_reach(config: RunConfig) -> RunConfig:
    """Return `config`; if its task needs a GPU and the run has none, return a tiny version and print the reason.

    The tiny run shows that everything works. Raises `UserError` if the task's model cannot be loaded.
    """
    envs.describe(config.env, config.env_options)
    if config.env not in NEED_GPU or (config.device != "cpu" and settings.gpu_works()):
        return config
    steps = min(config.total_steps, PROOF_STEPS)
    print(
        f"{config.env} needs a GPU, and this run has none. The run takes {steps:,} steps instead of "
        f"{config.total_steps:,}: it shows that everything works, but learns little. "
        f"To get a GPU: {places.where().get_gpu}."
    )
    n_envs = config.n_envs if isinstance(config.n_envs, str) else min(config.n_envs, PROOF_ENVS)
    return config.replace(total_steps=steps, n_envs=n_envs, eval_every=steps)
