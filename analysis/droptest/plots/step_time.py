# SPDX-License-Identifier: Apache-2.0
"""Virtual time of a training step, one row per series and loss rate."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from droptest import drawing, virtual_time
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw, NotMeant
from droptest.records import Records
from droptest.statistics import interval_columns, mean_interval
from droptest.summary import groups

NAME = "step_time"
TITLE = "Virtual time of a step"
CAPTION = (
    "Mean virtual time of a training step on the slowest rank (docs/time.md). Points: mean over seeds; bars: 95 % "
    "interval (Student t), none with one seed."
)
MOST_ROWS = 40


def seconds_per_step(records: Records) -> dict[str, float]:
    """Virtual seconds of the last logged step over its number, of each run with a clock."""
    timed = records.metrics[records.metrics["virtual_seconds"].notna() & (records.metrics["step"] > 0)]
    last = timed.loc[timed.groupby("run_id")["step"].idxmax()]
    return dict(zip(last["run_id"], (last["virtual_seconds"] / last["step"]).tolist(), strict=True))


def data(records: Records) -> pd.DataFrame:
    """One row per series and loss rate: name, mean, low and high of the virtual seconds of a step over the seeds,
    late_rate (fraction of packets that missed a deadline; NaN without one).

    Raises: NotMeant without virtual time, NothingToDraw where there are too many series for one figure.
    """
    if not virtual_time.has_virtual_time(records):
        raise NotMeant("no run has a virtual clock")
    seconds = seconds_per_step(records)
    rows = []
    for group in groups(records):
        interval = mean_interval(seconds.get(run_id, math.nan) for run_id in group.run_ids)
        if interval.n:
            rows.append({"series": group.series, "loss_rate": group.loss_rate, "lossless": group.lossless,
                         "without_loss": group.without_loss, "late_rate": group.late_rate,
                         "name": group.name_with_rate, **interval_columns(interval)})  # fmt: skip
    if len(rows) > MOST_ROWS:
        raise NothingToDraw(f"{len(rows)} series and loss rates, of which one figure holds {MOST_ROWS}")
    return panels.frame_of(rows, "")


def describe(data: pd.DataFrame) -> dict[str, Any]:
    """A row per point, in milliseconds."""
    found = [drawing.in_rows(data, "", "virtual time of a step", "ms", data["name"], sign="", scale=1e3)]
    drawing.fit(found, along="x", include=(0,))
    return drawing.figure(data, found, 1)
