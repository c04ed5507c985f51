"""Every constant of the mission game, with its unit and its bounds: what `env_options` may say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from kit.envs.options import Options, number
from kit.errors import UserError

ARENA_M = 200.0
"""Side of the square; positions are seen from its middle, x to the right, y up (south is where attackers begin)."""
GROUND, AIR, DEFENDERS, OBSTACLES = 2, 2, 3, 8
ATTACKERS = GROUND + AIR
"""Ground units come first."""
UNIT_M = 1.0
"""Radius of a ground unit and of a defender."""
COMMAND_HZ, MOTION_HZ = 4, 20
COMMANDS = 1200
"""In an episode: 300 s."""
TERMS = ("progress", "holding", "capture", "losses")
"""What the reward is made of."""


@dataclass(frozen=True, kw_only=True)
class Rules(Options):
    """What a game is played by. A level gives the stock defenders other abilities than those written here."""

    task: ClassVar[str] = "Mission"

    level: str = "standard"
    """Of the stock defenders: easy, standard or hard."""
    maps: int = number(0, 0, 2**31 - 1)
    """Different maps; 0: a new one for every episode."""
    obstacles: int = number(OBSTACLES, 0, OBSTACLES)
    """Round ones, radius 6 to 14 m, at least 6 m apart. They stop what is on the ground, and hide it."""

    zone_m: float = number(15.0, 5.0, 22.0)
    """Radius of the zone."""
    hold_s: float = number(20.0, 1.0, 120.0)
    """So long it has to be held; while it is not, what was won runs back as fast."""
    hold_units: int = number(2, 1, ATTACKERS)
    """Attackers who hold it together."""
    out_s: float = number(15.0, 1.0, 120.0)
    """A unit that was tagged, or whose endurance is used up, begins again at its base after this time."""

    ground_mps: float = number(4.0, 1.0, 8.0)
    """Speed of a ground unit."""
    air_mps: float = number(8.0, 1.0, 16.0)
    """Speed of an air unit, which nothing stops."""
    ground_sight_m: float = number(40.0, 0.0, 300.0)
    """So far a ground unit sees defenders, where no obstacle is between."""
    air_sight_m: float = number(80.0, 0.0, 300.0)
    """So far an air unit sees them, over everything."""
    endurance_s: float = number(120.0, 10.0, 600.0)
    """An air unit's time in flight."""
    hover_share: float = number(0.5, 0.0, 1.0)
    """Of a second of endurance, for a second of standing in the air."""

    tag_m: float = number(5.0, 1.0, 20.0)
    """Range in which a defender tags."""
    tag_cone_deg: float = number(40.0, 5.0, 180.0)
    """To either side of where it looks."""
    busy_s: float = number(5.0, 0.0, 60.0)
    """After a tag it stands still."""
    defender_sight_m: float = number(30.0, 0.0, 300.0)
    """So far a defender sees attackers; those on the ground where no obstacle is between."""
    defender_cone_deg: float = number(60.0, 5.0, 180.0)
    """To either side of where it looks."""
    turn_dps: float = number(150.0, 10.0, 720.0)
    """A defender turns by so many degrees in a second."""
    patrol_m: float = number(28.0, 5.0, 90.0)
    """Radius of the stock defenders' round about the zone."""
    patrol_mps: float = number(3.0, 0.5, 8.0)
    chase_mps: float = number(4.5, 0.5, 8.0)
    """Also the speed of defenders that a policy steers."""
    leash_m: float = number(40.0, 5.0, 300.0)
    """Stock defenders chase whom they see within this distance of the zone's middle."""
    memory_s: float = number(3.0, 0.0, 60.0)
    """So long they go on to where they last saw somebody."""
    threat: float = number(0.0, 0.0, 10.0)
    """They chase who is nearest to them; each metre from the zone counts like so many metres more."""

    progress: float = number(0.05, 0.0, 100.0)
    """Paid for every 100 m that an attacker comes nearer to the zone, and taken back when it goes away; who is tagged
    keeps what it was paid."""
    presence: float = number(0.03, 0.0, 100.0)
    """Paid for every second of every attacker in the zone; with `holding` it is the term "holding"."""
    holding: float = number(0.06, 0.0, 100.0)
    """Paid besides for every second of each of the others who are there with it: twice for two, six times for three."""
    capture: float = number(30.0, 0.0, 100.0)
    """Paid when it has been held long enough, which ends the episode: more than one could earn by standing there."""
    losses: float = number(0.03, 0.0, 100.0)
    """Taken for every unit that is tagged or whose endurance is used up."""

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise UserError(f"env_options level={self.level!r} is unknown; valid are {', '.join(LEVELS)}.")
        super().__post_init__()

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """The level's, with what `options` say."""
        level = options.get("level", cls.level)
        known = LEVELS.get(level, {}) if isinstance(level, str) else {}
        return super().of({**known, **options})


LEVELS: dict[str, dict[str, float]] = {
    "easy": {"chase_mps": 4.0, "defender_sight_m": 25.0, "leash_m": 35.0, "tag_m": 4.0},
    "standard": {},
    "hard": {
        "chase_mps": 5.5, "defender_sight_m": 45.0, "defender_cone_deg": 75.0, "leash_m": 60.0, "tag_m": 6.0,
        "threat": 1.0,
    },
}  # fmt: skip
