"""Mission: a team of four attackers must hold a zone against three defenders."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import gymnasium
import torch
from torch import nn

from kit.envs.curriculum import Curriculum
from kit.envs.play import HiddenState, Player, restart
from kit.envs.registry import BOTH_SIDES as BOTH
from kit.envs.self_play import Pool
from kit.envs.task import Task
from kit.envs.task_info import Field, TaskInfo, numbers
from kit.errors import UserError, need
from kit.format.weights import fingerprint
from kit.tasks.mission.rules import ATTACKERS, COMMAND_HZ, COMMANDS, DEFENDERS, MOTION_HZ, OBSTACLES, TERMS, Rules

STOCK = "stock"
HOLD_SHARES = (0.1, 0.25, 0.5, 1.0)
"""Stages of training: the time for which the attackers must hold the zone, as a fraction of `Rules.hold_s`. With the
full time from the start, some teams never capture a zone, and so never learn that it pays."""
LESSONS = "the zone must be held for a tenth of the time first; for longer each time that half of the games are won"
BLOCK = 32
"""Threads per block, one game each. 4,096 games are then spread over all multiprocessors of a GPU: an H200 has 132."""
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
SEES[BOTH] = (*SEES["attackers"], *SEES["defenders"])
UNITS = {"attackers": ATTACKERS, "defenders": DEFENDERS, BOTH: max(ATTACKERS, DEFENDERS)}
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

    With `side="both"` one policy learns both sides by self-play: it attacks in half of the games and defends in the
    others. Its opponents are stock; in the last stage of training, in the share `pool` of either half, they are earlier
    versions of itself (`kit.envs.self_play`). It observes the numbers of both sides, those of the side that it does not
    play being 0. Evaluations let it attack stock defenders. It has not learnt to win in 30 million steps yet.
    """

    name = "Mission"
    episode_steps = COMMANDS
    control_dt_s = 1 / COMMAND_HZ
    staggered = True
    video_speed = 15.0
    score = "win_rate"
    cameras = ("map",)
    train_steps = 60_000_000
    curriculum: Curriculum | None = Curriculum(len(HOLD_SHARES), "win_rate", at_least=0.5, episodes=2000)
    keeps = ("attackers", "defenders", "minds", "field", "discs", "near", "obs", "guard", "opponent")

    opponents = ("attackers", "defenders")

    def __init__(
        self,
        side: str = "attackers",
        attackers: str | Team = STOCK,
        defenders: str | Team = STOCK,
        pool: float = 0.5,
        **options: Any,
    ) -> None:
        """`side`: the side that learns. The option named after the other side sets its policy. `pool`: with side
        "both", the share of games against earlier versions of the policy. `options`: fields of `Rules`.

        In a config, the policy may be the name of a run, RUN or RUN@STEP; `kit.runs.opponents` loads the run's policy.
        """
        if side not in UNITS:
            raise UserError(f"env_options side={side!r} is unknown; valid are attackers, defenders and both.")
        if isinstance(pool, bool) or not isinstance(pool, int | float) or not 0 <= pool <= 1:
            raise UserError(f"env_options pool={pool!r} must be a share from 0 to 1.")
        self.self_play, self._share = side == BOTH, float(pool)
        for name, given in (("attackers", attackers), ("defenders", defenders)):
            if self.self_play and given != STOCK:
                raise UserError(f"env_options {name}={given!r} cannot be set, because side='both' plays both sides.")
        self.side, self.other = side, "attackers" if side == "defenders" else "defenders"
        own, self._team = (defenders, attackers) if side == "defenders" else (attackers, defenders)
        if own != STOCK:
            raise UserError(f"env_options {side}={own!r} cannot be set, because the {side} are the side that learns.")
        self.rules = Rules.of(options)
        if side == "defenders":
            self.curriculum = None
        self.action_space = gymnasium.spaces.MultiDiscrete([9] * UNITS[side])
        self.observation_space = numbers(SEES[side])
        sign = -1 if side == "defenders" else 1
        held = f"at least {self.rules.hold_units} attackers have held the zone for {self.rules.hold_s:g} s"
        defended = f"the attackers have not held the zone for {self.rules.hold_s:g} s by the end of the time"
        self.task_info = TaskInfo(
            sees={"": SEES[side]},
            does=(Field("per unit: stand, or move in one of eight directions", UNITS[side]),),
            pays=(
                (sign * self.rules.progress, "per 100 m that an attacker moves closer to the zone"),
                (sign * self.rules.presence, "per second for each attacker in the zone"),
                (sign * self.rules.holding, "per second and attacker in the zone, times the number of others in it"),
                (sign * self.rules.capture, f"once, when the zone has been held for {self.rules.hold_s:g} s"),
                (-sign * self.rules.losses, "per attacker that is tagged or runs out of endurance"),
            ),
            ends=f"the zone has been held for {self.rules.hold_s:g} s",
            succeeds=defended if side == "defenders" else held,
            lessons=LESSONS if self.curriculum else "",
        )

    def build(self, n: int, device: str | torch.device, threads: int | None = None) -> None:
        from kit.sim.kernels import beside_torch, compiling, numbered, wp
        from kit.tasks.mission import kernels, state  # imported late because loading Warp takes a second

        super().build(n, numbered(device), threads)
        team = self._team
        if isinstance(team, str) and team != STOCK:
            raise UserError(
                f"env_options {self.other}={team!r} is a run; pass its policy, run.policy().as_actor(), instead."
            )
        opponent = self.straight if team == STOCK and self.side == "defenders" else team
        self._opponent: Player | None = None  # None: stock defenders, which the kernel plays
        if not isinstance(opponent, str):
            self._opponent = opponent if isinstance(opponent, Player) else _Stateless(opponent)
        self.hidden_state: HiddenState = self._opponent.initial_state(n) if self._opponent else ()
        guarded = self.side != "attackers" or self._opponent is not None

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(n, *shape, dtype=dtype, device=self.device)

        self.attackers, self.defenders, self.minds = zeros(ATTACKERS, 4), zeros(DEFENDERS, 4), zeros(DEFENDERS, 4)
        self.field, self.discs, self.near = zeros(2, 4), zeros(OBSTACLES, 4), zeros(5, 4)
        self.obs, self.guard = zeros(WIDTHS["attackers"]), zeros(WIDTHS["defenders"] if guarded else 0)
        self.opponent = identity(team)
        self.terms = zeros(len(TERMS))
        self._commands = {side: zeros(UNITS[side], dtype=torch.int64) for side in self.opponents}
        self._commands["defenders"].fill_(-1)
        stages = torch.tensor(HOLD_SHARES if self.curriculum else (1.0,), device=self.device)
        self._holds = (stages * self.rules.hold_s * MOTION_HZ).round()
        """Ticks for which the zone must be held, in each stage of the curriculum."""
        self._hold = self._holds[-1:].clone()
        self._pool = Pool()
        half, index = (n + 1) // 2, torch.arange(n, device=self.device)
        self._first_half = index < half
        """Games in which a policy that plays both sides attacks, in training."""
        self._all = torch.ones_like(self._first_half)
        self._in_pool = torch.where(self._first_half, index, index - half) < round(self._share * half)
        """Games against earlier versions of the policy, once there are some."""
        self._rows: list[torch.Tensor] = []
        """Games of each member of the pool, as indices."""
        self._mask, self._seeds = zeros(dtype=torch.bool), zeros(dtype=torch.int64)
        self._beside_torch = beside_torch
        self._renderers: dict[tuple[int, int], Any] = {}
        with beside_torch(self.device), compiling("the game"):
            arrays, constants = state.Games(), state.constants(self.rules, guarded)
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
        if self.self_play:
            self._play_both(action)
        else:
            self._commands[self.side].copy_(action)
        if self._opponent is not None:
            obs = self.guard if self.other == "defenders" else self.obs
            with torch.no_grad():
                commands, self.hidden_state = self._opponent(obs, self.hidden_state)
            self._commands[self.other].copy_(commands)
        with self._beside_torch(self.device):
            self._step.launch()

    @property
    def attacking(self) -> torch.Tensor:
        """Games in which a policy of both sides attacks, (n,) bool: half in training, all in evaluations."""
        return self._first_half if self.training else self._all

    def _play_both(self, action: torch.Tensor) -> None:
        """Set the commands of both sides: `action` (n, 4), and those of stock and of the pool's members."""
        attacks = self.attacking.unsqueeze(1)
        against = torch.cat([self.straight(self.obs), torch.full_like(action[:, :DEFENDERS], -1)], 1)  # (n, 4 + 3)
        seen = self._seen_by(~self.attacking)
        for member, rows in enumerate(self._rows):
            with torch.no_grad():
                commands = self._pool.act(member, seen[rows])
            commands = torch.cat([commands, commands[:, :DEFENDERS]], 1)
            in_last_stage = self.stage == len(HOLD_SHARES) - 1
            against[rows] = torch.where(in_last_stage, commands, against[rows])
        self._commands["attackers"].copy_(torch.where(attacks, action, against[:, :ATTACKERS]))
        self._commands["defenders"].copy_(torch.where(attacks, against[:, ATTACKERS:], action[:, :DEFENDERS]))

    def _seen_by(self, attacks: torch.Tensor) -> torch.Tensor:
        """Return what a policy that plays both sides sees where it `attacks` (n,) and where it defends, (n, 82)."""
        side = attacks.unsqueeze(1)
        return torch.cat([self.obs * side, self.guard * ~side], 1)

    def learn_from(self, player: Any, step: int) -> None:
        if self._pool.learn_from(player, step):
            self._set_rows()

    def _set_rows(self) -> None:
        """Spread the games against the pool over its members."""
        games, count = self._in_pool.nonzero().flatten(), len(self._pool.members)
        self._rows = [games[member::count] for member in range(count)]

    def observe(self) -> torch.Tensor:
        if self.self_play:
            return self._seen_by(self.attacking)
        return (self.obs if self.side == "attackers" else self.guard).clone()

    def reward(self, action: torch.Tensor) -> torch.Tensor:
        return self._reward_terms().sum(1)

    def _reward_terms(self) -> torch.Tensor:
        """Return the reward terms `TERMS` of the learning side, (n, 4)."""
        if self.self_play:
            return torch.where(self.attacking.unsqueeze(1), self.terms, -self.terms)
        return self.terms.clone() if self.side == "attackers" else -self.terms

    def terminated(self) -> torch.Tensor:
        return self._captured()

    def success(self) -> torch.Tensor:
        captured = self._captured()
        if self.side == "attackers":
            return captured
        defended = ~captured & (self.field[:, 1, 1] >= COMMANDS)
        return torch.where(self.attacking, captured, defended) if self.self_play else defended

    def _captured(self) -> torch.Tensor:
        """Return whether the zone has been held for `hold_s`, (n,) bool."""
        return self.field[:, 1, 0] >= self._hold

    def info(self) -> dict[str, torch.Tensor]:
        rewards = {f"reward/{name}": term for name, term in zip(TERMS, self._reward_terms().unbind(1), strict=True)}
        won = self.success()
        if self.self_play and self.training:  # the curriculum counts attacks
            won = torch.where(self._first_half, won.to(self.dtype), torch.nan)
        return {"win_rate": won, **rewards}

    def state(self) -> dict[str, torch.Tensor]:
        pool = {f"pool.{name}": x for name, x in self._pool.state().items()}
        return {**super().state(), **pool, **{f"hidden_state.{i}": x.clone() for i, x in enumerate(self.hidden_state)}}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        if not torch.equal(state["opponent"].cpu(), self.opponent):
            raise UserError(f"the {self.other} differ from those of this snapshot; name the same run and step.")
        super().load_state(state)
        if self.self_play and self.training:
            pool = {name.removeprefix("pool."): x for name, x in state.items() if name.startswith("pool.")}
            self._pool.load_state(pool)
            self._set_rows()
        for i, now in enumerate(self.hidden_state):
            now.copy_(state[f"hidden_state.{i}"])

    def render(self, cameras: tuple[str, ...], height: int, width: int) -> torch.Tensor:
        need("PIL", "video")
        from kit.tasks.mission.render import MapRenderer

        if (height, width) not in self._renderers:
            self._renderers[height, width] = MapRenderer(self, height, width)
        image = self._renderers[height, width].draw()
        return torch.stack([image] * len(cameras), 1)

    @staticmethod
    def one_side(player: Any, side: str) -> OneSide:
        """Return a policy that learnt both sides as an opponent on `side`."""
        return OneSide(player, side)

    @staticmethod
    def straight(obs: torch.Tensor) -> torch.Tensor:
        """Return the commands (n, 4) of stock attackers, straight to the zone, from their observation `obs` (n, 42)."""
        to_zone = -obs[:, :12].view(-1, ATTACKERS, 3)[:, :, :2]
        direction = (torch.atan2(to_zone[..., 1], to_zone[..., 0]) * (4 / torch.pi)).round().long() % 8 + 1
        return torch.where(to_zone.norm(dim=2) < 1 / 6, 0, direction)


class OneSide(nn.Module):
    """A policy that learnt both sides, as an opponent on one `side`."""

    def __init__(self, player: Any, side: str) -> None:
        super().__init__()
        self.player, self.side = player, side

    def initial_state(self, n: int) -> HiddenState:
        return ()

    def __call__(self, obs: torch.Tensor, hidden_state: HiddenState, /) -> tuple[torch.Tensor, HiddenState]:
        """Return the commands of the side's units from what it sees, (n, 42) or (n, 40)."""
        left = 0 if self.side == "attackers" else WIDTHS["attackers"]
        seen = nn.functional.pad(obs, (left, WIDTHS[BOTH] - left - obs.shape[1]))
        return self.player(seen, ())[0][:, : UNITS[self.side]], ()


class _Stateless:
    """A player without hidden state, from a function."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._function = function

    def initial_state(self, n: int) -> HiddenState:
        return ()

    def __call__(self, obs: Any, hidden_state: HiddenState, /) -> tuple[torch.Tensor, HiddenState]:
        return self._function(obs), hidden_state


def identity(team: str | Team) -> torch.Tensor:
    """Return a SHA-256 of `team`, (32,) uint8: of its network's weights or, without a network, of its name."""
    owner = getattr(team, "__self__", team)
    network = owner if isinstance(owner, nn.Module) else getattr(owner, "policy", None)
    if isinstance(network, nn.Module):
        digest = bytes.fromhex(fingerprint(network))
    else:
        name = team if isinstance(team, str) else getattr(team, "__qualname__", type(team))
        digest = hashlib.sha256(str(name).encode()).digest()
    return torch.frombuffer(bytearray(digest), dtype=torch.uint8)
