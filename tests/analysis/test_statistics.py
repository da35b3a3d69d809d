# SPDX-License-Identifier: Apache-2.0
import json
import math
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

from droptest.loss_model import GilbertElliott, from_spec, probability
from droptest.statistics import (
    geometric_interval,
    mean_interval,
    paired_difference,
    pooled_z,
    ratio_interval,
    rms_z,
    z_limit,
)

VECTORS = Path(__file__).resolve().parents[1] / "vectors" / "loss_processes.json"
# Quantile 0.975 of Student's t with 1, 2 and 3 degrees of freedom, from printed tables.
T = {1: 12.7062, 2: 4.30265, 3: 3.18245}


def test_interval_of_three_values_is_that_of_student():
    interval = mean_interval([1.0, 2.0, 3.0])  # s = 1
    assert interval.mean == pytest.approx(2.0, abs=1e-15)
    assert interval.half_width == pytest.approx(T[2] / math.sqrt(3), rel=1e-5)
    assert interval.n == 3
    assert interval.low == pytest.approx(2 - 2.48414, abs=1e-4)
    assert interval.high == pytest.approx(2 + 2.48414, abs=1e-4)


def test_interval_of_two_values_has_one_degree_of_freedom():
    # s = sqrt(2) / 2 x 2 = sqrt(2); s / sqrt(2) = 1
    assert mean_interval([4.0, 6.0]).half_width == pytest.approx(T[1], rel=1e-5)


def test_one_value_has_a_mean_and_no_interval():
    interval = mean_interval([2.5])
    assert (interval.mean, interval.n, interval.has_width) == (2.5, 1, False)


def test_no_value_has_neither():
    assert mean_interval([]).n == 0
    assert math.isnan(mean_interval([math.nan, math.inf, None]).mean)


def test_values_that_are_not_finite_are_left_out():
    assert mean_interval([1.0, math.nan, 2.0, 3.0]) == mean_interval([1.0, 2.0, 3.0])


def test_differences_are_paired_by_seed_and_not_by_order():
    values = {3: 30.5, 1: 10.1, 2: 20.3}
    twins = {1: 10.0, 2: 20.0, 3: 30.0}
    interval = paired_difference(values, twins)
    # differences .1, .3, .5: mean .3, s = .2
    assert interval.mean == pytest.approx(0.3, abs=1e-12)
    assert interval.half_width == pytest.approx(T[2] * 0.2 / math.sqrt(3), rel=1e-5)


def test_seeds_without_a_partner_are_left_out():
    interval = paired_difference({1: 1.5, 2: 2.5, 9: 100.0}, {1: 1.0, 2: 2.0, 3: -5.0, 4: 7.0})
    assert (interval.mean, interval.n) == (0.5, 2)


def test_a_pair_with_a_diverged_member_is_left_out():
    assert paired_difference({1: math.nan, 2: 2.5}, {1: 1.0, 2: 2.0}).n == 1


def test_geometric_interval_is_a_factor_either_way():
    interval = geometric_interval([1.0, 10.0, 100.0])
    assert interval.mean == pytest.approx(10)
    assert interval.high / interval.mean == pytest.approx(interval.mean / interval.low)
    assert math.log(interval.high / 10) == pytest.approx(T[2] * math.log(10) / math.sqrt(3), rel=1e-5)


def test_the_interval_of_a_ratio_of_sums_weights_by_the_denominators():
    interval = ratio_interval([1.0, 2.0, 6.0], [10.0, 10.0, 40.0])
    # R = 9 / 60; deviations a - R b: -0.5, 0.5, 0; standard error sqrt(3 / 2 x 0.5) / 60.
    assert (interval.mean, interval.n) == (pytest.approx(0.15), 3)
    assert math.log(interval.high / 0.15) == pytest.approx(T[2] * math.sqrt(0.75) / 9, rel=1e-5)
    assert interval.low > 0


def test_a_ratio_of_sums_counts_zeros_and_leaves_out_what_is_not_finite():
    assert ratio_interval([0.0, 2.0, math.nan], [1.0, 1.0, 1.0]).mean == 1.0
    none = ratio_interval([0.0, 0.0], [1.0, 1.0])
    assert (none.mean, none.low, none.high) == (0.0, 0.0, 0.0)
    assert not ratio_interval([1.0], [4.0]).has_width
    assert ratio_interval([], []).n == 0 and ratio_interval([1.0], [0.0]).n == 0


def test_pooled_z_adds_up_like_independent_normals():
    assert pooled_z([1.0, 1.0, 1.0, 1.0]) == 2.0
    assert pooled_z([2.0, -2.0]) == 0.0
    assert pooled_z([1.5, math.nan]) == 1.5
    assert pooled_z([0.1, math.inf]) == math.inf
    assert math.isnan(pooled_z([]))
    assert rms_z([3.0, 4.0, math.nan]) == pytest.approx(math.sqrt(12.5))


def test_z_limit_covers_all_checks_together():
    assert z_limit(1) == pytest.approx(1.95996, abs=1e-5)
    # 2 Phi(z) - 1 = .95^(1/10) = .994884, so Phi(z) = .997442
    assert z_limit(10) == pytest.approx(NormalDist().inv_cdf(0.5 + 0.5 * 0.95**0.1), abs=1e-9)


@pytest.mark.parametrize("name", sorted(json.loads(VECTORS.read_text())["sets"]))
def test_burst_laws_equal_the_oracles(name):
    oracle = json.loads(VECTORS.read_text())["sets"][name]
    chain = GilbertElliott(*(oracle[key] for key in ("p", "r", "loss_good", "loss_bad")))
    assert chain.loss_rate == pytest.approx(oracle["p_E"], rel=1e-12)
    assert chain.mean_burst_packets == pytest.approx(oracle["mean_loss_run"], rel=1e-10)
    lengths = np.arange(1, 3000)
    law = chain.bursts_per_packet(lengths)
    bursts = oracle["p_E"] / oracle["mean_loss_run"]  # per packet
    assert law[0] / bursts == pytest.approx(oracle["P_run_eq1"], rel=1e-9)
    assert law[1] / bursts == pytest.approx(oracle["P_run_eq2"], rel=1e-9)
    assert law[4:].sum() / bursts == pytest.approx(oracle["P_run_ge5"], rel=1e-6)
    assert (law * lengths).sum() == pytest.approx(oracle["p_E"], rel=1e-6)  # every lost packet is in one burst


def test_the_law_of_bursts_agrees_with_counted_bursts():
    rng = np.random.default_rng(7)
    packets, chain = 400_000, GilbertElliott.of_rate_and_burst(0.1, 4)
    bad, lost = rng.random() < chain.share_bad, np.zeros(packets, bool)
    for i, u in enumerate(rng.random(packets)):
        lost[i] = bad
        bad = u >= chain.r if bad else u < chain.p
    edges = np.flatnonzero(np.diff(np.concatenate([[False], lost, [False]]).astype(int)))
    runs = edges[1::2] - edges[::2]
    expected = packets * chain.bursts_per_packet(np.arange(1, 9))
    counted = np.array([(runs == length).sum() for length in range(1, 9)])
    z = (counted - expected) / np.sqrt(expected)
    assert np.abs(z).max() < 4


def test_rate_and_burst_give_the_chain_of_the_specs():
    chain = GilbertElliott.of_rate_and_burst(0.05, 8)
    assert chain.r == 0.125
    assert chain.p == pytest.approx(0.05 / (8 * 0.95), rel=1e-15)
    assert chain.loss_rate == pytest.approx(0.05, rel=1e-14)
    assert chain.mean_burst_packets == pytest.approx(8, rel=1e-12)


@pytest.mark.parametrize(("value", "expected"), [("5%", 0.05), ("0.5 %", 0.005), (0.05, 0.05), (0, 0.0), (1, 1.0)])
def test_probabilities_are_fractions_or_marked_percent(value, expected):
    assert probability(value) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("value", ["5", "x%", None, True, [0.1]])
def test_anything_else_is_no_probability(value):
    assert math.isnan(probability(value))


def test_labels_leave_out_the_rate():
    assert from_spec({"model": "bernoulli", "loss_rate": "5%"}).label == "Bernoulli"
    burst = {"model": "gilbert_elliott", "loss_rate": 0.05, "mean_burst_packets": 8}
    assert from_spec(burst).label == "Gilbert-Elliott, burst 8"
    four = {"model": "gilbert_elliott", "p_good_to_bad": 0.01, "p_bad_to_good": 0.25, "loss_good": 0, "loss_bad": 1}
    assert from_spec(four).label == "Gilbert-Elliott, burst 4"
    assert from_spec(four).loss_rate == pytest.approx(0.01 / 0.26)
    assert from_spec({"model": "trace", "file": "a.csv"}).label == "trace, file a.csv"
