# SPDX-License-Identifier: Apache-2.0
"""Labels of points, columns of swept pointers, and the best of several values."""

import json
import math
import shutil

import pytest
import synthetic
from synthetic import NONE, bernoulli

import droptest
from droptest import plots
from droptest.report import write_report
from droptest.summary import groups, text_table
from droptest.tables import table

LR = "/training/learning_rate"
# Learning rate -> validation loss without loss and at 20 %. At 20 % the selection tokens prefer 0.001 by a hair, the
# validation tokens 0.0005.
VALIDATION = {0.0005: (2.38, 2.500), 0.001: (2.36, 2.517), 0.002: (2.34, 2.753)}
SELECTION = {0.0005: (2.40, 2.552), 0.001: (2.37, 2.551), 0.002: (2.35, 2.700)}


def of(table, point, seed):
    return table[point[LR]][point["/network/loss"] != NONE] + 0.01 * seed


def write(folder, outcomes=None):
    return synthetic.write_sweep(
        folder, {LR: list(VALIDATION), "/network/loss": [NONE, bernoulli(0.2)]}, seeds=2, best_over=[LR],
        outcomes=outcomes,
        final_losses=lambda point, seed: of(VALIDATION, point, seed),
        selection_losses=lambda point, seed: of(SELECTION, point, seed),
    )  # fmt: skip


@pytest.fixture(scope="module")
def chosen(tmp_path_factory):
    return droptest.load(write(tmp_path_factory.mktemp("chosen")))


def test_the_best_is_chosen_on_one_set_of_tokens_and_reported_on_the_other(chosen):
    lossless, lossy = groups(chosen)
    assert (lossless.best_value, lossy.best_value) == ("learning rate 0.002", "learning rate 0.001")
    assert lossless.final.mean == pytest.approx(2.34 + 0.015)
    assert lossy.final.mean == pytest.approx(2.517 + 0.015)  # not 2.500, the lowest, nor a selection loss
    assert (lossy.series, lossy.loss_rate, lossy.final.n) == ("Bernoulli", 0.2, 2)


def test_a_difference_is_between_the_best_values_of_both(chosen):
    lossy = groups(chosen)[1]
    assert (lossy.difference.mean, lossy.difference.n) == (pytest.approx(2.517 - 2.34), 2)
    assert len(chosen.runs) == 12 and len(chosen.best.runs) == 4
    at_high = chosen.runs[(chosen.runs[LR] == 0.002) & ~chosen.runs["lossless"]]
    assert at_high["difference"].tolist() == pytest.approx([2.753 - 2.34] * 2)  # all runs: at the same value


def test_tables_and_figures_show_the_value_that_won(chosen):
    counted = {row[0] for row in table("loss_statistics", chosen).rows}
    assert counted == {"Bernoulli"}  # not "Bernoulli, learning rate 0.002" as well
    assert droptest.summary_table(chosen)["best value"].tolist() == ["learning rate 0.002", "learning rate 0.001"]
    assert "best value" in text_table(chosen).splitlines()[0]
    data = plots.data("final_loss", chosen)
    assert data["name"].tolist() == ["lossless, learning rate 0.002", "Bernoulli, 20 %, learning rate 0.001"]
    assert data["best_value"].tolist() == ["learning rate 0.002", "learning rate 0.001"]
    assert data["final_mean"].tolist() == pytest.approx([2.355, 2.532])


def test_best_over_has_a_row_for_each_value(chosen):
    frame = droptest.best_over(chosen)
    assert len(frame) == 6 and frame["best"].sum() == 2
    lossy = frame[~frame["lossless"]].set_index(LR)
    assert lossy["mean"].to_dict() == pytest.approx({0.0005: 2.515, 0.001: 2.532, 0.002: 2.768})
    assert lossy["selection_loss"].to_dict() == pytest.approx({0.0005: 2.567, 0.001: 2.566, 0.002: 2.715})
    assert lossy["best"].to_dict() == {0.0005: False, 0.001: True, 0.002: False}
    assert (frame["runs"] == 2).all() and (frame["completed"] == 2).all()


def test_a_value_at_which_a_run_diverged_takes_no_part(tmp_path):
    lost = ({LR: 0.001, "/network/loss": bernoulli(0.2)}, 2)
    records = droptest.load(write(tmp_path, lambda *run: "diverged" if run == lost else "completed"))
    assert groups(records)[1].best_value == "learning rate 0.0005"
    frame = droptest.best_over(records)
    row = frame[(frame[LR] == 0.001) & ~frame["lossless"]].iloc[0]
    assert (row["diverged"], row["completed"], row["best"]) == (1, 1, False)
    assert math.isnan(row["selection_loss"])
    text = write_report(records, tmp_path / "report").report.read_text(encoding="utf-8")
    assert "Diverged runs of values that the summary does not show: 1." in text and "No run diverged." not in text


def test_values_that_all_lack_a_run_are_compared_over_the_seeds_that_all_of_them_have(tmp_path):
    # 0.0005 is the first value, and the best one only by its seed 1, which the others lack.
    lacks = {0.0005: 2, 0.001: 1, 0.002: 1}
    losses = {(0.0005, 1): 2.0, (0.001, 2): 2.6, (0.001, 3): 2.3, (0.002, 2): 2.2, (0.002, 3): 2.5, (0.0005, 3): 2.7}
    folder = synthetic.write_sweep(
        tmp_path, {LR: list(lacks), "/network/loss": [NONE]}, seeds=3, best_over=[LR],
        outcomes=lambda point, seed: "failed" if lacks[point[LR]] == seed else "completed",
        selection_losses=lambda point, seed: losses[point[LR], seed],
    )  # fmt: skip
    assert groups(droptest.load(folder))[0].best_value == "learning rate 0.001"


@pytest.mark.parametrize("outcome", ["failed", "diverged"])
def test_a_point_without_a_finished_run_stays_without_a_best_value_and_a_frame(tmp_path, outcome):
    records = droptest.load(
        write(tmp_path, lambda point, _: "completed" if point["/network/loss"] == NONE else outcome)
    )
    lossy = groups(records)[1]
    assert (lossy.best_value, lossy.count(outcome), lossy.final.n) == ("", 2, 0)
    assert "no best value: no run has finished" in lossy.note and "no best value" not in groups(records)[0].note
    assert lossy.name_with_rate == "Bernoulli, 20 %"
    assert droptest.best_over(records)["best"].sum() == 1
    (panel,) = plots.describe("rate_map", plots.data("rate_map", records))["panels"]
    assert panel["heat"]["frames"] == [[0, 2]]  # of the lossless point
    assert "the best value here" not in str([row[1] for row in panel["heat"]["text"]])


def test_without_any_finished_run_no_point_has_a_best_value(tmp_path):
    points = groups(droptest.load(write(tmp_path, lambda *_: "diverged")))
    assert all(point.best_value == "" and "no best value: no run has finished" in point.note for point in points)


def test_of_equal_values_the_first_wins(tmp_path):
    same = synthetic.write_sweep(
        tmp_path, {LR: [0.002, 0.001], "/network/loss": [NONE]}, seeds=1, best_over=[LR], name="same",
        selection_losses=lambda *_: 2.5,
    )  # fmt: skip
    assert groups(droptest.load(same))[0].best_value == "learning rate 0.002"


def test_a_sweep_without_runs_has_no_best_value(tmp_path):
    folder = write(tmp_path)
    for run in [entry for entry in folder.iterdir() if entry.is_dir()]:
        shutil.rmtree(run)
    sweep = json.loads((folder / "sweep.json").read_text())
    (folder / "sweep.json").write_text(json.dumps(sweep | {"runs": []}))
    assert droptest.best_over(droptest.load(folder)).empty


def test_the_map_holds_every_value_and_frames_the_best(chosen):
    data = plots.data("rate_map", chosen)
    assert data["panel"].tolist() == ["Bernoulli"] * 6
    axes = plots.draw("rate_map", chosen).axes[0]
    image = axes.images[0].get_array()
    # Rows: learning rates in order of the sweep; columns: loss rates.
    assert image.tolist() == [pytest.approx([low + 0.015, high + 0.015]) for low, high in VALIDATION.values()]
    assert [t.get_text() for t in axes.get_yticklabels()] == [f"learning rate {rate}" for rate in VALIDATION]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["0 %", "20 %"]
    assert {(round(p.get_x() + 0.47), round(p.get_y() + 0.47)) for p in axes.patches} == {(0, 2), (1, 1)}
    assert "2.355" in {t.get_text() for t in axes.texts}


def test_the_map_finds_the_series_of_a_sweep_in_the_order_of_its_spec(tmp_path):
    """The points of the record are in alphabetical order, and `names` has the order of the spec."""
    cross = {"/training/warmup_steps": [0, 9], "/training/batch_sequences": [8, 2], LR: [0.001, 0.002],
             "/network/loss": [NONE, bernoulli(0.2)]}  # fmt: skip
    records = droptest.load(synthetic.write_sweep(
        tmp_path, cross, seeds=1, best_over=[LR], selection_losses=lambda point, seed: 2.4 + 10 * point[LR],
    ))  # fmt: skip
    assert {group.series for group in groups(records)} == set(droptest.best_over(records)["series"])
    data = plots.data("rate_map", records)
    assert sorted(data["loss_rate"].unique()) == [0, 0.2]
    assert data.groupby("panel")["loss_rate"].nunique().tolist() == [2] * 4


def test_a_sweep_without_best_over_has_no_map(mixed):
    with pytest.raises(plots.NotMeant):
        plots.data("rate_map", droptest.load(mixed))
    records = droptest.load(mixed)
    assert records.best is records


def test_the_report_is_about_the_best_values(chosen, tmp_path):
    text = write_report(chosen, tmp_path).report.read_text(encoding="utf-8")
    assert "learning rate 0.001" in text and "12 runs planned" in text
    assert "paired by seed, each of the two at its own best value." in table("summary", chosen).note
    ending = "Here a run and its twin have the same learning rate; in other tables each has its best one."
    assert table("runs", chosen).note.endswith(ending)
    assert (tmp_path / "plots" / "rate_map.png").is_file()


def test_frames_have_a_column_for_each_swept_pointer(chosen):
    for name in ("runs", "metrics", "loss_statistics", "bursts", "layers"):
        frame = getattr(chosen, name)
        assert set(frame[LR]) == set(VALIDATION), name
    assert set(chosen.runs["/network/loss"]) == {"lossless", "Bernoulli 20 %"}


def labelled(point):
    texts = {8: "wide", 2: "narrow"}
    pointers = ["/training/batch_sequences", "/training/warmup_steps"]
    return [{"label": texts[point[pointers[0]]], "pointers": pointers}]


def test_a_label_stands_for_the_values_of_its_pointers(tmp_path):
    cross = {"/training/batch_sequences": [8, 2], "/network/loss": [NONE, bernoulli(0.1)]}
    records = droptest.load(synthetic.write_sweep(tmp_path, cross, seeds=1, labels=labelled))
    assert set(records.runs["series"]) == {"lossless, wide", "lossless, narrow", "wide, Bernoulli", "narrow, Bernoulli"}
    assert set(records.runs["label"]) == {"wide", "narrow"} == set(records.metrics["label"])
    assert set(plots.data("final_loss", records)["panel"]) == {"wide, Bernoulli", "narrow, Bernoulli"}


def test_a_label_of_two_values_does_not_hide_them(tmp_path):
    cross = {"/training/batch_sequences": [8, 2], "/network/loss": [bernoulli(0.1)]}
    labels = lambda _: [{"label": "same", "pointers": ["/training/batch_sequences"]}]  # noqa: E731
    records = droptest.load(synthetic.write_sweep(tmp_path, cross, seeds=1, labels=labels))
    assert set(records.runs["series"]) == {"Bernoulli, batch sequences 8", "Bernoulli, batch sequences 2"}


def test_a_label_of_values_that_differ_in_their_rate_is_one_curve(tmp_path):
    forward, backward = "/network/classes/tp_forward/loss", "/network/classes/tp_backward/loss"
    none, rates = synthetic.NONE, [0.01, 0.1]
    lossy = [synthetic.bernoulli(rate) for rate in rates]
    cross = {forward: [none, *lossy], backward: [none, *lossy]}
    names = {(True, False): "activations", (False, True): "activation gradients"}

    def labels(point):
        both = f"both, {point[forward]} and {point[backward]}"  # apart, so that no two points are one
        name = names.get((point[forward] != none, point[backward] != none), both)
        return [{"label": name, "pointers": [forward, backward]}]

    records = droptest.load(synthetic.write_sweep(tmp_path, cross, seeds=1, labels=labels))
    found = records.runs[records.runs["series"].isin(names.values())]
    assert sorted(zip(found["series"], found["loss_rate"], strict=True)) == [
        (name, rate) for name in sorted(names.values()) for rate in rates
    ]
