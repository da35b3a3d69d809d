# SPDX-License-Identifier: Apache-2.0
"""Validation and training loss over steps, one panel per series, one curve per loss rate."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from droptest import style
from droptest.files import OF_PROGRAMS
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw
from droptest.records import Records
from droptest.statistics import mean_interval

NAME = "training_curves"
TITLE = "Training curves"
CAPTION = (
    "Validation loss (top) and training loss (bottom) over steps. Lines: mean over seeds; bands: 95 % interval of the "
    "mean (Student t), none with one seed. A curve goes as far as all its runs have values; a cross marks where a run "
    f"diverged. {panels.FAR_CAPTION}"
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


def draw(data: pd.DataFrame) -> Figure:
    """Two panels per series: validation loss above training loss."""
    marks, far = panels.rate_marks(data), data.attrs["far"]
    figure, grid = panels.grid(list(dict.fromkeys(data["panel"])), 3.6, len(ROWS), sharex=True)
    handles: dict[str, object] = {}
    for series, axes in grid.items():
        for ax, (metric, label) in zip(axes, ROWS, strict=True):
            mine = data[(data["panel"] == series) & (data["metric"] == metric)]
            for curve, part in panels.curves_in(mine):
                handles.setdefault(curve, panels.band(ax, part, "step", marks[curve], far))
                ends = part[part["diverged"] & (part["mean"].abs() <= far)]
                ax.plot(ends["step"], ends["mean"], "x", color=marks[curve].color, markersize=7, markeredgewidth=1.6,
                        zorder=5)  # fmt: skip
            if ax.get_subplotspec().is_first_col():
                ax.set_ylabel(f"{label}\n({data.attrs['unit']})")
            style.plain_ticks(ax)
            ax.margins(x=0.02)
        axes[-1].set_xlabel("step")
    for row, (metric, _) in enumerate(ROWS):
        limits = panels.near_range(panels.ends_of(data[data["metric"] == metric]), far)
        _share_y([axes[row] for axes in grid.values()], limits)
    panels.finish(figure, data, handles, marks)
    return figure


def _comparable(records: Records, group) -> tuple[str, ...]:
    """The runs of the group that have ended; those that go on only where there are no others."""
    runs = records.runs[records.runs["run_id"].isin(group.run_ids)]
    ended = runs[runs["status"].isin(["completed", "diverged"])]
    return tuple((ended if len(ended) else runs[runs["status"].isin(["unfinished", *OF_PROGRAMS])])["run_id"])


def _share_y(axes, limits: tuple[float, float] | None) -> None:
    """The same range in all panels of one metric; limits: None where it is that of the curves."""
    same = [ax for ax in axes if ax.lines]
    if same:
        low, high = limits or (min(ax.get_ylim()[0] for ax in same), max(ax.get_ylim()[1] for ax in same))
        for ax in same:
            ax.set_ylim(low, high)
