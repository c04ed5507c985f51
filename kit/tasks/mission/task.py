"""Mission: a team of four takes a zone that three others guard."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import gymnasium
import torch
from torch import nn

from kit.envs.play import HiddenState, Player, restart
from kit.envs.task import Task
from kit.envs.task_info import Field, TaskInfo, numbers
from kit.errors import UserError
from kit.format.weights import fingerprint
from kit.tasks.mission.rules import ATTACKERS, COMMAND_HZ, COMMANDS, DEFENDERS, MOTION_HZ, OBSTACLES, TERMS, Rules

STOCK = "stock"
_ENDS = (Field("the zone in the arena", 2, "100 m"), Field("time held, time passed", 2))
SEES = {
    "attackers": (
        Field("each of four: x, y, and time until it is back", 12, "30 m"),
        Field("endurance left of those that fly", 2),
        Field("each of three defenders, if seen: 1, x, y, where it looks, time busy", 18, "30 m"),
        Field("each ground unit's nearest obstacle: x, y and its radius", 6, "50 m, 10 m"),
        *_ENDS,
    ),
    "defenders": (
        Field("each of three: x, y, where it looks, time busy", 15, "30 m"),
        Field("each of four attackers, if seen: 1, x, y", 12, "30 m"),
        Field("each one's nearest obstacle: x, y and its radius", 9, "50 m, 10 m"),
        *_ENDS,
    ),
}
"""What each side is told, in this order."""
UNITS = {"attackers": ATTACKERS, "defenders": DEFENDERS}

Team = Player | Callable[[torch.Tensor], torch.Tensor]
"""A policy, or a function, from what a side sees, (n, 42) or (n, 40), to its commands (n, units)."""


class Mission(Task):
    """Two ground and two air units hold a zone of 15 m together for 20 s, in an arena of 200 × 200 m with obstacles, in
    which three defenders patrol, chase and tag.

    The team is commanded four times a second for at most 300 s: each unit stands (0) or moves in one of eight
    directions (1 east, 2 north-east, ... 8 south-east); motion is at 20 Hz. Without MuJoCo; the worlds are rows of
    tensors that Warp kernels change in place. `Rules` has every constant. `SEES` says what each side is told, x to the
    east and y to the north of the zone's middle; times are shares of the whole.

    The other side is `stock` or a policy: `defenders` steered by rules, `attackers` who go straight to the zone. With
    `side="defenders"` it is they who learn, paid what the attackers lose.
    """

    name = "Mission"
    episode_steps = COMMANDS
    control_dt_s = 1 / COMMAND_HZ
    staggered = True
    video_speed = 15.0
    score = "win_rate"
    cameras = ("map",)
    train_steps = 16_000_000
    keeps = ("attackers", "defenders", "minds", "field", "discs", "near", "obs", "guard", "opponent")

    opponents = ("attackers", "defenders")

    def __init__(
        self, side: str = "attackers", attackers: str | Team = STOCK, defenders: str | Team = STOCK, **options: Any
    ) -> None:
        """`options` are those of `Rules`. In configs the other side may be a run, RUN or RUN@STEP: training, evaluation
        and films put its policy in the name's place (`kit.runs.opponents`)."""
        if side not in UNITS:
            raise UserError(f"env_options side={side!r} is unknown; valid are {' and '.join(UNITS)}.")
        self.side, self.other = side, "defenders" if side == "attackers" else "attackers"
        mine, self._team = (attackers, defenders) if side == "attackers" else (defenders, attackers)
        if mine != STOCK:
            raise UserError(f"env_options {side}={mine!r} cannot be given: they are the side that learns.")
        self.rules = Rules.of(options)
        self.action_space = gymnasium.spaces.MultiDiscrete([9] * UNITS[side])
        self.observation_space = numbers(SEES[side])
        sign = 1 if side == "attackers" else -1
        held = f"{self.rules.hold_units} attackers together have held the zone for {self.rules.hold_s:g} s"
        kept = f"it has not been held for {self.rules.hold_s:g} s when time is over"
        self.task_info = TaskInfo(
            sees={"": SEES[side]},
            does=(Field("stand, or go in one of eight directions: each unit", UNITS[side]),),
            pays=(
                (sign * self.rules.progress, "100 m that an attacker comes nearer to the zone"),
                (sign * self.rules.presence, "a second of an attacker in the zone"),
                (sign * self.rules.holding, "such a second, for each of the others who are there with it"),
                (sign * self.rules.capture, "holding the zone to the end"),
                (-sign * self.rules.losses, "an attacker tagged, or fallen from the air"),
            ),
            ends="the zone has been held",
            succeeds=held if side == "attackers" else kept,
            lessons='one as it is, then a branch with env_options {"presence": 0}, as in notebook 07_mission',
        )

    def build(self, n: int, device: str | torch.device, threads: int | None = None) -> None:
        from kit.sim.kernels import beside_torch, compiling, numbered, wp
        from kit.tasks.mission import kernels  # here: Warp takes a second to load
        from kit.tasks.mission import state as mission_worlds

        super().build(n, numbered(device), threads)
        team = self._team
        if isinstance(team, str) and team != STOCK:
            raise UserError(
                f"env_options {self.other}={team!r} is a run; give its policy, run.policy().as_actor(), here."
            )
        play = self.straight if team == STOCK and self.side == "defenders" else team
        self._play: Player | None = None
        if not isinstance(play, str):
            self._play = play if isinstance(play, Player) else _Stateless(play)
        self.hidden_state: HiddenState = self._play.initial_state(n) if self._play else ()
        guarded = self.side == "defenders" or self._play is not None

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(n, *shape, dtype=dtype, device=self.device)

        self.attackers, self.defenders, self.minds = zeros(ATTACKERS, 4), zeros(DEFENDERS, 4), zeros(DEFENDERS, 4)
        self.field, self.discs, self.near = zeros(2, 4), zeros(OBSTACLES, 4), zeros(5, 4)
        told = {side: sum(part.width for part in parts) for side, parts in SEES.items()}
        self.obs, self.guard = zeros(told["attackers"]), zeros(told["defenders"] if guarded else 0)
        self.opponent = identity(team)
        self.terms = zeros(len(TERMS))
        self._commands = {side: zeros(units, dtype=torch.int64) for side, units in UNITS.items()}
        self._commands["defenders"].fill_(-1)
        self._mask, self._seeds = zeros(dtype=torch.bool), zeros(dtype=torch.int64)
        self._beside = beside_torch
        self._pictures: dict[tuple[int, int], Any] = {}
        with beside_torch(self.device), compiling("the game"):
            worlds, constants = mission_worlds.Worlds(), mission_worlds.constants(self.rules, guarded)
            for name in ("attackers", "defenders", "minds", "field", "discs", "near", "terms"):
                setattr(worlds, name, wp.from_torch(getattr(self, name), dtype=wp.vec4))
            worlds.obs, worlds.guard = wp.from_torch(self.obs), wp.from_torch(self.guard)
            commands = [wp.from_torch(self._commands[side]) for side in UNITS]
            drawn = [wp.from_torch(x) for x in (self._mask, self._seeds)]
            self._step = wp.launch(kernels.step, n, [constants, worlds, *commands], record_cmd=True)
            self._reset = wp.launch(kernels.reset, n, [constants, worlds, *drawn], record_cmd=True)

    def reset(self, mask: torch.Tensor, generator: torch.Generator) -> None:
        if self._play is not None:
            self.hidden_state = restart(self._play, self.hidden_state, mask)
        self._mask.copy_(mask)
        torch.randint(2**31, (self.n,), generator=generator, out=self._seeds)
        with self._beside(self.device):
            self._reset.launch()

    def advance(self, action: torch.Tensor) -> None:
        self._commands[self.side].copy_(action)
        if self._play is not None:
            seen = self.guard if self.other == "defenders" else self.obs
            with torch.no_grad():
                commands, self.hidden_state = self._play(seen, self.hidden_state)
            self._commands[self.other].copy_(commands)
        with self._beside(self.device):
            self._step.launch()

    def observe(self) -> torch.Tensor:
        return (self.obs if self.side == "attackers" else self.guard).clone()

    def reward(self, action: torch.Tensor) -> torch.Tensor:
        return self._paid().sum(1)

    def _paid(self) -> torch.Tensor:
        return self.terms.clone() if self.side == "attackers" else -self.terms

    def terminated(self) -> torch.Tensor:
        return self._captured()

    def success(self) -> torch.Tensor:
        captured = self._captured()
        return captured if self.side == "attackers" else ~captured & (self.field[:, 1, 1] >= COMMANDS)

    def _captured(self) -> torch.Tensor:
        """Games (n,) bool in which the zone has been held to the end, whatever that pays."""
        return self.field[:, 1, 0] >= round(self.rules.hold_s * MOTION_HZ)

    def info(self) -> dict[str, torch.Tensor]:
        paid = {f"reward/{name}": column for name, column in zip(TERMS, self._paid().unbind(1), strict=True)}
        return {"win_rate": self.success(), **paid}

    def state(self) -> dict[str, torch.Tensor]:
        """Also the opponent's hidden state."""
        return {**super().state(), **{f"hidden_state.{i}": x.clone() for i, x in enumerate(self.hidden_state)}}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        if not torch.equal(state["opponent"].cpu(), self.opponent):
            raise UserError(f"the {self.other} are not those of this snapshot; name the same run and step again.")
        super().load_state(state)
        for i, now in enumerate(self.hidden_state):
            now.copy_(state[f"hidden_state.{i}"])

    def render(self, cameras: tuple[str, ...], height: int, width: int) -> torch.Tensor:
        from kit.tasks.mission.render import Picture

        if (height, width) not in self._pictures:
            self._pictures[height, width] = Picture(self, height, width)
        picture = self._pictures[height, width].draw()
        return torch.stack([picture] * len(cameras), 1)

    @staticmethod
    def straight(obs: torch.Tensor) -> torch.Tensor:
        """A team without a plan: commands (n, 4) that lead each unit straight to the zone, for what is seen (n, 42)."""
        to_zone = -obs[:, :12].view(-1, ATTACKERS, 3)[:, :, :2]
        way = (torch.atan2(to_zone[..., 1], to_zone[..., 0]) * (4 / torch.pi)).round().long() % 8 + 1
        return torch.where(to_zone.norm(dim=2) < 1 / 6, 0, way)


class _Stateless:
    """A function that plays."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._function = function

    def initial_state(self, n: int) -> HiddenState:
        return ()

    def __call__(self, obs: Any, hidden_state: HiddenState, /) -> tuple[torch.Tensor, HiddenState]:
        return self._function(obs), hidden_state


def identity(team: str | Team) -> torch.Tensor:
    """SHA-256 of what decides how `team` plays, (32,) uint8: a network's weights, or the name of what has none."""
    owner = getattr(team, "__self__", team)
    network = owner if isinstance(owner, nn.Module) else getattr(owner, "policy", None)
    if isinstance(network, nn.Module):
        digest = bytes.fromhex(fingerprint(network))
    else:
        name = team if isinstance(team, str) else getattr(team, "__qualname__", type(team))
        digest = hashlib.sha256(str(name).encode()).digest()
    return torch.frombuffer(bytearray(digest), dtype=torch.uint8)
