# SPDX-License-Identifier: Apache-2.0
"""When loss hurts: the paired difference to the lossless twin over steps."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw
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

    Raises: NothingToDraw where no run and its lossless twin have a validation loss at the same step.
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
    return panels.frame_of(rows, remark)


def draw(data: pd.DataFrame) -> Figure:
    """A panel per series."""
    marks = panels.rate_marks(data)
    figure, grid = panels.grid(list(dict.fromkeys(data["panel"])), 2.2, sharex=True, sharey=True)
    handles: dict[str, object] = {}
    limits = panels.near_range(panels.ends_of(data), data.attrs["far"], (0.0,))
    for series, (ax,) in grid.items():
        for curve, part in panels.curves_in(data[data["panel"] == series]):
            handles.setdefault(curve, panels.band(ax, part, "step", marks[curve], data.attrs["far"]))
        ax.axhline(0, color="0.3", linestyle=":", linewidth=1)
        ax.set_xlabel("step")
        if ax.get_subplotspec().is_first_col():
            ax.set_ylabel(f"validation loss above\nlossless ({data.attrs['unit']})")
        if limits is not None:
            ax.set_ylim(*limits)
    panels.finish(figure, data, handles, marks)
    return figure
