"""Options of the mission task: every constant with its unit and bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from kit.envs.options import Options, number
from kit.errors import UserError

ARENA_M = 200.0
"""Side of the square arena. The origin is its centre; x points east, y points north. Attackers start in the south."""
GROUND, AIR, DEFENDERS, OBSTACLES = 2, 2, 3, 8
ATTACKERS = GROUND + AIR
"""Number of attackers; ground units come first."""
UNIT_RADIUS_M = 1.0
"""Radius of a ground unit and of a defender."""
COMMAND_HZ, MOTION_HZ = 4, 20
COMMANDS = 1200
"""Commands per episode: 300 s."""
TERMS = ("progress", "holding", "capture", "losses")
"""Reward terms."""


@dataclass(frozen=True, kw_only=True)
class Rules(Options):
    """Rules of the game. The levels "easy" and "hard" change some defaults; see `LEVELS`.

    Stock defenders are those that follow fixed rules instead of a policy.
    """

    task: ClassVar[str] = "Mission"

    level: str = "standard"
    """Difficulty for the attackers: easy, standard or hard."""
    maps: int = number(0, 0, 2**31 - 1)
    """Number of different maps; 0: a new map for every episode."""
    obstacles: int = number(OBSTACLES, 0, OBSTACLES)
    """Number of obstacles, discs of radius 6 to 14 m at least 6 m apart.

    They stop ground units and defenders, and hide these from each other.
    """

    zone_m: float = number(15.0, 5.0, 22.0)
    """Radius of the zone."""
    hold_s: float = number(20.0, 1.0, 120.0)
    """Time for which the attackers must hold the zone. While they do not hold it, the time held so far counts down."""
    hold_units: int = number(2, 1, ATTACKERS)
    """Number of attackers that must be in the zone to hold it."""
    out_s: float = number(15.0, 1.0, 120.0)
    """Time for which an attacker waits at its base after it was tagged or ran out of endurance."""

    ground_mps: float = number(4.0, 1.0, 8.0)
    """Speed of a ground unit."""
    air_mps: float = number(8.0, 1.0, 16.0)
    """Speed of an air unit, which flies over obstacles."""
    ground_sight_m: float = number(40.0, 0.0, 300.0)
    """Distance up to which a ground unit sees defenders, unless an obstacle is in between."""
    air_sight_m: float = number(80.0, 0.0, 300.0)
    """Distance up to which an air unit sees defenders, also across obstacles."""
    endurance_s: float = number(120.0, 10.0, 600.0)
    """Flight time of an air unit."""
    hover_share: float = number(0.5, 0.0, 1.0)
    """Endurance that a standing air unit uses per second, s; a moving air unit uses 1 s per second."""

    tag_m: float = number(5.0, 1.0, 20.0)
    """Distance up to which a defender tags attackers, that is, sends them back to their base."""
    tag_cone_deg: float = number(40.0, 5.0, 180.0)
    """A defender tags attackers within this angle of its viewing direction."""
    busy_s: float = number(5.0, 0.0, 60.0)
    """Time for which a defender stands still after a tag."""
    defender_sight_m: float = number(30.0, 0.0, 300.0)
    """Distance up to which a defender sees attackers. Obstacles hide ground units, but not air units."""
    defender_cone_deg: float = number(60.0, 5.0, 180.0)
    """A defender sees attackers within this angle of its viewing direction."""
    turn_dps: float = number(150.0, 10.0, 720.0)
    """Turning speed of a defender, degrees per second."""
    patrol_m: float = number(28.0, 5.0, 90.0)
    """Radius of the circle around the zone on which the stock defenders patrol."""
    patrol_mps: float = number(3.0, 0.5, 8.0)
    """Speed of stock defenders on patrol."""
    chase_mps: float = number(4.5, 0.5, 8.0)
    """Speed of stock defenders in a chase, and of defenders controlled by a policy."""
    leash_m: float = number(40.0, 5.0, 300.0)
    """Stock defenders chase attackers that they see, if these are within this distance of the zone's centre."""
    memory_s: float = number(3.0, 0.0, 60.0)
    """Time for which stock defenders continue to an attacker's last seen position."""
    threat: float = number(0.0, 0.0, 10.0)
    """A stock defender chases the attacker for which (distance to the defender) + `threat` × (distance to the zone) is
    smallest."""

    progress: float = number(0.05, 0.0, 100.0)
    """Reward per 100 m that an attacker moves closer to the zone, negative per 100 m that it moves away. Being sent
    back to the base costs nothing in this term."""
    presence: float = number(0.03, 0.0, 100.0)
    """Reward per second for each attacker in the zone. The reward term "holding" adds this and `holding`."""
    holding: float = number(0.06, 0.0, 100.0)
    """Additional reward per second for each attacker in the zone, times the number of other attackers in the zone. In
    total: twice this value for two attackers in the zone, six times for three, twelve times for four."""
    capture: float = number(30.0, 0.0, 100.0)
    """Reward for holding the zone for `hold_s`, which ends the episode. For comparison: a single attacker in the zone,
    which does not hold it, earns at most 9 in an episode by `presence`."""
    losses: float = number(0.03, 0.0, 100.0)
    """Cost of each attacker that is tagged or runs out of endurance."""

    def __post_init__(self) -> None:
        if not isinstance(self.level, str) or self.level not in LEVELS:
            raise UserError(f"env_options level={self.level!r} is unknown; valid are {', '.join(LEVELS)}.")
        super().__post_init__()

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Build rules from `options`; fields that are not given have the defaults of the level."""
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
