# SPDX-License-Identifier: Apache-2.0
"""Validation loss over virtual time, one panel per series, one curve per loss rate."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from droptest import drawing, virtual_time
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw, NotMeant
from droptest.records import Records
from droptest.statistics import mean_interval

NAME = "loss_over_time"
TITLE = "Validation loss over virtual time"
CAPTION = (
    "Validation loss over the virtual clock of the slowest rank, which counts compute, transfers, repetitions and "
    "waits (docs/time.md). Lines: mean over seeds of loss and of time at each step; bands: 95 % interval of the mean "
    "loss (Student t), none with one seed. Dotted line: the target loss, to which the time is measured. "
    + panels.FAR_CAPTION
)


def data(records: Records) -> pd.DataFrame:
    """One row per series, loss rate and step: virtual_seconds (mean over the seeds); mean, low and high of the
    validation loss; target_loss (NaN without one).

    Raises: NotMeant without virtual time, NothingToDraw without a validation loss on it.
    """
    if not virtual_time.has_virtual_time(records):
        raise NotMeant("no run has a virtual clock")
    shown, remark = panels.thinned_rates(*panels.shown_curves(records))
    if records.metrics["validation_loss"].isna().all():
        raise NothingToDraw("no run has logged a validation loss yet")
    target = virtual_time.default_target(records)
    rows = []
    for series, groups in shown.items():
        for group in groups:
            losses = panels.common_steps(records.metrics, group.run_ids, "validation_loss")
            seconds = panels.common_steps(records.metrics, group.run_ids, "virtual_seconds").mean(axis="columns")
            losses = losses[losses.index.isin(seconds.index)]
            for row in panels.rows_over(losses, "step", mean_interval, panels.point_columns(series, group)):
                rows.append(row | {"virtual_seconds": seconds[row["step"]], "target_loss": target})
    if not rows:
        raise NothingToDraw("the runs of no point have a validation loss at the same step")
    return panels.frame_of(rows, remark)


def describe(data: pd.DataFrame) -> dict[str, Any]:
    """A panel per series, with the target as a line."""
    target = float(data["target_loss"].iloc[0])
    lines = [{"y": target, "dash": "dot", "name": "target"}] if math.isfinite(target) else []
    y = {"title": f"validation loss\n({data.attrs['unit']})"}
    found = [panels.lines_over(mine, "virtual_seconds", {"title": "virtual time (s)"}, y, series, *lines)
             for series in panels.series_in(data) for mine in [data[data["panel"] == series]]]  # fmt: skip
    drawing.fit(found, data.attrs["far"], include=[line["y"] for line in lines])
    drawing.fit(found, along="x")
    return drawing.figure(data, found, min(3, len(found)), key="packet loss rate", order=panels.rates_in_order(data))
