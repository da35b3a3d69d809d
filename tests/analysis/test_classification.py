# SPDX-License-Identifier: Apache-2.0
"""Records of classifiers: their table, their figure, and measures of the user's own."""

import json
import math

import pytest
import synthetic
from synthetic import NONE, bernoulli

import droptest
from droptest import classification, interactive, plots, tables
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
        "def nothing(labels, predictions):\n    return float('nan')\n"
        "def leaves(labels, predictions):\n    raise SystemExit(3)\n"
    )
    return file


def cells(table):
    """The rows of the lossless and of the lossy point, by measure."""
    rows = [dict(zip(table.header, row, strict=True)) for row in table.rows]
    return [{row["measure"]: row for row in rows if (row["loss rate"] == "0 %") == lossless}
            for lossless in (True, False)]  # fmt: skip


def test_the_table_has_means_over_seeds_and_paired_differences(folder):
    lossless, lossy = cells(tables.table("classification", droptest.load(folder)))
    assert list(lossy) == ["accuracy", "macro F1", "calibration error", "F1 of cold", "F1 of hot",
                           "final validation loss"]  # fmt: skip
    assert lossless["accuracy"]["value"].startswith("0.9000 ± ")
    assert (lossless["accuracy"]["difference"], lossless["accuracy"]["seeds"]) == ("-", "2")
    assert lossy["accuracy"]["value"].startswith("0.6500 ± ")
    assert lossy["accuracy"]["difference"].startswith("-0.2500 ± ")
    assert lossy["accuracy"]["resampled"] == "0.5500 to 0.7500"
    of_cold = {rate: [2 * cold / (20 + cold - hot) for cold, hot in hits.values()] for rate, hits in HITS.items()}
    assert lossy["F1 of cold"]["value"].startswith(f"{sum(of_cold[0.2]) / 2:.4f} ± ")
    difference = (sum(of_cold[0.2]) - sum(of_cold[0])) / 2
    assert lossy["F1 of cold"]["difference"].startswith(f"{difference:+.4f} ± ")
    macro = [sum(quality(*hits)["macro_f1"]["value"] for hits in HITS[rate].values()) / 2 for rate in (0, 0.2)]
    assert lossy["macro F1"]["value"].startswith(f"{macro[1]:.4f} ± ")
    assert lossy["macro F1"]["resampled"] == f"{macro[1] - 0.1:.4f} to {macro[1] + 0.1:.4f}"
    assert lossy["macro F1"]["difference"].startswith(f"{macro[1] - macro[0]:+.4f} ± ")
    assert lossy["calibration error"]["value"] == "0.0500 ± 0.0000"
    assert lossy["calibration error"]["resampled"] == "0.0000 to 0.1500"
    assert lossy["calibration error"]["difference"] == "+0.0000 ± 0.0000"
    assert lossy["final validation loss"]["difference"].startswith(("+", "-"))


def test_the_confusion_is_that_of_all_seeds(folder):
    records = droptest.load(folder)
    data = plots.data("confusion", records)
    lossless, lossy = dict.fromkeys(data["panel"])
    assert "20 %" in lossy
    of = data.set_index(["panel", "label", "prediction"])
    # Hits of seeds 1 and 2 without loss: 10 and 9 cold, 8 and 9 hot; at 20 %: 6 and 7 cold, 8 and 5 hot.
    assert of.loc[(lossless, "cold", "cold"), "examples"] == 19
    assert of.loc[(lossless, "hot", "cold"), "examples"] == 3
    assert of.loc[(lossy, "cold", "hot"), "examples"] == 7
    assert of.loc[(lossy, "hot", "hot"), "share"] == pytest.approx(13 / 20)
    figure = plots.draw("confusion", records)
    maps = [ax for ax in figure.axes if ax.images and ax.get_xlabel() == "predicted class"]
    assert [[text.get_text() for text in ax.texts] for ax in maps] == [
        ["95", "5", "15", "85"],
        ["65", "35", "35", "65"],
    ]
    assert maps[0].images[0].get_array().tolist() == [[95, 5], [15, 85]]
    assert [label.get_text() for label in maps[0].get_yticklabels()] == CLASSES
    drawn = interactive.figure_of("confusion", data)["panels"][1]
    assert drawn["heat"]["z"] == [[65, 35], [35, 65]]
    assert drawn["heat"]["text"][0][1] == "cold taken for hot: 7 examples"


def test_own_measures_are_shown_next_to_accuracy(folder, own):
    records = droptest.load(folder)
    records.own_measures = (classification.own_measure(f"{own}:hot_share"),)
    lossless, lossy = cells(tables.table("classification", records))
    assert lossless["hot share"]["value"].startswith("0.4500 ± ")  # (0 + 8) and (1 + 9) of 20
    assert lossy["hot share"]["value"].startswith("0.5000 ± ")  # (4 + 8) and (3 + 5) of 20
    assert lossy["hot share"]["difference"].startswith("+0.0500 ± ")
    assert lossy["hot share"]["resampled"] == "-"
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
    assert left.get_ylabel() == "accuracy\n(%)"
    assert [line for line in left.lines if list(line.get_ydata()) == [50.0, 50.0]], "the majority's accuracy"
    assert any(-25 in [round(y) for y in line.get_ydata()] for line in right.lines)


def test_the_report_has_both(folder, own, tmp_path, capsys):
    assert main(["report", str(folder), "--out", str(tmp_path), "--measure", f"{own}:hot_share"]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "Quality of the classifiers" in page
    assert "hot share" in (tmp_path / "tables/classification.csv").read_text()
    assert (tmp_path / "plots/accuracy.svg").is_file()
    assert (tmp_path / "plots/confusion.svg").is_file()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{file}", "want FILE.py:NAME"),
        ("nowhere.py:f", "nowhere.py: no such file"),
        ("{file}:none", "has no function none"),
        ("{file}:broken", "measure broken: ZeroDivisionError"),
        ("{file}:nothing", "/[0-9a-f]+: measure nothing: got nan, want a finite number"),
        ("{file}:leaves", "measure leaves: SystemExit: 3"),
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
    for name in ("accuracy", "confusion"):
        with pytest.raises(plots.NotMeant):
            plots.data(name, records)


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
