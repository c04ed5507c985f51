"""Domain randomisation: what differs between envs, a term each, drawn anew for every episode or at intervals.

    class MyTask(MujocoTask):
        random_terms = {
            "mass": ModelTerm(("body_mass", "body_inertia"), low=0.8, high=1.2),
            "friction": ModelTerm(("geom_friction",), low=0.5, high=1.25, columns=1),
            "delay": ActionDelay(low=0, high=2),
        }

    kit.train(env="my_tasks:MyTask", env_options={"randomize": {"mass": [0.5, 2.0], "delay": True}})

`randomize` is true for all of a task's terms, a list of their names, or a mapping from names to true or a range.
Without it nothing is drawn. Numbers come from the env's generator and are part of its snapshot.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import mujoco
import torch

from kit.envs.obs import Obs, tree_map
from kit.errors import UserError

if TYPE_CHECKING:
    from kit.sim import Simulator

OPTION = "randomize"
"""Among env_options."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Term:
    """A random number from `low` to `high` for each env."""

    low: float
    high: float
    log: bool = False
    """Uniform in its logarithm."""
    every_s: float | None = None
    """Drawn anew so often within an episode, too; in seconds of the task."""

    def draw(self, shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
        chance = torch.rand(shape, generator=generator, dtype=dtype, device=generator.device)
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            return (low + (high - low) * chance).exp_()
        return self.low + (self.high - self.low) * chance


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelTerm(Term):
    """`fields` of MjModel (those of `kit.sim.base.PARAMETERS`): scaled by the number, with it added, or set to it."""

    fields: tuple[str, ...] = dataclasses.field(kw_only=False)
    how: Literal["scale", "add", "set"] = "scale"
    rows: Callable[[mujoco.MjModel], Sequence[int]] | None = None
    """Which bodies, geoms, joints, ...; None for all."""
    columns: int | None = None
    """How many of the first numbers of a row, such as 1 for the sliding friction alone; None for all."""
    each: bool = False
    """Whether every row gets a number of its own."""

    def apply(self, value: torch.Tensor, number: torch.Tensor, rows: torch.Tensor) -> None:
        """Change `value` (n, rows, ...) of a field by `number` (n, 1 or rows)."""
        columns = slice(None) if self.columns is None or value.ndim < 3 else slice(self.columns)
        place: Any = (slice(None), rows) if value.ndim < 3 else (slice(None), rows, columns)
        part = value[place]
        number = number.view(*number.shape, *[1] * (part.ndim - 2)).to(value.dtype)
        value[place] = {"scale": part * number, "add": part + number}.get(self.how, number.expand_as(part))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActionDelay(Term):
    """Actions arrive a whole number of steps late, `high` at most; zeros before the first."""

    def draw(self, shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
        whole = dataclasses.replace(self, high=self.high + 1)
        return Term.draw(whole, shape, generator, dtype).floor_().clamp_(self.low, self.high)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObservationNoise(Term):
    """Each real number of the observation, images apart, gets a number added that is drawn anew at every step."""


def chosen(name: str, terms: Mapping[str, Term], option: Any) -> dict[str, Term]:
    """Those of a task's `terms` that `option` asks for. Raises `UserError`."""
    if option is None or isinstance(option, bool):
        option = list(terms) if option else []
    if not isinstance(option, list | tuple | Mapping):
        raise UserError(f"env_options randomize={option!r} is neither true, false, a list of names nor a mapping.")
    ranges = option if isinstance(option, Mapping) else dict.fromkeys(option, True)
    found: dict[str, Term] = {}
    for term, wanted in ranges.items():
        if term not in terms:
            known = ", ".join(terms) or "none"
            raise UserError(f"env_options randomize {term!r} is not one of env={name!r}'s terms; it has {known}.")
        if wanted is True:
            found[term] = terms[term]
        elif wanted is not False:
            found[term] = _ranged(term, terms[term], wanted)
    return found


def _ranged(name: str, term: Term, wanted: Any) -> Term:
    known = isinstance(wanted, list | tuple) and len(wanted) == 2 and all(type(x) in (int, float) for x in wanted)
    if not known or not math.isfinite(sum(wanted)) or wanted[0] > wanted[1] or (term.log and wanted[0] <= 0):
        raise UserError(f"env_options randomize {name}={wanted!r} is no range; write [{term.low:g}, {term.high:g}].")
    if isinstance(term, ActionDelay) and (wanted[0] < 0 or any(x != int(x) for x in wanted)):
        raise UserError(f"env_options randomize {name}={wanted!r} must be whole numbers of steps, such as [0, 2].")
    return dataclasses.replace(term, low=float(wanted[0]), high=float(wanted[1]))


class Randomizer:
    """Draws `terms` for `n` envs. The numbers drawn, ages and late actions are its state."""

    def __init__(
        self, terms: Mapping[str, Term], n: int, control_dt_s: float, sim: Simulator | None, device: torch.device
    ) -> None:
        self.terms, self.n = terms, n
        self._every = {name: max(1, round(t.every_s / control_dt_s)) for name, t in terms.items() if t.every_s}
        self._noise = [term for term in terms.values() if isinstance(term, ObservationNoise)]
        self._delays = [name for name, term in terms.items() if isinstance(term, ActionDelay)]
        self._sim, self._rows = sim, dict[str, torch.Tensor]()
        self._fields: dict[str, list[str]] = {}
        """Of the model, and the terms that change each, in their order."""
        self._compiled: dict[str, torch.Tensor] = {}
        self.drawn: dict[str, torch.Tensor] = {}
        """Of each term but noise, (n, 1), or (n, rows) where each row has its own."""
        for name, term in terms.items():
            width, dtype = 1, torch.float32
            if isinstance(term, ModelTerm):
                if sim is None:
                    raise UserError(f"env_options randomize {name!r} changes a MuJoCo model, and this task has none.")
                dtype, count = sim.dtype, len(getattr(sim.model, term.fields[0]))
                rows = list(range(count)) if term.rows is None else list(term.rows(sim.model))
                self._rows[name] = torch.tensor(rows, device=device)
                width = len(rows) if term.each else 1
                for field in term.fields:
                    self._fields.setdefault(field, []).append(name)
                    own = sim.parameter(field)
                    self._compiled[field] = torch.as_tensor(getattr(sim.model, field)).to(own)
            if not isinstance(term, ObservationNoise):
                self.drawn[name] = torch.zeros(n, width, dtype=dtype, device=device)
        self._age = torch.zeros(n, dtype=torch.int64, device=device)
        self._late: torch.Tensor | None = None  # (n, most + 1, act), the newest first

    def begin(self, envs: torch.Tensor, generator: torch.Generator) -> None:
        """For the episodes that begin in `envs` (n,) bool."""
        self._age.masked_fill_(envs, 0)
        if self._late is not None:
            self._late.masked_fill_(envs.view(-1, 1, 1), 0.0)
        self._draw(dict.fromkeys(self.drawn, envs), generator)

    def pass_step(self, generator: torch.Generator) -> None:
        """A step is over: draw what is drawn at intervals."""
        if self._every:
            self._age += 1
            self._draw({name: self._age % every == 0 for name, every in self._every.items()}, generator)

    def act(self, action: torch.Tensor) -> torch.Tensor:
        """`action` (n, act) as it arrives."""
        if not self._delays:
            return action
        most = max(int(self.terms[name].high) for name in self._delays)
        if self._late is None:
            self._late = torch.zeros(self.n, most + 1, *action.shape[1:], dtype=action.dtype, device=action.device)
        self._late = torch.cat([action.unsqueeze(1), self._late[:, :-1]], 1)
        delay = self.drawn[self._delays[0]].long().view(-1, 1, *[1] * (action.ndim - 1))
        return self._late.gather(1, delay.expand(-1, 1, *action.shape[1:])).squeeze(1)

    def observe(self, obs: Obs, generator: torch.Generator, names: Collection[str] | None = None) -> Obs:
        """`obs` (n, ...) with noise, on its entries `names` alone if they are given."""
        if self._noise and names is not None and isinstance(obs, Mapping):
            return {**obs, **self.observe({name: x for name, x in obs.items() if name in names}, generator)}  # type: ignore[dict-item]
        for term in self._noise:

            def noisy(entry: torch.Tensor, term: Term = term) -> torch.Tensor:
                real = entry.is_floating_point()
                return entry + term.draw(tuple(entry.shape), generator, entry.dtype) if real else entry

            obs = tree_map(noisy, obs)
        return obs

    def _draw(self, envs: Mapping[str, torch.Tensor], generator: torch.Generator) -> None:
        """Each term named anew in its `envs`, at full width, so that what one env gets does not depend on others."""
        for name, mask in envs.items():
            old = self.drawn[name]
            new = self.terms[name].draw(tuple(old.shape), generator, old.dtype)
            old.copy_(torch.where(mask.unsqueeze(1), new, old))
        if self._sim is not None and self._fields:
            self._apply(self._sim, torch.stack(list(envs.values())).any(0))

    def _apply(self, sim: Simulator, envs: torch.Tensor) -> None:
        for field, names in self._fields.items():
            value = self._compiled[field].expand(self.n, *self._compiled[field].shape).clone()
            for name in names:
                term = self.terms[name]
                assert isinstance(term, ModelTerm)
                term.apply(value, self.drawn[name], self._rows[name])
            sim.parameter(field).copy_(value)
        sim.derive(envs)

    def state(self) -> dict[str, torch.Tensor]:
        """Copies of what was drawn. The model's fields are in the simulator's snapshot."""
        late = {} if self._late is None else {"late": self._late.clone()}
        return {"age": self._age.clone(), **{name: x.clone() for name, x in self.drawn.items()}, **late}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        self._age.copy_(state["age"])
        for name, value in self.drawn.items():
            value.copy_(state[name])
        self._late = state["late"].to(self._age.device, copy=True) if "late" in state else None
