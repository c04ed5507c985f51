"""The preset `auto`: a probe of a few seconds that settles how many worlds, how many threads and which device.

What is learnt stays what the preset's row says. Steps and epochs are never touched, the batch is the largest divisor
of the rollout up to the row's, and PPO's worlds double from the row's number only while the run still has `ROUNDS`
rollouts in it: fewer, larger ones were seen to learn less from the same steps. SAC's double twice, with as many
gradient steps for each env step, which was seen to learn the same. Of what is left the probe takes the fewest worlds
within `CLOSE` of the fastest, so that noise decides nothing that matters.

It measures parts and adds them up: one env step of all worlds with the policy's action, and one minibatch
(`kit.machine.rig`). The answer is kept (`kit.machine.cache`), so the same request gets the same numbers the next time,
unless other programs used the cores meanwhile (`kit.machine.busy`): it then counts for ten minutes.
Where nothing but the row is left there is no probe and all cores are used: runs under `SHORT` steps, runs too short for
more worlds, A2C on a CPU, several processes, and wherever `n_envs` is given and the device is not in doubt.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kit.config import RunConfig
from kit.errors import UserError
from kit.machine import busy, cache, group
from kit.machine.limits import usable_cores

ROUNDS = 20
"""Rollouts that a run has at least, whatever the number of worlds. Reach, 100,000 steps: a return of 4.26 with 48
rollouts, 4.25 with 24, 4.11 with 12, 3.86 with 6. A2C, whose updates are its rollouts: 4.06 with 8 worlds, 3.91 with
16."""
CLOSE = 0.03
"""Readings so close count as equal."""
SHORT = 50_000
"""A run of fewer steps is over before a probe would have paid."""
BUDGET_S = 3.0
"""For measuring; what would take longer, judged by what the row took, is left out."""
HOPELESS = 0.7
"""Whoever does less than this part of the fastest in two turns (the first ones are cold) gets no more of them."""
TURNS = 4
"""Each reading is the least of so many, candidates taking turns: other programs can only add to it."""
FIRST_STEPS = 64
"""Of every world in the first turn, building included, by and large."""
MOST_WORLDS, PER_CORE = 64, 4
"""On a CPU: 64 worlds, or four for each core where that is more."""


@dataclass(frozen=True)
class Candidate:
    """What may be chosen."""

    n_envs: int
    threads: int
    device: str

    def of(self, config: RunConfig) -> RunConfig:
        """`config` resolved with this choice."""
        return config.replace(**dataclasses.asdict(self)).resolve()


@dataclass(frozen=True)
class Reading:
    """Seconds of one iteration (a rollout of `steps` env steps and its update), in two parts."""

    steps: int
    collect_s: float
    update_s: float
    host_s: float = 0.0
    """Of `collect_s`, what the physics takes on the CPU: a GPU has nothing to do meanwhile."""
    batch: int = 0
    """Updates with the same batch, if there is one, take the same time for each step."""

    @property
    def steps_per_s(self) -> float:
        return self.steps / (self.collect_s + self.update_s)

    @property
    def host_share(self) -> float:
        return min(1.0, self.host_s / (self.collect_s + self.update_s))

    def least(self, other: Reading) -> Reading:
        """The better of both, part by part."""
        parts = ("collect_s", "update_s", "host_s")
        return dataclasses.replace(self, **{part: min(getattr(self, part), getattr(other, part)) for part in parts})

    def with_updates_of(self, others: Iterable[Reading]) -> Reading:
        """Its updates as quick as the quickest of `others` with the same batch."""
        same = [other.update_s / other.steps for other in others if self.batch and other.batch == self.batch]
        return dataclasses.replace(self, update_s=min([self.update_s, *(self.steps * one for one in same)]))


Measure = Callable[[Candidate], Reading]
"""One turn of a candidate; the first one builds it."""


@dataclass(frozen=True)
class Plan:
    """What was chosen, and how fast it was."""

    n_envs: int
    threads: int
    device: str
    steps_per_s: float | None
    """None where there was but one choice."""
    about_gpu: str = ""
    """What the GPU, if there is one, would do."""
    busy: bool = False
    """Whether other programs used the cores meanwhile, so that it may not be the best."""


# -- from a request to a plan ------------------------------------------------------------------------------------------


def settle(config: RunConfig) -> RunConfig:
    """`config` with worlds, threads and device as measured here; without a need for a probe, as it is."""
    with _ONE_AT_A_TIME:
        plan = known(config) or _probe(config)
    return config if plan is None else config.replace(n_envs=plan.n_envs, threads=plan.threads, device=plan.device)


def needs_probe(config: RunConfig) -> bool:
    """Whether `settle` will take seconds, once."""
    return config.preset == "auto" and _is_open(config, grid(config)) and known(config) is None


def known(config: RunConfig) -> Plan | None:
    """The plan that this machine made before for such a request, or None."""
    options = grid(config)
    try:
        return Plan(**cache.read(_key(config, options))) if _is_open(config, options) else None
    except TypeError:  # nothing, or not of this form
        return None


def sentence(asked: RunConfig, resolved: RunConfig) -> str:
    """Such as "auto: 16 worlds on 2 threads, 256 steps, batch 512: about 5,000 steps/s here"; "" for other presets."""
    if asked.preset != "auto":
        return ""
    hyper, plan = resolved.overrides, known(asked)
    threads = f"{resolved.threads} thread{'' if resolved.threads == 1 else 's'}"
    said = f"auto: {resolved.n_envs:,} worlds on {threads if resolved.device == 'cpu' else resolved.device}"
    said += f", {hyper['n_steps']} steps" if "n_steps" in hyper else ""
    said += f", batch {hyper['batch_size']:,}" if "batch_size" in hyper else ""
    if plan is not None and plan.steps_per_s is not None:
        said += f": about {float(f'{plan.steps_per_s:.2g}'):,.0f} steps/s here" + plan.busy * f" {busy.SAID}"
    return said + (f"; {plan.about_gpu}" if plan is not None and plan.about_gpu else "")


def _probe(config: RunConfig) -> Plan | None:
    options = grid(config)
    if not _is_open(config, options):
        return None
    options[0].of(config)  # whatever is wrong with the request is said before anything is built
    from kit.machine.rig import Rigs

    watch = busy.Watch()
    with Rigs(config) as measure:
        plan = search(fitted(config, options), measure)
    if plan is not None:
        plan = dataclasses.replace(plan, busy=watch.busy())
        cache.write(_key(config, options), dataclasses.asdict(plan), doubtful=plan.busy)
    return plan


def _key(config: RunConfig, options: Sequence[Candidate]) -> str:
    """Of the request and of everything that may be chosen; the latter depends on the run's length."""
    names = ("env", "algo", "encoder", "overrides")
    return cache.key(
        "auto", [{name: getattr(config, name) for name in names}, [dataclasses.astuple(o) for o in options]]
    )


_ONE_AT_A_TIME = threading.RLock()
"""Two probes at once would slow each other down; the second finds the first one's answer."""


# -- what may be chosen ------------------------------------------------------------------------------------------------


def grid(config: RunConfig) -> list[Candidate]:
    """Everything that may be chosen for `config`, the row's own first; nothing for a short run, or for one that several
    processes share, of which a probe would see one."""
    if config.total_steps < SHORT or group.size() > 1:
        return []
    devices = [config.device]
    if config.device == "auto":
        devices = ["cpu", "cuda"] if _sees_cuda() else ["cpu"]
        if config.overrides.get("autocast"):  # which only a card does
            devices = devices[-1:]
    worlds = {device: _worlds(config.replace(device=device)) for device in devices}
    most, *fewer = _threads(config)
    found = [Candidate(n, most, device) for device in devices for n in worlds[device]]
    if len(found) > 1:
        found += [Candidate(n, threads, "cpu") for n in worlds.get("cpu", ()) for threads in fewer]
    return found


def _is_open(config: RunConfig, options: Sequence[Candidate]) -> bool:
    return len(options) > 1 or any(_must_fit(config, option) for option in options)


def _worlds(config: RunConfig) -> list[int]:
    """Numbers of worlds on a given device, the row's own first."""
    from kit.presets import row_of

    if isinstance(config.n_envs, int):
        return [config.n_envs]
    row = row_of(config)
    least = int(row.get("n_envs", 1))
    if config.device == "cpu" and config.algo == "SAC" and not {"train_freq", "gradient_steps"} & set(config.overrides):
        return [least, 2 * least, 4 * least]
    if config.device != "cpu" or config.algo != "PPO":
        return [least]
    n_steps, batch = {"n_steps": 2048, **row, **config.overrides}["n_steps"], config.overrides.get("batch_size", 1)
    if not (isinstance(n_steps, int) and isinstance(batch, int) and min(n_steps, batch) > 0):
        return [least]  # a wrong request, which others refuse
    most = max(MOST_WORLDS, PER_CORE * usable_cores())
    more = [least << doublings for doublings in range(1, most.bit_length()) if least << doublings <= most]
    enough = [n for n in more if ROUNDS * n * n_steps <= config.total_steps]
    return [least, *(n for n in enough if n * n_steps % batch == 0)]


def _threads(config: RunConfig) -> list[int]:
    """Numbers of threads, all cores first."""
    if isinstance(config.threads, int):
        return [config.threads]
    cores = usable_cores()
    return list(dict.fromkeys([cores, max(1, cores // 2), 1]))


def _sees_cuda() -> bool:
    from kit.machine import settings

    return settings.gpu_works()


def _must_fit(config: RunConfig, option: Candidate) -> bool:
    """Whether memory decides: worlds of ours on a card, as many as the row says if there is room."""
    from kit import envs
    from kit.machine.fit import STRIDE

    ours = option.device != "cpu" and config.env in envs.names()
    return ours and config.n_envs == "auto" and option.n_envs > STRIDE


def fitted(
    config: RunConfig, options: Sequence[Candidate], fits: Callable[[RunConfig], int] | None = None
) -> list[Candidate]:
    """`options` with no more worlds than the card has room for, which `fits` says of a resolved config."""
    found: list[Candidate] = []
    for option in options:
        if _must_fit(config, option):
            try:
                option = dataclasses.replace(option, n_envs=min(option.n_envs, (fits or _fits)(option.of(config))))
            except UserError:  # no room at all
                if len(options) == 1:
                    raise
                continue
        found.append(option)
    return found


def _fits(config: RunConfig) -> int:
    from kit.machine.fit import fit

    return fit(config).n_envs


# -- the search --------------------------------------------------------------------------------------------------------


def search(
    options: Sequence[Candidate],
    measure: Measure,
    clock: Callable[[], float] = time.perf_counter,
    budget_s: float = BUDGET_S,
) -> Plan | None:
    """The best of `options`, one coordinate after the other: worlds on all threads, fewer threads for those worlds, the
    GPU against what came of that. None if nothing can be measured."""
    if len(options) == 1:
        return Plan(**dataclasses.asdict(options[0]), steps_per_s=None)
    race = _Race(measure, clock, clock() + budget_s)
    here = [option for option in options if option.device == "cpu"]
    cpu = race([option for option in here if option.threads == here[0].threads])
    if cpu is not None:
        cpu = race([cpu, *(option for option in here if option.n_envs == cpu.n_envs and option != cpu)])
    cuda = race([option for option in options if option.device != "cpu"])
    best = race([option for option in (cpu, cuda) if option is not None])
    if best is None:
        return None
    about_gpu = _about_gpu(race.reading(cuda), best == cuda) if cuda is not None else ""
    return Plan(**dataclasses.asdict(best), steps_per_s=race.reading(best).steps_per_s, about_gpu=about_gpu)


class _Race:
    """Candidates take turns; what counts is the least of each one's readings."""

    def __init__(self, measure: Measure, clock: Callable[[], float], deadline: float) -> None:
        self._readings: dict[Candidate, Reading] = {}
        self._measure, self._clock, self._deadline = measure, clock, deadline

    def __call__(self, candidates: Sequence[Candidate]) -> Candidate | None:
        """The first of `candidates` that is within `CLOSE` of the fastest, after turns of those that are new; None if
        none can be measured."""
        racing = [candidate for candidate in candidates if candidate not in self._readings]
        for turn in range(TURNS if len(candidates) > 1 else 1):
            for candidate in racing:
                if self._clock() < self._deadline if turn else self._in_time(candidate):
                    self._turn(candidate)
            rates = {c: self.reading(c).steps_per_s for c in candidates if c in self._readings}
            least = HOPELESS * max(rates.values(), default=0.0) if turn else 0.0
            racing = [candidate for candidate in racing if rates.get(candidate, -1.0) >= least]
        return next((c for c, rate in rates.items() if rate >= (1 - CLOSE) * max(rates.values())), None)

    def reading(self, candidate: Candidate) -> Reading:
        """Of a candidate that had its turns."""
        kind = (candidate.threads, candidate.device)
        alike = [reading for c, reading in self._readings.items() if (c.threads, c.device) == kind]
        return self._readings[candidate].with_updates_of(alike)

    def _in_time(self, candidate: Candidate) -> bool:
        """Whether its first turn will be over in time, if a step takes as long as it took the first of all. A GPU has
        all the time it needs: its kernels are compiled once, and the run needs them too."""
        if not self._readings or candidate.device != "cpu":
            return True
        first = next(iter(self._readings.values()))
        step_s = first.collect_s / first.steps
        return self._clock() + FIRST_STEPS * candidate.n_envs * step_s < self._deadline

    def _turn(self, candidate: Candidate) -> None:
        try:
            reading = self._measure(candidate)
        except (RuntimeError, MemoryError):  # too large for this machine; if it is the row's own, training will say so
            self._readings.pop(candidate, None)
            return
        known = self._readings.get(candidate)
        self._readings[candidate] = reading if known is None else known.least(reading)


def _about_gpu(cuda: Reading, chosen: bool) -> str:
    idle = f"idle {cuda.host_share:.0%} of the time" if cuda.host_share >= CLOSE else ""
    if chosen:
        return f"the GPU will be {idle}, while the CPU does the physics" if idle else ""
    slower = f"the CPU is faster for this network; the GPU would do {float(f'{cuda.steps_per_s:.2g}'):,.0f} steps/s"
    return f"{slower} and be {idle}" if idle else slower
