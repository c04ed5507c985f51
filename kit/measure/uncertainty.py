"""Confidence intervals of success rates and of mean scores over seeds, and tests whether configs differ.

How often 95 % intervals contain the true value, over 4,000 simulated draws (`tests/measure/test_uncertainty.py`):

    distribution of scores over seeds      coverage of 95 % intervals    false positives among four equal configs
    normal; unimodal success rates         92 to 98 %                    at most 5 %
    returns with a long tail               91 to 93 %                    at most 5 %
    bimodal: seeds learn or do not         from 60 % with three seeds    up to 15 % with three, at most 5 % from
                                           to 94 % with ten              five on

Three seeds cannot reveal a bimodal distribution, because all three are often from the same mode.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.05
"""Significance level: probability that an interval misses the true value, or that a test reports a difference between
equal configs."""
Z = 1.959964
"""The normal distribution's quantile for `LEVEL`, two-sided."""
LEAST_SEEDS, FEW_SEEDS = 3, 5
"""With fewer than `LEAST_SEEDS` seeds there is no interval; with fewer than `FEW_SEEDS`, a bimodal distribution may
look like a difference between configs."""
PIECES = 400
"""Number of steps of the numerical integral; a tenth as many would give three correct digits of a p-value."""


def success_interval(rate: float, episodes: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a success rate over `episodes`. Its upper end is above 0 even if all fail."""
    middle = (rate + Z * Z / (2 * episodes)) / (1 + Z * Z / episodes)
    half = Z / (1 + Z * Z / episodes) * math.sqrt(rate * (1 - rate) / episodes + Z * Z / (4 * episodes**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def success_differs(before: tuple[float, int], after: tuple[float, int]) -> bool:
    """Return whether two (success rate, episodes) differ significantly (Newcombe 1998, method 10)."""
    (low, low_n), (high, high_n) = sorted([before, after])
    return high - low > math.hypot(high - success_interval(high, high_n)[0], success_interval(low, low_n)[1] - low)


@dataclass(frozen=True)
class Estimate:
    """The mean score of a config over seeds, with its 95 % interval."""

    mean: float
    error: float
    """Standard error of the mean; infinite with fewer than `LEAST_SEEDS` seeds."""
    freedom: int
    """Degrees of freedom: number of seeds - 1."""
    low: float
    high: float
    """`low` and `high`: the 95 % interval of the mean over all possible seeds."""

    @classmethod
    def of(cls, scores: np.ndarray, rates: bool = False, episodes: int = 0) -> Estimate:
        """Estimate the mean of `scores` (k,) with Student's t interval.

        `rates`: the scores are success rates over `episodes` episodes in total (0 if unknown). Then the interval is at
        least as wide as Wilson's, because three seeds with equal rates (by chance) give Student's interval zero width.
        """
        k, mean = len(scores), float(scores.mean())
        if k < LEAST_SEEDS:
            return cls(mean, math.inf, k - 1, -math.inf, math.inf)
        error = float(scores.std(ddof=1)) / math.sqrt(k)
        half = t_quantile(k - 1) * error
        low, high = mean - half, mean + half
        if rates and episodes:
            least, most = success_interval(mean, episodes)
            error, low, high = max(error, (most - least) / (2 * Z)), min(low, least), max(high, most)
        if rates:
            low, high = max(0.0, low), min(1.0, high)
        return cls(mean, error, k - 1, low, high)


def p_values(configs: Sequence[Estimate]) -> dict[tuple[int, int], float]:
    """Return pair (i, j), i < j -> p-value of their difference, by Welch's t-test with Holm's correction.

    The correction limits false positives: if all configs are equal, the probability that any p-value is below `LEVEL`
    is about `LEVEL`.
    """
    pairs = itertools.combinations(range(len(configs)), 2)
    uncorrected = sorted((_welch(configs[i], configs[j]), (i, j)) for i, j in pairs)
    corrected, least = dict[tuple[int, int], float](), 0.0
    for position, (p, pair) in enumerate(uncorrected):
        least = max(least, min(1.0, (len(uncorrected) - position) * p))
        corrected[pair] = least
    return corrected


def _welch(one: Estimate, other: Estimate) -> float:
    """Return the p-value of Welch's t-test; 1 if an error is infinite, 0 if means without error differ."""
    error = math.hypot(one.error, other.error)
    if not 0 < error < math.inf:
        return float(error > 0 or one.mean == other.mean)
    freedom = error**4 / sum(each.error**4 / each.freedom for each in (one, other))
    return t_tails((one.mean - other.mean) / error, freedom)


def t_tails(t: float, freedom: float) -> float:
    """Return the probability of Student's t distribution beyond ±`t`.

    With t = √freedom · tan(x), its density is proportional to cos(x)^(freedom-1).
    """

    def area(start: float) -> float:
        width = (math.pi / 2 - start) / PIECES
        x = start + width * (np.arange(PIECES) + 0.5)
        return width * float((np.cos(x) ** (freedom - 1)).sum())

    return area(math.atan(abs(t) / math.sqrt(freedom))) / area(0.0)


@functools.cache
def t_quantile(freedom: int) -> float:
    """Return the two-sided quantile of Student's t distribution for `LEVEL`: t with `t_tails` = `LEVEL`."""
    low, high = 0.0, 1e3
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if t_tails(middle, freedom) > LEVEL else (low, middle)
    return low
