"""Mission: a team of four attackers must hold a zone against three defenders."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import torch
from torch import nn

from kit.config import STOCK
from kit.envs.curriculum import Curriculum
from kit.envs.play import HiddenState, Player, Stateless, restart
from kit.envs.task import Task
from kit.envs.task_info import Field, TaskInfo, numbers
from kit.errors import UserError, need
from kit.format.weights import fingerprint
from kit.tasks.mission.rules import ATTACKERS, COMMAND_HZ, COMMANDS, DEFENDERS, MOTION_HZ, OBSTACLES, TERMS, Rules

HOLD_SHARES = (0.1, 0.25, 0.5, 1.0)
"""Stages of training: the time for which the attackers must hold the zone, as a fraction of `Rules.hold_s`. With the
full time from the start, some policies never capture a zone, and so never learn that it pays."""
LESSONS = "first the zone must be held for a tenth of the time; when half of the games are won, for longer"
BLOCK = 32
"""Threads per block, one game each. 4,096 games are then 128 blocks, for the 132 multiprocessors of an H200."""
_COMMON = (
    Field("position of the zone in the arena, x and y", 2, "100 m"),
    Field("time the zone has been held and time passed, as fractions of their limits", 2),
)
SEES = {
    "attackers": (
        Field("per attacker (4): x and y in units of 30 m, remaining fraction of its wait after a tag", 12),
        Field("per air unit (2): fraction of its endurance left", 2),
        Field(
            "per defender (3): 1 if seen, x and y in units of 30 m, viewing direction, fraction of its pause left; "
            "all 0 if not seen",
            18,
        ),
        Field("per ground unit (2): vector to the nearest obstacle in units of 50 m, its radius in units of 10 m", 6),
        *_COMMON,
    ),
    "defenders": (
        Field("per defender (3): x and y in units of 30 m, viewing direction, fraction of its pause left", 15),
        Field("per attacker (4): 1 if seen, x and y in units of 30 m; all 0 if not seen", 12),
        Field("per defender (3): vector to the nearest obstacle in units of 50 m, its radius in units of 10 m", 9),
        *_COMMON,
    ),
}
"""Fields of each side's observation, in order. x and y point east and north from the centre of the zone."""
UNITS = {"attackers": ATTACKERS, "defenders": DEFENDERS}
WIDTHS = {side: sum(field.width for field in fields) for side, fields in SEES.items()}

Team = Player | Callable[[torch.Tensor], torch.Tensor]
"""A policy, or a function: observation of a side, (n, 42) or (n, 40) -> commands of its units (n, units)."""


class Mission(Task):
    """A team of four attackers must hold a zone for 20 s while three defenders patrol, chase and tag them.

    The attackers are two ground and two air units. They hold the zone, of radius 15 m, while at least two of them are
    in it. The arena is a square of 200 × 200 m with obstacles. An episode lasts at most 300 s. Each unit receives four
    commands a second: stand (0) or move in one of eight directions (1 east, 2 north-east, ... 8 south-east).

    Motion is simulated at 20 Hz, without MuJoCo: Warp kernels change the tensors of the state in place. `Rules` has
    every constant. `SEES` lists the observation of each side, with x to the east and y to the north of the zone's
    centre; times are fractions of their limits.

    The other side is played by "stock" or by a policy. Stock defenders follow fixed rules; stock attackers move
    straight to the zone. With `side="defenders"` the defenders learn. Their reward is the attackers' reward, negated.

    A list of opponents, such as `defenders=["stock", "runs/guards", "runs/guards-2"]`, is a pool: the games are spread
    evenly over it. Earlier versions of an opponent in the pool keep a policy from forgetting how to beat them.
    """

    name = "Mission"
    episode_steps = COMMANDS
    control_dt_s = 1 / COMMAND_HZ
    staggered = True
    video_speed = 15.0
    score = "win_rate"
    cameras = ("map",)
    train_steps = 40_000_000
    curriculum: Curriculum | None = Curriculum(len(HOLD_SHARES), "win_rate", at_least=0.5, episodes=2000)
    keeps = ("attackers", "defenders", "minds", "field", "discs", "near", "obs", "guard", "opponent")

    opponents = ("attackers", "defenders")

    def __init__(
        self,
        side: str = "attackers",
        attackers: str | Team | Sequence[str | Team] = STOCK,
        defenders: str | Team | Sequence[str | Team] = STOCK,
        **options: Any,
    ) -> None:
        """`side`: the side that learns; `attackers` or `defenders`: policy, or list of policies, of the other side.
        `options`: fields of `Rules`.

        In a config, a policy may be the name of a run, RUN or RUN@STEP; `kit.runs.opponents` loads the run's policy.
        """
        if side not in UNITS:
            raise UserError(f"env_options side={side!r} is unknown; valid are {' and '.join(UNITS)}.")
        self.side, self.other = side, "defenders" if side == "attackers" else "attackers"
        own, given = (attackers, defenders) if side == "attackers" else (defenders, attackers)
        if own != STOCK:
            raise UserError(f"env_options {side}={own!r} cannot be set, because the {side} are the side that learns.")
        self._teams: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
        if not self._teams:
            raise UserError(f"env_options {self.other}=[] names nobody; name 'stock' or a run.")
        self.rules = Rules.of(options)
        if side != "attackers":
            self.curriculum = None
        self.action_space = gymnasium.spaces.MultiDiscrete([9] * UNITS[side])
        self.observation_space = numbers(SEES[side])
        sign = 1 if side == "attackers" else -1
        held = f"at least {self.rules.hold_units} attackers have held the zone for {self.rules.hold_s:g} s"
        defended = f"the attackers have not held the zone for {self.rules.hold_s:g} s by the end of the time"
        self.task_info = TaskInfo(
            sees={"": SEES[side]},
            does=(Field("per unit: stand, or move in one of eight directions", UNITS[side]),),
            pays=(
                (sign * self.rules.progress, "per 100 m that an attacker moves closer to the zone"),
                (sign * self.rules.presence, "per second for each attacker in the zone"),
                (sign * self.rules.holding, "per second for each attacker in the zone, times the others in it"),
                (sign * self.rules.capture, f"once, when the zone has been held for {self.rules.hold_s:g} s"),
                (-sign * self.rules.losses, "per attacker that is tagged or runs out of endurance"),
            ),
            ends=f"the zone has been held for {self.rules.hold_s:g} s",
            succeeds=held if side == "attackers" else defended,
            lessons=LESSONS if self.curriculum else "",
        )

    def build(self, n: int, device: str | torch.device, threads: int | None = None) -> None:
        from kit.sim.kernels import beside_torch, compiling, numbered, wp
        from kit.tasks.mission import kernels, state  # imported late because loading Warp takes a second

        super().build(n, numbered(device), threads)
        stock_defenders = self.side == "attackers" and self._teams == [STOCK]  # the kernel plays them
        self._opponent = None if stock_defenders else Pool([self._player(team) for team in self._teams])
        self.hidden_state: HiddenState = self._opponent.initial_state(n) if self._opponent else ()

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(n, *shape, dtype=dtype, device=self.device)

        self.attackers, self.defenders, self.minds = zeros(ATTACKERS, 4), zeros(DEFENDERS, 4), zeros(DEFENDERS, 4)
        self.field, self.discs, self.near = zeros(2, 4), zeros(OBSTACLES, 4), zeros(5, 4)
        self.obs, self.guard = zeros(WIDTHS["attackers"]), zeros(WIDTHS["defenders"] if self._opponent else 0)
        self.opponent = identity(self._teams)
        self.terms = zeros(len(TERMS))
        self._commands = {side: zeros(UNITS[side], dtype=torch.int64) for side in self.opponents}
        self._commands["defenders"].fill_(-1)
        stages = torch.tensor(HOLD_SHARES if self.curriculum else (1.0,), device=self.device)
        self._holds = (stages * self.rules.hold_s * MOTION_HZ).round()
        """Ticks for which the zone must be held, in each stage of the curriculum."""
        self._hold = self._holds[-1:].clone()
        self._mask, self._seeds = zeros(dtype=torch.bool), zeros(dtype=torch.int64)
        self._beside_torch = beside_torch
        self._renderers: dict[tuple[int, int], Any] = {}
        with beside_torch(self.device), compiling("the game"):
            arrays, constants = state.Games(), state.constants(self.rules, self._opponent is not None)
            for name in ("attackers", "defenders", "minds", "field", "discs", "near", "terms"):
                setattr(arrays, name, wp.from_torch(getattr(self, name), dtype=wp.vec4))
            arrays.obs, arrays.guard = wp.from_torch(self.obs), wp.from_torch(self.guard)
            arrays.hold = wp.from_torch(self._hold)
            commands = [wp.from_torch(self._commands[side]) for side in self.opponents]
            inputs = [wp.from_torch(x) for x in (self._mask, self._seeds)]
            self._step = wp.launch(kernels.step, n, [constants, arrays, *commands], record_cmd=True, block_dim=BLOCK)
            self._reset = wp.launch(kernels.reset, n, [constants, arrays, *inputs], record_cmd=True, block_dim=BLOCK)

    def reset(self, mask: torch.Tensor, generator: torch.Generator) -> None:
        if self._opponent is not None:
            self.hidden_state = restart(self._opponent, self.hidden_state, mask)
        self._mask.copy_(mask)
        torch.randint(2**31, (self.n,), generator=generator, out=self._seeds)
        with self._beside_torch(self.device):
            self._reset.launch()

    def advance(self, action: torch.Tensor) -> None:
        if self.curriculum is not None:
            self._hold.copy_(self._holds.index_select(0, self.stage.view(1)))
        self._commands[self.side].copy_(action)
        if self._opponent is not None:
            obs = self.guard if self.other == "defenders" else self.obs
            with torch.no_grad():
                commands, self.hidden_state = self._opponent(obs, self.hidden_state)
            self._commands[self.other].copy_(commands)
        with self._beside_torch(self.device):
            self._step.launch()

    def observe(self) -> torch.Tensor:
        return (self.obs if self.side == "attackers" else self.guard).clone()

    def reward(self, action: torch.Tensor) -> torch.Tensor:
        return self._reward_terms().sum(1)

    def _reward_terms(self) -> torch.Tensor:
        """Return the reward terms `TERMS` of the learning side, (n, 4)."""
        return self.terms.clone() if self.side == "attackers" else -self.terms

    def terminated(self) -> torch.Tensor:
        return self._captured()

    def success(self) -> torch.Tensor:
        captured = self._captured()
        return captured if self.side == "attackers" else ~captured & (self.field[:, 1, 1] >= COMMANDS)

    def _captured(self) -> torch.Tensor:
        """Return whether the zone has been held for the time of the current stage, (n,) bool."""
        return self.field[:, 1, 0] >= self._hold

    def info(self) -> dict[str, torch.Tensor]:
        rewards = {f"reward/{name}": term for name, term in zip(TERMS, self._reward_terms().unbind(1), strict=True)}
        return {"win_rate": self.success(), **rewards}

    def state(self) -> dict[str, torch.Tensor]:
        return {**super().state(), **{f"hidden_state.{i}": x.clone() for i, x in enumerate(self.hidden_state)}}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        if not torch.equal(state["opponent"].cpu(), self.opponent):
            raise UserError(f"the {self.other} differ from those of this snapshot; name the same run and step.")
        super().load_state(state)
        for i, hidden in enumerate(self.hidden_state):
            hidden.copy_(state[f"hidden_state.{i}"])

    def render(self, cameras: tuple[str, ...], height: int, width: int) -> torch.Tensor:
        need("PIL", "video")
        from kit.tasks.mission.render import MapRenderer

        if (height, width) not in self._renderers:
            self._renderers[height, width] = MapRenderer(self, height, width)
        image = self._renderers[height, width].draw()
        return torch.stack([image] * len(cameras), 1)

    def _player(self, team: str | Team) -> Player:
        """Return the policy of `team`. Raises `UserError` for the name of a run."""
        if isinstance(team, Player):
            return team
        if not isinstance(team, str):
            return Stateless(team)
        if team != STOCK:
            raise UserError(
                f"env_options {self.other}={team!r} is a run; pass its policy, run.policy().as_actor(), instead."
            )
        return Stateless(self.straight if self.other == "attackers" else _left_to_the_kernel)

    @staticmethod
    def straight(obs: torch.Tensor) -> torch.Tensor:
        """Return the commands (n, 4) of stock attackers, straight to the zone, from their observation `obs` (n, 42)."""
        to_zone = -obs[:, :12].view(-1, ATTACKERS, 3)[:, :, :2]
        direction = (torch.atan2(to_zone[..., 1], to_zone[..., 0]) * (4 / torch.pi)).round().long() % 8 + 1
        return torch.where(to_zone.norm(dim=2) < 1 / 6, 0, direction)  # in units of 30 m: 5 m


class Pool:
    """Several players: game i is played by player i modulo their number."""

    def __init__(self, players: Sequence[Player]) -> None:
        self._players = players

    def initial_state(self, n: int) -> HiddenState:
        return tuple(x for player in self._players for x in player.initial_state(n))

    def __call__(self, obs: Any, hidden_state: HiddenState, /) -> tuple[torch.Tensor, HiddenState]:
        if len(self._players) == 1:
            return self._players[0](obs, hidden_state)
        before, after, commands = iter(hidden_state), [], None
        for i, player in enumerate(self._players):
            rows = slice(i, None, len(self._players))
            own = [next(before) for _ in player.initial_state(0)]
            if i >= len(obs):  # fewer games than players, as in a video of one game
                after += own
                continue
            told, new = player(obs[rows], tuple(x[rows] for x in own))
            commands = told.new_zeros(len(obs), *told.shape[1:]) if commands is None else commands
            commands[rows] = told
            for x, value in zip(own, new, strict=True):
                after.append(x.clone())
                after[-1][rows] = value
        assert commands is not None
        return commands, tuple(after)


def _left_to_the_kernel(obs: torch.Tensor) -> torch.Tensor:
    """Return commands of -1 (n, units): the kernel then controls the defenders by fixed rules."""
    return torch.full((len(obs), DEFENDERS), -1, device=obs.device)


def identity(teams: Sequence[str | Team]) -> torch.Tensor:
    """Return a SHA-256 of `teams`, (32,) uint8: of their networks' weights or, without a network, of their names."""
    digests = [_digest(team) for team in teams]
    whole = digests[0] if len(digests) == 1 else hashlib.sha256(b"".join(digests)).digest()
    return torch.frombuffer(bytearray(whole), dtype=torch.uint8)


def _digest(team: str | Team) -> bytes:
    owner = getattr(team, "__self__", team)
    network = owner if isinstance(owner, nn.Module) else getattr(owner, "policy", None)
    if isinstance(network, nn.Module):
        return bytes.fromhex(fingerprint(network))
    name = team if isinstance(team, str) else getattr(team, "__qualname__", type(team))
    return hashlib.sha256(str(name).encode()).digest()
