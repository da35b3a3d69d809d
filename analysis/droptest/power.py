# SPDX-License-Identifier: Apache-2.0
"""How many seeds an effect needs to be seen, and whether two results are equal within a margin.

Power is that of the two-sided t test at 5 % of a mean difference: the chance that the 95 % interval excludes 0 when the
true difference is `effect`. Source: the noncentral t distribution, exact for paired differences; for a crossing of
trainings and networks with Satterthwaite's degrees of freedom. Equivalence is two one-sided t tests (Schuirmann 1987):
equal within a margin where the 90 % interval lies within it, so that a wrong `equal` has a chance of at most 5 %.

statsmodels' TTestPower has the same power within 1e-6. Its solve_power() (version 0.13) gives 10 pairs in place of 2
for effects above 12 standard deviations, and its import takes a second. It has no crossings, and its MixedLM has no
intervals of variances.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

from scipy import optimize, special, stats

from droptest.statistics import CONFIDENCE, t_quantile

ALPHA = 1 - CONFIDENCE
POWERS = (0.8, 0.9)
# Beyond these nobody goes on counting.
MOST_PAIRS = 1_000_000
MOST_RUNS = 2000


def power_of(effect: float, standard_error: float, degrees_of_freedom: float) -> float:
    """The chance to see `effect`, of a mean with this standard error."""
    if standard_error == 0:
        return 1.0 if effect else ALPHA
    critical = t_quantile(1 - ALPHA / 2, degrees_of_freedom)
    shift = abs(effect) / standard_error
    if shift > critical + 40:
        return 1.0  # and scipy's noncentral t ends near there
    seen_below, not_seen_above = special.nctdtr(degrees_of_freedom, shift, [-critical, critical])
    return float(1 - not_seen_above + seen_below)


def power_of_pairs(effect: float, deviation: float, pairs: int) -> float:
    """The chance to see `effect` with so many independent differences of this standard deviation."""
    return power_of(effect, deviation / math.sqrt(pairs), pairs - 1)


def pairs_needed(effect: float, deviation: float, power: float) -> int:
    """The fewest pairs, at least 2, that see `effect` with this power; MOST_PAIRS where they do not suffice."""
    low, high = 1, 2  # low is too few
    while power_of_pairs(effect, deviation, high) < power:
        if high >= MOST_PAIRS:
            return MOST_PAIRS
        low, high = high, min(2 * high, MOST_PAIRS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power_of_pairs(effect, deviation, middle) >= power else (middle, high)
    return high


def detectable(standard_error: float, degrees_of_freedom: float, power: float = POWERS[0]) -> float:
    """The smallest effect that is seen with this power."""
    if standard_error == 0:
        return 0.0
    wide = standard_error
    while power_of(wide, standard_error, degrees_of_freedom) < power:
        wide *= 2
    return float(optimize.brentq(lambda e: power_of(e, standard_error, degrees_of_freedom) - power, 0, wide))


@dataclass(frozen=True)
class Split:
    """A crossing of so many trainings with so many networks. runs: with a lossless twin of each training."""

    trainings: int
    networks: int

    @property
    def runs(self) -> int:
        return self.trainings * (self.networks + 1)


def power_of_split(effect: float, split: Split, training: float, network: float, rest: float) -> float:
    """The chance to see `effect` with this crossing, from the three variances of a difference.

    The mean squares are taken at their expectations: MS_training = rest + networks x training, and so on.
    """
    a, b = split.trainings, split.networks
    squares = ((rest + b * training, a - 1), (rest + a * network, b - 1), (-rest, (a - 1) * (b - 1)))
    variance = sum(ms for ms, _ in squares) / (a * b)
    if variance == 0:
        return power_of(effect, 0, 1)
    degrees = (variance * a * b) ** 2 / sum(ms**2 / df for ms, df in squares)
    return power_of(effect, math.sqrt(variance), degrees)


def split_needed(effect: float, training: float, network: float, rest: float, power: float) -> Split | None:
    """The crossing of the fewest runs that sees `effect` with this power, of equal ones that of the most power; None
    where MOST_RUNS do not suffice."""
    # No t test has more power than the normal one, which says at once how many networks are surely too few.
    allowed = (effect / float(stats.norm.ppf(1 - ALPHA / 2) + stats.norm.ppf(power))) ** 2
    candidates: list[tuple[int, int]] = []  # (runs, trainings), the fewest runs first
    for trainings in range(2, MOST_RUNS // 3 + 1):
        room = allowed - training / trainings
        if room > 0:
            networks = max(2, math.floor((network + rest / trainings) / room))
            candidates.append((Split(trainings, networks).runs, trainings))
    heapq.heapify(candidates)
    found: list[tuple[float, Split]] = []
    while candidates and candidates[0][0] <= (found[0][1].runs if found else MOST_RUNS):
        runs, trainings = heapq.heappop(candidates)
        split = Split(trainings, runs // trainings - 1)
        reached = power_of_split(effect, split, training, network, rest)
        if reached >= power:
            found.append((reached, split))
        heapq.heappush(candidates, (runs + trainings, trainings))
    return max(found, key=lambda f: f[0])[1] if found else None


@dataclass(frozen=True)
class Equivalence:
    """Two one-sided t tests of a mean difference.

    low, high: the 90 % interval. margin: within which equality was asked for, or None; p: the larger of the two
    p values there. within: the smallest margin within which the two are equal at 5 %.
    """

    mean: float
    low: float
    high: float
    within: float
    margin: float | None
    p: float

    @property
    def verdict(self) -> str:
        if self.margin is None:
            return ""
        if self.within <= self.margin:
            return "equal"
        return "not equal" if self.low > self.margin or self.high < -self.margin else "not decided"


def equivalence(mean: float, standard_error: float, degrees_of_freedom: float, margin: float | None) -> Equivalence:
    half = t_quantile(1 - ALPHA, degrees_of_freedom) * standard_error
    p = math.nan
    if margin is not None and standard_error > 0:
        above, below = (mean + margin) / standard_error, (margin - mean) / standard_error
        p = float(max(stats.t.sf(above, degrees_of_freedom), stats.t.sf(below, degrees_of_freedom)))
    elif margin is not None and standard_error == 0:
        p = 0.0 if abs(mean) <= margin else 1.0
    return Equivalence(mean, mean - half, mean + half, abs(mean) + half, margin, p)
