# SPDX-License-Identifier: Apache-2.0
"""Seeds of weights, data and network: pairs, variances, seeds that an effect needs, and equality within a margin."""

import json
import math
import re

import pytest
import synthetic
from scipy import stats
from synthetic import NONE, bernoulli, gilbert_elliott

import droptest
from droptest import plots, seeds, style
from droptest.__main__ import main
from droptest.plots import variances
from droptest.power import Split, pairs_needed, split_needed
from droptest.report import Questions, write_report
from droptest.summary import groups
from droptest.variance import CROSSED, ONE_NETWORK, ONE_TRAINING, PAIRED

# Effects of trainings and networks on a difference, and the rest of each cell; sums over rows and columns are 0.
TRAINING = {1: -0.02, 2: 0.0, 3: 0.02}
NETWORK = {1: -0.03, 2: 0.03}
REST = {(1, 1): 0.001, (1, 2): -0.001, (2, 1): -0.002, (2, 2): 0.002, (3, 1): 0.001, (3, 2): -0.001}
LOSSES = [NONE, bernoulli(0.1), gilbert_elliott(0.1, 8)]


def final(point, seed):
    """2 + the weights' own loss, and with loss 0.5 + the effects; bursts cost 0.01 more."""
    w, n = seed["weights"], seed["network"]
    own = 2 + 0.25 * w
    if point["/network/loss"] == NONE:
        return own
    return own + 0.5 + TRAINING[w] + NETWORK[n] + REST[w, n] + 0.01 * ("mean_burst_packets" in point["/network/loss"])


@pytest.fixture(scope="module")
def crossed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("crossed")
    repeat = {"weights": 3, "network": 2}
    return synthetic.write_sweep(folder, {"/network/loss": LOSSES}, repeat=repeat, final_losses=final, name="crossed")


def test_a_run_is_paired_with_the_lossless_run_of_its_weights_and_data(crossed):
    records = droptest.load(crossed)
    assert set(records.runs["series"]) == {"lossless", "Bernoulli", "Gilbert-Elliott, burst 8"}
    rows = records.runs.set_index("run_id")
    lossy = rows[~rows["lossless"]]
    assert len(lossy) == 12 and lossy["twin"].notna().all()
    for row in lossy.itertuples():
        twin = rows.loc[row.twin]
        assert twin["training"] == row.training and twin["network_seed"] == row.network_seed
        assert re.fullmatch(r"weights \d, data 1, network \d", row.seed)
    # A lossless run of the network's seed is not needed: twins share the training.
    lone = crossed.parent / "lone"
    for loss, network in ((NONE, 1), (bernoulli(0.1), 2)):
        spec = json.loads(json.dumps(synthetic.BASE)) | {"seeds": {"network": network}}
        spec["network"]["loss"] = loss
        synthetic.write_run(lone, spec)
    assert droptest.load(lone).runs["twin"].notna().sum() == 1


def test_variances_of_a_crossing_are_those_of_its_effects(crossed):
    records = droptest.load(crossed)
    of_difference = seeds.spreads(records, seeds.DIFFERENCE)
    assert [s.group.series for s in of_difference] == ["Bernoulli", "Gilbert-Elliott, burst 8"]
    found = of_difference[0].found
    ms_training = 2 * 2 * 0.02**2 / 2
    ms_network = 3 * 2 * 0.03**2
    ms_rest = (4 * 0.001**2 + 2 * 0.002**2) / 2
    assert (found.design, found.trainings, found.networks) == (CROSSED, 3, 2)
    assert found.training.variance == pytest.approx((ms_training - ms_rest) / 2)
    assert found.network.variance == pytest.approx((ms_network - ms_rest) / 3)
    assert found.rest.variance == pytest.approx(ms_rest)
    # The final loss also has the weights' own loss: 0.25 w.
    own = seeds.spreads(records, seeds.FINAL)[0].found
    assert own.training.variance == pytest.approx((2 * 2 * 0.27**2 / 2 - ms_rest) / 2)
    # The summary's interval is that of the design, not of six independent runs.
    group = next(g for g in groups(records) if g.series == "Bernoulli")
    assert group.difference.mean == pytest.approx(0.5)
    variance = (ms_training + ms_network - ms_rest) / 6
    degrees = (6 * variance) ** 2 / (ms_training**2 / 2 + ms_network**2 / 1 + ms_rest**2 / 2)
    assert group.difference.half_width == pytest.approx(stats.t.ppf(0.975, degrees) * math.sqrt(variance))
    # Lossless runs of other networks are no new trainings: 2.25, 2.5, 2.75.
    lossless = next(g for g in groups(records) if g.lossless)
    assert lossless.final.half_width == pytest.approx(4.30265 * 0.25 / math.sqrt(3), rel=1e-5)


def test_plans_ask_the_variances_at_hand(crossed):
    plan = seeds.plans(droptest.load(crossed), (0.05, 0.2))[0]
    found = plan.spread.found
    deviation = math.sqrt(found.total.variance)
    assert [n.effect for n in plan.needed] == [0.05, 0.2]
    for needed in plan.needed:
        assert needed.pairs == {power: pairs_needed(needed.effect, deviation, power) for power in (0.8, 0.9)}
        assert needed.pairs_if_wider == pairs_needed(needed.effect, math.sqrt(found.total.high), 0.8)
        parts = [c.variance for c in (found.training, found.network, found.rest)]
        assert needed.splits[0.8] == split_needed(needed.effect, *parts, 0.8)
        assert isinstance(needed.splits[0.9], Split)
    assert plan.needed[0].pairs[0.8] > plan.needed[1].pairs[0.8]


def test_comparisons_pair_runs_of_one_training_and_network(crossed):
    records = droptest.load(crossed)
    alone = seeds.comparisons(records, None)
    assert [(c.second, c.runs) for c in alone] == [("lossless", 6)] * 2
    found = seeds.spreads(records, seeds.DIFFERENCE)[0].found
    half = stats.t.ppf(0.95, found.degrees_of_freedom) * found.standard_error
    assert alone[0].result.within == pytest.approx(0.5 + half)
    both = seeds.comparisons(records, 0.02)[-1]
    assert (both.first, both.second, both.runs) == ("Bernoulli", "Gilbert-Elliott, burst 8", 6)
    # Every cell differs by 0.01 to rounding, whatever its effects are.
    assert both.result.mean == pytest.approx(-0.01) and both.result.within == pytest.approx(0.01)
    assert both.result.verdict == "equal"
    assert seeds.comparisons(records, 0.005)[-1].result.verdict == "not equal"


@pytest.mark.parametrize(
    ("repeat", "design", "note"),
    [
        ({"network": 3}, ONE_TRAINING, "interval over networks of one training"),
        ({"weights": 3}, ONE_NETWORK, "interval over trainings of one network"),
        (None, PAIRED, ""),
    ],
)
def test_designs_that_tell_less_say_so(tmp_path, repeat, design, note):
    def loss(point, seed):
        number = sum(seed.values()) if repeat else seed
        return 2 + (0.1 * number**2 if point["/network/loss"] != NONE else 0)

    folder = synthetic.write_sweep(tmp_path, {"/network/loss": LOSSES[:2]}, repeat=repeat, final_losses=loss)
    records = droptest.load(folder)
    (spread,) = seeds.spreads(records, seeds.DIFFERENCE)
    assert (spread.found.design, spread.found.runs) == (design, 3)
    assert next(g for g in groups(records) if not g.lossless).note == note
    # Without loss a network changes nothing: its runs are one value, not several that agree.
    lossless = next(g for g in groups(records) if g.lossless)
    assert lossless.final.n == (1 if design == ONE_TRAINING else 3)
    assert not seeds.spread_table(records)[1]
    first, advice = seeds.notes(records)
    assert "cannot be told apart" in first or "nothing is known of other" in first
    assert "crosses 3 trainings with 3 networks" in advice
    (cell,) = (row[-1] for row in seeds.plan_table(records, (0.3,))[1])
    unit = {ONE_TRAINING: "networks", ONE_NETWORK: "trainings", PAIRED: "pairs"}[design]
    assert re.fullmatch(rf"\d+ / \d+ {unit} \(up to \d+\)", cell)
    with pytest.raises(plots.NotMeant):
        variances.data(records)


def test_one_networks_losses_count_once_in_z(tmp_path):
    loss = {"/network/loss": [bernoulli(0.1)]}
    folder = synthetic.write_sweep(tmp_path, loss, repeat={"weights": 4, "network": 2})
    records = droptest.load(folder)
    halves = records.loss_statistics[records.loss_statistics["half"] != "both"]
    first = records.runs.drop_duplicates("network_seed")["run_id"]
    z = halves[halves["run_id"].isin(first)]["z"]
    assert len(z) == 2 * 2 * 2  # networks, classes, halves
    assert groups(records)[0].z == pytest.approx(z.sum() / math.sqrt(8))


def test_report_and_figure_show_the_numbers_of_the_tables(crossed, tmp_path):
    records = droptest.load(crossed)
    written = write_report(records, tmp_path, Questions((0.05,), 0.02))
    text = written.report.read_text(encoding="utf-8")
    section = text.split('<h2 id="seeds">')[1].split("<h2")[0]
    for table in (
        seeds.spread_table(records), seeds.plan_table(records, (0.05,)), seeds.comparison_table(records, 0.02)
    ):  # fmt: skip
        header, rows = table
        assert len(rows) >= 2
        for name in header:
            assert f">{name}</th>" in section
        for cell in (cell for row in rows for cell in row):
            assert f">{cell}</td>" in section
    assert "3 x 4: 3 trainings crossed with 4 networks" in section
    figure = plots.draw("variances", records)
    (axes,) = figure.axes
    points = [x for line in axes.get_lines() if line.get_marker() in style.MARKERS for x in line.get_xdata()]
    found = seeds.spreads(records, seeds.DIFFERENCE)[0].found
    expected = [math.sqrt(c.variance) for c in (found.training, found.network, found.rest)]
    assert points == pytest.approx([value for value in expected for _ in range(2)])  # two rows of each part
    assert (tmp_path / "plots" / "variances.svg").exists()


def test_the_power_command_prints_the_tables(crossed, tmp_path, capsys):
    assert main(["power", str(crossed), "--effect", "0.05", "--equivalent", "0.02"]) == 0
    out = capsys.readouterr().out
    records = droptest.load(crossed)
    for header, rows in (seeds.plan_table(records, (0.05,)), seeds.comparison_table(records, 0.02)):
        assert all(name in out for name in header)
        assert all(cell in out for row in rows for cell in row)
    for wrong in ("0", "-1", "nan", "x"):
        with pytest.raises(SystemExit) as usage:
            main(["power", str(crossed), "--effect", wrong])
        assert usage.value.code == 2
        assert f"got '{wrong}', want a number of nats above 0" in capsys.readouterr().err
    clean = synthetic.write_sweep(tmp_path, {"/network/loss": [NONE]}, seeds=2)
    assert main(["power", str(clean)]) == 0
    assert "no point has two finished pairs" in capsys.readouterr().out
    assert "<h2>Seeds</h2>" not in write_report(droptest.load(clean), tmp_path / "out").report.read_text()


def test_series_are_compared_at_equal_rates(tmp_path):
    losses = [NONE, bernoulli(0.1), bernoulli(0.2), gilbert_elliott(0.2, 8)]
    records = droptest.load(synthetic.write_sweep(tmp_path, {"/network/loss": losses}, seeds=2))
    found = [(c.first, c.second, c.loss_rate) for c in seeds.comparisons(records, 0.01)]
    assert found[3:] == [("Bernoulli", "Gilbert-Elliott, burst 8", 0.2)]
    assert {second for _, second, _ in found[:3]} == {"lossless"}


def test_a_pointer_of_the_seeds_is_no_series(tmp_path):
    cross = {"/seeds/network": [1, 2], "/network/loss": LOSSES[:2]}
    records = droptest.load(synthetic.write_sweep(tmp_path, cross, seeds=1))
    assert set(records.runs["series"]) == {"lossless", "Bernoulli"}
    assert set(records.runs["network_seed"]) == {1, 2}
