# SPDX-License-Identifier: Apache-2.0
"""Validation loss over virtual time, one panel per series, one curve per loss rate."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.figure import Figure

from droptest import style, virtual_time
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw, NotMeant
from droptest.records import Records
from droptest.statistics import mean_interval

NAME = "loss_over_time"
TITLE = "Validation loss over virtual time"
CAPTION = (
    "Validation loss over the virtual clock of the slowest rank, which counts compute, transfers, repetitions and "
    "waits (docs/time.md). Lines: mean over seeds of loss and of time at each step; bands: 95 % interval of the mean "
    "loss (Student t), none with one seed. Dotted line: the target of the next figure. " + panels.FAR_CAPTION
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


def draw(data: pd.DataFrame) -> Figure:
    """A panel per series, with the target as a line."""
    marks = panels.rate_marks(data)
    target = data["target_loss"].iloc[0]
    figure, grid = panels.grid(list(dict.fromkeys(data["panel"])), 2.4, sharex=True, sharey=True)
    handles: dict[str, object] = {}
    limits = panels.near_range(panels.ends_of(data), data.attrs["far"])
    for series, (ax,) in grid.items():
        for curve, part in panels.curves_in(data[data["panel"] == series]):
            handles.setdefault(curve, panels.band(ax, part, "virtual_seconds", marks[curve], data.attrs["far"]))
        if math.isfinite(target):
            ax.axhline(target, color="0.3", linestyle=":", linewidth=1)
        ax.set_xlabel("virtual time (s)")
        style.plain_ticks(ax)
        if ax.get_subplotspec().is_first_col():
            ax.set_ylabel(f"validation loss\n({data.attrs['unit']})")
        if limits is not None:
            ax.set_ylim(*limits)
    panels.finish(figure, data, handles, marks)
    return figure
