# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
from scipy import integrate, stats

from droptest.power import (
    MOST_PAIRS,
    Split,
    detectable,
    equivalence,
    pairs_needed,
    power_of,
    power_of_pairs,
    power_of_split,
    split_needed,
)

T = {2: 4.30265, 9: 2.26216, 30: 2.04227}  # quantile 0.975 of Student's t, from printed tables


@pytest.mark.parametrize(
    ("effect", "power", "pairs"),
    # Paired t test, two-sided at 5 %, as G*Power 3.1 and statsmodels' TTestPower give it.
    [(0.2, 0.8, 199), (0.2, 0.9, 265), (0.5, 0.8, 34), (0.5, 0.9, 44), (0.8, 0.8, 15), (0.8, 0.9, 19), (1.0, 0.8, 10)],
)
def test_pairs_are_those_of_published_tables(effect, power, pairs):
    assert pairs_needed(effect, 1.0, power) == pairs
    assert pairs_needed(effect * 0.03, 0.03, power) == pairs
    assert power_of_pairs(effect, 1.0, pairs) >= power > power_of_pairs(effect, 1.0, pairs - 1)


@pytest.mark.parametrize("df", [2, 9, 30])
@pytest.mark.parametrize("shift", [0.0, 0.7, 3.0, 25.0])
def test_power_is_the_integral_over_the_spread_that_is_found(df, shift):
    # Given s / sigma = u, the mean is normal: power is the mean of P(|Z + shift| > t u) over u = chi / sqrt(df).
    def seen(chi):
        limit = T[df] * chi / math.sqrt(df)
        return (stats.norm.sf(limit - shift) + stats.norm.cdf(-limit - shift)) * stats.chi.pdf(chi, df)

    expected, _ = integrate.quad(seen, 0, 20, limit=200)
    assert power_of(shift * 0.2, 0.2, df) == pytest.approx(expected, abs=2e-6)
    assert power_of(-shift * 0.2, 0.2, df) == power_of(shift * 0.2, 0.2, df)


def test_power_at_no_effect_is_the_level_of_the_test():
    assert power_of(0.0, 1.0, 7) == pytest.approx(0.05)
    assert power_of(1000.0, 1.0, 2) == 1
    assert (power_of(0.1, 0.0, 2), power_of(0.0, 0.0, 2)) == (1, pytest.approx(0.05))


def test_the_smallest_effect_that_is_seen_needs_the_pairs_there_are():
    for pairs in (2, 3, 10, 100):
        effect = detectable(0.02 / math.sqrt(pairs), pairs - 1)
        assert power_of_pairs(effect, 0.02, pairs) == pytest.approx(0.8, abs=1e-9)
        assert pairs_needed(effect * 1.0001, 0.02, 0.8) == pairs
    assert detectable(0.0, 4) == 0
    assert pairs_needed(1e-9, 1.0, 0.8) == MOST_PAIRS
    assert pairs_needed(0.1, 0.0, 0.9) == 2


def test_a_split_has_the_standard_error_of_its_three_variances():
    training, network, rest, a, b = 0.04, 0.25, 0.36, 3, 4
    ms_training, ms_network = rest + b * training, rest + a * network
    variance = training / a + network / b + rest / (a * b)
    degrees = (variance * a * b) ** 2 / (ms_training**2 / 2 + ms_network**2 / 3 + rest**2 / 6)
    found = power_of_split(0.7, Split(a, b), training, network, rest)
    assert found == pytest.approx(power_of(0.7, math.sqrt(variance), degrees), rel=1e-12)


def test_a_split_has_the_power_that_crossings_show():
    rng = np.random.default_rng(5)
    deviations, effect, split, trials = (0.3, 0.5, 0.2), 0.9, Split(5, 4), 4000
    a, b = split.trainings, split.networks
    y = effect + rng.normal(size=(trials, a, 1)) * deviations[0] + rng.normal(size=(trials, 1, b)) * deviations[1]
    y = y + rng.normal(size=(trials, a, b)) * deviations[2]
    mean, rows, columns = y.mean(axis=(1, 2)), y.mean(axis=2), y.mean(axis=1)
    ms_training, ms_network = b * rows.var(axis=1, ddof=1), a * columns.var(axis=1, ddof=1)
    rest = y - rows[:, :, None] - columns[:, None, :] + mean[:, None, None]
    ms_rest = (rest**2).sum(axis=(1, 2)) / ((a - 1) * (b - 1))
    variance = np.maximum(ms_training, ms_rest) + np.maximum(ms_network, ms_rest) - ms_rest
    degrees = variance**2 / (ms_training**2 / (a - 1) + ms_network**2 / (b - 1) + ms_rest**2 / ((a - 1) * (b - 1)))
    seen = np.mean(mean / np.sqrt(variance / (a * b)) > stats.t.ppf(0.975, degrees))
    planned = power_of_split(effect, split, *(s**2 for s in deviations))
    assert 0.6 < planned < 0.95
    # Satterthwaite's degrees of freedom are those of the expectation here and of each trial there.
    assert seen == pytest.approx(planned, abs=0.04)


def test_the_split_of_the_fewest_runs_is_found():
    for variances in ((4.0, 1.0, 0.25), (0.1, 3.0, 1.0), (0.0, 0.0, 2.0), (1.0, 0.0, 0.0), (0.5, 0.1, 3.0)):
        for power in (0.8, 0.9):
            found = split_needed(1.5, *variances, power)
            assert power_of_split(1.5, found, *variances) >= power
            every = [Split(a, b) for a in range(2, 40) for b in range(2, 40)]
            cheaper = [s for s in every if s.runs < found.runs]
            assert cheaper or found == Split(2, 2)
            assert not any(power_of_split(1.5, s, *variances) >= power for s in cheaper)
            equal = [power_of_split(1.5, s, *variances) for s in every if s.runs == found.runs]
            assert power_of_split(1.5, found, *variances) == max(equal)
    assert split_needed(1e-6, 1.0, 1.0, 1.0, 0.8) is None
    assert split_needed(0.1, 0.0, 0.0, 0.0, 0.9) == Split(2, 2)
    assert Split(3, 5).runs == 18


def test_equivalence_is_two_one_sided_tests():
    # Mean 0.1, standard error 0.05, 4 degrees of freedom: t(.95, 4) = 2.13185.
    found = equivalence(0.1, 0.05, 4, 0.25)
    half = 0.05 * 2.13185
    assert (found.low, found.high) == (pytest.approx(0.1 - half, abs=1e-6), pytest.approx(0.1 + half, abs=1e-6))
    assert found.within == pytest.approx(0.1 + half, abs=1e-6)
    assert found.p == pytest.approx(stats.t.sf(3, 4))  # (0.25 - 0.1) / 0.05, the nearer end
    assert found.verdict == "equal"
    assert equivalence(-0.1, 0.05, 4, 0.25).p == found.p
    at_the_edge = equivalence(0.1, 0.05, 4, found.within)
    assert at_the_edge.p == pytest.approx(0.05) and at_the_edge.verdict == "equal"
    assert equivalence(0.1, 0.05, 4, 0.2).verdict == "not decided"
    assert equivalence(-0.5, 0.05, 4, 0.2).verdict == "not equal"
    assert equivalence(0.5, 0.05, 4, None).verdict == "" and math.isnan(equivalence(0.5, 0.05, 4, None).p)
    assert (equivalence(0.1, 0.0, 4, 0.2).p, equivalence(0.3, 0.0, 4, 0.2).p) == (0, 1)


def test_a_false_equality_is_as_rare_as_promised():
    rng = np.random.default_rng(9)
    trials, n, margin = 4000, 6, 1.5
    y = rng.normal(size=(trials, n)) + margin  # at the edge: any `equal` is false
    errors = y.std(axis=1, ddof=1) / math.sqrt(n)
    equal = sum(
        equivalence(m, e, n - 1, margin).verdict == "equal" for m, e in zip(y.mean(axis=1), errors, strict=True)
    )
    z = (equal - 0.05 * trials) / math.sqrt(0.05 * 0.95 * trials)
    assert abs(z) < 4
