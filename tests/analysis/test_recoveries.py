# SPDX-License-Identifier: Apache-2.0
"""Benefit and cost of each recovery, against the run that recovers nothing."""

import json
import shutil

import pytest
import synthetic
from synthetic import NONE, bernoulli

import droptest
from droptest import interactive, plots, summary
from droptest.files import Run
from droptest.series import has_recovery
from droptest.tables import table

T2 = 12.706204736  # quantile 0.975 of Student's t with 1 degree of freedom, from printed tables
LR = "/training/learning_rate"
PARITY, FEEDBACK = {"parity": {"data": 8, "parity": 2}}, {"error_feedback": True}
COST = {"{}": 0.4, json.dumps(PARITY): 0.1, json.dumps(FEEDBACK): 0.5}
SENT = 200_000  # packets of each class and half without recovery, in 4000 messages


def final(point, seed):
    lost = point["/network/loss"] != NONE
    return 2.0 + 0.1 * seed + lost * COST[json.dumps(point["/network/recovery"])] * (1 + 0.1 * seed)


def write(folder, counts=None, **changes):
    """Three recoveries with and without loss; counts: of each half of the runs with parity packets."""
    cross = {"/network/loss": [NONE, bernoulli(0.1)], "/network/recovery": [{}, PARITY, FEEDBACK]}
    folder = synthetic.write_sweep(folder, cross, seeds=2, final_losses=final, **changes)
    for run in json.loads((folder / "sweep.json").read_text())["runs"]:
        if run["point"]["/network/recovery"] == PARITY and run["point"]["/network/loss"] != NONE:
            path = folder / run["run_id"] / "loss_statistics.json"
            record = json.loads(path.read_text())
            for statistics in record["classes"].values():
                for half in statistics["halves"].values():
                    half |= {"packets": 250_000, "messages": 4000, "lost": 25_000} | (counts or {})
                    half["recovery"] = {"policy": "parity(data=8, parity=2)", "repaired": 19_000, "residual": 1000,
                                        "residual_bytes": 1, "resent": 2000, "resend_rounds": 1}  # fmt: skip
            synthetic.write_json(path, record)
    return folder


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return droptest.load(write(tmp_path_factory.mktemp("recoveries")))


def row_of(records, words):
    data = plots.data("recoveries", records)
    (found,) = [row for row in data.to_dict("records") if words in row["series"]]
    return found


def test_packets_are_counted_against_the_run_without_recovery(records):
    parity = row_of(records, "parity packets 2")
    assert parity["lost"] == pytest.approx(25_000 / SENT)
    assert parity["missing"] == pytest.approx(1000 / SENT)
    assert parity["extra"] == pytest.approx((250_000 + 2000) / SENT - 1)
    for words in ("recovery none", "error feedback on"):
        row = row_of(records, words)
        assert row["extra"] == pytest.approx(0.0) and row["missing"] == row["lost"] == pytest.approx(0.1, rel=0.01)


def test_a_run_that_ended_early_is_compared_by_the_message(tmp_path):
    shorter = {"packets": 125_000, "messages": 2000, "lost": 12_500}
    parity = row_of(droptest.load(write(tmp_path, shorter)), "parity packets 2")
    assert parity["extra"] == pytest.approx((125_000 + 2000) / (SENT / 2) - 1)
    assert (parity["lost"], parity["missing"]) == pytest.approx((0.125, 0.01))


def test_what_is_saved_is_the_loss_without_minus_that_with_recovery(records):
    for words, cost in (("parity packets 2", 0.1), ("error feedback on", 0.5), ("recovery none", 0.4)):
        row = row_of(records, words)
        mean, half = 1.15 * (0.4 - cost), T2 * abs(0.4 - cost) * 0.1 / 2
        saved = [row[f"saved_{end}"] for end in ("mean", "low", "high", "seeds")]
        assert saved == pytest.approx([mean, mean - half, mean + half, 2], abs=1e-9)
        assert row["mean"] == pytest.approx(1.15 * cost) and row["bare"] == (words == "recovery none")


def test_the_table_has_benefit_and_price(records):
    found = table("recoveries", records)
    rows = {row[0]: dict(zip(found.header, row, strict=True)) for row in found.rows}
    parity = next(row for name, row in rows.items() if "parity" in name)
    assert parity["sent in addition"] == "+26.000 %" and parity["missing in the end"] == "0.500 %"
    assert parity["lost at first"] == "12.500 %" and parity["saved by the recovery"].startswith("+0.3450 (+0.1544 to ")
    assert next(row for name, row in rows.items() if "none" in name)["saved by the recovery"] == "-"
    assert "virtual time of a step" not in found.header  # there is no clock


def test_the_figure_draws_cost_and_packets_by_row(records):
    data, figure = plots.data("recoveries", records), plots.draw("recoveries", records)
    cost, packets = figure.axes
    for place, container in enumerate(cost.containers):
        line, _, (bars,) = container.lines
        assert (line.get_xdata()[0], line.get_ydata()[0]) == pytest.approx((data["mean"][place], place))
        ends = [x for x, _ in bars.get_segments()[0]]
        assert ends == pytest.approx([data["low"][place], data["high"][place]])
    extra, missing = packets.lines
    assert extra.get_xdata().tolist() == pytest.approx((100 * data["extra"]).tolist())
    assert missing.get_xdata().tolist() == pytest.approx((100 * data["missing"]).tolist())
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["sent in addition", "missing in the end"]
    left, right = interactive.figure_of("recoveries", data)["panels"]
    assert [c["x"][0] for c in left["curves"]] == pytest.approx(data["mean"].tolist())
    by_label = {c["name"]: c for c in right["curves"]}
    assert by_label["sent in addition"]["x"] == pytest.approx((100 * data["extra"]).tolist(), abs=1e-6)
    assert "missing in the end: 0.500 % of the data packets" in " ".join(by_label["missing in the end"]["text"])
    assert by_label["missing in the end"]["y"] == [0, 1, 2]


def test_a_reliable_network_repeats_all_that_it_loses(tmp_path):
    time = {"link": {"latency_microseconds": 5.0, "bandwidth_gbit_per_second": 100.0}, "compute_milliseconds": 1.0}
    cross = {"/network/loss": [NONE, bernoulli(0.1)],
             "/time/retransmission": [{"protocol": "none"}, {"protocol": "selective_repeat"}]}  # fmt: skip
    folder = synthetic.write_sweep(tmp_path, cross, seeds=1, time=time, validation={"every_steps": 10})
    for run in json.loads((folder / "sweep.json").read_text())["runs"]:
        if run["point"]["/time/retransmission"]["protocol"] != "none":
            path = folder / run["run_id"] / "summary.json"
            summary = json.loads(path.read_text())
            summary["time"]["repeated_packets"] = 88_000
            synthetic.write_json(path, summary)
    records = droptest.load(folder)
    reliable, tolerant = row_of(records, "selective repeat"), row_of(records, "retransmission none")
    assert reliable["missing"] == 0 and reliable["extra"] == pytest.approx(88_000 / (4 * SENT))
    assert tolerant["missing"] == pytest.approx(0.1, rel=0.01) and tolerant["extra"] == pytest.approx(0)
    # synthetic: a step takes 1 + 5 rate seconds on a reliable network, 1 second on a tolerant one.
    assert (reliable["step_seconds"], tolerant["step_seconds"]) == pytest.approx((1.5, 1.0))


def test_each_point_is_compared_at_its_own_best_value(tmp_path):
    """Without recovery 0.001 wins, with parity packets 0.002."""
    losses = {("{}", 0.001): 2.5, ("{}", 0.002): 2.9, ("parity", 0.001): 2.4, ("parity", 0.002): 2.3}

    def at(point, seed):
        recovery = "parity" if point["/network/recovery"] else "{}"
        return losses[recovery, point[LR]] if point["/network/loss"] != NONE else 2.0

    cross = {LR: [0.001, 0.002], "/network/loss": [NONE, bernoulli(0.1)], "/network/recovery": [{}, PARITY]}
    folder = synthetic.write_sweep(tmp_path, cross, seeds=1, best_over=[LR], final_losses=at, selection_losses=at)
    parity = row_of(droptest.load(folder), "parity")
    assert parity["saved_mean"] == pytest.approx(2.5 - 2.3) and parity["best_value"] == "learning rate 0.002"


def test_recoveries_of_other_settings_have_nothing_to_compare_with(tmp_path):
    cross = {"/network": [
        {"loss": NONE}, {"loss": bernoulli(0.1), "fill": "stale"}, {"loss": bernoulli(0.1), "recovery": PARITY},
    ]}  # fmt: skip
    records = droptest.load(synthetic.write_sweep(tmp_path, cross, seeds=1))
    with pytest.raises(plots.NotMeant):
        plots.data("recoveries", records)
    assert table("recoveries", records) is None


def test_a_recovery_is_one_of_a_class_of_a_half_or_of_the_clock():
    spec = lambda part, **more: Run("r", None, spec={"network": {"classes": {"tp_forward": part}}, **more})  # noqa: E731
    assert not has_recovery(spec({"recovery": {}, "reduce": {}, "gather": {"recovery": {}}}))
    assert has_recovery(spec({"recovery": FEEDBACK})) and has_recovery(spec({"gather": {"recovery": PARITY}}))
    assert has_recovery(spec({}, time={"retransmission": {"protocol": "go_back_n"}}))
    assert not has_recovery(spec({}, time={"retransmission": {"protocol": "none"}}))


def test_compressed_runs_without_loss_are_series_of_their_own(tmp_path):
    kinds = [{"kind": "none"}, {"kind": "int4"}]
    cost = {"none": 0.0, "int4": 0.25}

    def final_of(point, seed):
        lost = point["/network/loss"] != NONE
        return 2.0 + 0.1 * seed + cost[point["/network/compression"]["kind"]] + 0.5 * lost

    cross = {"/network/loss": [NONE, bernoulli(0.1)], "/network/compression": kinds}
    sweep = synthetic.write_sweep(tmp_path, cross, seeds=2, final_losses=final_of)
    found = {group.series: group for group in summary.groups(droptest.load(sweep))}
    without = {name: group for name, group in found.items() if group.without_loss}
    assert {name: group.lossless for name, group in without.items()} == {
        "lossless": True, "no loss process, kind int4": False,
    }  # fmt: skip
    assert [group.note for group in without.values()] == [
        "is the lossless twin", "is the twin of lossy runs with this compression",
    ]  # fmt: skip
    assert [group.final.mean for group in without.values()] == pytest.approx([2.15, 2.4])
    lossy = {name: group for name, group in found.items() if not group.without_loss}
    assert [group.difference.mean for group in lossy.values()] == pytest.approx([0.5, 0.5])
    notes = {name: group.note for name, group in lossy.items()}
    assert notes == {"Bernoulli, kind none": "", "Bernoulli, kind int4": "to the same compression without loss"}
    # Where no lossy run compresses, too.
    for path in sweep.glob("*/summary.json"):
        point = json.loads(path.read_text())["point"]
        if point["/network/loss"] != NONE and point["/network/compression"]["kind"] == "int4":
            shutil.rmtree(path.parent)
    (sweep / "sweep.json").unlink()
    groups = summary.groups(droptest.load(sweep))
    without = {group.series: group.final.mean for group in groups if group.without_loss}
    assert without == pytest.approx({"lossless": 2.15, "no loss process, kind int4": 2.4})


def test_the_interval_of_compressed_twins_says_what_it_is_over(tmp_path):
    cross = {"/network/loss": [NONE, bernoulli(0.1)], "/network/compression": [{"kind": "int4"}]}
    sweep = synthetic.write_sweep(tmp_path, cross, repeat={"weights": 1, "network": 3})
    (twin,) = (group for group in summary.groups(droptest.load(sweep)) if group.without_loss)
    assert twin.note == "is the twin of lossy runs with this compression; interval over networks of one training"
    # Every output says that the group loses nothing, and compresses.
    found = summary.as_json(twin)
    assert (found["lossless"], found["without_loss"], found["compressed"]) == (False, True, True)
    points = summary.points(droptest.load(sweep))
    assert points[["lossless", "without_loss", "compressed"]].values.tolist() == [
        [False, True, True], [False, False, True],
    ]  # fmt: skip


def test_transformed_runs_without_loss_are_not_averaged_with_exact_ones(tmp_path):
    """A Hadamard transform rounds sums in another way, by signs that the network's seed draws."""

    def final_of(point, seed):
        rounding = 0.001 * seed["network"] if point["/network/recovery"] else 0
        return 2.0 + 0.5 * (point["/network/loss"] != NONE) + rounding

    clock = {"compute_milliseconds": 1, "retransmission": {"protocol": "none"}}  # with it all classes are listed
    cross = {"/network/loss": [NONE, bernoulli(0.1)], "/network/recovery": [{}, {"hadamard": {"block": 64}}]}
    sweep = synthetic.write_sweep(tmp_path, cross, repeat={"weights": 1, "network": 2}, time=clock,
                                  final_losses=final_of)  # fmt: skip
    records = droptest.load(sweep)
    exact, transformed, lossy, both = summary.groups(records)
    assert (exact.series, exact.lossless, exact.final.mean) == ("lossless", True, pytest.approx(2))
    assert (transformed.series, transformed.lossless) == ("no loss process, Hadamard block 64", False)
    assert transformed.without_loss and transformed.final.mean == pytest.approx(2.0015)
    assert transformed.note.startswith("is the twin of lossy runs with this transform")
    assert set(lossy.twin_ids) <= set(exact.run_ids) and set(both.twin_ids) == set(transformed.run_ids)
    # Without such a twin an exact one stands for it: the difference is one of rounding.
    for run_id in transformed.run_ids:
        shutil.rmtree(sweep / run_id)
    both = summary.groups(droptest.load(sweep))[-1]
    assert set(both.twin_ids) <= set(exact.run_ids) and both.difference.n == 2


def test_a_compressed_run_has_no_twin_that_sends_exact_messages(tmp_path):
    """The difference would have the cost of the compression in it."""
    cross = {"/network/loss": [NONE, bernoulli(0.1)], "/network/compression": [{"kind": "none"}, {"kind": "int4"}]}
    sweep = synthetic.write_sweep(tmp_path, cross, seeds=1)
    for path in sweep.glob("*/summary.json"):
        point = json.loads(path.read_text())["point"]
        if point["/network/loss"] == NONE and point["/network/compression"]["kind"] == "int4":
            shutil.rmtree(path.parent)
    found = {group.series: group for group in summary.groups(droptest.load(sweep))}
    assert found["Bernoulli, kind int4"].note.startswith("no lossless twin")
    assert found["Bernoulli, kind none"].difference.n == 1
