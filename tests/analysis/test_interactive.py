# SPDX-License-Identifier: Apache-2.0
"""The figures of the page: their numbers are those of the figure's frame, their words have units."""

import json
import math
import re

import numpy as np
import pytest
import synthetic
from synthetic import NONE, bernoulli

import droptest
from droptest import drawing, interactive, plots, words

LR = "/training/learning_rate"
TIME = {"link": {"latency_microseconds": 5.0, "bandwidth_gbit_per_second": 100.0}, "compute_milliseconds": 1.0}


def drawn(name, records):
    return interactive.figure_of(name, plots.data(name, records))


def at(frame, **keys):
    for key, value in keys.items():
        frame = frame[frame[key] == value]
    return frame


def place_on(rates):
    """The place of a loss rate on an axis of these."""
    scale = drawing.Stretched(*drawing.rate_axis(rates)["stretch"])
    return lambda rate: scale.place(100 * rate)


def by_name(panel, kind=None):
    """The curves of a panel by name; of one kind."""
    return {c["name"]: c for c in panel["curves"] if kind is None or c["kind"] == kind}


@pytest.fixture(scope="module")
def chosen(tmp_path_factory):
    """Learning rates 0.001 and 0.002: 0.002 wins without loss and at 5 %, 0.001 at 20 %, by other tokens."""
    losses = {0.001: {0: 2.4, 0.05: 2.45, 0.2: 2.5}, 0.002: {0: 2.3, 0.05: 2.4, 0.2: 2.9}}
    rate = lambda point: point["/network/loss"].get("loss_rate", 0)  # noqa: E731
    final = lambda point, seed: losses[point[LR]][rate(point)] + 0.02 * seed  # noqa: E731
    outcome = lambda point, seed: "diverged" if (point[LR], rate(point), seed) == (0.002, 0.2, 2) else "completed"  # noqa: E731
    folder = synthetic.write_sweep(
        tmp_path_factory.mktemp("chosen"), {LR: [0.001, 0.002], "/network/loss": [NONE, *map(bernoulli, (0.05, 0.2))]},
        seeds=2, best_over=[LR], final_losses=lambda *at: final(*at) if outcome(*at) == "completed" else None,
        outcomes=outcome, selection_losses=lambda *at: final(*at) + 0.1, data={"text": "corpus/kjv.txt"},
    )  # fmt: skip
    return droptest.load(folder)


def test_the_map_has_every_value_its_unit_and_the_winners_frame(chosen):
    figure = drawn("rate_map", chosen)
    (panel,) = figure["panels"]
    heat = panel["heat"]
    assert panel["x"]["labels"] == ["0 %", "5 %", "20 %"]
    assert panel["y"]["labels"] == ["learning rate 0.001", "learning rate 0.002"] and panel["y"]["rows"]
    assert np.array(heat["z"]) == pytest.approx(np.array([[2.43, 2.48, 2.53], [2.33, 2.43, 2.92]]))
    assert sorted(map(tuple, heat["frames"])) == [(0, 1), (1, 1), (2, 0)]  # column, row: the value that won
    assert [heat["low"], heat["high"]] == pytest.approx([2.33, 2.92])
    assert figure["bar"] == {"title": "validation loss\n(nats per byte)", "low": heat["low"], "high": heat["high"]}
    assert heat["cells"] == [["2.430", "2.480", "2.530"], ["2.330", "2.430", "2.920 ×"]]
    at_20 = heat["text"][1][2]
    assert "packet loss rate 20 %\nlearning rate 0.002\nfinal validation loss: 2.9200 nats per byte\n" in at_20
    assert at_20.endswith("1 of 2 runs diverged") and "best" not in at_20
    assert heat["text"][0][2].endswith("on the selection tokens: 2.6300 nats per byte\nthe best value here")


def test_the_map_on_paper_names_the_unit_of_its_colours(chosen):
    figure = plots.draw("rate_map", chosen)
    assert figure.axes[-1].get_ylabel() == "validation loss\n(nats per byte)"
    picture = figure.axes[0].images[0]
    assert (picture.norm.vmin, picture.norm.vmax) == pytest.approx((2.33, 2.92))


def test_the_winner_stands_at_its_own_point(chosen):
    data = plots.data("final_loss", chosen)
    assert dict(zip(data["missing_rate"], data["best_value"], strict=True)) == {
        0.0: "learning rate 0.002", 0.05: "learning rate 0.002", 0.2: "learning rate 0.001",
    }  # fmt: skip
    left, right = drawn("final_loss", chosen)["panels"]
    for panel, rates in ((left, (0, 5, 20)), (right, (5, 20))):
        texts = panel["curves"][0]["text"]
        for rate, text in zip(rates, texts, strict=True):
            assert f"packet loss rate {rate} %" in text or not rate
            assert f"best: learning rate {'0.001' if rate == 20 else '0.002'}" in text
    written = {note.xy[0]: note.get_text() for note in plots.draw("final_loss", chosen).axes[0].texts}
    assert written == {0.0: "0.002", 5.0: "0.002", 20.0: "0.001"}


def test_values_of_two_pointers_are_written_whole():
    import pandas as pd

    from droptest.plots.final_loss import winners

    values = ["learning rate 0.001, warmup steps 9", "learning rate 0.002, warmup steps 9"]
    assert winners(pd.DataFrame({"best_value": values})) == ("value", values)
    values = ["learning rate 0.001, warmup steps 9", "learning rate 0.001, warmup steps 5"]
    assert winners(pd.DataFrame({"best_value": values})) == ("value", values)
    assert winners(pd.DataFrame({"best_value": ["", ""]})) == ("value", ["", ""])
    assert winners(pd.DataFrame({"best_value": ["learning rate 0.1", "learning rate 2"]}))[1] == ["0.1", "2"]


def test_points_say_their_numbers_with_units(chosen):
    left, right = drawn("final_loss", chosen)["panels"]
    (curve,) = right["curves"]
    assert (
        curve["y"] == pytest.approx([0.1, 0.2])
        and right["y"]["title"] == "difference to lossless twin\n(nats per byte)"
    )
    assert "difference to lossless twin: +0.2000 nats per byte\n95 % interval +0.2000 to +0.2000" in curve["text"][1]
    assert left["curves"][0]["y"] == pytest.approx([2.33, 2.43, 2.53])
    half = 12.706204736 * 0.01
    assert left["curves"][0]["low"] == pytest.approx([y - half for y in (2.33, 2.43, 2.53)])
    assert left["curves"][0]["high"] == pytest.approx([y + half for y in (2.33, 2.43, 2.53)])
    place = place_on([0, 0.05, 0.2])
    assert curve["x"] == pytest.approx([place_on([0.05, 0.2])(r) for r in (0.05, 0.2)])
    assert left["curves"][0]["x"] == pytest.approx([place(r) for r in (0, 0.05, 0.2)]) and place(0) == 0
    assert place(0.2) - place(0.05) == pytest.approx(math.log10(4))


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    losses = [NONE, bernoulli(0.05), bernoulli(0.4), bernoulli(0.1)]
    folder = synthetic.write_sweep(tmp_path_factory.mktemp("searched"), {"/network/loss": losses}, seeds=2)
    runs = json.loads((folder / "sweep.json").read_text())["runs"]
    of = [[(run["run_id"], run["seed"]) for run in runs[2 * i : 2 * i + 2]] for i in range(4)]
    open_ = [(*of[3][0], 1.0), (*of[3][1], 2.2)]
    low, high = [(*of[1][0], 0.4), (*of[1][1], 0.6)], [(*of[2][0], 30.0), (*of[2][1], None)]
    judged = {0.05: ("passes", 0.5, 0.1, 0.9, low), 0.1: ("undecided", 1.6, 0.7, 2.5, open_),
              0.4: ("fails", None, None, None, high)}  # fmt: skip
    synthetic.write_search(folder, judged, of[0], threshold=0.12, interval=(0.05, None), tolerance=2.0)
    return droptest.load(folder)


def test_the_search_is_told_in_sentences(searched):
    assert searched.search.in_words() == (
        "Search for the highest /network/loss/loss_rate at which the final validation loss is at most 2 % above that "
        "of the lossless twin: 5 % surely passes, no tested rate surely fails, and the estimate is 12 %. A search "
        "tests often, so its intervals are wider than those of the other verdicts."
    )


def test_the_search_has_its_threshold_band_and_verdicts(searched):
    around, whole = drawn("threshold", searched)["panels"]
    place = place_on([0.05, 0.1, 0.4])
    for panel in (around, whole):
        (open_,) = [c for c in panel["curves"] if c["name"] == "undecided" and c["kind"] == "bars"]
        assert open_["y"] == [1.6] and open_["text"][0].endswith("+0.7000 to +2.5000 %\n2 seeds")
        (passes,) = [c for c in panel["curves"] if c["name"] == "passes" and c["kind"] == "bars"]
        assert (passes["x"], passes["y"]) == ([pytest.approx(place(0.05))], [0.5]) and (
            passes["low"],
            passes["high"],
        ) == (
            [0.1],
            [0.9],
        )
        assert passes["text"] == [
            "passes\npacket loss rate 5 %\nabove lossless twin: +0.5000 %\n95 % interval +0.1000 to +0.9000 %\n2 seeds"
        ]
        runs = {c["name"]: c["y"] for c in panel["curves"] if c["kind"] == "points" and "symbol" not in c}
        assert runs == {"passes": [0.4, 0.6], "undecided": [1.0, 2.2], "fails": [30.0]}
        (cross,) = [c for c in panel["curves"] if c.get("symbol") == "x"]
        assert cross["name"] == "fails" and cross["x"] == pytest.approx([place(0.4)])
        assert {"y": 2, "dash": "dash", "name": "tolerance 2 %"} in panel["lines"]
        (estimate,) = [line for line in panel["lines"] if "x" in line]
        assert estimate["x"] == pytest.approx(place(0.12)) and estimate["name"] == "estimate 12 %"
        low, high = panel["bands"][0]["x"]
        assert low == pytest.approx(place(0.05)) and high > place(0.4)  # no rate surely fails: to the end of the axis
    assert around["y"]["range"][1] < 30 < whole["y"]["range"][1]


@pytest.fixture(scope="module")
def crossed(tmp_path_factory):
    signs = {1: -1, 2: 1}

    def final(point, seed):
        training, network = signs[seed["weights"]], signs[seed["network"]]
        lost = point["/network/loss"] != NONE
        return 2.0 + lost * (0.5 + 0.3 * training + 0.01 * network + 0.02 * training * network)

    folder = synthetic.write_sweep(tmp_path_factory.mktemp("crossed"), {"/network/loss": [NONE, bernoulli(0.1)]},
                                   repeat={"weights": 2, "network": 2}, final_losses=final)  # fmt: skip
    return droptest.load(folder)


def test_deviations_are_bars_of_their_part_and_a_zero_stands_at_the_edge(crossed):
    data = plots.data("variances", crossed).set_index("part")
    (panel,) = drawn("variances", crossed)["panels"]
    left = plots.variances.view(data)[0]
    assert 10 ** panel["x"]["range"][0] < left
    known = data[["deviation", "low", "high"]].to_numpy()
    assert left < known[known > 0].min() and 10 ** panel["x"]["range"][1] > known.max()
    curves = by_name(panel)
    assert set(curves) == set(data.index) and panel["x"]["title"] == "standard deviation (nats per token)"
    for part, row in data.iterrows():
        shown = [curves[part][key][0] for key in ("x", "low", "high")]
        assert shown == pytest.approx([max(row[key], left) for key in ("deviation", "low", "high")])
        assert f"{part}: standard deviation {row['deviation']:.4g} nats per token" in curves[part]["text"][0]
        assert curves[part]["along"] == "x"
    assert data.loc["networks", "deviation"] == 0 and curves["networks"]["x"] == pytest.approx([left])
    assert curves["trainings"]["y"] < curves["networks"]["y"] < curves["rest"]["y"]
    assert panel["y"]["labels"] == ["Bernoulli, 10\N{NO-BREAK SPACE}%"]


@pytest.fixture(scope="module")
def timed(tmp_path_factory):
    cross = {
        "/network/loss": [NONE, *map(bernoulli, (0.02, 0.05, 0.1))],
        "/time/retransmission": [{"protocol": "none"}, {"protocol": "selective_repeat"}],
    }
    return droptest.load(synthetic.write_sweep(
        tmp_path_factory.mktemp("timed"), cross, name="timed", time=TIME, training={"steps": 300},
        validation={"every_steps": 10},
    ))  # fmt: skip


def test_time_to_the_target_has_its_break_even_as_line_and_band(timed):
    data = plots.data("time_to_target", timed)
    (panel,) = drawn("time_to_target", timed)["panels"]
    place = place_on(data["loss_rate"])
    names = list(dict.fromkeys(data["series"]))
    assert list(by_name(panel, "marks")) == words.shortened(names, 40, "Bernoulli, ") != names
    for series, curve in zip(names, by_name(panel, "marks").values(), strict=True):
        mine = at(data, series=series)
        assert curve["y"] == pytest.approx(mine["mean"].tolist()) and curve["hollow"] == (not mine["reliable"].all())
        assert curve["low"] == pytest.approx(mine["low"].tolist(), rel=1e-6)
        assert re.search(r"virtual time to a validation loss of 1\.26: \d+\.\d{4} s\n", curve["text"][0])
    tolerant = at(data, reliable=False).iloc[0]
    line = by_name(panel, "line")[tolerant["break_even_words"]]
    assert line["x"][0] == pytest.approx(place(tolerant["break_even"])) and panel["lines"] == []
    (band,) = panel["bands"]
    assert band["x"] == pytest.approx([place(tolerant["break_even_low"]), place(tolerant["break_even_high"])])
    shown = by_name(panel, "line")[tolerant["break_even_words"]]
    assert len(set(shown["x"])) == 1 and tolerant["break_even_words"] in shown["text"][0]
    assert panel["y"]["title"].endswith("\n(s)") and panel["y"]["range"][0] == 0


def test_a_seed_that_never_gets_there_is_a_triangle_without_a_mean(timed):
    data = plots.data("time_to_target", timed)
    lost = (data["loss_rate"] == 0.1) & ~data["reliable"].astype(bool)
    data.loc[lost, ["mean", "low", "high"]] = [math.inf, math.nan, math.nan]
    (panel,) = interactive.figure_of("time_to_target", data)["panels"]
    (triangle,) = [c for c in panel["curves"] if c.get("symbol") == "triangle-up"]
    place = place_on(data["loss_rate"])
    assert triangle["x"] == pytest.approx([place(0.1)]) and "never reached the target" in triangle["text"][0]
    assert len(by_name(panel, "marks")[triangle["name"]]["x"]) == 3


def test_the_time_of_a_step_is_in_milliseconds(timed):
    data = plots.data("step_time", timed)
    (panel,) = drawn("step_time", timed)["panels"]
    found = {data["name"][y]: x for c in panel["curves"] for x, y in zip(c["x"], c["y"], strict=True)}
    assert found == pytest.approx(dict(zip(data["name"], 1000 * data["mean"], strict=True)))
    assert panel["y"]["labels"] == [
        name.replace(" %", "\N{NO-BREAK SPACE}%") for name in words.shortened(data["name"], 40, "Bernoulli, ")
    ]
    # synthetic: a step takes 1 + 5 rate seconds on a reliable network.
    assert found["Bernoulli, retransmission selective repeat, 10 %"] == pytest.approx(1500)
    assert panel["x"]["title"] == "virtual time of a step\n(ms)" and panel["x"]["range"][0] <= 0
    assert any("virtual time of a step: 1500.0000 ms" in text for c in panel["curves"] for text in c["text"])


def test_a_single_rate_has_a_row_for_each_series(tmp_path):
    cross = {"/network/fill": ["zero", "stale"], "/network/loss": [NONE, bernoulli(0.05)]}

    def final(point, seed):
        lost = point["/network/loss"] != NONE
        return 2 + 0.01 * seed + lost * (0.4 if point["/network/fill"] == "stale" else 0.2)

    records = droptest.load(synthetic.write_sweep(tmp_path, cross, seeds=2, final_losses=final))
    for name, panels in (("tolerance", 1), ("final_loss", 2)):
        figure = drawn(name, records)
        assert len(figure["panels"]) == panels and all(panel["y"]["rows"] for panel in figure["panels"])
        assert not any(panel["keyed"] for panel in figure["panels"])  # the rows have the names
    (panel,) = drawn("tolerance", records)["panels"]
    bars = {c["name"]: (c["x"][0], c["y"][0]) for c in panel["curves"] if c["kind"] == "bars"}
    expected = [np.mean([100 * d / (2 + 0.01 * s) for s in (1, 2)]) for d in (0.2, 0.4)]
    assert [x for x, _ in bars.values()] == pytest.approx(expected)
    assert [panel["y"]["labels"][y] for _, y in bars.values()] == list(bars)
    pairs = {c["name"]: set(c["y"]) for c in panel["curves"] if c["kind"] == "points"}
    assert pairs == {name: {y + 0.22} for name, (_, y) in bars.items()}  # below the mean of their own row
    assert {"x": 1, "dash": "dash", "name": "tolerance 1 %"} in panel["lines"]
    left, right = drawn("final_loss", records)["panels"]
    assert left["y"]["labels"][0] == "lossless" and right["y"] == left["y"]  # compared row by row
    assert [c["x"] for c in right["curves"]] == [[], [pytest.approx(0.2)], [pytest.approx(0.4)]]
    assert [c["x"][0] for c in left["curves"]] == pytest.approx([2.015, 2.215, 2.415])


def test_ticks_that_would_touch_are_left_out():
    axis = drawing.rate_axis([0.1, 0.101, 0.102, 0.4])
    assert axis["labels"] == ["10", "40"] and axis["ticks"] == [10, 40]
    axis = drawing.rate_axis([0, 0.01, 0.05])
    assert axis["labels"] == ["0", "1", "5"] and axis["range"][0] < 0  # zero is a value


def test_links_have_the_rate_in_words(tmp_path):
    import pandas as pd

    records = droptest.load(synthetic.write_sweep(tmp_path, {"/network/loss": [NONE, bernoulli(0.2)]}, seeds=1))
    run = records.runs[~records.runs["lossless"]]["run_id"].iloc[0]
    records.links = pd.DataFrame([
        {"run_id": run, "class": "tp_forward", "half": "reduce", "source": s, "destination": d, "packets": 100.0,
         "lost": 10.0 * s + d, "z": 1.0}
        for s in range(3) for d in range(3) if s != d
    ])  # fmt: skip
    figure = drawn("links", records)
    (panel,) = figure["panels"]
    assert panel["heat"]["text"][2][1] == "from rank 2 to rank 1: 21.0000 % of the packets lost"
    assert panel["heat"]["z"][2][1] == 21 and panel["heat"]["z"][1][1] is None
    assert (panel["heat"]["low"], panel["heat"]["high"]) == (0, 21)
    assert figure["bar"] == {"title": "packets lost (%)", "low": 0, "high": 21}
    assert (panel["x"]["title"], panel["y"]["title"]) == ("destination (rank)", "source (rank)")
