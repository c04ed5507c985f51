"""Domain randomisation: random changes of the model, delays and noise, drawn per env and episode or at intervals.

    class MyTask(MujocoTask):
        random_terms = {
            "mass": ModelTerm(("body_mass", "body_inertia"), low=0.8, high=1.2),
            "friction": ModelTerm(("geom_friction",), low=0.5, high=1.25, columns=1),
            "delay": ActionDelay(low=0, high=2),
        }

    kit.train(env="my_tasks:MyTask", env_options={"randomize": {"mass": [0.5, 2.0], "delay": True}})

`randomize` is true for all terms of the task, a list of term names, or a mapping from names to true or [low, high].
Without it nothing is randomised. In tasks with a curriculum, randomisation is one more stage at the end. Random numbers
come from the env's generator and are part of its snapshot.
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
"""Name of this option in env_options."""
AGE, ACTIVE, LATE = "age", "active", "late"
"""Entries of `Randomizer.state`: steps since each env's episode began, whether it is randomised, actions on their way.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Term:
    """Base class of terms: draws a random number per env, uniform from `low` to `high`."""

    low: float
    high: float
    log: bool = False
    """Log-uniform instead of uniform."""
    every_s: float | None = None
    """Simulated seconds between two draws in an episode; None: draw at the start of the episode only."""

    def draw(self, shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
        uniform = torch.rand(shape, generator=generator, dtype=dtype, device=generator.device)
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            return (low + (high - low) * uniform).exp_()
        return self.low + (self.high - self.low) * uniform


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelTerm(Term):
    """Multiply `fields` of MjModel by a random number, add the number to them, or replace them by it (`how`).

    `kit.sim.base.PARAMETERS` lists the allowed fields.
    """

    fields: tuple[str, ...] = dataclasses.field(kw_only=False)
    how: Literal["scale", "add", "set"] = "scale"
    rows: Callable[[mujoco.MjModel], Sequence[int]] | None = None
    """Function that returns the ids of the bodies, geoms, joints, ... (rows of the fields) to randomise; None for
    all."""
    columns: int | None = None
    """Number of leading columns of the fields to randomise, such as 1 for sliding friction only; None for all."""
    each: bool = False
    """Whether every row draws its own random number; if False, all rows of an env share one number."""

    def apply(self, value: torch.Tensor, number: torch.Tensor, rows: torch.Tensor) -> None:
        """Apply `number` (n, 1) or (n, k) in place to the `rows` (k,) of a field's `value` (n, all rows, ...)."""
        columns = slice(None) if self.columns is None or value.ndim < 3 else slice(self.columns)
        index: Any = (slice(None), rows) if value.ndim < 3 else (slice(None), rows, columns)
        old = value[index]
        number = number.view(*number.shape, *[1] * (old.ndim - 2)).to(value.dtype)
        value[index] = {"scale": old * number, "add": old + number}.get(self.how, number.expand_as(old))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActionDelay(Term):
    """Delay actions by a whole number of steps, `low` to `high`. Until the first action arrives, actions are zero."""

    def draw(self, shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
        whole = dataclasses.replace(self, high=self.high + 1)
        return Term.draw(whole, shape, generator, dtype).floor_().clamp_(self.low, self.high)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObservationNoise(Term):
    """Add noise, drawn at every step, to all floating-point numbers that the policy observes (not to uint8 images)."""


def chosen(name: str, terms: Mapping[str, Term], option: Any) -> dict[str, Term]:
    """Return those of the task's `terms` that `option` switches on, with its ranges.

    `option` is the value of env_options `randomize`.
    """
    if option is None or isinstance(option, bool):
        option = list(terms) if option else []
    if not isinstance(option, list | tuple | Mapping) or not all(isinstance(term, str) for term in option):
        raise UserError(f"env_options randomize={option!r} is not true, false, a list of names or a mapping.")
    ranges = option if isinstance(option, Mapping) else dict.fromkeys(option, True)
    selected: dict[str, Term] = {}
    for term, bounds in ranges.items():
        if term not in terms:
            known = ", ".join(terms) or "none"
            raise UserError(f"env_options randomize {term!r} is not one of env={name!r}'s terms; it has {known}.")
        if bounds is True:
            selected[term] = terms[term]
        elif bounds is not False:
            selected[term] = _with_bounds(term, terms[term], bounds)
    return selected


def _with_bounds(name: str, term: Term, bounds: Any) -> Term:
    valid = isinstance(bounds, list | tuple) and len(bounds) == 2 and all(type(x) in (int, float) for x in bounds)
    if not valid or not math.isfinite(sum(bounds)) or bounds[0] > bounds[1] or (term.log and bounds[0] <= 0):
        raise UserError(
            f"env_options randomize {name}={bounds!r} is not a range; write [low, high], such as "
            f"[{term.low:g}, {term.high:g}]."
        )
    if isinstance(term, ActionDelay) and (bounds[0] < 0 or any(x != int(x) for x in bounds)):
        raise UserError(f"env_options randomize {name}={bounds!r} must be whole numbers of steps, such as [0, 2].")
    return dataclasses.replace(term, low=float(bounds[0]), high=float(bounds[1]))


def unfit(own: Mapping[str, Term], selected: Mapping[str, Term]) -> str:
    """Return why no new run may have the ranges `selected` of a task's `own` terms; "" if it may."""
    for name, term in selected.items():
        if isinstance(term, ModelTerm) and term.how == "scale" and term.low <= 0 < own[name].low:
            return (
                f"env_options randomize {name}=[{term.low:g}, {term.high:g}] multiplies the model's values by numbers "
                f"that must be above 0; write [low, high], such as [{own[name].low:g}, {own[name].high:g}]."
            )
    return ""


class Randomizer:
    """Draw and apply `terms` for `n` envs. `sim` is the task's simulator, None without MuJoCo."""

    def __init__(
        self,
        terms: Mapping[str, Term],
        n: int,
        control_dt_s: float,
        sim: Simulator | None,
        device: torch.device,
        is_on: Callable[[], torch.Tensor] | None = None,
    ) -> None:
        """`is_on` returns a bool tensor (): True if new episodes are randomised. None: they always are."""
        self.terms, self.n, self._is_on = terms, n, is_on
        self.active = torch.ones(n, dtype=torch.bool, device=device)
        """Whether the env's current episode is randomised; changed in place."""
        self._every = {name: max(1, round(t.every_s / control_dt_s)) for name, t in terms.items() if t.every_s}
        self._noise = [term for term in terms.values() if isinstance(term, ObservationNoise)]
        self._delays = [name for name, term in terms.items() if isinstance(term, ActionDelay)]
        self._sim, self._rows = sim, dict[str, torch.Tensor]()
        self._fields: dict[str, list[str]] = {}
        """MjModel field -> names of the terms that change it, in order."""
        self._compiled: dict[str, torch.Tensor] = {}
        """MjModel field -> its values before randomisation."""
        self.drawn: dict[str, torch.Tensor] = {}
        """Term -> its current random numbers, (n, 1), or (n, rows) with `each`. Observation noise is not kept."""
        for name, term in terms.items():
            width, dtype = 1, torch.float32
            if name in (AGE, ACTIVE, LATE):
                raise UserError(f"random_terms {name!r} is a name that snapshots use; rename the term.")
            if isinstance(term, ObservationNoise) and term.every_s is not None:
                what = f"random_terms {name!r} has every_s={term.every_s!r}"
                raise UserError(f"{what}, but observation noise is drawn at every step; leave every_s out.")
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
        self._recent: torch.Tensor | None = None  # (n, longest delay + 1, ...), newest action first

    def reset(self, envs: torch.Tensor, generator: torch.Generator) -> None:
        """Draw all terms for the new episodes of the envs where `envs` (n,) bool is True."""
        if self._is_on is not None:
            self.active.copy_(torch.where(envs, self._is_on(), self.active))
        self._age.masked_fill_(envs, 0)
        if self._recent is not None:
            self._recent.masked_fill_(envs.view(-1, *[1] * (self._recent.ndim - 1)), 0)
        self._draw(dict.fromkeys(self.drawn, envs), generator)

    def apply(self, drawn: Mapping[str, torch.Tensor]) -> None:
        """Replace the random numbers by `drawn`, term -> (n, values), and apply them to the model.

        If `drawn` is empty, as for an episode that was not randomised, restore the compiled model.
        """
        self.active.fill_(bool(drawn))
        for name, value in drawn.items():
            self.drawn[name].copy_(value)
        if self._sim is not None and self._fields:
            self._apply(self._sim, torch.ones_like(self._age, dtype=torch.bool))

    def step(self, generator: torch.Generator) -> None:
        """Count a step, and redraw the terms whose interval `every_s` has passed."""
        if self._every:
            self._age += 1
            self._draw({name: self._age % every == 0 for name, every in self._every.items()}, generator)

    def delayed(self, action: torch.Tensor) -> torch.Tensor:
        """Store `action` (n, act); return the action (n, act) that reaches the env in this step, which may be older.

        Several delays add up.
        """
        if not self._delays:
            return action
        longest = sum(int(self.terms[name].high) for name in self._delays)
        if self._recent is None:
            self._recent = torch.zeros(self.n, longest + 1, *action.shape[1:], dtype=action.dtype, device=action.device)
        self._recent = torch.cat([action.unsqueeze(1), self._recent[:, :-1]], 1)
        delays = torch.stack([self.drawn[name] for name in self._delays]).sum(0) * self.active.unsqueeze(1)
        delay = delays.long().view(-1, 1, *[1] * (action.ndim - 1))
        return self._recent.gather(1, delay.expand(-1, 1, *action.shape[1:])).squeeze(1)

    def noisy(
        self, obs: Obs, generator: torch.Generator, names: Collection[str] | None = None,
        env_ids: torch.Tensor | None = None,
    ) -> Obs:  # fmt: skip
        """Return `obs` (n, ...) with observation noise added to the entries `names`; None means all entries.

        `env_ids` (k,): the envs of `obs` if it has only k rows. Numbers are drawn for all n envs nevertheless.
        """
        if self._noise and names is not None and isinstance(obs, Mapping):
            seen = {name: x for name, x in obs.items() if name in names}
            return {**obs, **self.noisy(seen, generator, env_ids=env_ids)}  # type: ignore[dict-item]
        for term in self._noise:

            def add_noise(entry: torch.Tensor, term: Term = term) -> torch.Tensor:
                if not entry.is_floating_point():
                    return entry
                noise = term.draw((self.n, *entry.shape[1:]), generator, entry.dtype)
                noise = noise * self.active.view(-1, *[1] * (entry.ndim - 1))
                return entry + (noise if env_ids is None else noise.index_select(0, env_ids))

            obs = tree_map(add_noise, obs)
        return obs

    def _draw(self, envs: Mapping[str, torch.Tensor], generator: torch.Generator) -> None:
        """Draw terms again and apply the model terms. `envs`: term -> (n,) bool, True for envs that get new numbers.

        Numbers are drawn for all n envs, so that one env's numbers do not depend on which others draw.
        """
        for name, mask in envs.items():
            old = self.drawn[name]
            new = self.terms[name].draw(tuple(old.shape), generator, old.dtype)
            old.copy_(torch.where(mask.unsqueeze(1), new, old))
        if self._sim is not None and self._fields:
            self._apply(self._sim, torch.stack(list(envs.values())).any(0))

    def _apply(self, sim: Simulator, envs: torch.Tensor) -> None:
        """Write the randomised fields to the simulator.

        Recompute the constants that MuJoCo derives from them in the envs where `envs` (n,) bool is True.
        """
        for field, names in self._fields.items():
            value = self._compiled[field].expand(self.n, *self._compiled[field].shape).clone()
            for name in names:
                term = self.terms[name]
                assert isinstance(term, ModelTerm)
                term.apply(value, self.drawn[name], self._rows[name])
            active = self.active.view(-1, *[1] * (value.ndim - 1))
            sim.parameter(field).copy_(torch.where(active, value, self._compiled[field]))
        sim.derive(envs)

    def state(self) -> dict[str, torch.Tensor]:
        """Copy the random numbers, step counts and stored actions. Model fields are in the simulator's snapshot."""
        recent = {} if self._recent is None else {LATE: self._recent.clone()}
        drawn = {name: number.clone() for name, number in self.drawn.items()}
        return {AGE: self._age.clone(), ACTIVE: self.active.clone(), **drawn, **recent}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        self._age.copy_(state[AGE])
        if ACTIVE in state:  # snapshots of kit 0.2 lack it
            self.active.copy_(state[ACTIVE])
        for name, value in self.drawn.items():
            value.copy_(state[name])
        self._recent = state[LATE].to(self._age.device, copy=True) if LATE in state else None
