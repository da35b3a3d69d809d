# SPDX-License-Identifier: Apache-2.0
"""Accuracy of classifiers against the loss rate, and the paired difference to the lossless twin."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from droptest import classification, drawing, words
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw, NotMeant
from droptest.records import Records
from droptest.rows_by_run import RowsByRun
from droptest.statistics import interval_columns

NAME = "accuracy"
TITLE = "Accuracy"
CAPTION = (
    "Accuracy on the validation examples after the last step, and its difference to the lossless run with the same "
    "seed, in percentage points; likewise each measure of the user's own. Points: mean over seeds; "
    "bars: 95 % interval (Student t), with one seed that of the resampled examples. Dotted lines: no difference, and "
    "the accuracy of always naming the most frequent class."
)
DIFFERENCE_LABEL = "difference to lossless twin"


def data(records: Records) -> pd.DataFrame:
    """One row per measure ("accuracy" and the user's own), curve (`panel`) and loss rate: value_mean, value_low,
    value_high over value_seeds, difference_... likewise; fractions, or the user's unit; missing_rate (the place on the
    axis); majority (share of the most frequent class); name.

    attrs: rate_pointer (Records). Raises: NotMeant without a classifier, NothingToDraw without a finished run.
    """
    if not classification.is_classification(records):
        raise NotMeant("no run classifies")
    shown, remark = panels.shown_curves(records)
    values = RowsByRun(classification.values_of(records))
    measures = ["accuracy", *(measure.name for measure in records.own_measures)]
    majority, rows = _majority(records), []
    for measure in measures:
        for series, groups in shown.items():
            for group in groups:
                value = interval_columns(classification.interval_over(values, group, measure), "value_")
                if measure == "accuracy" and value["value_seeds"] == 1:
                    mine = values.of(group.run_ids)
                    value |= {"value_low": mine["accuracy low"].mean(), "value_high": mine["accuracy high"].mean()}
                difference = classification.difference_over(values, group, measure)
                rows.append(
                    {"measure": measure} | panels.point_columns(series, group) | value
                    | interval_columns(difference, "difference_")
                    | {"missing_rate": group.missing_rate, "majority": majority,
                       "name": group.name_with_rate}
                )  # fmt: skip
    if not any(row["value_seeds"] for row in rows):
        raise NothingToDraw("no finished run has an accuracy")
    result = panels.frame_of(rows, remark)
    result.attrs["rate_pointer"] = records.rate_pointer
    return result


def _majority(records: Records) -> float:
    """The accuracy of always predicting the most frequent class of the validation examples."""
    for run in records.files.values():
        confusion = (run.summary.get("classification") or {}).get("confusion")
        if confusion:
            counts = [sum(row) for row in confusion]
            return max(counts) / sum(counts)
    return float("nan")


def scaled(part: pd.DataFrame, factor: float) -> pd.DataFrame:
    """The values of a measure in the unit of its axis."""
    columns = [f"{kind}_{end}" for kind in ("value", "difference") for end in ("mean", "low", "high")]
    return part.assign(**{column: factor * part[column] for column in columns})


def describe(data: pd.DataFrame) -> dict[str, Any]:
    """Two panels for each measure: curves over the loss rate; at a single rate a row per point."""
    found = []
    for measure in dict.fromkeys(data["measure"]):
        own = measure == "accuracy"
        part = scaled(data[data["measure"] == measure], 100 if own else 1)
        units, name = (("%", "percentage points") if own else ("", measure)), words.cut(measure, 34)
        if panels.one_rate(data):
            rows = part.drop_duplicates(["series", "loss_rate"])
            pair = [drawing.in_rows(rows, "value_", name, units[0], rows["name"], sign=""),
                    drawing.in_rows(rows, "difference_", DIFFERENCE_LABEL, units[1], rows["name"])]  # fmt: skip
        else:
            pair = [drawing.over_rate(part, "value_", name, units[0], sign="")]
            if part["difference_seeds"].any():
                lossy = part[~part["without_loss"]]
                pair.append(drawing.over_rate(lossy, "difference_", DIFFERENCE_LABEL, units[1]))
        along = "x" if panels.one_rate(data) else "y"
        majority = [100 * float(part["majority"].iloc[0])] if own and along == "y" else []
        pair[0]["lines"] = [{"y": place, "dash": "dot", "name": "always the most frequent class"} for place in majority]
        drawing.fit(pair[:1], along=along, include=[place for place in majority if math.isfinite(place)])
        for one in pair[1:]:
            one["lines"] = [{along: 0, "dash": "dot"}]
            drawing.fit([one], along=along, include=(0,))
        found += pair
    return drawing.figure(data, found, 2 if data["difference_seeds"].any() or panels.one_rate(data) else 1)
