# SPDX-License-Identifier: Apache-2.0
"""Means with Student-t intervals, paired differences, and checks of the network against its theory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import stats

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean over `n` values and half the width of its interval; NaN where n is too small for one."""

    mean: float
    half_width: float
    n: int

    @property
    def low(self) -> float:
        return self.mean - self.half_width

    @property
    def high(self) -> float:
        return self.mean + self.half_width

    @property
    def has_width(self) -> bool:
        return math.isfinite(self.half_width)


@dataclass(frozen=True)
class FactorInterval(Interval):
    """A geometric mean; half_width is the logarithm of the factor to either end."""

    @property
    def low(self) -> float:
        return self.mean * math.exp(-self.half_width)

    @property
    def high(self) -> float:
        return self.mean * math.exp(self.half_width)


@lru_cache(maxsize=4096)
def t_quantile(probability: float, degrees_of_freedom: float) -> float:
    """Of Student's t. The points of an experiment share few numbers of seeds, and scipy takes 0.1 ms for each."""
    return float(stats.t.ppf(probability, degrees_of_freedom))


NOTHING = Interval(math.nan, math.nan, 0)


def mean_interval(values: Iterable[float], confidence: float = CONFIDENCE) -> Interval:
    """The mean of the finite values and its Student-t interval: t(n-1) s / sqrt(n). One value has no interval."""
    finite = np.array([v for v in values if v is not None and math.isfinite(v)], dtype=float)
    if finite.size == 0:
        return NOTHING
    if finite.size == 1:
        return Interval(float(finite[0]), math.nan, 1)
    t = t_quantile(0.5 + confidence / 2, finite.size - 1)
    return Interval(float(finite.mean()), float(t * finite.std(ddof=1) / math.sqrt(finite.size)), int(finite.size))


def geometric_interval(values: Iterable[float], confidence: float = CONFIDENCE) -> FactorInterval:
    """The geometric mean of positive values with the Student-t interval of their logarithms."""
    logs = mean_interval((math.log(v) for v in values if v > 0), confidence)
    return FactorInterval(math.exp(logs.mean) if logs.n else math.nan, logs.half_width, logs.n)


def ratio_interval(
    numerators: Iterable[float], denominators: Iterable[float], confidence: float = CONFIDENCE
) -> FactorInterval:
    """The ratio of the sums of nonnegative numbers, with the Student-t interval of its logarithm.

    The standard error is that of the ratio estimator, linearised: with R = sum(a) / sum(b) it is
    sqrt(n / (n-1) sum((a - R b)^2)) / sum(b), divided by R for the logarithm. Pairs that are not finite are left out.
    Source: Cochran, Sampling Techniques, section 6.4.
    """
    pairs = np.array([(a, b) for a, b in zip(numerators, denominators, strict=True)
                      if math.isfinite(a) and math.isfinite(b)], dtype=float).reshape(-1, 2)  # fmt: skip
    n, (above, below) = len(pairs), pairs.sum(axis=0)
    if n == 0 or (below == 0 and above > 0):
        return FactorInterval(math.nan, math.nan, 0)
    ratio = float(above / below) if above > 0 else 0.0
    if n == 1 or ratio == 0:
        return FactorInterval(ratio, math.nan if n == 1 else 0.0, n)
    deviations = pairs[:, 0] - ratio * pairs[:, 1]
    error = math.sqrt(n / (n - 1) * float(deviations @ deviations)) / below / ratio
    return FactorInterval(ratio, float(stats.t.ppf(0.5 + confidence / 2, n - 1) * error), n)


def paired_difference(
    values: Mapping[int, float], twins: Mapping[int, float], confidence: float = CONFIDENCE
) -> Interval:
    """Mean and interval of values[seed] - twins[seed] over the seeds that both have, with finite values.

    Equal seeds share weights, batches and the draws of the network, so the spread between seeds cancels.
    """
    seeds = sorted(values.keys() & twins.keys())
    return mean_interval((values[seed] - twins[seed] for seed in seeds), confidence)


def interval_columns(interval: Interval, prefix: str = "") -> dict[str, float]:
    """An interval as columns: `mean`, `low` and `high` (NaN with one value), `seeds` (values it is over)."""
    low, high = (interval.low, interval.high) if interval.has_width else (math.nan, math.nan)
    return {f"{prefix}mean": interval.mean, f"{prefix}low": low, f"{prefix}high": high, f"{prefix}seeds": interval.n}


def pooled_z(z: Iterable[float]) -> float:
    """Stouffer's z of independent checks: sum / sqrt(n); NaN without any.

    Runs of one seed at different rates share their draws, and are not independent: pool over seeds and classes only.
    """
    values = [v for v in z if not math.isnan(v)]
    return math.fsum(values) / math.sqrt(len(values)) if values else math.nan


def rms_z(z: Iterable[float]) -> float:
    """Root mean square of the finite z: near 1 where the theory's variance is right; NaN without any."""
    values = np.array([v for v in z if math.isfinite(v)], dtype=float)
    return float(np.sqrt(np.mean(values**2))) if values.size else math.nan


def z_limit(checks: int, confidence: float = CONFIDENCE) -> float:
    """The |z| that all of `checks` independent checks stay below with probability `confidence` (Sidak)."""
    return float(stats.norm.ppf(0.5 + 0.5 * confidence ** (1 / max(checks, 1))))
