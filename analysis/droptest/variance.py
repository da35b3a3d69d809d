# SPDX-License-Identifier: Apache-2.0
"""How much of the spread of a result comes from the training and how much from the network.

Nouns. A *training* is a pair of seeds (weights, data), a *network* the seed of fates and time; a *cell* is a run's
(training, network). The *design* of some runs is which cells they fill. The model is
value = mean + training + network + rest with independent normal effects; rest is the interaction of training and
network, since a run of one cell has one result.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import stats

from droptest.statistics import CONFIDENCE, NOTHING, Interval, mean_interval, t_quantile

Cells = Mapping[tuple[Hashable, Hashable], float]

CROSSED, NESTED, PAIRED = "crossed", "nested", "paired"
ONE_TRAINING, ONE_NETWORK = "one training", "one network"
DESIGNS = {
    CROSSED: "every training meets every network",
    NESTED: "each training (seeds of weights and data) has networks (seeds of the lost packets) of its own",
    PAIRED: "each run has a training (seeds of weights and data) and a network (seed of the lost packets) of its own, "
    "so the spread between trainings and that between networks cannot be told apart",
    ONE_TRAINING: "all runs have one training (seeds of weights and data): nothing is known of other trainings",
    ONE_NETWORK: "all runs have one network (seed of the lost packets): nothing is known of other networks",
}


@dataclass(frozen=True)
class Component:
    """A variance with its 95 % interval; NaN where the design does not tell it."""

    variance: float
    low: float
    high: float

    @property
    def known(self) -> bool:
        return math.isfinite(self.variance)


UNKNOWN = Component(math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class Decomposition:
    """The mean of a result and the variances it is made of.

    design: a key of DESIGNS. runs: finite values used; left_out: those of an incomplete crossing that were not.
    total: of one run with a new training and a new network. rest: the interaction; of a nested design network and rest
    cannot be told apart, and `network` is both. standard_error, degrees_of_freedom: of the mean over new trainings and
    networks (ONE_TRAINING and ONE_NETWORK: over new networks or trainings alone).
    """

    design: str
    trainings: int
    networks: int
    runs: int
    left_out: int
    mean: float
    standard_error: float
    degrees_of_freedom: float
    training: Component
    network: Component
    rest: Component
    total: Component

    def interval(self, confidence: float = CONFIDENCE) -> Interval:
        """The mean with its Student-t interval; `n` counts runs."""
        if not math.isfinite(self.standard_error):
            return Interval(self.mean, math.nan, self.runs)
        t = t_quantile(0.5 + confidence / 2, self.degrees_of_freedom)
        return Interval(self.mean, float(t * self.standard_error), self.runs)


def design_of(cells: Cells) -> str:
    """Which design the cells are, before any is left out."""
    trainings, networks = Counter(t for t, _ in cells), Counter(n for _, n in cells)
    if len(trainings) == 1 and len(networks) > 1:
        return ONE_TRAINING
    if len(networks) == 1 and len(trainings) > 1:
        return ONE_NETWORK
    if len(cells) == len(trainings) == len(networks):
        return PAIRED
    if max(networks.values()) == 1:
        return NESTED
    return CROSSED


def decompose(values: Cells, confidence: float = CONFIDENCE) -> Decomposition | None:
    """The decomposition of the finite values; None without any.

    Crossed designs want complete tables: trainings or networks with the most missing cells are left out until no cell
    is missing. A table with one training or network left is then PAIRED over the trainings' first networks.
    """
    cells = {key: float(v) for key, v in values.items() if v is not None and math.isfinite(v)}
    if not cells:
        return None
    design = design_of(cells)
    if design == CROSSED:
        table = _complete(cells)
        if min(len({t for t, _ in table}), len({n for _, n in table})) > 1:
            return _crossed(table, len(cells) - len(table), confidence)
        first: dict[Hashable, tuple[Hashable, Hashable]] = {}
        for key in cells:
            first.setdefault(key[0], key)
        kept = {key: cells[key] for key in first.values()}
        return _plain(PAIRED, kept, len(cells) - len(kept), confidence)
    if design == NESTED:
        return _nested(cells, confidence)
    return _plain(design, cells, 0, confidence)


def _complete(cells: Cells) -> dict[tuple[Hashable, Hashable], float]:
    """The cells without the trainings and networks that have the most gaps, until there is no gap."""
    kept = dict(cells)
    while True:
        trainings = list(dict.fromkeys(t for t, _ in kept))
        networks = list(dict.fromkeys(n for _, n in kept))
        gaps = [(t, n) for t in trainings for n in networks if (t, n) not in kept]
        if not gaps:
            return kept
        # The share of its cells that a row or column lacks; of equal ones the later goes.
        of_training, of_network = Counter(t for t, _ in gaps), Counter(n for _, n in gaps)
        worst_training = max(trainings[::-1], key=lambda t: of_training[t])
        worst_network = max(networks[::-1], key=lambda n: of_network[n])
        share_training = of_training[worst_training] / len(networks)
        share_network = of_network[worst_network] / len(trainings)
        place, name = (0, worst_training) if share_training >= share_network else (1, worst_network)
        kept = {key: value for key, value in kept.items() if key[place] != name}


@lru_cache(maxsize=4096)
def _chi2_quantile(probability: float, degrees_of_freedom: float) -> float:
    return float(stats.chi2.ppf(probability, degrees_of_freedom))


def variance_interval(mean_square: float, degrees_of_freedom: float, confidence: float = CONFIDENCE) -> Component:
    """A mean square as a variance, with its chi-square interval."""
    half = (1 - confidence) / 2
    low, high = (degrees_of_freedom * mean_square / _chi2_quantile(q, degrees_of_freedom) for q in (1 - half, half))
    return Component(float(mean_square), float(low), float(high))


def difference_interval(
    first: float, df_first: float, second: float, df_second: float, divisor: float, confidence: float = CONFIDENCE
) -> Component:
    """The variance (first - second) / divisor of two mean squares, at least 0, with its interval.

    Source: Ting, Burdick, Graybill, Jeyaratnam and Lu 1990, modified large-sample intervals for a difference; G, H are
    theirs, `first` and `second` their c_1 S_1^2 and c_2 S_2^2.
    """
    half = (1 - confidence) / 2

    def g_and_h(df: float) -> tuple[float, float]:
        return 1 - df / stats.chi2.ppf(1 - half, df), df / stats.chi2.ppf(half, df) - 1

    (g1, h1), (g2, h2) = g_and_h(df_first), g_and_h(df_second)
    upper, lower = stats.f.ppf(1 - half, df_first, df_second), stats.f.ppf(half, df_first, df_second)
    g12 = ((upper - 1) ** 2 - g1**2 * upper**2 - h2**2) / upper
    h12 = ((1 - lower) ** 2 - h1**2 * lower**2 - g2**2) / lower
    difference = first - second
    below = (g1 * first) ** 2 + (h2 * second) ** 2 + g12 * first * second
    above = (h1 * first) ** 2 + (g2 * second) ** 2 + h12 * first * second
    low, high = difference - math.sqrt(max(below, 0)), difference + math.sqrt(max(above, 0))
    return Component(*(float(max(v, 0.0) / divisor) for v in (difference, low, high)))


def _plain(design: str, cells: Cells, left_out: int, confidence: float) -> Decomposition:
    """Values of one variance: Student's t over them."""
    values = np.array(list(cells.values()))
    n = len(values)
    sizes = (len({t for t, _ in cells}), len({k for _, k in cells}))
    if n == 1:
        return Decomposition(design, *sizes, 1, left_out, float(values[0]), math.nan, math.nan, *[UNKNOWN] * 4)
    variance = float(values.var(ddof=1))
    component = variance_interval(variance, n - 1, confidence)
    training = component if design == ONE_NETWORK else UNKNOWN
    network = component if design == ONE_TRAINING else UNKNOWN
    total = component if design == PAIRED else UNKNOWN
    return Decomposition(design, *sizes, n, left_out, float(values.mean()), math.sqrt(variance / n), n - 1,
                         training, network, UNKNOWN, total)  # fmt: skip


def _combined(terms: list[tuple[float, float, float]], confidence: float) -> tuple[Component, float]:
    """The sum of factor x mean square over (factor, mean square, degrees of freedom), with Satterthwaite's degrees."""
    value = sum(c * ms for c, ms, _ in terms)
    spread = sum((c * ms) ** 2 / df for c, ms, df in terms)
    # All terms are 0 where all values are equal.
    degrees = value**2 / spread if spread > 0 else min(df for _, _, df in terms)
    return variance_interval(value, degrees, confidence), degrees


def _crossed(cells: Cells, left_out: int, confidence: float) -> Decomposition:
    """Two-way analysis of variance of a complete table, one run a cell."""
    trainings = list(dict.fromkeys(t for t, _ in cells))
    networks = list(dict.fromkeys(n for _, n in cells))
    a, b = len(trainings), len(networks)
    y = np.array([[cells[t, n] for n in networks] for t in trainings])
    mean, rows, columns = y.mean(), y.mean(axis=1), y.mean(axis=0)
    ms_training = float(b * ((rows - mean) ** 2).sum() / (a - 1))
    ms_network = float(a * ((columns - mean) ** 2).sum() / (b - 1))
    ms_rest = float(((y - rows[:, None] - columns[None, :] + mean) ** 2).sum() / ((a - 1) * (b - 1)))
    df_training, df_network, df_rest = a - 1, b - 1, (a - 1) * (b - 1)
    # A component with a mean square below the rest's is 0, and leaves the sums: the rest of a sum is not negative.
    has_training, has_network = ms_training > ms_rest, ms_network > ms_rest

    def combined(training: float, network: float, rest: float) -> tuple[Component, float]:
        """The variance training x component + network x component + rest x MS of the rest."""
        terms = [(training / b, ms_training, df_training)] * has_training
        terms += [(network / a, ms_network, df_network)] * has_network
        left = rest - training / b * has_training - network / a * has_network
        return _combined([*terms, (left, ms_rest, df_rest)], confidence)

    total, _ = combined(1, 1, 1)
    of_mean, degrees = combined(1 / a, 1 / b, 1 / (a * b))
    return Decomposition(
        CROSSED, a, b, a * b, left_out, float(mean), math.sqrt(of_mean.variance), degrees,
        difference_interval(ms_training, df_training, ms_rest, df_rest, b, confidence),
        difference_interval(ms_network, df_network, ms_rest, df_rest, a, confidence),
        variance_interval(ms_rest, df_rest, confidence), total,
    )  # fmt: skip


def _nested(cells: Cells, confidence: float) -> Decomposition:
    """One-way analysis of variance: trainings, and networks within them, any number each.

    The mean is that of the trainings' means, whose t interval is exact where all have equally many networks.
    """
    by_training: dict[Hashable, list[float]] = {}
    for (training, _), value in cells.items():
        by_training.setdefault(training, []).append(value)
    counts = np.array([len(v) for v in by_training.values()])
    means = np.array([np.mean(v) for v in by_training.values()])
    a, n = len(counts), int(counts.sum())
    grand = float((counts * means).sum() / n)
    ms_training = float((counts * (means - grand) ** 2).sum() / (a - 1))
    ms_network = float(sum(((np.array(v) - m) ** 2).sum() for v, m in zip(by_training.values(), means, strict=True))
                       / (n - a))  # fmt: skip
    size = float((n - (counts**2).sum() / n) / (a - 1))
    training = difference_interval(ms_training, a - 1, ms_network, n - a, size, confidence)
    network = variance_interval(ms_network, n - a, confidence)
    if ms_training > ms_network:
        total, _ = _combined([(1 / size, ms_training, a - 1), (1 - 1 / size, ms_network, n - a)], confidence)
    else:
        total = network
    return Decomposition(NESTED, a, n, n, 0, float(means.mean()), float(means.std(ddof=1) / math.sqrt(a)), a - 1,
                         training, network, UNKNOWN, total)  # fmt: skip


def interval_of(values: Cells, confidence: float = CONFIDENCE) -> Interval:
    """The mean over the cells and its interval, by their design; equal to mean_interval where each run has its own
    training and network."""
    found = decompose(values, confidence)
    if found is None:
        return NOTHING
    if found.design in (PAIRED, ONE_TRAINING, ONE_NETWORK) and not found.left_out:
        return mean_interval(values.values(), confidence)
    return found.interval(confidence)
