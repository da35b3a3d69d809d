# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
from scipy import stats

from droptest.statistics import mean_interval
from droptest.variance import (
    CROSSED,
    NESTED,
    ONE_NETWORK,
    ONE_TRAINING,
    PAIRED,
    decompose,
    difference_interval,
    interval_of,
    variance_interval,
)


def table(rows):
    return {(f"t{i}", f"n{k}"): v for i, row in enumerate(rows) for k, v in enumerate(row) if v is not None}


def test_a_crossing_is_decomposed_as_by_hand():
    found = decompose(table([[1, 2, 6], [5, 4, 9]]))
    # Mean 4.5; rows 3 and 6, columns 3, 3 and 7.5. Rest: +-(0.5, -0.5 ... ): see the sums.
    ms_training = 3 * (1.5**2 + 1.5**2) / 1  # 13.5
    ms_network = 2 * (1.5**2 + 1.5**2 + 3**2) / 2  # 13.5
    ms_rest = 2 * (0.5**2 + 0.5**2 + 0**2) / 2  # rests of the first row: -.5, .5, 0
    assert (found.design, found.trainings, found.networks, found.runs, found.left_out) == (CROSSED, 2, 3, 6, 0)
    assert found.mean == pytest.approx(4.5)
    assert found.training.variance == pytest.approx((ms_training - ms_rest) / 3)
    assert found.network.variance == pytest.approx((ms_network - ms_rest) / 2)
    assert found.rest.variance == pytest.approx(ms_rest)
    assert found.total.variance == pytest.approx(13 / 3 + 13 / 2 + 0.5)
    # Variance of the mean: (MS_training + MS_network - MS_rest) / 6, with Satterthwaite's degrees of freedom.
    assert found.standard_error**2 == pytest.approx((13.5 + 13.5 - 0.5) / 6)
    degrees = 26.5**2 / (13.5**2 / 1 + 13.5**2 / 2 + 0.5**2 / 2)
    assert found.degrees_of_freedom == pytest.approx(degrees)
    assert found.interval().half_width == pytest.approx(stats.t.ppf(0.975, degrees) * math.sqrt(26.5 / 6))


def test_a_component_below_the_rest_is_zero_and_leaves_the_mean():
    # Equal rows: no training effect at all, and the means of the columns are all that varies.
    found = decompose(table([[1, 2, 4.5], [1.5, 2.5, 3.5]]))
    assert found.training.variance == 0 and found.training.low == 0
    columns = np.array([1.25, 2.25, 4.0])
    assert found.standard_error**2 == pytest.approx(columns.var(ddof=1) / 3)
    assert found.degrees_of_freedom == pytest.approx(2)


def test_nested_runs_are_decomposed_as_by_hand():
    found = decompose({("a", 1): 1.0, ("a", 2): 3.0, ("b", 3): 6.0, ("b", 4): 8.0, ("b", 5): 10.0})
    # Means 2 and 8, grand 5.6; within: 2 + 8 over 5 - 2; n0 = 5 - 13/5.
    assert (found.design, found.trainings, found.networks, found.runs) == (NESTED, 2, 5, 5)
    assert found.network.variance == pytest.approx(10 / 3)
    between = 2 * 3.6**2 + 3 * 2.4**2
    assert found.training.variance == pytest.approx((between - 10 / 3) / 2.4)
    assert not found.rest.known
    assert found.total.variance == pytest.approx(found.training.variance + found.network.variance)
    assert (found.mean, found.degrees_of_freedom) == (5.0, 1)
    assert found.standard_error == pytest.approx(3.0)  # of the means 2 and 8: sd 3 sqrt(2), over sqrt(2)


def test_designs_that_do_not_separate_say_so_and_give_the_t_interval():
    rng = np.random.default_rng(1)
    values = [float(v) for v in rng.normal(size=4)]
    for design, cells in (
        (PAIRED, {(i, i): v for i, v in enumerate(values)}),
        (ONE_TRAINING, {(0, i): v for i, v in enumerate(values)}),
        (ONE_NETWORK, {(i, 0): v for i, v in enumerate(values)}),
    ):
        found = decompose(cells)
        assert found.design == design
        assert [c.known for c in (found.training, found.network, found.total)] == [
            design == ONE_NETWORK, design == ONE_TRAINING, design == PAIRED
        ]  # fmt: skip
        assert interval_of(cells) == mean_interval(values)
        assert found.interval().half_width == pytest.approx(mean_interval(values).half_width)
    one = decompose({("t", "n"): 2.0})
    assert (one.mean, one.runs, one.interval().has_width) == (2.0, 1, False)
    assert decompose({("t", "n"): math.nan}) is None and interval_of({}).n == 0


def test_an_incomplete_crossing_leaves_out_what_makes_it_complete():
    whole = [[1, 2, 6], [5, 4, 9]]
    found = decompose(table([*whole, [7, None, None]]))
    assert found.left_out == 1
    assert found.rest == decompose(table(whole)).rest
    column = decompose(table([[1, 2, 6, None], [5, 4, 9, None], [0, 0, 2, 8]]))
    assert (column.trainings, column.networks, column.left_out) == (3, 3, 1)
    # Nothing complete is left of a cross: one run for each training.
    bare = decompose(table([[1, None], [2, 3]]))
    assert (bare.design, bare.runs, bare.left_out, bare.mean) == (PAIRED, 2, 1, 1.5)


def test_equal_values_have_no_variance():
    found = decompose(table([[2, 2], [2, 2], [2, 2]]))
    assert [found.training.high, found.network.high, found.rest.high, found.standard_error] == [0, 0, 0, 0]
    assert found.interval().half_width == 0


def test_intervals_of_variances_agree_with_the_tests_they_belong_to():
    # A mean square alone: chi-square. From tables: chi2(.975, 4) = 11.1433, chi2(.025, 4) = 0.484419.
    found = variance_interval(2.0, 4)
    assert (found.low, found.high) == (pytest.approx(8 / 11.1433, rel=1e-5), pytest.approx(8 / 0.484419, rel=1e-5))
    alone = difference_interval(2.0, 4, 0.0, 9, 1.0)
    assert (alone.low, alone.high) == (pytest.approx(found.low), pytest.approx(found.high))
    # The lower end is 0 just where the F test at 2.5 % does not reject 0 any more, the upper one at the other end.
    for df in ((2, 6), (5, 3), (9, 40)):
        upper, lower = stats.f.ppf(0.975, *df), stats.f.ppf(0.025, *df)
        assert difference_interval(upper, df[0], 1.0, df[1], 1.0).low == pytest.approx(0, abs=1e-6)
        assert difference_interval(1.05 * upper, df[0], 1.0, df[1], 1.0).low > 0
        assert difference_interval(lower, df[0], 1.0, df[1], 1.0).high == pytest.approx(0, abs=1e-6)
    scaled = difference_interval(3.0, 4, 1.0, 9, 5.0)
    assert scaled.high == pytest.approx(difference_interval(3.0, 4, 1.0, 9, 1.0).high / 5)


@pytest.mark.parametrize("deviations", [(1.0, 0.5, 0.4), (0.1, 1.0, 0.5)])
def test_intervals_of_a_crossing_cover_what_they_promise(deviations):
    rng = np.random.default_rng(20)
    trials, a, b = 800, 4, 5
    training, network, rest = (s**2 for s in deviations)
    covered = np.zeros(4)
    for _ in range(trials):
        y = rng.normal(size=(a, 1)) * deviations[0] + rng.normal(size=(1, b)) * deviations[1]
        found = decompose(table(y + rng.normal(size=(a, b)) * deviations[2]))
        interval = found.interval()
        covered += [
            found.training.low <= training <= found.training.high,
            found.network.low <= network <= found.network.high,
            found.rest.low <= rest <= found.rest.high,
            interval.low <= 0 <= interval.high,
        ]
    z = (covered / trials - 0.95) / math.sqrt(0.95 * 0.05 / trials)
    assert abs(z[2]) < 4  # exact
    # Approximate: never less than promised, and a little more where an effect is nearly absent.
    assert (z > -4).all() and (covered / trials < 0.99).all(), covered / trials


def test_estimates_of_a_crossing_are_unbiased_where_no_component_is_cut_off():
    rng = np.random.default_rng(3)
    trials = 500
    estimates = []
    for _ in range(trials):
        y = 2 * rng.normal(size=(6, 1)) + 3 * rng.normal(size=(1, 6)) + 0.5 * rng.normal(size=(6, 6))
        found = decompose(table(y))
        estimates.append([found.training.variance, found.network.variance, found.rest.variance, found.total.variance])
    mean, error = np.mean(estimates, axis=0), np.std(estimates, axis=0, ddof=1) / math.sqrt(trials)
    assert (np.abs(mean - [4, 9, 0.25, 13.25]) / error < 4).all()
