# SPDX-License-Identifier: Apache-2.0
"""Records of classifiers: their table, their figure, and measures of the user's own."""

import json
import math

import pytest
import synthetic
from synthetic import NONE, bernoulli

import droptest
from droptest import classification, plots, tables
from droptest.__main__ import main
from droptest.files import RecordError

CLASSES = ["cold", "hot"]
# Hits among ten cold and ten hot examples, by loss rate and seed.
HITS = {0: {1: (10, 8), 2: (9, 9)}, 0.2: {1: (6, 8), 2: (7, 5)}}


def quality(cold, hot):
    """The record of so many hits."""
    f1 = [2 * cold / (20 + cold - hot), 2 * hot / (20 + hot - cold)]
    estimate = lambda value: {"value": value, "low": max(0.0, value - 0.1), "high": min(1.0, value + 0.1)}  # noqa: E731
    return {
        "examples": 20, "accuracy": estimate((cold + hot) / 20), "macro_f1": estimate(sum(f1) / 2),
        "calibration_error": estimate(0.05), "classes": CLASSES, "f1": [estimate(value) for value in f1],
        "confusion": [[cold, 10 - cold], [10 - hot, hot]],
    }  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = synthetic.write_sweep(tmp_path_factory.mktemp("classes"), {"/network/loss": [NONE, bernoulli(0.2)]}, seeds=2)
    for run in out.iterdir():
        if not (run / "summary.json").is_file():
            continue
        summary = json.loads((run / "summary.json").read_text())
        rate = summary["point"]["/network/loss"].get("loss_rate", 0)
        cold, hot = HITS[rate][summary["seed"]]
        summary["classification"] = quality(cold, hot)
        (run / "summary.json").write_text(json.dumps(summary))
        predictions = [int(i >= cold) for i in range(10)] + [int(i < hot) for i in range(10)]
        record = {"schema_version": 1, "classes": CLASSES, "labels": [0] * 10 + [1] * 10, "predictions": predictions,
                  "confidences": [0.75] * 20}  # fmt: skip
        (run / "predictions.json").write_text(json.dumps(record))
    return out


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    file = tmp_path_factory.mktemp("own") / "mine.py"
    file.write_text(
        "def hot_share(labels, predictions):\n"
        "    assert set(labels) == {'cold', 'hot'} and len(labels) == len(predictions) == 20\n"
        "    return predictions.count('hot') / len(predictions)\n"
        "def broken(labels, predictions):\n    return 1 / 0\n"
    )
    return file


def cells(table):
    return [dict(zip(table.header, row, strict=True)) for row in table.rows]


def test_the_table_has_means_over_seeds_and_paired_differences(folder):
    lossless, lossy = cells(tables.table("classification", droptest.load(folder)))
    assert lossless["accuracy"].startswith("0.9000 ± ")
    assert (lossless["difference of accuracy"], lossless["seeds"]) == ("-", "2")
    assert lossy["accuracy"].startswith("0.6500 ± ")
    assert lossy["difference of accuracy"].startswith("-0.2500 ± ")
    assert lossy["resampled"] == "0.5500 to 0.7500"
    mean = sum(2 * cold / (20 + cold - hot) for cold, hot in HITS[0.2].values()) / 2
    assert lossy["F1 of cold"].startswith(f"{mean:.4f} ± ")
    assert lossy["calibration error"] == "0.0500 ± 0.0000"


def test_own_measures_are_shown_next_to_accuracy(folder, own):
    records = droptest.load(folder)
    records.own_measures = (classification.own_measure(f"{own}:hot_share"),)
    lossless, lossy = cells(tables.table("classification", records))
    assert lossless["hot share"].startswith("0.4500 ± ")  # (0 + 8) and (1 + 9) of 20
    assert lossy["hot share"].startswith("0.5000 ± ")  # (4 + 8) and (3 + 5) of 20
    data = plots.data("accuracy", records)
    assert list(dict.fromkeys(data["measure"])) == ["accuracy", "hot share"]
    shares = data[data["measure"] == "hot share"].set_index("loss_rate")
    assert shares.loc[0.2, "value_mean"] == pytest.approx(0.5)
    assert shares.loc[0.2, "difference_mean"] == pytest.approx(0.05)


def test_the_figure_shows_accuracy_and_its_paired_difference(folder):
    records = droptest.load(folder)
    data = plots.data("accuracy", records).set_index("loss_rate")
    assert data.loc[0.2, "value_mean"] == pytest.approx(0.65)
    assert data.loc[0.2, "difference_mean"] == pytest.approx(-0.25)
    assert data.loc[0.2, "majority"] == 0.5
    figure = plots.draw("accuracy", records)
    left, right = figure.axes[:2]
    assert left.get_ylabel() == "accuracy (%)"
    assert [line for line in left.lines if list(line.get_ydata()) == [50.0, 50.0]], "the majority's accuracy"
    assert any(-25 in [round(y) for y in line.get_ydata()] for line in right.lines)


def test_the_report_has_both(folder, own, tmp_path, capsys):
    assert main(["report", str(folder), "--out", str(tmp_path), "--measure", f"{own}:hot_share"]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "Quality of the classifiers" in page
    assert "hot share" in (tmp_path / "tables/classification.csv").read_text()
    assert (tmp_path / "plots/accuracy.svg").is_file()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{file}", "want FILE.py:NAME"),
        ("nowhere.py:f", "nowhere.py: no such file"),
        ("{file}:none", "has no function none"),
        ("{file}:broken", "measure broken: ZeroDivisionError"),
    ],
)  # fmt: skip
def test_own_measures_that_do_not_work_are_named(folder, own, name, message):
    records = droptest.load(folder)
    with pytest.raises(RecordError, match=message):
        records.own_measures = (classification.own_measure(name.format(file=own)),)
        tables.table("classification", records)


def test_language_models_have_no_such_parts(mixed):
    records = droptest.load(mixed)
    assert tables.table("classification", records) is None
    with pytest.raises(plots.NotMeant):
        plots.data("accuracy", records)


def test_a_run_without_a_result_has_no_accuracy(tmp_path):
    folder = synthetic.write_sweep(tmp_path, {"/network/loss": [NONE, bernoulli(0.2)]}, seeds=1)
    for run in folder.iterdir():
        if (run / "summary.json").is_file():
            summary = json.loads((run / "summary.json").read_text())
            summary["classification"] = quality(5, 5)
            lossy = summary["point"]["/network/loss"] != NONE
            (run / "summary.json").write_text(json.dumps(summary | ({"status": "diverged"} if lossy else {})))
    values = classification.values_of(droptest.load(folder)).set_index("lossless")["accuracy"]
    assert values[True] == 0.5
    assert math.isnan(values[False])
