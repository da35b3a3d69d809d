# SPDX-License-Identifier: Apache-2.0
"""A figure is one description, which matplotlib and plotly render alike, with one look per condition."""

import ast
import html
import json
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import synthetic
from matplotlib.colors import to_hex
from synthetic import NONE, bernoulli, gilbert_elliott
from test_figures import overlaps

import droptest
from droptest import drawing, interactive, pictures, plots, style, tables, wall_time
from droptest.looks import INK, looks_of
from droptest.report import write_report
from droptest.summary import text_table

RATES = (0.001, 0.01, 0.05, 0.2, 0.4)
PARITY = {"parity": {"data": 8, "parity": 2}}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Two loss processes, with and without a recovery, and runs that diverge at 40 %."""
    losses = [NONE, *map(bernoulli, RATES), gilbert_elliott(0.05, 8), gilbert_elliott(0.4, 8)]
    diverges = lambda point, seed: "diverged" if point["/network/loss"].get("loss_rate") == 0.4 and seed == 2 else "completed"  # noqa: E731, E501  # fmt: skip
    return droptest.load(synthetic.write_sweep(
        tmp_path_factory.mktemp("looks"), {"/network/recovery": [{}, PARITY], "/network/loss": losses}, seeds=2,
        outcomes=diverges,
    ))  # fmt: skip


@pytest.fixture(scope="module")
def descriptions(records):
    found = {}
    for name in plots.FIGURES:
        try:
            found[name] = plots.describe(name, plots.data(name, records))
        except plots.NothingToDraw:
            continue
    return found


def curves_of(figure):
    return [curve for panel in figure["panels"] if panel for curve in panel["curves"]]


def links_of(records, ranks, sends):
    """Links of every class and half between `ranks` ranks, of the pairs for which sends(source, destination) holds."""
    lossy = records.runs[~records.runs["lossless"]]
    return pd.DataFrame([
        {"run_id": run, "class": name, "half": half, "source": s, "destination": d, "packets": 100.0,
         "lost": 100 * rate, "z": 1.0}
        for run, rate in zip(lossy["run_id"], lossy["loss_rate"], strict=True)
        for name in synthetic.CLASSES for half in ("reduce", "gather")
        for s in range(ranks) for d in range(ranks) if s != d and sends(s, d)
    ])  # fmt: skip


def test_a_figure_describes_and_does_not_draw():
    for path in Path(plots.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        drawing_parts = [n for n in names if n.startswith(("matplotlib", "plotly", "droptest.style"))]
        assert drawing_parts == (["matplotlib.figure"] if path.name == "__init__.py" else []), path


def test_captions_name_no_places_that_only_one_renderer_has():
    places = re.compile(r"\b(top|bottom|upper|lower edge|panel on|\(left|\(right|left:|right:)")
    for module in plots.FIGURES.values():
        assert not places.search(module.CAPTION.lower()), module.NAME


def test_a_loss_rate_has_one_colour_in_all_figures(records, descriptions):
    seen = {}
    for name in ("training_curves", "differences", "divergence", "layers", "burst_lengths"):
        for curve in curves_of(descriptions[name]):
            seen.setdefault(curve["name"], set()).add(curve["look"].hue)
    assert all(len(hues) == 1 for hues in seen.values()) and seen.pop("lossless") == {INK}
    assert len(seen) == len(RATES) == len({hue for (hue,) in seen.values()})
    for name in ("tolerance", "final_loss", "loss_rate_check"):
        for curve in curves_of(descriptions[name]):
            for rate, hue in zip(curve["x"], curve.get("hues", ()), strict=False):
                assert {hue} == (seen[f"{rate:g} %"] if rate else {INK}), name
    page = interactive.page_of(descriptions["final_loss"])
    assert page["panels"][0]["curves"][0]["hues"][0] == INK


def test_a_process_has_one_marker_and_a_recovery_its_dashes(records, descriptions):
    looks = looks_of(records)
    bare, parity = ([s for s in looks.series if ("parity" in s) == kind] for kind in (False, True))
    markers = [[looks.series[s][0] for s in some] for some in (bare, parity)]
    assert markers[0] == markers[1] and len(set(markers[0])) == 2 and 0 not in markers[0]
    dashes = [{looks.series[s][1] for s in some} for some in (bare, parity)]
    assert dashes == [{0}, {1}]
    for name in ("final_loss", "tolerance"):
        for curve in curves_of(descriptions[name]):
            if curve["kind"] == "marks":
                whole = descriptions[name]["names"].get(curve["name"], curve["name"])
                assert (curve["look"].marker, curve["look"].dash) == looks.series[whole], name


def test_both_renderers_draw_the_colours_of_the_description(descriptions):
    figure = descriptions["differences"]
    drawn = pictures.draw(figure)
    wanted = {style.colour(curve["look"].hue) for curve in curves_of(figure)}
    assert wanted <= {to_hex(line.get_color()) for ax in drawn.axes for line in ax.lines}
    panels = interactive.page_of(figure)["panels"]
    shown = {curve["look"][0] for panel in panels for curve in panel["curves"]}
    assert sorted(shown) == pytest.approx(sorted({curve["look"].hue for curve in curves_of(figure)}))


def test_points_without_loss_are_circles_in_the_colour_of_the_text(descriptions):
    drawn = pictures.draw(descriptions["final_loss"])
    marks = [line for line in drawn.axes[0].lines if len(line.get_xdata()) == 1 and line.get_marker() == "o"]
    assert marks and {to_hex(line.get_color()) for line in marks} == {style.colour(INK)}
    scale = drawing.Stretched(*descriptions["final_loss"]["panels"][0]["x"]["stretch"])
    assert all(abs(scale.place(line.get_xdata()[0])) < 0.2 for line in marks)  # at the loss rate of 0


@pytest.mark.parametrize("name", ["training_curves", "differences", "divergence", "layers", "burst_lengths"])
def test_panels_of_one_quantity_share_their_axes(descriptions, name):
    ranges = {}
    for panel in descriptions[name]["panels"]:
        if panel:
            ranges.setdefault(panel["y"]["title"], set()).add(tuple(panel["y"]["range"]))
    assert all(len(same) == 1 for same in ranges.values())
    drawn = pictures.draw(descriptions[name])
    limits = {ax.get_ylim() for ax in drawn.axes if ax.get_visible()}
    assert len(limits) == len(ranges)


def test_diverged_runs_do_not_set_the_axes_and_have_crosses_with_their_numbers(descriptions):
    figure = descriptions["final_loss"]
    crosses = [curve for curve in curves_of(figure) if curve["kind"] == "edge" and curve["symbol"] == "x"]
    assert len(crosses) == 4 and {label for curve in crosses for label in curve["labels"]} == {"1/2"}
    assert figure["panels"][0]["y"]["range"][1] < 10
    for curve in interactive.page_of(figure)["panels"][0]["curves"]:
        if curve["kind"] == "edge":
            assert curve["y"] and all(y < figure["panels"][0]["y"]["range"][1] for y in curve["y"])


def test_no_text_runs_over_another_or_leaves_the_picture(descriptions):
    assert len(descriptions) >= 9
    for name, figure in descriptions.items():
        assert overlaps(pictures.draw(figure)) == [], name


def test_labels_of_many_diverged_curves_do_not_touch(tmp_path):
    cross = {"/parallel/tensor": [2, 4], "/network/fill": ["zero", "stale"],
             "/network/loss": [NONE, *map(bernoulli, (0.1, 0.2, 0.25, 0.3))]}  # fmt: skip
    diverged = lambda point, seed: "completed" if point["/network/loss"] == NONE or seed == 1 else "diverged"  # noqa: E731
    records = droptest.load(synthetic.write_sweep(tmp_path, cross, seeds=2, outcomes=diverged))
    drawn = plots.draw("final_loss", records)
    assert overlaps(drawn) == [] and drawn.axes[0].texts


def test_the_dashed_line_has_its_name(descriptions):
    legend = [text.get_text() for text in pictures.draw(descriptions["tolerance"]).legends[0].get_texts()]
    assert "tolerance 1 %" in legend


def test_long_names_are_shortened_with_a_table_of_names(descriptions, records, tmp_path):
    names = descriptions["recoveries"]["names"]
    assert names and all(len(short) <= 40 < len(name) for short, name in names.items())
    labels = descriptions["recoveries"]["panels"][0]["y"]["labels"]
    assert set(names) <= {label.replace("\N{NO-BREAK SPACE}", " ") for label in labels}
    shown = {c["name"] for c in curves_of(descriptions["final_loss"])}
    assert max(map(len, shown)) <= 40
    page = html.unescape(write_report(records, tmp_path).report.read_text(encoding="utf-8"))
    for short, name in names.items():
        assert f"<tr><td>{short}</td><td>{name}</td></tr>" in page


def test_a_zero_is_shown_on_every_axis(descriptions, records):
    packets = descriptions["recoveries"]["panels"][1]
    data = plots.data("recoveries", records)
    (extra,) = [c for c in packets["curves"] if c["name"] == "sent in addition"]
    assert 0 in extra["x"] and extra["x"] == pytest.approx((100 * data["extra"]).tolist())
    assert packets["x"]["range"][0] < 0
    check = plots.data("loss_rate_check", records)
    check.loc[check.index[0], "realised_rate"] = 0.0
    rates = plots.describe("loss_rate_check", check)["panels"][0]
    assert rates["y"]["range"][0] < 0 and rates["y"]["ticks"][0] == 0
    assert any(0 in c["y"] for c in rates["curves"])
    bursts = plots.data("burst_lengths", records)
    wanted = bursts[(bursts["count"] == 0) & (bursts["expected"] >= 1)]
    edges = [c for c in curves_of(descriptions["burst_lengths"]) if c["kind"] == "edge" and c["side"] == "low"]
    assert sum(len(c["x"]) for c in edges) == len(wanted) > 0 and all(c["hollow"] for c in edges)


def test_maps_share_one_scale_of_colours(tmp_path):
    records = droptest.load(synthetic.write_sweep(
        tmp_path, {"/network/loss": [NONE, *map(bernoulli, (0.05, 0.2))]}, seeds=1))  # fmt: skip
    records.links = links_of(records, 3, lambda source, destination: True)
    figure = plots.describe("links", plots.data("links", records))
    assert len(figure["panels"]) == 8 and {(p["heat"]["low"], p["heat"]["high"]) for p in figure["panels"]} == {(0, 20)}
    drawn = pictures.draw(figure)
    assert len(drawn.axes) == 8 + 1 and overlaps(drawn) == []
    assert interactive.page_of(figure)["bar"] == {"title": "packets lost (%)", "low": 0, "high": 20}


def test_a_stretched_scale_is_linear_around_zero_and_inverts():
    scale = drawing.Stretched(0.5, 0.6)
    assert [scale.place(v) for v in (0, 0.25, 0.5, 5, -50)] == pytest.approx([0, 0.3, 0.6, 1.6, -2.6])
    values = np.array([-7, -0.1, 0, 0.3, 1e30])
    assert scale.value(scale.place(values)) == pytest.approx(values)
    assert math.isnan(scale.place(math.nan))


def test_columns_that_repeat_the_series_go_from_the_table_of_the_page_and_of_the_terminal(tmp_path):
    cross = {"/network/payload_bytes": [1000, 1400], "/network/loss": [NONE, bernoulli(0.05)]}
    records = droptest.load(synthetic.write_sweep(tmp_path, cross, seeds=1))
    table = tables.table("summary", records)
    assert "loss model" not in table.header and table.header[:2] == ("series", "loss rate")
    assert tuple(re.split("  +", text_table(records).splitlines()[0])) == table.header


def test_the_advice_on_wall_time_is_three_lines_and_the_rest_folds(tmp_path):
    folder = synthetic.write_sweep(tmp_path, {"/network/loss": [NONE, bernoulli(0.05)]}, seeds=1)
    wall = {"phases": {"products": 5, "optimizer": 1, "evaluation": 1, "data": 0.5}, "waiting": {"tp_forward": 1},
            "communication": {"tp_forward": 3}}  # fmt: skip
    for path in folder.glob("*/metrics.jsonl"):
        synthetic.add_wall_seconds(path.parent, lambda _: [wall] * 4)
    records = droptest.load(folder)
    breakdowns = wall_time.breakdowns(records)
    assert len(wall_time.headlines(breakdowns)) == 3 < len(list(wall_time.findings(breakdowns)))
    page = write_report(records, tmp_path / "out").report.read_text(encoding="utf-8")
    answer = page.split('<h2 id="wall">')[1].split('<div class="answer">')[1].split("</div>")[0]
    shown, folded = answer.split("<details>")
    assert shown.count("<li>") == 3 and folded.count("<li>") == len(list(wall_time.findings(breakdowns)))


def test_a_map_of_many_ranks_shows_every_rank_though_few_have_labels(tmp_path):
    records = droptest.load(synthetic.write_sweep(tmp_path, {"/network/loss": [NONE, bernoulli(0.05)]}, seeds=1))
    records.links = links_of(records, 24, lambda source, destination: source // 8 == destination // 8)
    figure = plots.describe("links", plots.data("links", records))
    axis = figure["panels"][0]["y"]
    assert axis["rows"] == 24 and len(axis["ticks"]) == 8
    assert pictures.draw(figure).axes[0].get_ylim() == (23.5, -0.5)
    heat = interactive.page_of(figure)["panels"][0]["heat"]
    assert len(heat["z"]) == 24 and "nan" not in str(heat["text"]) and heat["text"][0][23] == ""


def test_the_page_shows_values_and_not_places_of_axes_in_decades(descriptions):
    for name, figure in descriptions.items():
        for panel in filter(None, figure["panels"]):
            if "stretch" in panel["x"] or "stretch" in panel["y"]:
                assert all("text" in curve for curve in panel["curves"]), name


def test_series_without_any_finished_run_are_in_the_legend_and_in_one_panel(tmp_path):
    losses = [NONE, *(loss for rate in (0.05, 0.2) for loss in (bernoulli(rate), gilbert_elliott(rate, 8)))]
    diverged = lambda point, seed: "completed" if point["/network/loss"] == NONE else "diverged"  # noqa: E731
    records = droptest.load(synthetic.write_sweep(tmp_path, {"/network/loss": losses}, seeds=2, outcomes=diverged))
    figure = plots.describe("tolerance", plots.data("tolerance", records))
    assert len(figure["panels"]) == 1
    legend = [text.get_text() for text in pictures.draw(figure).legends[0].get_texts()]
    assert legend == ["Bernoulli", "Gilbert-Elliott, burst 8", "tolerance 1 %"]


def test_runs_without_a_validation_loss_are_not_said_to_be_unfinished(tmp_path):
    folder = synthetic.write_sweep(tmp_path, {"/network/loss": [NONE, bernoulli(0.05)]}, seeds=1)
    for path in folder.glob("*/summary.json"):
        summary = json.loads(path.read_text()) | {"validation": {"final_loss": None}}
        path.write_text(json.dumps(summary))
    records = droptest.load(folder)
    for name in ("final_loss", "tolerance"):
        with pytest.raises(plots.NothingToDraw, match="validation loss"):
            plots.data(name, records)
