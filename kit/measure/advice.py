"""What we would choose on this machine, in plain sentences, from its description and a speed probe."""

from __future__ import annotations

import html
from dataclasses import dataclass

from kit.config import RunConfig
from kit.machine import places
from kit.machine.info import Machine, describe
from kit.measure.speed import Speed

PROOF_STEPS, PROOF_WORLDS = 8192, 32
"""What takes a CPU a minute: nothing is learnt by it, but everything is used."""
BIG_CARD_BYTES, HUGE_CARD_BYTES = 20 * 2**30, 40 * 2**30


@dataclass(frozen=True)
class Advice:
    """A preset and the reasons. Prints as sentences."""

    preset: str
    sentences: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join((f'preset = "{self.preset}"', *(f"  - {sentence}" for sentence in self.sentences)))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        points = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in self.sentences)
        return f'<div style="font-size:14px"><code><b>preset = "{self.preset}"</b></code><ul>{points}</ul></div>'


def advise(config: RunConfig, speed: Speed, machine: Machine | None = None) -> Advice:
    """What to choose for `config` here, given what the probe said about it."""
    machine = machine or describe()
    return Advice(_preset(machine), tuple(_sentences(config, speed, machine)))


def _preset(machine: Machine) -> str:
    """The named presets are for big networks on a GPU; everything else is better off with what fits the task."""
    memory = max((card.memory_bytes for card in machine.gpus), default=0)
    if memory >= HUGE_CARD_BYTES:
        return "beast"
    return "heavy" if memory >= BIG_CARD_BYTES else "fast" if memory else "auto"


def _sentences(config: RunConfig, speed: Speed, machine: Machine) -> list[str]:
    work = f"{config.total_steps:,} steps of {speed.env} with {speed.algo}"
    found = [f"{work} take {speed.sentence(config.total_steps, machine)}."]
    share = min(1.0, speed.steps_per_s / speed.env_steps_per_s)
    if share > 0.75:
        found.append(f"Physics takes {share:.0%} of the time: more cores help, a GPU for the network would not.")
    elif share < 0.4:
        found.append(f"The network takes {1 - share:.0%} of the time: a smaller one would be quicker.")
    else:
        found.append(f"Physics takes {share:.0%} of the time, the network the rest: a good balance.")
    if machine.gpus and speed.device == "cpu":
        found.append(f'{machine.gpus[0].name} is not used; presets fast, heavy and beast with device = "cuda" do.')
    if not machine.gpus:
        found.append("Without a GPU, Reach and Ant train well; humanoids and vision want one.")
    place = places.where()
    if place.loses_disk:
        found.append(f"This machine can be taken away: {place.keeps}.")
    return found


def within_reach(config: RunConfig) -> RunConfig:
    """`config` where it has a GPU. Where it has none, a tiny one of the same kind, which proves that everything works,
    and a printed sentence that says so. Raises `UserError` if the task's model cannot be had."""
    from kit import envs
    from kit.machine import settings

    envs.make_task(config.env)
    if config.device != "cpu" and settings.gpu_works():
        return config
    steps = min(config.total_steps, PROOF_STEPS)
    print(
        f"No GPU here, which {config.env} wants. {steps:,} steps instead of {config.total_steps:,} follow, to prove "
        f"that everything works; little is learnt by them. To get one: {places.where().get_gpu}."
    )
    worlds = config.n_envs if isinstance(config.n_envs, str) else min(config.n_envs, PROOF_WORLDS)
    return config.replace(total_steps=steps, n_envs=worlds, eval_every=steps)
