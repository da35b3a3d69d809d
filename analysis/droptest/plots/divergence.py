# SPDX-License-Identifier: Apache-2.0
"""How far the replicas of replicated parameters are apart, over steps, by loss rate and parameter group."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from droptest import drawing, words
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw
from droptest.records import Records
from droptest.statistics import geometric_interval

NAME = "divergence"
TITLE = "Replica divergence"
CAPTION = (
    "Root-mean-square difference between the ranks' copies of replicated parameters, by parameter group. Lines: "
    "geometric mean over seeds; bands: 95 % interval of it (Student t of the logarithms). Runs whose replicas stay "
    "equal (lossless ones, and paths on which all ranks miss the same packets) have no line on a logarithmic axis. "
    "With ZeRO 3 it is not measured."
)


def data(records: Records) -> pd.DataFrame:
    """One row per series, loss rate, group of parameters and step: mean, low and high (RMS difference, units of the
    parameters) over the seeds.

    Raises: NothingToDraw where no run's replicas differ.
    """
    frame = records.divergence[(records.divergence["rms"] > 0) & np.isfinite(records.divergence["rms"])]
    shown, remark = panels.thinned_rates(*panels.shown_curves(records))
    shown = {series: [g for g in groups if frame["run_id"].isin(g.run_ids).any()] for series, groups in shown.items()}
    shown = {series: groups for series, groups in shown.items() if groups}
    if not shown:
        measured = "replicas stayed equal in all runs" if len(records.divergence) else "divergence was not sampled"
        raise NothingToDraw(measured)
    rows = []
    for parameters in [g for g in dict.fromkeys(frame["group"]) if g != "all"] or ["all"]:
        one = frame[frame["group"] == parameters]
        for series, points in shown.items():
            for point in points:
                table = panels.common_steps(one, tuple(set(point.run_ids) & set(one["run_id"])), "rms")
                keys = panels.point_columns(series, point) | {"group": parameters}
                rows += panels.rows_over(table, "step", geometric_interval, keys)
    return panels.frame_of(rows, remark)


def describe(data: pd.DataFrame) -> dict[str, Any]:
    """A row of panels per series, a column per group of parameters."""
    y = {"title": "RMS difference\nbetween replicas", "type": "log"}
    groups = list(dict.fromkeys(data["group"]))
    found = [panels.lines_over(mine, "step", {"title": "step"}, y, (series, title))
             for series in panels.series_in(data) for group in groups
             for mine in [data[(data["panel"] == series) & (data["group"] == group)]]
             for title in [words.spoken(group) if group != "all" else "all replicated parameters"]]  # fmt: skip
    drawing.fit(found)
    drawing.fit(found, along="x")
    columns = len(groups) if 1 < len(groups) <= 3 else min(3, len(found))
    return drawing.figure(data, found, columns, key="packet loss rate", order=panels.rates_in_order(data))
