# SPDX-License-Identifier: Apache-2.0
"""droptest.compare: the paired difference of any two points, how they are named, and equality within a margin."""

import json
import math

import numpy as np
import pytest
from scipy import stats
from synthetic import NONE, bernoulli, gilbert_elliott, write_json, write_sweep

import droptest

LOST = {0.05: [0.031, 0.024, 0.042, 0.035], 0.2: [0.2, 0.25, 0.15, 0.22]}
BASE = [2.40, 2.52, 2.35, 2.61]


def final(point, seed):
    loss = point["/network/loss"]
    return BASE[seed - 1] + (LOST[loss["loss_rate"]][seed - 1] if loss != NONE else 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    losses = [NONE, bernoulli(0.05), bernoulli(0.2), gilbert_elliott(0.05, 8)]
    missing = lambda point, seed: "diverged" if (point["/network/loss"], seed) == (losses[2], 4) else "completed"  # noqa: E731
    return write_sweep(tmp_path_factory.mktemp("compare"), {"/network/loss": losses}, seeds=4, outcomes=missing,
                       final_losses=lambda p, s: final(p, s) if missing(p, s) == "completed" else None)  # fmt: skip


@pytest.fixture
def records(folder):
    return droptest.load(folder)


def test_the_difference_is_that_of_the_paired_t_test(records):
    found = droptest.compare(records, ("Bernoulli", 0.05), "lossless")
    differences = np.array(LOST[0.05])
    assert found.mean == pytest.approx(0.033) and found.n == 4
    half = 3.182446305284263 * differences.std(ddof=1) / 2  # Student's t with 3 degrees of freedom
    assert (found.low, found.high) == (pytest.approx(0.033 - half), pytest.approx(0.033 + half))
    theirs = stats.ttest_rel(np.add(BASE, LOST[0.05]), BASE)
    assert found.p == pytest.approx(theirs.pvalue, rel=1e-9)
    assert found.pairs["difference"].tolist() == pytest.approx(LOST[0.05]) and found.pairs["seed"].tolist() == [
        1,
        2,
        3,
        4,
    ]
    assert (found.unpaired, found.margin, found.verdict, found.note) == ((), None, "", "")
    back = droptest.compare(records, "lossless", ("Bernoulli", 0.05))
    assert (back.mean, back.low, back.high) == (-found.mean, -found.high, -found.low)
    assert back.p == found.p and back.a == "lossless" == found.b


def test_runs_without_a_partner_are_left_out_and_named(records):
    found = droptest.compare(records, ("Bernoulli", 0.2), ("Bernoulli", 0.05))
    differences = np.subtract(LOST[0.2], LOST[0.05])[:3]
    assert found.n == 3 and found.mean == pytest.approx(differences.mean())
    assert found.p == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, rel=1e-9)
    runs = records.runs.set_index("run_id")
    (left,) = found.unpaired
    assert (runs.loc[left, "seed"], runs.loc[left, "loss_rate"]) == (4, 0.05)
    assert found.note == "finished runs without a finished partner: 1"


def test_a_margin_asks_for_two_one_sided_tests(records):
    differences = np.array(LOST[0.05])
    for margin, verdict in ((0.05, "equal"), (0.04, "not decided"), (0.02, "not equal")):
        found = droptest.compare(records, ("Bernoulli", 0.05), "lossless", margin)
        below = stats.ttest_1samp(differences, margin, alternative="less").pvalue
        above = stats.ttest_1samp(differences, -margin, alternative="greater").pvalue
        assert found.equivalence.p == pytest.approx(max(below, above), rel=1e-9)
        assert found.verdict == verdict and (found.equivalence.p < 0.05) == (verdict == "equal")
    text = "Bernoulli, 5 % minus lossless: +0.0330 nats per token, 95 % interval +0.0210 to +0.0450, p = 0.00313, " \
           "4 pairs; within 0.05: equal (p = 0.0101)"  # fmt: skip
    assert str(droptest.compare(records, ("Bernoulli", 0.05), "lossless", 0.05)) == text


@pytest.mark.parametrize("margin", [0, -1, math.nan, math.inf])
def test_a_margin_that_is_no_distance_is_refused(records, margin):
    with pytest.raises(ValueError, match=f"margin: got {margin}, want a number above 0, in nats per token"):
        droptest.compare(records, ("Bernoulli", 0.05), "lossless", margin)


def test_a_point_has_many_names(records):
    points, groups = droptest.points(records), droptest.groups(records)
    (place,) = np.flatnonzero((points["series"] == "Bernoulli") & (points["loss_rate"] == 0.05))
    names = ["Bernoulli, 5 %", ("Bernoulli", "5%"), {"/network/loss": bernoulli("5%")}, points.iloc[place],
             {"/network/loss": points["/network/loss"][place]}, points.iloc[place].to_dict(), groups[place],
             [*points.itertuples()][place]]  # fmt: skip
    wanted = droptest.compare(records, ("Bernoulli", 0.05), "lossless")
    for name in names:
        found = droptest.compare(records, name, {"/network/loss": NONE})
        assert (found.a, found.b, found.mean, found.p) == (wanted.a, wanted.b, wanted.mean, wanted.p)
    one_point = droptest.compare(records, "Gilbert-Elliott, burst 8", "lossless")
    assert one_point.a == "Gilbert-Elliott, burst 8, 5 %"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("Bernoulli", "a: got 'Bernoulli', which are 2 points; want one of 'Bernoulli, 5 %', 'Bernoulli, 20 %'$"),
        ("bursts", "a: got 'bursts', which is no point; want one of 'lossless', 'Bernoulli, 5 %', "),
        (("Bernoulli", 0.06), r"a: got \('Bernoulli', 0.06\), which is no point; want one of 'lossless'"),
        (
            {"/network/los": NONE},
            "a: got .*, want pointers in which the points differ: /network/loss; not '/network/los'",
        ),
        ({"/network/loss": bernoulli(0.06)}, "which is no point; want one of 'lossless'"),
        ({"series": "Bernoulli"}, "a: got the series 'Bernoulli' at the loss rate nan, which is no point"),
        (7, "a: got 7, want the name of a series"),
        ({}, "a: got {}, want the name of a series"),
        ("lossless", "a, b: got lossless twice, want two points: 'lossless', 'Bernoulli, 5 %'"),
    ],
)
def test_what_is_no_point_is_refused_with_the_points_there_are(records, given, message):
    with pytest.raises(ValueError, match=message):
        droptest.compare(records, given, "lossless")


def test_points_without_a_common_seed_are_refused(tmp_path):
    outcome = lambda point, seed: "completed" if (seed == 1) == (point["/network/loss"] == NONE) else "failed"  # noqa: E731
    folder = write_sweep(tmp_path, {"/network/loss": [NONE, bernoulli(0.05)]}, seeds=3, outcomes=outcome)
    message = "lossless: finished with seeds 1; Bernoulli, 5 %: finished with seeds 2, 3"
    with pytest.raises(
        ValueError, match=f"no run of the one has a finished partner of equal seeds in the other: {message}"
    ):
        droptest.compare(droptest.load(folder), "lossless", "Bernoulli")


def test_one_pair_has_no_interval_and_decides_nothing(tmp_path):
    folder = write_sweep(tmp_path, {"/network/loss": [NONE, bernoulli(0.05)]}, seeds=1, final_losses=final)
    found = droptest.compare(droptest.load(folder), "Bernoulli", "lossless", margin=1)
    assert found.mean == pytest.approx(LOST[0.05][0]) and found.n == 1
    assert all(map(math.isnan, (found.low, found.high, found.p, found.equivalence.p)))
    assert found.verdict == "not decided" and "one pair: no interval" in str(found)


def test_a_crossing_of_trainings_and_networks_counts_its_two_variances(tmp_path):
    def crossed(point, seed):
        training, network = seed["weights"], seed["network"]
        harm = 0.1 + 0.03 * network**2 + 0.02 * training + 0.001 * training * network
        return 2 + 0.1 * training + (harm if point["/network/loss"] != NONE else 0)

    folder = write_sweep(tmp_path, {"/network/loss": [NONE, bernoulli(0.05)]}, repeat={"weights": 3, "network": 3},
                         final_losses=crossed)  # fmt: skip
    records = droptest.load(folder)
    found = droptest.compare(records, "Bernoulli", "lossless")
    (point,) = (group for group in droptest.groups(records) if group.series == "Bernoulli")
    assert (found.mean, found.low, found.high, found.n) == (
        point.difference.mean, point.difference.low, point.difference.high, 9)  # fmt: skip
    naive = stats.ttest_1samp(found.pairs["difference"], 0).pvalue
    assert found.p > 10 * naive  # nine pairs of three trainings and three networks are not independent
    # The p value of the level at which the interval ends at 0.
    assert (found.p < 0.05) == (found.low > 0)


def test_a_run_that_several_points_share_is_found_by_each(tmp_path):
    cross = {"/network/fill": ["zero", "stale"], "/network/loss": [NONE, bernoulli(0.05)]}
    folder = write_sweep(tmp_path, cross, seeds=2)
    sweep = json.loads((folder / "sweep.json").read_text())
    shared = {"/network/fill": "zero", "/network/loss": NONE}
    first = {run["seed"]: run["run_id"] for run in sweep["runs"] if run["point"] == shared}
    for run in sweep["runs"]:
        if run["point"]["/network/loss"] == NONE:
            run["run_id"] = first[run["seed"]]
    write_json(folder / "sweep.json", sweep)
    records = droptest.load(folder)
    lossy = {"/network/fill": "stale", "/network/loss": bernoulli(0.05)}
    for fill in ("zero", "stale"):
        assert droptest.compare(records, lossy, {"/network/fill": fill, "/network/loss": NONE}).n == 2
