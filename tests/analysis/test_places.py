# SPDX-License-Identifier: Apache-2.0
"""Where loss hurts: the place of each run, and the difference to lossless by place."""

import math

import pytest
import synthetic
from synthetic import NONE, bernoulli, gilbert_elliott

import droptest
from droptest import interactive, plots
from droptest.files import Run
from droptest.loss_places import places_and_rests
from droptest.plots import places
from droptest.series import SeriesNamer

T2 = 12.706204736  # quantile 0.975 of Student's t with 1 degree of freedom, from printed tables
COST = {"reduce half": 1.0, "gather half": 2.0, "both halves": 2.5}


def halves(reduce, gather, **more):
    return {"path": "direct", "fill": "zero", "reduce": {"loss": reduce}, "gather": {"loss": gather}, **more}


def place_of(network):
    lossy = [network[half]["loss"] != NONE for half in ("reduce", "gather")]
    return {(1, 0): "reduce half", (0, 1): "gather half", (1, 1): "both halves"}.get(tuple(lossy))


def cost_of(point, seed):
    network = point["/network"]
    rate = max(synthetic.probability(network[half]["loss"].get("loss_rate", 0)) for half in ("reduce", "gather"))
    extra = 0.5 if network["fill"] == "stale" else 0.0
    return 2.0 + 0.1 * seed + (rate * (COST[place_of(network)] + extra) * (1 + 0.1 * seed) if rate else 0.0)


def sweep(folder, losses, **changes):
    return droptest.load(synthetic.write_sweep(folder, {"/network": losses}, final_losses=cost_of, **changes))


@pytest.fixture(scope="module")
def by_half(tmp_path_factory):
    lossy = [pair for rate in (0.05, 0.2) for pair in
             ((bernoulli(rate), NONE), (NONE, bernoulli(rate)), (bernoulli(rate), bernoulli(rate)))]  # fmt: skip
    return sweep(tmp_path_factory.mktemp("halves"), [halves(*pair) for pair in ((NONE, NONE), *lossy)], seeds=2)


def test_the_difference_is_that_of_each_half_and_rate(by_half):
    data = plots.data("places", by_half)
    found = set(zip(data["place"], data["missing_rate"], strict=True))
    assert found == {(place, rate) for place in COST for rate in (0.05, 0.2)} and len(data) == 6
    assert data["panel"].unique().tolist() == [""]
    for row in data.itertuples():
        pairs = [row.missing_rate * COST[row.place] * (1 + 0.1 * seed) for seed in (1, 2)]
        mean, half = sum(pairs) / 2, T2 * abs(pairs[0] - pairs[1]) / 2
        assert [row.mean, row.low, row.high, row.seeds] == pytest.approx([mean, mean - half, mean + half, 2])


def test_the_costs_at_the_highest_rate_are_told_the_largest_first(by_half):
    half = T2 * 0.2 * 0.1 / 2
    told = [f"{place} {0.2 * COST[place] * 1.15:+.4f} ± {half * COST[place]:.4f}"
            for place in ("both halves", "gather half", "reduce half")]  # fmt: skip
    assert places.findings(plots.data("places", by_half)) == [
        "At a packet loss rate of 20 % the final validation loss minus that of the lossless twin, "
        f"in nats per token: {'; '.join(told)}."
    ]


def test_places_are_drawn_over_the_rate_with_their_bars(by_half):
    data, figure = plots.data("places", by_half), plots.draw("places", by_half)
    (ax,) = figure.axes
    for place, container in zip(COST, ax.containers, strict=True):
        mine = data[data["place"] == place]
        line, _, (bars,) = container.lines
        assert line.get_ydata().tolist() == pytest.approx(mine["mean"].tolist())
        assert line.get_xdata().tolist() == pytest.approx([5, 20], rel=0.1)
        ends = [y for segment in bars.get_segments() for _, y in segment]
        assert ends == pytest.approx(mine[["low", "high"]].to_numpy().ravel().tolist())
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(COST)
    assert ax.get_ylabel() == "difference to lossless twin\n(nats per token)"
    (panel,) = interactive.figure_of("places", data)["panels"]
    assert panel["y"]["title"] == "difference to lossless twin\n(nats per token)"
    assert (panel["x"]["title"], panel["x"]["labels"]) == ("packet loss rate (%)", ["5", "20"])
    for curve in panel["curves"]:
        assert curve["y"] == pytest.approx(data.loc[data["place"] == curve["name"], "mean"].tolist())
        assert f"{curve['name']}\npacket loss rate 5 %" in curve["text"][0] and "nats per token" in curve["text"][0]


def test_a_single_rate_has_a_row_for_each_place(tmp_path):
    losses = [(NONE, NONE), (bernoulli(0.1), NONE), (NONE, bernoulli(0.1))]
    records = sweep(tmp_path, [halves(*pair) for pair in losses], seeds=2)
    figure = plots.draw("places", records)
    (ax,) = figure.axes
    assert [label.get_text() for label in ax.get_yticklabels()] == ["reduce half", "gather half"]
    means = [container.lines[0].get_xdata()[0] for container in ax.containers]
    assert means == pytest.approx([0.1 * 1.15, 0.2 * 1.15])
    assert ax.get_xlabel() == "difference to lossless twin (nats per token) at 10 % loss"
    (panel,) = interactive.figure_of("places", plots.data("places", records))["panels"]
    rows = {panel["y"]["labels"][c["y"][0]]: c["x"][0] for c in panel["curves"]}
    assert rows == pytest.approx({"reduce half": 0.115, "gather half": 0.23})
    assert panel["x"]["title"] == "difference to lossless twin (nats per token) at 10 % loss"


def test_other_settings_have_panels_of_their_own(tmp_path):
    lossy = [(bernoulli(0.1), NONE), (NONE, bernoulli(0.1))]
    losses = [halves(NONE, NONE), *(halves(*pair) | {"fill": fill} for fill in ("zero", "stale") for pair in lossy)]
    data = plots.data("places", sweep(tmp_path, losses, seeds=1))
    found = {(row.panel, row.place): row.mean for row in data.itertuples()}
    assert found == pytest.approx({
        (f"fill {fill}", place): 0.11 * (COST[place] + extra)
        for fill, extra in (("zero", 0.0), ("stale", 0.5)) for place in ("reduce half", "gather half")
    })  # fmt: skip


def test_settings_with_a_single_place_compare_nothing(tmp_path):
    losses = [halves(NONE, NONE), halves(bernoulli(0.1), NONE), halves(NONE, bernoulli(0.1))]
    losses.append(halves(bernoulli(0.1), NONE) | {"fill": "stale"})
    data = plots.data("places", sweep(tmp_path, losses, seeds=1))
    assert data["panel"].tolist() == ["fill zero"] * 2


def test_a_process_is_no_place_and_runs_of_one_place_have_no_figure(tmp_path):
    losses = [NONE, bernoulli(0.1), gilbert_elliott(0.1, 8)]
    records = droptest.load(synthetic.write_sweep(tmp_path, {"/network/loss": losses}, seeds=1))
    lossy = records.runs[~records.runs["lossless"]]
    assert lossy[["place", "rest"]].to_numpy().tolist() == [["", "Bernoulli"], ["", "Gilbert-Elliott, burst 8"]]
    with pytest.raises(plots.NotMeant, match="the same place"):
        plots.data("places", records)


def test_rates_that_differ_between_the_halves_are_told_by_their_series(tmp_path):
    pairs = [(NONE, NONE), (bernoulli(0.2), NONE), (bernoulli(0.2), bernoulli(0.1)), (bernoulli(0.2), bernoulli(0.05))]
    data = plots.data("places", sweep(tmp_path, [halves(*pair) for pair in pairs], seeds=1))
    assert data["place"].tolist() == data["series"].tolist() and data["place"].nunique() == 3


def test_labels_stand_for_places_that_they_alone_name(tmp_path):
    pairs = {"none": (NONE, NONE), "sums": (bernoulli(0.1), NONE), "results": (NONE, bernoulli(0.1))}
    words = {synthetic.json.dumps(halves(*pair)): text for text, pair in pairs.items()}
    label = lambda point: [{"label": words[synthetic.json.dumps(point["/network"])],  # noqa: E731
                            "pointers": ["/network/reduce/loss", "/network/gather/loss"]}]  # fmt: skip
    records = sweep(tmp_path, [halves(*pair) for pair in pairs.values()], seeds=1, labels=label)
    assert plots.data("places", records)["place"].tolist() == ["sums", "results"]
    # Two rates of one place have a label each: neither names the place.
    rates = {"sums, 5 %": 0.05, "sums, 10 %": 0.1}
    words |= {synthetic.json.dumps(halves(bernoulli(rate), NONE)): text for text, rate in rates.items()}
    losses = [
        halves(NONE, NONE),
        *(halves(bernoulli(rate), NONE) for rate in rates.values()),
        halves(*pairs["results"]),
    ]
    records = sweep(tmp_path / "rates", losses, seeds=1, labels=label)
    assert plots.data("places", records)["place"].tolist() == ["reduce half", "reduce half", "gather half"]


def runs_of(*classes):
    """Runs of which each has these resolved classes."""
    return [Run(str(i), None, spec={"network": {"classes": found}, "parallel": {"tensor": 4}}, status="completed")
            for i, found in enumerate(classes)]  # fmt: skip


def found_places(*classes):
    runs = runs_of(*classes)
    return [place for place, _ in places_and_rests(runs, SeriesNamer(runs)).values()]


LOST, KEPT = {"loss": bernoulli(0.2)}, {"loss": NONE}


def test_classes_layers_and_links_are_places_too():
    everywhere = {"reduce": LOST, "gather": LOST}
    forward, backward = {"tp_forward": everywhere}, {"tp_backward": everywhere}
    assert found_places(forward, backward, forward | backward) == [
        "tensor parallel, forward", "tensor parallel, backward", "all classes",
    ]  # fmt: skip
    protected = lambda protect: {"tp_forward": everywhere | {"recovery": {"protect": protect}}}  # noqa: E731
    layers, steps = {"layers": [1, 2], "names": ["wte"]}, {"steps": {"from": 9}}
    assert found_places(forward, protected(layers), protected(steps)) == [
        "nothing protected", "protected: layers 1, 2; names wte", "protected: steps from 9",
    ]  # fmt: skip
    bad = {"sources": [3], "loss": bernoulli(0.2)}
    links = lambda *found: {"tp_forward": {h: KEPT | {"links": list(found)} for h in ("reduce", "gather")}}  # noqa: E731
    assert found_places(links(bad), links({"loss": bernoulli(0.05)}), links(bad | {"destinations": [1]})) == [
        "from 3", "all links", "from 3 to 1",
    ]  # fmt: skip


def test_places_that_cross_classes_and_halves_name_both():
    mixed = {"tp_forward": {"reduce": LOST, "gather": KEPT}, "tp_backward": {"reduce": KEPT, "gather": LOST}}
    whole = {"tp_forward": {"reduce": LOST, "gather": KEPT}}
    assert found_places(mixed, whole) == [
        "tensor parallel, backward, gather half + tensor parallel, forward, reduce half",
        "tensor parallel, forward, reduce half",
    ]


def test_runs_that_diverged_are_counted(tmp_path):
    pairs = [(NONE, NONE), (bernoulli(0.2), NONE), (NONE, bernoulli(0.2))]
    outcome = lambda point, seed: "diverged" if place_of(point["/network"]) == "gather half" else "completed"  # noqa: E731
    final = lambda point, seed: cost_of(point, seed) if outcome(point, seed) == "completed" else None  # noqa: E731
    folder = synthetic.write_sweep(tmp_path, {"/network": [halves(*pair) for pair in pairs]}, seeds=2, outcomes=outcome,
                                   final_losses=final)  # fmt: skip
    records = droptest.load(folder)
    data = plots.data("places", records).set_index("place")
    assert data["diverged"].to_dict() == {"reduce half": 0, "gather half": 2}
    assert math.isnan(data.loc["gather half", "mean"])
    crosses = [line for line in plots.draw("places", records).axes[0].lines if line.get_marker() == "x"]
    assert [line.get_ydata()[0] for line in crosses] == [1]
