"""How much chance there is in a score: of one policy over episodes, of one config over seeds, of two configs.

What the intervals and tests hold, over 4,000 draws each (`tests/measure/test_uncertainty.py`):

    scores of seeds                        95 % intervals hold    false verdicts among four equal configs
    normal; success rates of a hump        92 to 98 %             at most 5 %
    returns with a long tail               91 to 93 %             at most 5 %
    two heaps, seeds that learn or do not  from 60 % with three   up to 15 % with three, at most 5 % from
                                           to 94 % with ten       five on

Nothing tells two heaps from one by three seeds: all of them lie in the same heap too often.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.05
"""How often an interval may miss, or a verdict on several configs be false."""
Z = 1.959964
"""The normal distribution's quantile for that."""
LEAST_SEEDS, FEW_SEEDS = 3, 5
"""Below the first nothing can be said of other seeds; below the second, two heaps may pass for a difference."""
PIECES = 400
"""Of an integral; the third digit of a p-value needs a tenth of them."""


def success_interval(rate: float, episodes: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a success rate seen in `episodes`: none of 20 is no proof of never."""
    middle = (rate + Z * Z / (2 * episodes)) / (1 + Z * Z / episodes)
    half = Z / (1 + Z * Z / episodes) * math.sqrt(rate * (1 - rate) / episodes + Z * Z / (4 * episodes**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def success_differs(before: tuple[float, int], after: tuple[float, int]) -> bool:
    """Whether two success rates, each with its episodes, differ by more than chance (Newcombe 1998, method 10)."""
    (low, low_n), (high, high_n) = sorted([before, after])
    return high - low > math.hypot(high - success_interval(high, high_n)[0], success_interval(low, low_n)[1] - low)


@dataclass(frozen=True)
class Estimate:
    """The mean score of a config's seeds."""

    mean: float
    error: float
    """Its standard error; infinite with fewer than `LEAST_SEEDS` seeds."""
    freedom: int
    """Degrees of freedom: seeds less one."""
    low: float
    high: float
    """The 95 % interval of the mean of all seeds there could be."""

    @classmethod
    def of(cls, scores: np.ndarray, rates: bool = False, episodes: int = 0) -> Estimate:
        """Student's t over `scores` (k,). Of success `rates`, seen in so many `episodes` altogether if that is known,
        no less than what these episodes leave open: three seeds with the same rate are no proof that all have it."""
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
    """How likely so large a difference is between two equal configs, for all pairs (i, j) with i < j: Welch's t-test,
    corrected by Holm for their number, so that below `LEVEL` any is false in at most one of 20 comparisons."""
    pairs = itertools.combinations(range(len(configs)), 2)
    alone = sorted((_welch(configs[i], configs[j]), (i, j)) for i, j in pairs)
    corrected, least = dict[tuple[int, int], float](), 0.0
    for position, (p, pair) in enumerate(alone):
        least = max(least, min(1.0, (len(alone) - position) * p))
        corrected[pair] = least
    return corrected


def _welch(one: Estimate, other: Estimate) -> float:
    error = math.hypot(one.error, other.error)
    if not 0 < error < math.inf:
        return float(error > 0 or one.mean == other.mean)
    freedom = error**4 / sum(each.error**4 / each.freedom for each in (one, other))
    return t_tails((one.mean - other.mean) / error, freedom)


def t_tails(t: float, freedom: float) -> float:
    """The share of Student's t distribution beyond ±`t`. With t = √freedom · tan(x), its density is cos(x)^(freedom-1)
    but for a constant."""

    def area(start: float) -> float:
        width = (math.pi / 2 - start) / PIECES
        x = start + width * (np.arange(PIECES) + 0.5)
        return width * float((np.cos(x) ** (freedom - 1)).sum())

    return area(math.atan(abs(t) / math.sqrt(freedom))) / area(0.0)


@functools.cache
def t_quantile(freedom: int) -> float:
    """Beyond ± which a share of `LEVEL` lies."""
    low, high = 0.0, 1e3
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if t_tails(middle, freedom) > LEVEL else (low, middle)
    return low
