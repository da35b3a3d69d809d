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
from droptest.rows_by_run import RowsByRun
from droptest.statistics import Interval
from droptest.summary import Group, cells_in, cells_of, groups, with_interval
from droptest.variance import interval_of

# The measures of summary.json, in the words of tables.
MEASURES = {"accuracy": "accuracy", "macro_f1": "macro F1", "calibration_error": "calibration error"}
NOTE = (
    "On the validation examples after the last step: mean ± half of the 95 % interval (Student t) over the finished "
    "seeds. Resampled: 95 % bootstrap interval over the examples; its two ends are means over the runs. The "
    "differences are to the lossless runs, paired by seed. Macro F1 is the mean of the F1 scores of the classes."
)
FINAL_LOSS = "final validation loss"


@dataclass(frozen=True)
class OwnMeasure:
    """A user's function of the labels and the predictions of a run, two lists of names of classes."""

    name: str
    function: Callable[[list[str], list[str]], float]

    def of(self, labels: list[str], predictions: list[str]) -> float:
        try:
            value = float(self.function(list(labels), list(predictions)))
        except (Exception, SystemExit) as error:  # whatever a user's function raises
            raise RecordError(f"measure {self.name}: {type(error).__name__}: {error}") from error
        if not math.isfinite(value):
            raise RecordError(f"measure {self.name}: got {value}, want a finite number")
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
    except (Exception, SystemExit) as error:  # whatever a user's file raises
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
    """The frame `runs` of the records with a column for each measure, NaN where a run did not complete.

    The measures of records have columns with the ends of their bootstrap intervals, too: "accuracy low" and so on.
    """
    rows = {}
    for run_id, run in records.files.items():
        quality = object_of(run.summary.get("classification"))
        if run.status != "completed" or not quality:
            continue
        estimates = {words: quality[name] for name, words in MEASURES.items()}
        estimates |= {f"F1 of {name}": f1 for name, f1 in zip(quality["classes"], quality["f1"], strict=True)}
        row = {}
        for measure, estimate in estimates.items():
            row |= {measure: estimate["value"]} | {f"{measure} {end}": estimate[end] for end in ("low", "high")}
        if records.own_measures:
            try:
                named = named_predictions(run.path)
                row |= {measure.name: measure.of(*named) for measure in records.own_measures}
            except MissingRecord as error:
                raise RecordError(f"{error}: a user's own measure needs it") from error
            except RecordError as error:
                raise RecordError(f"{run.path}: {error}") from error
        rows[run_id] = row
    found = pd.DataFrame.from_dict(rows, orient="index", dtype=float)
    columns = [column for m in measures_of(records) for column in (m, f"{m} low", f"{m} high")]
    return records.runs.merge(found.reindex(columns=columns), left_on="run_id", right_index=True, how="left")


def interval_over(values: RowsByRun, group: Group, measure: str) -> Interval:
    """The mean of a measure over the seeds of a point. values: of values_of()."""
    return interval_of(cells_in(values, group, measure))


def difference_over(values: RowsByRun, group: Group, measure: str) -> Interval:
    """The mean over the seeds of a point of the difference to the lossless twin. values: of values_of()."""
    mine = values.of(group.run_ids)
    twins = [values.columns([twin], measure)[0] for twin in mine["twin"]]
    paired = [own - twin[0] if len(twin) else math.nan for own, twin in zip(mine[measure], twins, strict=True)]
    return interval_of(cells_of(mine.assign(paired=paired), "paired"))


def _resampled(values: RowsByRun, group: Group, measure: str) -> str:
    low, high = (pd.Series(end).mean() for end in values.columns(group.run_ids, f"{measure} low", f"{measure} high"))
    return "-" if math.isnan(low) else f"{low:.4f} to {high:.4f}"


def table_of(records) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Header and rows, one for each point and measure."""
    records = records.best
    if not is_classification(records):
        return (), []
    values, rows = RowsByRun(values_of(records)), []
    for group in groups(records):
        point = (group.series, percent(group.loss_rate), interval_over(values, group, "accuracy").n)
        for measure in measures_of(records):
            value = with_interval(interval_over(values, group, measure))
            difference = (
                "-" if group.without_loss else with_interval(difference_over(values, group, measure), signed="+")
            )
            rows.append((*point, measure, value, _resampled(values, group, measure), difference))
        difference = "-" if group.without_loss else with_interval(group.difference, signed="+")
        rows.append((*point, FINAL_LOSS, with_interval(group.final), "-", difference))
    return ("series", "loss rate", "seeds", "measure", "value", "resampled", "difference"), rows


def confusion_over(records, group: Group) -> tuple[list[str], list[list[int]]]:
    """The classes, and the examples by true class and predicted class over the finished runs of a point; or none."""
    classes: list[str] = []
    total: list[list[int]] = []
    for run_id in group.run_ids:
        run = records.files[run_id]
        quality = object_of(run.summary.get("classification"))
        if run.status != "completed" or not quality:
            continue
        classes = quality["classes"]
        total = total or [[0] * len(classes) for _ in classes]
        total = [[a + b for a, b in zip(*pair, strict=True)] for pair in zip(total, quality["confusion"], strict=True)]
    return classes, total
