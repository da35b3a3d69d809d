# SPDX-License-Identifier: Apache-2.0
"""The numbers behind each figure, computed again from the files alone, and that the drawing holds them."""

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import synthetic
from matplotlib.collections import LineCollection, PolyCollection
from synthetic import NONE, bernoulli

import droptest
from droptest import drawing, interactive, pictures, plots, style, virtual_time
from droptest.plots.step_time import seconds_per_step

T2, T3 = 12.706204736, 4.302652730  # quantile 0.975 of Student's t with 1 and 2 degrees of freedom, from printed tables
RATES = (0.05, 0.2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    losses = [NONE, *map(bernoulli, RATES)]
    final = lambda point, seed: 2 + 0.1 * seed + point["/network/loss"].get("loss_rate", 0) * (1 + seed)  # noqa: E731
    return synthetic.write_sweep(
        tmp_path_factory.mktemp("numbers"), {"/network/loss": losses}, seeds=2, final_losses=final
    )


@pytest.fixture(scope="module")
def records(folder):
    return droptest.load(folder)


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    time = {"link": {"latency_microseconds": 5.0, "bandwidth_gbit_per_second": 100.0}, "compute_milliseconds": 1.0}
    cross = {
        "/network/loss": [NONE, *map(bernoulli, (0.02, 0.05, 0.1))],
        "/time/retransmission": [{"protocol": "none"}, {"protocol": "selective_repeat"}],
    }
    return droptest.load(
        synthetic.write_sweep(
            tmp_path_factory.mktemp("timed"), cross, name="timed", time=time, training={"steps": 300},
            validation={"every_steps": 10},
        )
    )  # fmt: skip


def files(folder, rate, name):
    """The records of the runs at a loss rate, by seed, as the files have them."""
    runs = json.loads((folder / "sweep.json").read_text())["runs"]
    mine = [run for run in runs if run["point"]["/network/loss"].get("loss_rate", 0) == rate]
    paths = [folder / run["run_id"] / name for run in mine]
    if name.endswith("l"):
        return [[json.loads(line) for line in path.read_text().splitlines()] for path in paths]
    return [json.loads(path.read_text()) for path in paths]


def halves(folder, rate):
    return [half for record in files(folder, rate, "loss_statistics.json") for c in record["classes"].values()
            for half in c["halves"].values()]  # fmt: skip


def mean_of_two(values):
    """Mean, and the ends of the 95 % interval of two values."""
    mean, width = sum(values) / 2, T2 * abs(values[0] - values[1]) / 2
    return [mean, mean - width, mean + width]


def at(data, **keys):
    for key, value in keys.items():
        data = data[data[key] == value]
    return data


# Numbers.


def test_final_loss_is_the_mean_over_seeds_and_the_difference_that_over_pairs(records):
    data = plots.data("final_loss", records).set_index("loss_rate")
    for rate in (0.0, *RATES):
        values = [2 + 0.1 * seed + rate * (1 + seed) for seed in (1, 2)]
        assert data.loc[rate, ["final_mean", "final_low", "final_high"]].tolist() == pytest.approx(mean_of_two(values))
        if rate:
            paired = mean_of_two([2 * rate, 3 * rate])
            columns = ["difference_mean", "difference_low", "difference_high"]
            assert data.loc[rate, columns].tolist() == pytest.approx(paired)
    assert data["missing_rate"].tolist() == [0.0, *RATES]


@pytest.mark.parametrize("metric", ["validation_loss", "train_loss"])
def test_training_curves_are_means_over_seeds_at_each_step(records, folder, metric):
    data = at(plots.data("training_curves", records), metric=metric, loss_rate=0.2).set_index("step")
    first, second = ({line["step"]: line[metric] for line in lines if line.get(metric) is not None}
                     for lines in files(folder, 0.2, "metrics.jsonl"))  # fmt: skip
    assert data.index.tolist() == sorted(first) and not data["diverged"].any()
    for step in (50, 100, 200):
        expected = mean_of_two([first[step], second[step]])
        assert data.loc[step, ["mean", "low", "high"]].tolist() == pytest.approx(expected)


def test_a_cross_is_where_the_curve_of_a_diverged_run_ends(mixed):
    data = at(plots.data("training_curves", droptest.load(mixed)), metric="train_loss")
    ends = data[data["diverged"]].set_index("loss_rate")
    assert ends["step"].to_dict() == {0.2: 90, 0.4: 90}  # the loss is not finite at step 100


def test_divergence_is_the_geometric_mean_of_the_rms(records, folder):
    data = plots.data("divergence", records)
    for group in set(data["group"]):
        mine = at(data, group=group, loss_rate=0.2).set_index("step")
        values = [next(line for line in lines if line["step"] == 100)["divergence"]["groups"][group]["rms"]
                  for lines in files(folder, 0.2, "metrics.jsonl")]  # fmt: skip
        expected = np.exp(mean_of_two(np.log(values)))
        assert mine.loc[100, ["mean", "low", "high"]].astype(float).tolist() == pytest.approx(expected.tolist())
    assert not at(data, lossless=True).size


def ratio_of_two(errors, exact):
    """The ratio of two sums, and the ends of its 95 % interval: a factor of the relative deviation."""
    ratio = sum(errors) / sum(exact)
    deviation = math.sqrt(2 * sum((a - ratio * b) ** 2 for a, b in zip(errors, exact, strict=True))) / sum(errors)
    return [ratio, ratio * math.exp(-T2 * deviation), ratio * math.exp(T2 * deviation)]


@pytest.mark.parametrize("quantity", ["nmse", "bias"])
def test_layers_have_the_error_and_the_bias_of_their_collectives(records, folder, quantity):
    data = plots.data("layers", records)
    assert data.attrs["remark"] == "" and not at(data, lossless=True).size
    data = at(data, quantity=quantity, loss_rate=0.05)
    for name in ("tp_forward", "tp_backward"):
        mine = at(data, **{"class": name}).set_index("layer")
        assert mine.index.tolist() == [0, 1, 2, 3]
        for layer in (0, 3):
            values = [record["classes"][name]["layers"][layer + 1]
                      for record in files(folder, 0.05, "diagnostics.json")]  # fmt: skip
            of = lambda key: [value[key] for value in values]  # noqa: B023, E731
            energies = of("error_energy"), of("exact_energy")
            expected = ratio_of_two(*energies) if quantity == "nmse" else mean_of_two(of("bias"))
            assert mine.loc[layer, ["mean", "low", "high"]].tolist() == pytest.approx(expected)


NONE_OR_SOME = (NONE, bernoulli(0.2))


@pytest.fixture
def layered(tmp_path):
    """A function that writes a sweep of three seeds at 20 % with given layers of tp_forward, a list for each seed, and
    loads it: the members of layers that differ from those of other records."""

    def write(*by_seed, losses=NONE_OR_SOME):
        path = synthetic.write_sweep(tmp_path, {"/network/loss": list(losses)}, seeds=len(by_seed), name="layered")
        lossy = [run for run in json.loads((path / "sweep.json").read_text())["runs"]
                 if run["point"]["/network/loss"].get("loss_rate")]  # fmt: skip
        for run, layers in zip(lossy, by_seed, strict=True):
            file = path / run["run_id"] / "diagnostics.json"
            record = json.loads(file.read_text())
            like = record["classes"]["tp_forward"]["layers"][1]
            record["classes"] = {"tp_forward": record["classes"]["tp_forward"]}
            record["classes"]["tp_forward"]["layers"] = [like | {"layer": i} | layer for i, layer in enumerate(layers)]
            file.write_text(json.dumps(record))
        return droptest.load(path)

    return write


def layer_of(error, exact, bias=0.0):
    return {"error_energy": error, "exact_energy": exact, "nmse": error / exact, "bias": bias}


def test_the_nmse_of_a_layer_is_the_ratio_of_the_sums_of_energies(layered):
    records = layered(*([layer_of(nmse, 1.0)] for nmse in (0.00043, 0.189, 0.182)))
    row = at(plots.data("layers", records), quantity="nmse").iloc[0]
    assert row["mean"] == pytest.approx(0.123810)  # the geometric mean is 0.0245
    deviation = np.std([0.00043, 0.189, 0.182], ddof=1) / math.sqrt(3) / 0.12381
    ends = [0.12381 * math.exp(sign * T3 * deviation) for sign in (-1, 1)]
    assert row[["low", "high"]].tolist() == pytest.approx(ends) and row["seeds"] == 3
    energies = layered([layer_of(1.0, 2.0)], [layer_of(1.0, 98.0)], [layer_of(0.0, 100.0)])
    assert at(plots.data("layers", energies), quantity="nmse").iloc[0]["mean"] == pytest.approx(0.01)


def test_a_seed_without_an_error_leaves_the_series_in_the_figure(layered):
    seeds = ((0, 0), (1, -1), (2, -2))
    records = layered(*([layer_of(error, 10.0, bias), layer_of(0.0, 10.0)] for error, bias in seeds))
    data = plots.data("layers", records)
    nmse, bias = (at(data, quantity=quantity).set_index("layer") for quantity in ("nmse", "bias"))
    assert nmse["mean"].tolist() == pytest.approx([0.1, 0.0]) and nmse["seeds"].tolist() == [3, 3]
    assert bias["mean"].tolist() == pytest.approx([-1.0, 0.0]) and bias["seeds"].tolist() == [3, 3]
    assert data.attrs["remark"] == "1 point with NMSE 0, at the edge of the logarithmic axis"
    figure = plots.draw("layers", records)
    assert figure._suptitle.get_text() == data.attrs["remark"]
    assert_holds(points_of(figure), [0, 0, 1], [0.1, -1.0, 0.0])  # of the zeros that of bias alone
    page = interactive.figure_of("layers", data)["panels"][0]
    curve, zero = page["curves"]
    assert page["title"].endswith("tensor parallel, forward") and curve["y"] == [pytest.approx(0.1), None]
    assert (zero["kind"], zero["x"], zero["symbol"], zero["hollow"]) == ("edge", [1], "triangle-down", True)
    assert math.log10(zero["y"][0]) < page["y"]["range"][0] + 0.1 * np.diff(page["y"]["range"])[0]
    edges = [line for line in figure.axes[0].lines if line.get_marker() == "v"]
    assert [(line.get_xdata()[0], line.get_markerfacecolor()) for line in edges] == [(1, "none")]


def test_a_remark_counts_the_runs_that_a_layer_lacks(layered):
    unknown = dict.fromkeys(("error_energy", "exact_energy", "nmse", "bias", "cosine"))
    records = layered([layer_of(1.0, 10.0, -0.5)], [unknown], [unknown | {"sampled_calls": 0}])
    data = plots.data("layers", records)
    assert data["mean"].tolist() == pytest.approx([0.1, -0.5]) and data["seeds"].tolist() == [1, 1]
    remark = "1 run with layers that were not sampled; 1 run with errors that are not finite, left out"
    assert data.attrs["remark"] == remark


def test_a_seed_of_exact_zeros_counts_with_its_energies(layered):
    zeros = {"error_energy": 2.0, "exact_energy": 0.0, "nmse": None, "bias": None}
    data = plots.data("layers", layered([zeros], [layer_of(1.0, 10.0)], [layer_of(2.0, 10.0)]))
    nmse = at(data, quantity="nmse").iloc[0]
    assert (nmse["mean"], nmse["seeds"]) == (pytest.approx(0.25), 3)
    assert data.attrs["remark"] == ""


def test_records_without_energies_have_seeds_of_equal_weights(layered):
    old = {"error_energy": None, "exact_energy": None}
    records = layered([layer_of(1.0, 10.0) | old], [layer_of(30.0, 100.0)], [layer_of(50.0, 1000.0)])
    data = plots.data("layers", records)
    assert at(data, quantity="nmse")["mean"].tolist() == pytest.approx([0.15])
    assert data.attrs["remark"] == "1 run without sums of squared errors: seeds have equal weights"


def test_burst_lengths_are_counts_over_expectations(records, folder):
    data = at(plots.data("burst_lengths", records), loss_rate=0.2).set_index("length")
    for length in (1, 3):
        found = [
            entry for half in halves(folder, 0.2) for entry in half["burst_histogram"] if entry["length"] == length
        ]
        count, expected = sum(e["count"] for e in found), sum(e["expected"] for e in found)
        row = data.loc[length]
        assert (row["count"], row["expected"]) == (count, pytest.approx(expected))
        assert row["ratio"] == pytest.approx(count / expected)
        assert row["deviation"] == pytest.approx(1.96 / math.sqrt(expected))
    rare = data[data["expected"] < 5]
    assert len(rare) and rare["ratio"].isna().all()


def test_the_check_of_rates_has_every_half_of_every_run(records, folder):
    data = plots.data("loss_rate_check", records)
    found = [half for rate in RATES for half in halves(folder, rate)]
    assert len(data) == len(found) == 2 * 2 * 2 * 2
    for column in ("configured_rate", "realised_rate", "z", "lost"):
        assert sorted(data[column]) == pytest.approx(sorted(half[column] for half in found))
    assert (np.sign(data["z"]) == np.sign(data["realised_rate"] - data["configured_rate"])).all()
    assert data.attrs["rms_z"] == pytest.approx(math.sqrt(np.mean([half["z"] ** 2 for half in found])))


def test_loss_over_time_is_on_the_clock(timed):
    data = plots.data("loss_over_time", timed)
    reliable = at(data[data["panel"].str.contains("selective")], loss_rate=0.1).set_index("step")
    # synthetic: a step takes 1 + 5 rate seconds on a reliable network, and the loss falls by 0.01 in a step.
    assert reliable.loc[100, "virtual_seconds"] == pytest.approx(150)
    assert reliable.loc[100, "mean"] == pytest.approx(2.0)
    assert data["target_loss"].unique() == pytest.approx(1.05 * 1.2)


def test_the_target_is_above_the_worst_lossless_run(tmp_path):
    final = lambda _, seed: 2.0 + seed  # noqa: E731
    found = droptest.load(synthetic.write_sweep(tmp_path, {"/network/loss": [NONE]}, seeds=3, final_losses=final))
    assert virtual_time.default_target(found) == pytest.approx(1.05 * 5.0)


def test_time_to_target_has_its_mean_and_break_even(timed):
    data = plots.data("time_to_target", timed)
    steps = (3 - 1.05 * 1.2) / 0.01
    reliable = at(data, reliable=True).set_index("loss_rate")
    assert reliable["mean"].to_dict() == pytest.approx(
        {rate: steps * (1 + 5 * rate) for rate in (0.0, 0.02, 0.05, 0.1)}
    )
    tolerant = at(data, reliable=False).set_index("loss_rate")
    paces = [(1 - 40 * 0.05**2) * (1 + 0.01 * (seed % 3 - 1)) for seed in (1, 2, 3)]
    times = [steps / pace for pace in paces]
    width = T3 * np.std(times, ddof=1) / math.sqrt(3)
    expected = [np.mean(times), np.mean(times) - width, np.mean(times) + width]
    assert tolerant.loc[0.05, ["mean", "low", "high"]].tolist() == pytest.approx(expected, rel=4e-3)  # steps of 10
    assert 0.05 < tolerant["break_even"].iloc[0] < 0.1 and reliable["break_even"].isna().all()
    assert tolerant["break_even_low"].iloc[0] < tolerant["break_even"].iloc[0] < tolerant["break_even_high"].iloc[0]


def test_step_time_is_the_last_clock_over_its_step(timed):
    run = timed.runs[~timed.runs["lossless"] & (timed.runs["loss_rate"] == 0.1)]
    reliable = run[run["series"].str.contains("selective")].iloc[0]
    assert seconds_per_step(timed)[reliable["run_id"]] == pytest.approx(1.5)
    uneven = replace(timed, metrics=timed.metrics.assign(virtual_seconds=timed.metrics["step"] ** 2.0))
    assert seconds_per_step(uneven)[reliable["run_id"]] == pytest.approx(300)


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    losses = [NONE, bernoulli(0.05), bernoulli(0.4)]
    folder = synthetic.write_sweep(tmp_path_factory.mktemp("searched"), {"/network/loss": losses}, seeds=2)
    runs = json.loads((folder / "sweep.json").read_text())["runs"]
    of = [[(run["run_id"], run["seed"]) for run in runs[2 * i : 2 * i + 2]] for i in range(3)]
    low, high = [(*of[1][0], 0.4), (*of[1][1], 0.6)], [(*of[2][0], 30.0), (*of[2][1], None)]
    judged = {0.05: ("passes", 0.5, 0.1, 0.9, low), 0.4: ("fails", None, None, None, high)}
    synthetic.write_search(folder, judged, of[0], threshold=0.12, interval=(0.05, 0.4))
    return droptest.load(folder)


def test_threshold_has_the_runs_with_the_verdict_of_their_rate(searched):
    data = plots.data("threshold", searched)
    passes, fails = at(data, rate=0.05), at(data, rate=0.4)
    assert (passes["verdict"] == "passes").all() and (fails["verdict"] == "fails").all()
    assert passes["difference"].tolist() == [0.4, 0.6] and passes[["mean", "low", "high"]].iloc[0].tolist() == [
        0.5,
        0.1,
        0.9,
    ]
    assert fails["difference"].tolist() == pytest.approx([30.0, math.nan], nan_ok=True) and fails["mean"].isna().all()
    whole = ["tolerance", "threshold", "threshold_low", "threshold_high"]
    assert data[whole].drop_duplicates().to_numpy().tolist() == [[1.0, 0.12, 0.05, 0.4]]


@pytest.fixture(scope="module")
def crossed(tmp_path_factory):
    """Differences whose mean squares are exact: trainings +-0.3, networks +-0.1, rest +-0.02."""
    signs = {1: -1, 2: 1}

    def final(point, seed):
        training, network = signs[seed["weights"]], signs[seed["network"]]
        lost = point["/network/loss"] != NONE
        return 2.0 + lost * (0.5 + 0.3 * training + 0.1 * network + 0.02 * training * network)

    cross = {"/network/loss": [NONE, bernoulli(0.1)]}
    folder = synthetic.write_sweep(tmp_path_factory.mktemp("crossed"), cross, repeat={"weights": 2, "network": 2},
                                   final_losses=final)  # fmt: skip
    return droptest.load(folder)


def test_variances_are_standard_deviations_of_the_two_way_table(crossed):
    data = plots.data("variances", crossed).set_index("part")
    # Mean squares: training 4 0.09, network 4 0.01, rest 4 0.0004; components by the two-way random-effects model.
    expected = {"trainings": math.sqrt((0.36 - 0.0016) / 2), "networks": math.sqrt((0.04 - 0.0016) / 2), "rest": 0.04}
    assert data["deviation"].to_dict() == pytest.approx(expected)
    assert (data["low"] <= data["deviation"]).all() and (data["high"] > data["deviation"]).all()


# Drawings.


def points_of(figure):
    """Every place of a line or mark."""
    lines = [line.get_xydata() for ax in figure.axes for line in ax.get_lines()]
    return np.vstack([np.asarray(line, float).reshape(-1, 2) for line in lines if len(line)])


def bars_of(figure):
    """Both ends of every error bar."""
    found = [segment for ax in figure.axes for c in ax.collections if isinstance(c, LineCollection)
             for segment in c.get_segments() if len(segment)]  # fmt: skip
    return np.vstack(found) if found else np.empty((0, 2))


def corners_of(figure):
    """The corners of every band."""
    return np.vstack([path.vertices for ax in figure.axes for c in ax.collections if isinstance(c, PolyCollection)
                      for path in c.get_paths()])  # fmt: skip


def assert_holds(places, x, y):
    wanted = np.column_stack([np.asarray(x, float), np.asarray(y, float)])
    assert len(wanted)
    for place in wanted:
        assert np.isclose(places, place, rtol=1e-9, atol=1e-12).all(axis=1).any(), place


def test_final_loss_draws_its_points_and_bars(records):
    data, figure = plots.data("final_loss", records), plots.draw("final_loss", records)
    lossy = data[data["missing_rate"] > 0]
    for quantity in ("final", "difference"):
        assert_holds(points_of(figure), 100 * lossy["missing_rate"], lossy[f"{quantity}_mean"])
        for end in ("low", "high"):
            assert_holds(bars_of(figure), 100 * lossy["missing_rate"], lossy[f"{quantity}_{end}"])


@pytest.mark.parametrize(
    ("name", "x"), [("training_curves", "step"), ("divergence", "step"), ("layers", "layer")]
)  # fmt: skip
def test_curves_are_drawn_with_their_bands(records, name, x):
    data, figure = plots.data(name, records), plots.draw(name, records)
    assert_holds(points_of(figure), data[x], data["mean"])
    known = data[data["low"].notna()]
    for end in ("low", "high"):
        assert_holds(corners_of(figure), known[x], known[end])


def test_each_quantity_is_in_the_panel_that_its_axis_names(records):
    figure = plots.draw("layers", records)
    data = plots.data("layers", records)
    for ax in figure.axes:
        quantity = "bias" if "bias" in ax.get_ylabel() else "nmse" if "NMSE" in ax.get_ylabel() else None
        if quantity:
            drawn = np.concatenate([line.get_ydata() for line in ax.get_lines() if len(line.get_xdata()) == 4])
            assert set(np.round(drawn, 12)) <= set(np.round(at(data, quantity=quantity)["mean"], 12))
    figure = plots.draw("training_curves", records)
    data = plots.data("training_curves", records)
    for ax in figure.axes:
        metric = "validation_loss" if ax.get_ylabel().startswith("validation") else "train_loss"
        drawn = np.concatenate([line.get_ydata() for line in ax.get_lines() if len(line.get_xdata())])
        assert set(np.round(drawn, 12)) <= set(np.round(at(data, metric=metric)["mean"], 12))


def test_burst_lengths_draw_counts_theory_and_ratios(records):
    data, figure = plots.data("burst_lengths", records), plots.draw("burst_lengths", records)
    seen, known, fair = data[data["count"] > 0], data[data["expected"] >= 0.5], data[data["ratio"].notna()]
    assert_holds(points_of(figure), seen["length"], seen["count"])
    assert_holds(points_of(figure), known["length"], known["expected"])
    assert_holds(points_of(figure), fair["length"], fair["ratio"])
    assert_holds(bars_of(figure), fair["length"], fair["ratio"] - fair["deviation"])
    assert_holds(bars_of(figure), fair["length"], fair["ratio"] + fair["deviation"])


def test_the_check_of_rates_draws_rates_in_percent_and_z(records):
    data, figure = plots.data("loss_rate_check", records), plots.draw("loss_rate_check", records)
    places = points_of(figure)
    assert_holds(places, 100 * data["configured_rate"], 100 * data["realised_rate"])
    assert_holds(places, 100 * data["configured_rate"], data["z"])


def test_figures_of_time_draw_their_numbers(timed):
    data, figure = plots.data("loss_over_time", timed), plots.draw("loss_over_time", timed)
    assert_holds(points_of(figure), data["virtual_seconds"], data["mean"])
    assert data["target_loss"].iloc[0] in points_of(figure)[:, 1]
    data, figure = plots.data("step_time", timed), plots.draw("step_time", timed)
    assert_holds(points_of(figure), 1e3 * data["mean"], range(len(data)))
    data, figure = plots.data("time_to_target", timed), plots.draw("time_to_target", timed)
    reached = data[np.isfinite(data["mean"])]
    assert_holds(points_of(figure), 100 * reached["loss_rate"], reached["mean"])
    for end in ("low", "high"):
        assert_holds(bars_of(figure), 100 * reached["loss_rate"], reached[end])
    break_even = data["break_even"].dropna().iloc[0]
    assert np.isclose(points_of(figure)[:, 0], 100 * break_even).any()
    marks = {line.get_ydata()[0]: line for ax in figure.axes for line in ax.get_lines()
             if line.get_marker() in style.MARKERS and len(line.get_ydata()) == 1}  # fmt: skip
    for reliable in (True, False):
        for mean in reached.loc[(reached["reliable"] == reliable) & (reached["loss_rate"] > 0), "mean"]:
            assert (marks[mean].get_markerfacecolor() == "white") == (not reliable)


def test_threshold_draws_runs_rates_and_the_threshold(searched):
    figure = plots.draw("threshold", searched)
    places = points_of(figure)
    assert_holds(places, [5, 5, 40], [0.4, 0.6, 30.0])
    assert_holds(places, [5, 5, 5], [0.5, 0.1, 0.9])
    assert 1.0 in places[:, 1] and 12.0 in places[:, 0]  # the tolerance, the threshold
    crosses = [line for ax in figure.axes for line in ax.get_lines() if line.get_marker() == "x"]
    assert [line.get_xdata()[0] for line in crosses] == [40.0, 40.0]  # around the tolerance, and everything
    colors = {
        line.get_xdata()[0]: line.get_color()
        for ax in figure.axes
        for line in ax.get_lines()
        if line.get_marker() == "." and len(line.get_xdata())
    }
    assert colors[5.0] != colors[40.0] == crosses[0].get_color()


def test_rows_are_drawn_times_their_scale_from_the_top():
    data = pd.DataFrame({"name": ["a", "b"], "mean": [1.0, 2.0], "low": [0.5, math.nan], "high": [1.25, math.nan],
                         "seeds": [2, 1]})  # fmt: skip
    data = data.assign(series=data["name"], loss_rate=0.1)
    panel = drawing.in_rows(data, "", "time", "s", data["name"], scale=10)
    figure = pictures.draw(drawing.figure(data, [panel]))
    (ax,) = figure.axes
    assert [c.lines[0].get_xydata().tolist() for c in ax.containers] == [[[10.0, 0.0]], [[20.0, 1.0]]]
    assert bars_of(figure)[:2, 0].tolist() == [5.0, 12.5]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b"] and ax.get_ylim() == (1.5, -0.5)


def test_variances_draw_deviations_with_their_intervals(crossed):
    data, figure = plots.data("variances", crossed), plots.draw("variances", crossed)
    places = points_of(figure)[:, 0]
    for column in ("deviation", "high"):
        for value in data[column]:
            assert np.isclose(places, value).any(), column
