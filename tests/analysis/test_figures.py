# SPDX-License-Identifier: Apache-2.0
import hashlib
import io
import json
import math
import os
import subprocess
import sys
import types

import numpy as np
import pandas as pd
import pytest
import synthetic
from matplotlib import image
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from synthetic import NONE, PACKAGES, bernoulli, gilbert_elliott

import droptest
from droptest import drawing, interactive, pictures, plots, style, summary, words
from droptest.looks import INK
from droptest.plots import burst_lengths, panels

LOSSES = [NONE, bernoulli(0.05), bernoulli(0.4), gilbert_elliott(0.05, 8), gilbert_elliott(0.4, 8)]


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    folder = synthetic.write_sweep(tmp_path_factory.mktemp("figures"), {"/network/loss": LOSSES}, seeds=2)
    runs = json.loads((folder / "sweep.json").read_text())["runs"]
    of = {i: [(run["run_id"], run["seed"]) for run in runs[2 * i : 2 * i + 2]] for i in range(len(LOSSES))}
    low, high = ([(*run, value) for run, value in zip(of[i], values, strict=True)]
                 for i, values in ((1, (0.4, 0.6)), (2, (30.0, 34.0))))  # fmt: skip
    judged = {0.05: ("passes", 0.5, 0.1, 0.9, low), 0.4: ("fails", 32.0, 10.0, 54.0, high)}
    synthetic.write_search(folder, judged, of[0])
    return folder


@pytest.fixture(scope="module")
def figures(experiment, tmp_path_factory):
    records = droptest.load(experiment)
    timed = {"loss_over_time", "time_to_target", "step_time"}  # need a virtual clock: test_virtual_time.py
    crossed = synthetic.write_sweep(
        tmp_path_factory.mktemp("crossed"), {"/network/loss": LOSSES}, repeat={"weights": 3, "network": 2}
    )
    absent = {*timed, "accuracy", "confusion", "variances", "links", "rate_map", "places", "recoveries", "time_shares"}
    drawn = {name: plots.draw(name, records) for name in plots.FIGURES if name not in absent}
    halves = [
        {half: {"loss": loss} for half, loss in zip(("reduce", "gather"), pair, strict=True)}
        for pair in ((NONE, NONE), *((a, b) for a in LOSSES[:3] for b in LOSSES[:3] if (a == NONE) != (b == NONE)))
    ]
    of_halves = droptest.load(synthetic.write_sweep(tmp_path_factory.mktemp("halves"), {"/network": halves}, seeds=2))
    rates = {"/training/learning_rate": [0.001, 0.002], "/network/loss": LOSSES}
    chosen = droptest.load(synthetic.write_sweep(
        tmp_path_factory.mktemp("chosen"), rates, seeds=2, best_over=["/training/learning_rate"],
        selection_losses=lambda point, seed: point["/training/learning_rate"],
    ))  # fmt: skip
    out = tmp_path_factory.mktemp("wall")
    run = out / synthetic.write_run(out, synthetic.BASE)
    wall = {
        "phases": {"products": 5, "evaluation": 2},
        "communication": {"tp_forward": 3},
        "waiting": {"tp_forward": 1},
    }
    synthetic.add_wall_seconds(run, lambda _: [wall] * 4)
    return drawn | {
        "time_shares": plots.draw("time_shares", droptest.load(run)),
        "variances": plots.draw("variances", droptest.load(crossed)), "places": plots.draw("places", of_halves),
        "rate_map": plots.draw("rate_map", chosen), "winners": plots.draw("final_loss", chosen),
    }  # fmt: skip


def labels(figure):
    return " | ".join(f"{ax.get_xlabel()} | {ax.get_ylabel()}" for ax in figure.axes).replace("\n", " ")


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("final_loss", ["final validation loss (nats per token)", "packet loss rate (%)",
                        "difference to lossless twin (nats per token)"]),
        ("places", ["difference to lossless twin (nats per token)", "packet loss rate (%)"]),
        ("rate_map", ["validation loss (nats per token)", "packet loss rate"]),
        ("training_curves", ["validation loss (nats per token)", "training loss (nats per token)", "step"]),
        ("variances", ["standard deviation (nats per token)"]),
        ("time_shares", ["share of the wall time (%)"]),
        ("threshold", ["packet loss rate (%)", "above lossless twin (% of its validation loss)"]),
        ("layers", ["NMSE (fraction)", "bias (in RMS of exact results)", "transformer block"]),
        ("divergence", ["RMS difference between replicas", "step"]),
        ("burst_lengths", ["burst length (packets)", "number of bursts"]),
        ("loss_rate_check", ["configured packet loss rate (%)", "realised packet loss rate (%)",
                             "(standard deviations)"]),
    ],
)  # fmt: skip
def test_axes_are_labelled_with_units(figures, name, wanted):
    found = labels(figures[name])
    for label in wanted:
        assert label in found


def test_pictures_are_not_empty_and_nothing_is_cut_off(figures, tmp_path):
    for name, figure in figures.items():
        png, svg = style.save(figure, tmp_path, name)
        pixels = image.imread(png)[..., :3]
        ink = (pixels < 0.95).any(axis=2)
        assert 0.01 < ink.mean() < 0.6, name
        border = np.concatenate([ink[0], ink[-1], ink[:, 0], ink[:, -1]])
        assert not border.any(), f"{name}: something touches the edge"
        width = pixels.shape[1] / style.DPI
        assert any(abs(width - column) < 0.02 for column in (style.SINGLE_COLUMN, style.DOUBLE_COLUMN)), name
        assert b"<dc:date>" not in svg.read_bytes()


def test_a_notebook_shows_the_picture_at_half_of_its_pixels(figures):
    picture, size = figures["tolerance"]._repr_png_()
    height, width = image.imread(io.BytesIO(picture)).shape[:2]
    assert abs(2 * size["width"] - width) <= 2 and abs(2 * size["height"] - height) <= 2


def test_pictures_are_the_same_bytes_in_another_process(experiment, tmp_path):
    program = (
        "import sys; from pathlib import Path; import droptest; from droptest import plots, style\n"
        "records = droptest.load(sys.argv[1])\n"
        "for name in ('final_loss', 'divergence'): style.save(plots.draw(name, records), Path(sys.argv[2]), name)\n"
    )
    digests = []
    for index, locale in enumerate(("C.UTF-8", "C")):
        out = tmp_path / str(index)
        environment = os.environ | {"PYTHONPATH": str(PACKAGES), "PYTHONHASHSEED": str(index + 1), "LC_ALL": locale,
                                    "TZ": ("UTC", "Asia/Tokyo")[index]}  # fmt: skip
        subprocess.run([sys.executable, "-c", program, experiment, out], check=True, env=environment)
        digests.append({p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(out.iterdir())})
    assert len(digests[0]) == 4
    assert digests[0] == digests[1]


def test_the_users_matplotlib_settings_change_nothing(experiment):
    import matplotlib

    def drawn():
        out = io.BytesIO()
        figure = plots.draw("loss_rate_check", droptest.load(experiment))
        with style.applied():
            figure.savefig(out, format="svg", metadata={"Date": None})
        return out.getvalue()

    plain = drawn()
    with matplotlib.rc_context({"font.size": 30, "lines.linewidth": 9, "axes.facecolor": "red"}):
        assert drawn() == plain
        assert matplotlib.rcParams["font.size"] == 30  # and are left as they were


def test_colours_of_loss_rates_differ_in_grey():
    for count in range(2, 8):
        colors = [style.colour(INK), *(style.colour(place / (count - 1)) for place in range(count))]
        grey = [np.dot(to_rgb(color), (0.299, 0.587, 0.114)) for color in colors]
        assert (np.diff(grey) > 0.05).all()
        assert max(grey) < 0.75  # seen on white
    assert len(set(style.MARKERS)) == 12 and len({str(dashes) for dashes in style.DASHES}) == 7


def test_curves_show_the_means_of_the_table(mixed):
    records = droptest.load(mixed)
    figure = plots.draw("final_loss", records)
    left, right = figure.axes[:2]
    line = left.containers[0].lines[0]
    means = [group.final.mean for group in droptest.groups(records) if group.final.n]
    assert line.get_ydata().tolist() == pytest.approx(means)
    assert line.get_xdata()[1:] == pytest.approx([1, 5, 20], rel=0.1)
    assert right.containers[0].lines[0].get_ydata()[0] == pytest.approx(0.0115)
    assert {text.get_text() for text in left.texts} == {"1/3", "3/3"}  # diverged


def test_a_curve_ends_where_its_first_run_diverged(mixed):
    records = droptest.load(mixed)
    group = next(g for g in droptest.groups(records) if g.loss_rate == 0.2)
    table = panels.common_steps(records.metrics, group.run_ids, "train_loss")
    assert len(table.columns) == 3
    assert table.index[-1] == 90  # the loss is not finite at step 100


def test_one_rate_compares_the_series_themselves(tmp_path):
    cross = {"/network/fill": ["zero", "stale"], "/network/loss": [NONE, bernoulli(0.05)]}
    figure = plots.draw("final_loss", droptest.load(synthetic.write_sweep(tmp_path, cross, seeds=2)))
    names = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert names[0] == "lossless"
    assert "fill stale" in names[2]


def test_expected_bursts_cover_lengths_that_a_run_did_not_list(experiment):
    records = droptest.load(experiment)
    group = next(g for g in droptest.groups(records) if g.series.startswith("Gilbert") and g.loss_rate == 0.05)
    bursts = records.bursts[records.bursts["half"] != "both"]
    table = burst_lengths.counts(records, bursts, group.run_ids)
    chain = synthetic.chain_of(gilbert_elliott(0.05, 8))
    packets = 2 * 2 * 2 * 200_000  # seeds, classes, halves
    theory = packets * chain.bursts_per_packet(table.index.to_numpy())
    assert table["expected"].to_numpy() == pytest.approx(theory, rel=1e-2)
    assert table["count"].sum() == bursts[bursts["run_id"].isin(group.run_ids)]["count"].sum()


def test_figures_say_why_there_is_nothing_to_draw(tmp_path):
    missing = synthetic.write_sweep(tmp_path, {"/network/loss": LOSSES}, seeds=1, outcomes=lambda *_: "missing")
    for name in plots.FIGURES:
        with pytest.raises(plots.NothingToDraw):
            plots.draw(name, droptest.load(missing))
    clean = droptest.load(synthetic.write_sweep(tmp_path, {"/network/loss": [NONE]}, seeds=1, name="clean"))
    with pytest.raises(plots.NothingToDraw, match="replicas stayed equal"):
        plots.draw("divergence", clean)
    with pytest.raises(plots.NothingToDraw, match="no packet was lost"):
        plots.draw("burst_lengths", clean)


def test_an_unknown_figure_lists_the_known_ones(experiment):
    with pytest.raises(KeyError, match="tolerance, threshold, final_loss, rate_map, variances"):
        plots.draw("pie", droptest.load(experiment))


def test_dollar_signs_in_names_are_no_mathematics(tmp_path):
    base = json.loads(json.dumps(synthetic.BASE))
    cross = {"/data/text": ["$x^{", "_b$"], "/network/loss": [NONE, bernoulli(0.1), bernoulli(0.2)]}
    records = droptest.load(synthetic.write_sweep(tmp_path, cross, seeds=1, base=base))
    figure = plots.draw("loss_rate_check", records)
    style.save(figure, tmp_path / "out", "check")
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert r"text \$x^{, Bernoulli" in legend


def test_tolerance_shows_each_pair_and_judges_by_the_interval(tmp_path):
    # Differences of 0.2 to 0.4 %, 0.8 to 1.2 %, and 4.8 to 5.2 % of the twin's loss of 2.
    above = {0.01: (0.004, 0.006, 0.008), 0.05: (0.016, 0.02, 0.024), 0.2: (0.096, 0.1, 0.104)}
    final = lambda point, seed: 2 + above.get(point["/network/loss"].get("loss_rate"), (0, 0, 0))[seed - 1]  # noqa: E731
    cross = {"/network/loss": [NONE, *(bernoulli(rate) for rate in above)]}
    folder = synthetic.write_sweep(tmp_path, cross, seeds=3, final_losses=final)
    data = plots.data("tolerance", droptest.load(folder))
    assert data["difference"].tolist() == pytest.approx([50 * value for row in above.values() for value in row])
    points = plots.FIGURES["tolerance"].points_of(data)
    assert points["verdict"].tolist() == ["tolerable", "undecided", "not tolerable"]
    assert points["mean"].tolist() == pytest.approx([0.3, 1.0, 5.0])
    half = 4.302652729911275 * 0.1 / 3**0.5  # t(2) s / sqrt(3)
    assert points.loc[0, ["low", "high"]].tolist() == pytest.approx([0.3 - half, 0.3 + half])
    assert plots.FIGURES["tolerance"].findings(data) == [
        "Bernoulli: 1 % is tolerable; 20 % is not tolerable; undecided until there are more seeds: 5 %."
    ]
    around, everything = plots.draw("tolerance", droptest.load(folder)).axes
    assert around.get_ylim()[1] < 5 < everything.get_ylim()[1]
    triangles = [line for line in around.lines if line.get_marker() == "^"]
    assert [line.get_xdata()[0] for line in triangles] == pytest.approx([20])  # the mean that is outside


def test_a_tolerable_rate_above_an_undecided_one_is_named_by_itself():
    data = pd.DataFrame({"panel": "Bernoulli", "loss_rate": [0.01, 0.02, 0.05], "seed": "1", "difference": 0.0})
    findings = plots.FIGURES["tolerance"].findings
    assert findings(data.assign(verdict=["undecided", "tolerable", "not tolerable"])) == [
        "Bernoulli: no tested rate is certainly tolerable together with all lower rates; by itself tolerable: 2 %; "
        "5 % is not tolerable; undecided until there are more seeds: 1 %."
    ]
    (text,) = findings(data.assign(verdict=["tolerable", "undecided", "tolerable"]))
    assert text.startswith("Bernoulli: 1 % is tolerable together with all lower rates; by itself tolerable: 5 %; ")


def test_panels_without_a_value_are_left_out(experiment):
    records = droptest.load(experiment)
    curves = plots.data("training_curves", records)
    with_both = plots.describe("training_curves", curves)["panels"]
    assert len(plots.describe("training_curves", curves[curves["metric"] == "validation_loss"])["panels"]) < len(
        with_both
    )
    assert len({tuple(panel["x"]["range"]) for panel in with_both if panel}) == 1
    bursts = plots.data("burst_lengths", records)
    bursts.loc[bursts["panel"] == bursts["panel"].iloc[0], "ratio"] = math.nan
    shown = plots.describe("burst_lengths", bursts)["panels"]
    assert [panel is None for panel in shown].count(True) == 1 and plots.describe("burst_lengths", bursts)[
        "columns"
    ] == 2
    bursts["ratio"] = math.nan
    assert all(panel["y"]["title"] == "number of bursts" for panel in plots.describe("burst_lengths", bursts)["panels"])


@pytest.mark.filterwarnings("error::UserWarning")
def test_a_panel_of_zeros_on_a_logarithmic_axis_is_no_warning(experiment):
    data = plots.data("layers", droptest.load(experiment))
    data.loc[(data["quantity"] == "nmse") & (data["panel"] == data["panel"].iloc[0]), ["mean", "low", "high"]] = 0.0
    pictures.draw(plots.describe("layers", data)).draw_without_rendering()


def test_a_single_configured_rate_has_a_scale_for_the_realised_ones(tmp_path):
    records = droptest.load(synthetic.write_sweep(tmp_path, {"/network/loss": [NONE, bernoulli(0.05)]}, seeds=2))
    rates = plots.describe("loss_rate_check", plots.data("loss_rate_check", records))["panels"][0]
    assert "ticks" not in rates["y"] and rates["lines"] == [{"y": 5, "dash": "dot", "name": "realised = configured"}]
    assert rates["y"]["range"][0] < 5 < rates["y"]["range"][1] and rates["y"]["range"][1] < 6


def test_checks_of_realised_rates_are_at_their_configured_rate(experiment):
    data = plots.data("loss_rate_check", droptest.load(experiment))
    rates, scores = plots.describe("loss_rate_check", data)["panels"]
    assert not any(c.get("nudge") for c in rates["curves"])  # on the line where the two rates are equal
    assert len({c["nudge"] for c in scores["curves"]}) == 2


@pytest.mark.parametrize("rates", [(0.02, 0.025), (0.01, 0.4), (0.05, 0.05)])
def test_steps_sideways_are_short_on_a_short_axis(rates):
    axis = drawing.rate_axis(rates)
    low, high = map(drawing.Stretched(*axis["stretch"]).place, axis["range"])
    apart = drawing.nudge(4, 5, axis) - drawing.nudge(0, 5, axis)
    assert apart == pytest.approx(min(0.1, (high - low) / 12) if rates[0] < rates[1] else 0.1)
    assert drawing.nudge(0, 1, axis) == 0 and drawing.nudge(4, 5, axis, 0.03) > drawing.nudge(4, 5, axis)


def test_runs_with_a_single_evaluation_have_no_differences_over_steps(tmp_path):
    folder = synthetic.write_sweep(tmp_path, {"/network/loss": [NONE, bernoulli(0.2)]}, seeds=2)
    records = droptest.load(folder)
    last = records.metrics["step"].max()
    records.metrics.loc[records.metrics["step"] < last, "validation_loss"] = math.nan
    with pytest.raises(plots.NotMeant, match="a single step; see the figure final_loss"):
        plots.data("differences", records)
    assert plots.data("final_loss", records)["difference_seeds"].tolist() == [0, 2]


def test_differences_over_steps_are_run_minus_twin(tmp_path):
    records = droptest.load(synthetic.write_sweep(tmp_path, {"/network/loss": [NONE, bernoulli(0.2)]}, seeds=2))
    data = plots.data("differences", records)
    losses = records.metrics.pivot_table(index="step", columns="run_id", values="validation_loss").dropna()
    twins = records.runs.dropna(subset=["twin"])
    expected = sum(losses[run] - losses[twin] for run, twin in zip(twins["run_id"], twins["twin"], strict=True)) / 2
    assert data["step"].tolist() == losses.index.tolist() and len(data) > 2
    assert data["mean"].tolist() == pytest.approx(expected.tolist())
    assert data["mean"].iloc[-1] > 0


def test_links_are_a_map_of_lost_over_sent(tmp_path):
    import pandas as pd

    records = droptest.load(synthetic.write_sweep(tmp_path, {"/network/loss": [NONE, bernoulli(0.2)]}, seeds=2))
    runs = records.runs[~records.runs["lossless"]]["run_id"]
    records.links = pd.DataFrame([
        {"run_id": run, "class": "tp_forward", "half": "reduce", "source": s, "destination": d, "packets": 100.0,
         "lost": 10.0 * s + d + n, "z": 1.0 + n}
        for n, run in enumerate(runs) for s in range(3) for d in range(3) if s != d
    ])  # fmt: skip
    data = plots.data("links", records)
    cells = plots.FIGURES["links"].matrix(data)
    assert cells[2, 1] == pytest.approx((21 + 22) / 2) and cells[1, 2] == pytest.approx((12 + 13) / 2)
    assert np.isnan(np.diag(cells)).all()
    assert data["z"].tolist() == pytest.approx([3 / 2**0.5] * 6)
    figure = plots.draw("links", records)
    assert np.nanmax(figure.axes[0].images[0].get_array()) == pytest.approx(21.5)
    assert figure.axes[0].get_title() == "Bernoulli, 20\N{NO-BREAK SPACE}%\ntensor parallel, forward, reduce half"


def test_a_ratio_beyond_the_panel_has_a_mark(experiment):
    data = plots.data("burst_lengths", droptest.load(experiment))
    first = data.index[data["ratio"].notna()][0]
    data.loc[first, "ratio"] = 7.0
    figure = pictures.draw(plots.describe("burst_lengths", data))
    marks = [line for ax in figure.axes for line in ax.lines if line.get_marker() == "^" and not line.get_clip_on()]
    assert [line.get_xdata().tolist() for line in marks] == [[data.loc[first, "length"]]]


def test_one_curve_has_no_legend_but_its_name(tmp_path):
    records = droptest.load(synthetic.write_sweep(tmp_path, {"/network/loss": [NONE, bernoulli(0.1)]}, seeds=2))
    figure = plots.draw("differences", records)
    assert figure.legends == [] and "packet loss rate: 10 %" in [text.get_text() for text in figure.texts]


def test_losses_of_bytes_are_per_byte(tmp_path):
    base = json.loads(json.dumps(synthetic.BASE))
    for data, unit in (({"text": "corpus/kjv.txt"}, "nats per byte"), ({"tokens": "gpt2.bin"}, "nats per token")):
        base["data"] = data
        cross = {"/network/loss": [NONE, bernoulli(0.1)]}
        records = droptest.load(synthetic.write_sweep(tmp_path / unit, cross, seeds=1, base=base))
        assert records.unit == unit
        assert f"({unit})" in labels(plots.draw("final_loss", records))


def test_identifiers_are_words():
    from droptest.words import spoken

    assert spoken("selective_repeat") == "selective repeat" and spoken("go_back_n") == "go-back-N"
    assert spoken("tp_backward") == "tensor parallel, backward"
    assert spoken("corpus/my_text.txt") == "corpus/my_text.txt" and spoken("Kept_As_Is") == "Kept_As_Is"


LONG = {
    "zero": "sixty characters of a name that a person gives to a setting!",
    "mean": ("a label of two hundred characters, as people paste whole paths: /data/experiments/loss/ " * 3)[:200],
    "last": ("unbroken_word_without_blanks_" * 9)[:200],
}


def with_far_losses(tmp_path, cross, is_far, loss=4e37, **more):
    """A sweep of which some runs have the loss in the end, and in the second half of their metrics."""
    folder = synthetic.write_sweep(
        tmp_path, cross, seeds=2,
        final_losses=lambda p, seed: loss if is_far(p, seed) else 2.5 + 0.01 * seed + 0.1 * len(str(p)) / 99,
        **more,
    )  # fmt: skip
    for run in json.loads((folder / "sweep.json").read_text())["runs"]:
        if is_far(run["point"], run.get("seed")):
            file = folder / run["run_id"] / "metrics.jsonl"
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            for line in lines[len(lines) // 2 :]:
                line |= {name: loss for name in ("validation_loss", "train_loss") if name in line}
            file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return droptest.load(folder)


def limits_of(figure):
    return [axis.get_view_interval() for ax in figure.axes for axis in (ax.xaxis, ax.yaxis)]


def texts_of(figure):
    figure.draw_without_rendering()
    ticks = [label for ax in figure.axes for label in (*ax.get_xticklabels(), *ax.get_yticklabels())]
    return [text.get_text() for text in (*ticks, *(text for ax in figure.axes for text in ax.texts))]


FIGURES_OF_LOSSES = ("tolerance", "final_loss", "training_curves", "differences")


@pytest.mark.parametrize(
    ("loss", "cross", "is_far"),
    [
        (4e37, {"/network/loss": LOSSES}, lambda p, s: p["/network/loss"] == LOSSES[2] and s == 1),
        (1.7e308, {"/network/loss": LOSSES}, lambda p, s: p["/network/loss"] == LOSSES[4]),
        (300.0, {"/network/loss": LOSSES}, lambda p, s: p["/network/loss"] == LOSSES[4]),
        (-4e37, {"/network/fill": list(LONG), "/network/loss": [NONE, bernoulli(0.2)]},
         lambda p, s: p["/network/fill"] == "last" and p["/network/loss"] != NONE),
    ],
)  # fmt: skip
def test_a_loss_of_a_diverging_run_leaves_the_others_in_view(tmp_path, loss, cross, is_far):
    records = with_far_losses(tmp_path, cross, is_far, loss)
    for name in FIGURES_OF_LOSSES:
        data = plots.data(name, records)
        figure = plots.draw(name, records)
        far = 100.0 * 19 if name == "tolerance" else data.attrs["far"]
        assert far < (2000 if name == "tolerance" else 100)
        assert max(abs(end) for ends in limits_of(figure) for end in ends) <= max(far, 250), name  # 250: of steps
        assert max(map(len, texts_of(figure))) <= 40, name
        for panel in interactive.figure_of(name, data)["panels"]:
            for axis in (panel["x"], panel["y"]):
                assert axis.get("title") == "step" or all(abs(end) <= far for end in axis.get("range", [])), name
            values = [v for c in panel["curves"] for v in (*c["x"], *c["y"]) if v is not None]
            if max(map(abs, values), default=0) > max(far, 250):
                assert "range" in panel["x"] or "range" in panel["y"], name


def test_all_losses_of_a_classifier_that_learns_its_examples_by_heart_are_in_view(tmp_path):
    folder = synthetic.write_sweep(tmp_path, {"/network/loss": LOSSES}, seeds=2, final_losses=lambda p, seed: 0.35)
    for file in folder.glob("*/metrics.jsonl"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            line |= {"train_loss": max(0.003, 0.69 - 0.69 * line["step"] / 50)} if line["step"] else {}
            line |= {"validation_loss": max(0.35, 0.69 - line["step"] / 100)} if "validation_loss" in line else {}
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    records = droptest.load(folder)
    assert plots.data("training_curves", records).attrs["far"] == pytest.approx(20 * 0.35)
    for panel in interactive.figure_of("training_curves", plots.data("training_curves", records))["panels"]:
        ends = [end for c in panel["curves"] for key in ("y", "low", "high") for end in c[key] if end is not None]
        assert panel["y"]["range"][0] < min(ends) and max(ends) < panel["y"]["range"][1]
        assert not any("triangle" in c.get("symbol", "") for c in panel["curves"])
    assert all(ax.get_ylim()[1] >= 0.55 for ax in plots.draw("training_curves", records).axes)


@pytest.mark.parametrize(
    ("validation", "training", "status", "far"),
    [
        ([[0.69, 0.35, 0.35]], [[None, 0.1, 0.003]], ["completed"], 7.66),
        ([[0.69, 0.001, 0.001]], [[None, 0.1, 0.003]], ["completed"], 1.38),  # at least twice the first
        ([[0.69, 0.0, 0.0]], [[None, 0.0, 0.0]], ["completed"], 13.8),
        ([[0.0, 0.0, 0.0]], [[0.0, 0.0, 0.0]], ["completed"], math.inf),
        ([[0.0, 0.0, 0.5]], [[None, 0.0, 0.0]], ["completed"], 10.0),
        ([[None, None, None]], [[3.0, 2.0, 1.0]], ["completed"], 60.0),  # never validated
        ([[None, None, None]], [[None, None, None]], ["failed"], math.inf),
        ([[0.01] * 3] * 9 + [[9.0, 8.0, 7.0]], [[None, 0.01, 0.01]] * 10, ["completed"] * 10, 18.0),
        ([[0.01] * 3] * 9 + [[9.0, 8.0, 7.0]], [[None, 0.01, 0.01]] * 10, ["completed"] * 9 + ["diverged"], 0.2),
        ([[2.0] * 3] * 9 + [[4e37] * 3], [[None, 2.0, 2.0]] * 10, ["completed"] * 10, 40.0),  # from its first line on
        ([[2.0] * 3] * 9 + [[math.inf, 3.0, 3.0]], [[None, 2.0, 2.0]] * 10, ["completed"] * 10, 40.0),
    ],
)
def test_the_loss_that_only_diverging_runs_have(validation, training, status, far):
    names = [f"r{i}" for i in range(len(status))]
    rows = [(name, step, v, t) for name, vs, ts in zip(names, validation, training, strict=True)
            for step, (v, t) in enumerate(zip(vs, ts, strict=True))]  # fmt: skip
    metrics = pd.DataFrame(rows, columns=["run_id", "step", "validation_loss", "train_loss"]).astype(
        {"validation_loss": float, "train_loss": float}
    )
    ends = [vs[-1] if vs[-1] is not None else math.nan for vs in validation]
    runs = pd.DataFrame({"run_id": names, "status": status, "final_validation_loss": ends})
    found = panels.far_loss(types.SimpleNamespace(metrics=metrics, runs=runs))
    assert found == pytest.approx(far, rel=0.1)
    without = types.SimpleNamespace(metrics=pd.DataFrame(), runs=runs)
    assert panels.far_loss(without) > 0


def test_a_mean_beyond_the_axis_is_a_triangle_at_its_edge(tmp_path):
    records = with_far_losses(tmp_path, {"/network/loss": LOSSES}, lambda p, s: p["/network/loss"] == LOSSES[2])
    for name in ("tolerance", "final_loss"):
        for ax in plots.draw(name, records).axes:
            edges = [line for line in ax.lines if line.get_marker() == "^" and line.get_transform() != ax.transData]
            assert [line.get_xdata().tolist() for line in edges if len(line.get_xdata())] and edges, name
        panels_ = interactive.figure_of(name, plots.data(name, records))["panels"]
        assert all("triangle-up" in {c.get("symbol") for c in panel["curves"]} for panel in panels_), name


def test_the_percentage_of_a_huge_loss_is_not_lost_by_rounding(tmp_path):
    """The run's loss minus the difference would be 0."""
    far = lambda p, s: p["/network/loss"] == LOSSES[2] and s == 1  # noqa: E731
    data = plots.data("tolerance", with_far_losses(tmp_path, {"/network/loss": LOSSES}, far))
    mine = data[(data["loss_rate"] == 0.4) & (data["series"] == "Bernoulli")]
    assert mine["difference"].max() == pytest.approx(100 * 4e37 / 2.5, rel=0.05)
    assert (mine["seeds"] == 2).all() and mine["mean"].iloc[0] > 1e38


def test_the_map_of_rates_has_the_colours_of_the_other_losses(tmp_path):
    cross = {"/training/learning_rate": [0.001, 0.002], "/network/loss": LOSSES}
    records = with_far_losses(
        tmp_path, cross, lambda p, s: p["/training/learning_rate"] == 0.002 and p["/network/loss"] == LOSSES[2],
        best_over=["/training/learning_rate"], selection_losses=lambda p, s: p["/training/learning_rate"],
    )  # fmt: skip
    figure = plots.draw("rate_map", records)
    assert all(image.get_clim()[1] < 3 for ax in figure.axes for image in ax.images)
    assert {text for text in texts_of(figure) if "e+" in text} == {"4e+37"}
    heats = [p["heat"] for p in interactive.figure_of("rate_map", plots.data("rate_map", records))["panels"]]
    assert all(heat["high"] < 3 for heat in heats)
    assert "4e+37" in [cell for heat in heats for row in heat["cells"] for cell in row]


def overlaps(figure):
    """Pairs of texts that are drawn one over the other, and texts that leave the figure."""
    figure.draw_without_rendering()
    renderer = FigureCanvasAgg(figure).get_renderer()
    found = []
    for ax in figure.axes:
        if ax.get_visible():
            found += [ax.title, ax.xaxis.label, ax.yaxis.label]
            for axis in (ax.xaxis, ax.yaxis):
                low, high = sorted(axis.get_view_interval())
                found += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
            found += ax.texts
    found += [*figure.texts, *(text for legend in figure.legends for text in legend.get_texts())]
    found = [text for text in found if text.get_text().strip()]
    boxes = [(text.get_text(), text.get_window_extent(renderer), text.get_rotation()) for text in found]
    page = figure.bbox.padded(1)
    outside = [text for text, box, _ in boxes if not (page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0)]
    straight = [(text, box) for text, box, rotation in boxes if rotation in (0, 90)]
    pairs = [(a, b) for i, (a, x) in enumerate(straight) for b, y in straight[:i]
             if min(x.x1, y.x1) - max(x.x0, y.x0) > 2 and min(x.y1, y.y1) - max(x.y0, y.y0) > 2]  # fmt: skip
    return outside + pairs


def classify(folder, classes):
    """Gives the runs of a sweep a classifier's quality."""
    size = len(classes)
    estimate = {"value": 0.7, "low": 0.6, "high": 0.8}
    for file in folder.glob("*/summary.json"):
        summary = json.loads(file.read_text())
        summary["classification"] = {
            "examples": 10 * size, "accuracy": estimate, "macro_f1": estimate, "calibration_error": estimate,
            "classes": classes, "f1": [estimate] * size, "confusion": [[10 // size] * size] * size,
        }  # fmt: skip
        file.write_text(json.dumps(summary))


@pytest.mark.parametrize("losses", [[NONE, bernoulli(0.05), bernoulli(0.4)], [NONE, bernoulli(0.2)]])
def test_long_names_do_not_run_over_their_neighbours(tmp_path, losses):
    cross = {"/network/fill": list(LONG), "/network/loss": losses}
    named = lambda point: [{"label": LONG[point["/network/fill"]], "pointers": ["/network/fill"]}]  # noqa: E731
    folder = synthetic.write_sweep(tmp_path, cross, seeds=2, labels=named)
    classify(folder, [*LONG.values(), LONG["last"][:-1] + "!", "hot"])
    records = droptest.load(folder)
    drawn = 0
    for name in plots.FIGURES:
        try:
            data = plots.data(name, records)
        except plots.NothingToDraw:
            continue
        assert overlaps(plots.draw(name, records)) == [], name
        drawn += 1
        for panel in interactive.figure_of(name, data)["panels"]:
            labels = [*panel["x"].get("labels", []), *panel["y"].get("labels", []), panel["title"]]
            assert max(len(line) for label in labels for line in label.split("\n")) <= 122, name
            assert max(label.count("\n") for label in labels) <= 2, name
    assert drawn >= 9
    confusion = plots.draw("confusion", records).axes[0]
    names = [label.get_text() for label in confusion.get_yticklabels()]
    assert len(set(names)) == 5 and max(map(len, names)) <= 18, "cut names are as distinct as the names"


def test_long_names_of_values_fit_beside_the_map_and_above_the_curves(tmp_path):
    rates = dict(zip((0.001, 0.002, 0.003), LONG.values(), strict=True))
    folder = synthetic.write_sweep(
        tmp_path, {"/training/learning_rate": list(rates), "/network/loss": LOSSES}, seeds=2,
        labels=lambda p: [{"label": rates[p["/training/learning_rate"]], "pointers": ["/training/learning_rate"]}],
        best_over=["/training/learning_rate"], selection_losses=lambda p, s: p["/training/learning_rate"],
    )  # fmt: skip
    records = droptest.load(folder)
    for name in ("rate_map", "final_loss"):
        assert overlaps(plots.draw(name, records)) == [], name


def test_long_names_in_a_terminals_table_are_cut_and_stay_distinct(tmp_path):
    names = LONG | {"one": LONG["last"][:-1] + "!"}
    rows = [[name, str(i), "whatever"] for i, name in enumerate(names.values())]
    lines = summary.aligned(["series", "n", "note"], rows, {"series", "note"}).splitlines()
    assert max(map(len, lines)) <= 60 + 2 + 1 + 2 + 8 and len({line[:60] for line in lines[2:]}) == 4
    assert lines[2].startswith(LONG["zero"])


@pytest.mark.parametrize("width", [8, 18, 60])
def test_shortened_names_are_distinct(width):
    rng = np.random.default_rng(width)
    names = list({"".join(rng.choice(list("ab"), rng.integers(1, 80))) + "b" * 40 for _ in range(60)})
    short = words.shortened(names, width)
    assert len(set(short)) == len(names) and max(map(len, short)) <= width
    assert words.shortened(["a", "b" * width], width) == ["a", "b" * width]


def test_long_names_lose_the_part_that_all_of_them_share():
    process = "Gilbert-Elliott, burst 4, "
    lossy = [f"{process}recovery none", f"{process}data packets 8, depth 8"]
    names = ["lossless", "lossless, rounds 1", *lossy]
    assert words.shared_head(names, 40) == process and words.shared_head(names, 60) == ""
    assert words.shortened(names, 40, process) == [*names[:2], "… recovery none", "… data packets 8, depth 8"]
    assert words.shared_head([*names, "Bernoulli, recovery none"], 40) == "", "it would be taken for Bernoulli"
    assert words.shared_head(lossy[1:], 40) == "", "a single name shares nothing"
    assert words.shared_head([lossy[0], f"{lossy[0]}, rounds 1"], 40) == process, "no name is left out as a whole"


@pytest.mark.parametrize("width", [12, 18, 60])
def test_shortened_names_have_the_smallest_number_that_is_free(width):
    """By trying every number for every name."""
    rng = np.random.default_rng(width)
    names = []
    for _ in range(250):
        kind, letters = rng.random(), "".join(rng.choice(list("ab"), rng.integers(0, 4)))
        names.append(f"{'a' * width}{letters}{rng.integers(0, 999)}{'b' * width}")
        if kind < 0.3:
            names.append(f"{words.cut(names[-1], width - 4)} ({rng.integers(2, 9)})")
        elif kind < 0.5:
            names.append(letters + words.cut(names[rng.integers(len(names))], width))
    wanted = []
    for name in names:
        marks = ("", *(f" ({number})" for number in range(2, 999)))
        wanted.append(next(s for m in marks if (s := words.cut(name, width - len(m)) + m) not in wanted))
    assert words.shortened(names, width) == wanted


def test_thousands_of_names_with_equal_ends_are_told_apart_by_their_numbers(monkeypatch):
    cuts = []
    monkeypatch.setattr(words, "cut", lambda name, width, cut=words.cut: cuts.append(name) or cut(name, width))
    short = words.shortened((f"{'a' * 60}{i}{'b' * 60}" for i in range(12_000)), 60)
    assert short[-1].endswith(" (12000)") and len(set(short)) == 12_000 and max(map(len, short)) == 60
    assert len(cuts) < 12_000 * 10, "a few attempts for each name, however many there are"


def test_numbers_of_diverged_runs_have_few_digits():
    assert [words.decimal(x) for x in (2.43101, -2.5, 999999.0)] == ["2.4310", "-2.5000", "999999.0000"]
    assert [words.decimal(x, 3, "+") for x in (4.123e37, -1e6)] == ["+4.123e+37", "-1.000e+06"]
    assert words.decimal(float("inf")) == "inf"
