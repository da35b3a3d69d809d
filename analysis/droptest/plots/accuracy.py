# SPDX-License-Identifier: Apache-2.0
"""Accuracy of classifiers against the loss rate, and the paired difference to the lossless twin."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from droptest import classification, style
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw, NotMeant
from droptest.records import Records
from droptest.rows_by_run import RowsByRun
from droptest.statistics import interval_columns

NAME = "accuracy"
TITLE = "Accuracy"
CAPTION = (
    "Accuracy on the validation examples after the last step (left) and its difference to the lossless run with the "
    "same seed (right), in percentage points; a row below for each measure of the user's own. Points: mean over seeds; "
    "bars: 95 % interval (Student t), with one seed that of the resampled examples. Dotted lines: no difference, and "
    "the accuracy of always naming the most frequent class."
)
VALUE_LABEL, DIFFERENCE_LABEL = "accuracy", "difference to lossless twin"


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
        raise NothingToDraw("no run has finished yet")
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


def one_rate(data: pd.DataFrame) -> bool:
    """Whether the figure compares several series at a single rate: then there is no axis for curves."""
    return data.loc[~data["without_loss"], "loss_rate"].nunique(dropna=False) <= 1 and data["panel"].nunique() > 1


def labels_of(measure: str) -> tuple[str, str, float]:
    """The axis labels of a measure and the factor of its values there."""
    if measure == "accuracy":
        return f"{VALUE_LABEL} (%)", f"{DIFFERENCE_LABEL}\n(percentage points)", 100
    shown = panels.panel_title(measure)
    return shown, f"{DIFFERENCE_LABEL}\n({shown})", 1


def scaled(part: pd.DataFrame, factor: float) -> pd.DataFrame:
    """The values of a measure in the unit of its axis."""
    columns = [f"{kind}_{end}" for kind in ("value", "difference") for end in ("mean", "low", "high")]
    return part.assign(**{column: factor * part[column] for column in columns})


def draw(data: pd.DataFrame) -> Figure:
    """A row of two panels for each measure: curves over the loss rate; at a single rate a row per point."""
    return _draw_by_series(data) if one_rate(data) else _draw_over_rate(data)


def _draw_over_rate(data: pd.DataFrame) -> Figure:
    measures, pointer = list(dict.fromkeys(data["measure"])), data.attrs["rate_pointer"]
    paired = data["difference_seeds"].any()
    columns = 2 if paired else 1
    width = style.DOUBLE_COLUMN if paired else style.SINGLE_COLUMN
    figure, axes = style.figure(width, 2.5 * len(measures), len(measures), columns)
    shown = list(dict.fromkeys(data["panel"]))
    marks = style.marks(shown)
    handles = []
    for row, measure in enumerate(measures):
        value_label, difference_label, factor = labels_of(measure)
        part = scaled(data[data["measure"] == measure], factor)
        rates = part["missing_rate"].tolist()
        smallest = min((rate for rate in rates if rate > 0), default=1.0)
        for index, series in enumerate(shown):
            mine = part[part["panel"] == series]
            shift = panels.shift_of(index, len(shown))
            at_zero = (shift - 1) * smallest * 100
            handle = panels.over_rate(axes[row][0], mine, "value_", shift, at_zero, marks[series])
            if row == 0:
                handles.append(handle)
            if paired:
                lossy = mine[~mine["without_loss"]]
                panels.over_rate(axes[row][1], lossy, "difference_", shift, at_zero, marks[series])
        style.percent_axis(axes[row][0], rates, pointer)
        axes[row][0].set_ylabel(value_label)
        if measure == "accuracy":
            axes[row][0].axhline(100 * part["majority"].iloc[0], color="0.3", linestyle=":", linewidth=1)
        if paired:
            style.percent_axis(axes[row][1], part.loc[~part["without_loss"], "missing_rate"].tolist(), pointer)
            axes[row][1].set_ylabel(difference_label)
            axes[row][1].axhline(0, color="0.3", linestyle=":", linewidth=1)
    if data.attrs["remark"]:
        figure.suptitle(data.attrs["remark"], fontsize=7)
    style.legend_below(figure, handles, shown)
    return figure


def _draw_by_series(data: pd.DataFrame) -> Figure:
    measures = list(dict.fromkeys(data["measure"]))
    every = data.drop_duplicates(["measure", "series", "loss_rate"])
    count = int((every["measure"] == measures[0]).sum())
    height = (0.9 + 0.24 * count) * len(measures)
    figure, axes = style.figure(style.DOUBLE_COLUMN, height, len(measures), 2)
    marks = style.marks(list(dict.fromkeys(every["series"])))
    for row, measure in enumerate(measures):
        labels = labels_of(measure)
        points = scaled(every[every["measure"] == measure], labels[2]).reset_index(drop=True)
        for column, kind in enumerate(("value_", "difference_")):
            panels.in_rows(axes[row][column], points, kind, points["name"],
                           [marks[series] for series in points["series"]], width=44)  # fmt: skip
            axes[row][column].set_xlabel(labels[column])
        axes[row][1].axvline(0, color="0.3", linestyle=":", linewidth=1)
        axes[row][1].set_yticklabels([])
    if data.attrs["remark"]:
        figure.suptitle(data.attrs["remark"], fontsize=7)
    return figure
