# SPDX-License-Identifier: Apache-2.0
"""When loss hurts: the paired difference to the lossless twin over steps."""

from __future__ import annotations

from typing import Any

import pandas as pd

from droptest import drawing
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw, NotMeant
from droptest.records import Records
from droptest.statistics import mean_interval

NAME = "differences"
TITLE = "Difference to lossless over steps"
CAPTION = (
    "Validation loss minus that of the lossless run with the same seed, at the same step. Lines: mean over seeds; "
    "bands: 95 % interval of the mean (Student t), none with one seed. Dotted line: no difference. "
    + panels.FAR_CAPTION
)


def data(records: Records) -> pd.DataFrame:
    """One row per series, loss rate and step: mean, low and high of the difference in validation loss over the seeds.

    Raises: NothingToDraw where no run and its lossless twin have a validation loss at the same step, NotMeant where all
    of them have a single one: the figure final_loss shows it.
    """
    shown, remark = panels.thinned_rates(*panels.shown_curves(records))
    losses = records.metrics.pivot_table(index="step", columns="run_id", values="validation_loss", dropna=False)
    twins = dict(zip(records.runs["run_id"], records.runs["twin"], strict=True))
    rows = []
    for series, groups in shown.items():
        for group in groups:
            pairs = {run: twins[run] for run in group.run_ids if run in losses and twins[run] in losses}
            if group.without_loss or not pairs:
                continue
            table = pd.DataFrame({run: losses[run] - losses[twin] for run, twin in pairs.items()}).dropna()
            rows += panels.rows_over(table, "step", mean_interval, panels.point_columns(series, group))
    if not rows:
        raise NothingToDraw("no run and its lossless twin have a validation loss at the same step")
    if not (result := panels.frame_of(rows, remark)).duplicated(["panel", "series", "loss_rate"]).any():
        raise NotMeant("the runs have a validation loss at a single step; see the figure final_loss")
    return result


def describe(data: pd.DataFrame) -> dict[str, Any]:
    """A panel per series."""
    y = {"title": f"validation loss above\nlossless ({data.attrs['unit']})"}
    found = [panels.lines_over(mine, "step", {"title": "step"}, y, series, drawing.NO_DIFFERENCE)
             for series in panels.series_in(data) for mine in [data[data["panel"] == series]]]  # fmt: skip
    drawing.fit(found, data.attrs["far"], include=(0,))
    drawing.fit(found, along="x")
    return drawing.figure(data, found, min(3, len(found)), key="packet loss rate", order=panels.rates_in_order(data))
