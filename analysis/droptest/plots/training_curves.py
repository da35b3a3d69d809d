# SPDX-License-Identifier: Apache-2.0
"""Validation and training loss over steps, one panel per series, one curve per loss rate."""

from __future__ import annotations

from typing import Any

import pandas as pd

from droptest import drawing
from droptest.files import OF_PROGRAMS
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw
from droptest.records import Records
from droptest.statistics import mean_interval

NAME = "training_curves"
TITLE = "Training curves"
CAPTION = (
    "Validation loss and training loss over steps. Lines: mean over seeds; bands: 95 % interval of the "
    "mean (Student t), none with one seed. A curve goes as far as all its runs have values; a cross is the last "
    f"point before a run diverged. {panels.FAR_CAPTION}"
)
ROWS = (("validation_loss", "validation loss"), ("train_loss", "training loss"))


def data(records: Records) -> pd.DataFrame:
    """One row per series, loss rate, metric (validation_loss, train_loss) and step: mean, low and high
    over the seeds; diverged: whether the curve ends here because a run diverged.

    Raises: NothingToDraw without any finite loss.
    """
    shown, remark = panels.thinned_rates(*panels.shown_curves(records))
    if records.metrics[["validation_loss", "train_loss"]].isna().all().all():
        raise NothingToDraw("no run has logged a loss yet")
    rows = []
    for series, groups in shown.items():
        for group in groups:
            for metric, _ in ROWS:
                table = panels.common_steps(records.metrics, _comparable(records, group), metric)
                keys = panels.point_columns(series, group) | {"metric": metric, "diverged": False}
                mine = list(panels.rows_over(table, "step", mean_interval, keys))
                if mine and group.count("diverged"):
                    mine[-1]["diverged"] = True
                rows += mine
    if not rows:
        raise NothingToDraw("the runs of no point have a loss at the same step")
    return panels.frame_of(rows, remark)


def _comparable(records: Records, group) -> tuple[str, ...]:
    """The runs of the group that have ended; those that go on only where there are no others."""
    runs = records.runs[records.runs["run_id"].isin(group.run_ids)]
    ended = runs[runs["status"].isin(["completed", "diverged"])]
    return tuple((ended if len(ended) else runs[runs["status"].isin(["unfinished", *OF_PROGRAMS])])["run_id"])


def describe(data: pd.DataFrame) -> dict[str, Any]:
    """Two panels per series: validation loss, and training loss, as far as there are any."""
    kinds = []
    for metric, label in [row for row in ROWS if row[0] in set(data["metric"])]:
        found = []
        for series in panels.series_in(data):
            mine = data[(data["panel"] == series) & (data["metric"] == metric)]
            y = {"title": f"{label}\n({data.attrs['unit']})"}
            one = panels.lines_over(mine, "step", {"title": "step"}, y, series)
            for c, (_, rows) in zip(list(one["curves"]), panels.curves_in(mine), strict=True):
                ends = rows[rows["diverged"] & (rows["mean"].abs() <= data.attrs["far"])]
                if len(ends):
                    text = [f"{c['name']}\na run diverged after step {step}" for step in ends["step"]]
                    one["curves"].append(drawing.curve(c["name"], c["look"], ends["step"], ends["mean"], "points",
                                                       text=text, symbol="x"))  # fmt: skip
            found.append(one)
        drawing.fit(found, data.attrs["far"])
        kinds.append(found)
    drawing.fit([one for found in kinds for one in found], along="x")
    columns = min(panels.PANELS_PER_ROW, len(kinds[0]))
    return drawing.figure(data, drawing.blocks(columns, *kinds), columns, key="packet loss rate",
                          order=panels.rates_in_order(data))  # fmt: skip
