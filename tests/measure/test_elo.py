"""Tests of Elo ratings: numbers worked by hand, and results simulated from known ratings."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kit.measure.elo import elo


def test_ten_of_eleven_games_are_400_points():
    """The prior's one game against an average player pulls the two together by less than a point in 11,000 games."""
    rated = elo({("a", "b"): 10 / 11}, games=11_000)
    assert list(rated) == ["a", "b"] and rated["a"] - rated["b"] == pytest.approx(400, abs=1)
    assert sum(rated.values()) == pytest.approx(0)


def test_a_player_that_won_every_game_has_a_finite_rating():
    rated = elo({("a", "b"): 1.0, ("b", "c"): 0.5}, games=10)
    assert rated["a"] > rated["b"] and math.isfinite(rated["a"])


def test_known_ratings_are_found_from_games():
    true = {"old": -120.0, "new": 150.0, "rules": -30.0}
    rng, games = np.random.default_rng(0), 4000

    def chance(a: str, b: str) -> float:
        return 1 / (1 + 10 ** ((true[b] - true[a]) / 400))

    pairs = [("old", "new"), ("old", "rules"), ("new", "rules")]
    rated = elo({pair: rng.binomial(games, chance(*pair)) / games for pair in pairs}, games)
    assert rated == pytest.approx(true, abs=12)
    assert list(rated) == ["new", "rules", "old"]
