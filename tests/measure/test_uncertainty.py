"""Tests of confidence intervals and p-values: on simulated scores with a known mean, and by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from kit.measure.uncertainty import LEVEL, Estimate, p_values, success_differs, success_interval, t_quantile, t_tails

EPISODES, DRAWS = 20, 4000
Draw = Callable[[np.random.Generator, int], np.ndarray]


def rates(chance: Callable[[np.random.Generator, int], np.ndarray]) -> Draw:
    """Return a sampler of success rates; `chance` draws the success probability of each seed."""
    return lambda random, k: random.binomial(EPISODES, chance(random, k)) / EPISODES


SCORES: dict[str, tuple[Draw, float, int]] = {
    "returns": (lambda random, k: random.normal(200.0, 30.0, k), 200.0, 0),
    "success rates": (rates(lambda random, k: random.beta(8, 2, k)), 0.8, EPISODES),
    "returns with a long tail": (lambda random, k: random.lognormal(0.0, 0.5, k), math.exp(0.125), 0),
}
"""Kind of scores -> (sampler of k seeds' scores, true mean, episodes per seed: 0 for returns)."""
HEAPS = rates(lambda random, k: np.where(random.random(k) < 0.7, 0.95, 0.1))


def held(draw: Draw, truth: float, k: int, episodes: int) -> float:
    """Return the fraction of intervals from `k` seeds each that contain the true mean `truth`."""
    random = np.random.default_rng(k)
    found = [Estimate.of(draw(random, k), episodes > 0, k * episodes) for _ in range(DRAWS)]
    return sum(one.low <= truth <= one.high for one in found) / DRAWS


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("k", [3, 5, 10])
def test_coverage_of_intervals(kind: str, k: int) -> None:
    draw, truth, episodes = SCORES[kind]
    least = 0.90 if kind == "returns with a long tail" else 0.92  # 91 to 93 %: a few seeds rarely show the tail
    assert least <= held(draw, truth, k, episodes) <= 0.98


@pytest.mark.parametrize("kind", SCORES)
def test_false_positives_among_four_equal_configs(kind: str) -> None:
    draw, _, episodes = SCORES[kind]
    for k in (3, 10):
        random, false = np.random.default_rng(k), 0
        for _ in range(400):
            found = [Estimate.of(draw(random, k), episodes > 0, k * episodes) for _ in range(4)]
            false += min(p_values(found).values()) < LEVEL
        assert false / 400 <= 0.05


def test_coverage_for_bimodal_scores_is_low_with_three_seeds() -> None:
    """Bimodal: 70 % of the seeds learn. Three seeds are often all from one mode and do not reveal the other."""
    truth = 0.7 * 0.95 + 0.3 * 0.1
    assert held(HEAPS, truth, 3, EPISODES) < 0.75 and held(HEAPS, truth, 10, EPISODES) > 0.92


def test_different_configs_have_small_p_values() -> None:
    best, close, far = (Estimate.of(np.array(scores)) for scores in ([10.0, 11.0, 12.0], [9.0, 11.0, 12.0], [1, 2, 3]))
    p = p_values([best, close, far])
    assert p[0, 1] > 0.5 and p[0, 2] < LEVEL and p[1, 2] < LEVEL


def test_one_or_two_seeds_give_no_interval() -> None:
    for scores in ([0.7], [0.1, 0.9], [0.5, 0.5]):
        found = Estimate.of(np.array(scores), rates=True, episodes=1000)
        assert (found.low, found.high) == (-math.inf, math.inf)
        assert p_values([found, Estimate.of(np.array([8.0, 9.0, 10.0]))]) == {(0, 1): 1.0}


def test_intervals_and_p_values_by_hand() -> None:
    """Quantiles are from Student's tables; scores 1, 2, 3 have a standard error of 1 / √3.

    Holm's correction multiplies the smallest of three p-values by 3, the next by 2.
    """
    assert [round(t_quantile(freedom), 3) for freedom in (2, 4, 9)] == [4.303, 2.776, 2.262]
    assert t_tails(2.0, 2.0) == pytest.approx(1 - 2 / math.sqrt(6), rel=1e-4), "closed form for 2 degrees of freedom"
    found = Estimate.of(np.array([1.0, 2.0, 3.0]))
    assert (found.low, found.high) == pytest.approx((2 - 4.30265 / math.sqrt(3), 2 + 4.30265 / math.sqrt(3)), rel=1e-5)
    p = p_values([Estimate(mean, 1.0, 2, 0.0, 0.0) for mean in (9.0, 4.0, 0.0)])
    alone = [t_tails(difference / math.sqrt(2), 4.0) for difference in (9.0, 5.0, 4.0)]
    assert [p[0, 2], p[0, 1], p[1, 2]] == pytest.approx([3 * alone[0], 2 * alone[1], max(2 * alone[1], alone[2])])


def test_intervals_of_success_rates_by_hand() -> None:
    """Wilson's interval by the published formula; for 0 of 20 its upper end is z² / (20 + z²)."""
    low, high = success_interval(0.95, 100)
    assert (round(low, 3), round(high, 3)) == (0.888, 0.978)
    assert success_interval(0.0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)
    equal = Estimate.of(np.ones(3), rates=True, episodes=60)
    assert (equal.low, equal.high) == success_interval(1.0, 60), "equal rates get Wilson's interval, not width 0"
    assert success_differs((0.0, 20), (0.25, 20)) and not success_differs((0.0, 20), (0.2, 20))
