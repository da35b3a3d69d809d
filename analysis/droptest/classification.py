# SPDX-License-Identifier: Apache-2.0
"""Quality of classifiers: accuracy and other measures of each run and each point, a user's own ones too."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from droptest.files import MissingRecord, RecordError, object_of, read_json
from droptest.loss_model import percent
from droptest.statistics import Interval
from droptest.summary import Group, cells_of, groups, with_interval
from droptest.variance import interval_of

# The measures of summary.json, in the words of tables.
MEASURES = {"accuracy": "accuracy", "macro_f1": "macro F1", "calibration_error": "calibration error"}
NOTE = (
    "Shares of the validation examples after the last step: mean ± half of the 95 % interval (Student t) over the "
    "finished seeds. Resampled: the mean over the runs of the ends of their 95 % bootstrap intervals over the examples "
    "of accuracy. The differences are to the lossless runs, paired by seed. Macro F1 is the mean of the F1 scores of "
    "the classes."
)


@dataclass(frozen=True)
class OwnMeasure:
    """A user's function of the labels and the predictions of a run, two lists of names of classes."""

    name: str
    function: Callable[[list[str], list[str]], float]

    def of(self, labels: list[str], predictions: list[str]) -> float:
        try:
            value = float(self.function(list(labels), list(predictions)))
        except Exception as error:  # whatever a user's function raises
            raise RecordError(f"measure {self.name}: {type(error).__name__}: {error}") from error
        return value


def own_measure(text: str) -> OwnMeasure:
    """The function NAME of FILE.py, from "FILE.py:NAME". Raises: RecordError."""
    file, colon, name = text.rpartition(":")
    if not colon or not name.isidentifier() or not file.endswith(".py"):
        raise RecordError(f"measure: got {text!r}, want FILE.py:NAME")
    if not Path(file).is_file():
        raise RecordError(f"measure: {file}: no such file")
    spec = importlib.util.spec_from_file_location(f"droptest_measure_{Path(file).stem}", file)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever a user's file raises
        raise RecordError(f"measure: {file}: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise RecordError(f"measure: {file} has no function {name}")
    return OwnMeasure(name.replace("_", " "), function)


def named_predictions(path: Path) -> tuple[list[str], list[str]]:
    """The labels and the predictions of a run's predictions.json, as names of classes. Raises: RecordError."""
    record = read_json(path / "predictions.json")
    classes = record["classes"]
    return [classes[i] for i in record["labels"]], [classes[i] for i in record["predictions"]]


def is_classification(records) -> bool:
    return any(object_of(run.summary.get("classification")) for run in records.files.values())


def measures_of(records) -> list[str]:
    """The names of all measures: those of records, F1 of each class, the user's."""
    first = next(
        (found for run in records.files.values() if (found := object_of(run.summary.get("classification")))), {}
    )
    return [*MEASURES.values(), *(f"F1 of {name}" for name in first.get("classes", [])),
            *(measure.name for measure in records.own_measures)]  # fmt: skip


def values_of(records) -> pd.DataFrame:
    """The frame `runs` of the records with a column for each measure, NaN where a run did not complete."""
    rows = {}
    for run_id, run in records.files.items():
        quality = object_of(run.summary.get("classification"))
        if run.status != "completed" or not quality:
            continue
        row = {words: quality[name]["value"] for name, words in MEASURES.items()}
        row |= {"accuracy low": quality["accuracy"]["low"], "accuracy high": quality["accuracy"]["high"]}
        row |= {f"F1 of {name}": f1["value"] for name, f1 in zip(quality["classes"], quality["f1"], strict=True)}
        if records.own_measures:
            try:
                named = named_predictions(run.path)
            except MissingRecord as error:
                raise RecordError(f"{error}: a user's own measure needs it") from error
            row |= {measure.name: measure.of(*named) for measure in records.own_measures}
        rows[run_id] = row
    found = pd.DataFrame.from_dict(rows, orient="index", dtype=float)
    columns = [*measures_of(records), "accuracy low", "accuracy high"]
    return records.runs.merge(found.reindex(columns=columns), left_on="run_id", right_index=True, how="left")


def interval_over(values: pd.DataFrame, group: Group, measure: str) -> Interval:
    """The mean of a measure over the seeds of a point."""
    mine = values[values["run_id"].isin(group.run_ids)]
    return interval_of(cells_of(mine.assign(measured=mine[measure]), "measured"))


def difference_over(values: pd.DataFrame, group: Group, measure: str) -> Interval:
    """The mean over the seeds of a point of the difference to the lossless twin."""
    of_run = values.set_index("run_id")[measure]
    mine = values[values["run_id"].isin(group.run_ids)]
    paired = [row[measure] - of_run.get(row["twin"], math.nan) for _, row in mine.iterrows()]
    return interval_of(cells_of(mine.assign(paired=paired), "paired"))


def table_of(records) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Header and rows, one for each point."""
    records = records.best
    if not is_classification(records):
        return (), []
    values, measures = values_of(records), measures_of(records)
    rows = []
    for group in groups(records):
        mine = values[values["run_id"].isin(group.run_ids)]
        low, high = mine["accuracy low"].mean(), mine["accuracy high"].mean()
        rows.append(
            (group.series, percent(group.loss_rate), interval_over(values, group, "accuracy").n,
             *(with_interval(interval_over(values, group, measure)) for measure in measures[:1]),
             "-" if math.isnan(low) else f"{low:.4f} to {high:.4f}",
             "-" if group.lossless else with_interval(difference_over(values, group, "accuracy"), signed="+"),
             *(with_interval(interval_over(values, group, measure)) for measure in measures[1:]),
             with_interval(group.final))
        )  # fmt: skip
    header = ("series", "loss rate", "seeds", "accuracy", "resampled", "difference of accuracy", *measures[1:],
              "final validation loss")  # fmt: skip
    return header, rows
