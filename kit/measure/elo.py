"""Elo ratings of players from games won, such as teams that attack and teams that defend."""

from __future__ import annotations

import math
from collections.abc import Mapping

SCALE = 400.0
"""A player who is rated 400 points higher wins 10 of 11 games (Elo, 1978)."""
PRIOR_GAMES = 1.0
"""Games, half of them won, that every player is assumed to have played against an average player. So a player who won
all of its games gets a finite rating."""
ROUNDS, TOLERANCE = 10_000, 1e-9


def elo(won: Mapping[tuple[str, str], float], games: float) -> dict[str, float]:
    """Return the rating of each player; the mean of all is 0, and the best comes first.

    `won`: (player, opponent) -> share of the `games` that the player won against the opponent. Each pair is named once.
    Ratings r maximise the likelihood of the results if a player wins with probability 1 / (1 + 10^((r' - r) / 400)),
    the model of Bradley and Terry (1952), by the iteration of Hunter (2004), equation 3.
    """
    names = sorted({name for pair in won for name in pair})
    wins = dict.fromkeys(names, PRIOR_GAMES / 2)
    for (player, opponent), share in won.items():
        wins[player] += share * games
        wins[opponent] += (1 - share) * games
    strength = dict.fromkeys(names, 1.0)
    for _ in range(ROUNDS):
        divisor = {name: PRIOR_GAMES / (strength[name] + 1.0) for name in names}
        for player, opponent in won:
            term = games / (strength[player] + strength[opponent])
            divisor[player] += term
            divisor[opponent] += term
        new = {name: wins[name] / divisor[name] for name in names}
        change = max(abs(math.log(new[name] / strength[name])) for name in names)
        strength = new
        if change < TOLERANCE:
            break
    ratings = {name: SCALE * math.log10(value) for name, value in strength.items()}
    mean = sum(ratings.values()) / len(ratings)
    return {name: ratings[name] - mean for name in sorted(names, key=lambda name: -ratings[name])}
