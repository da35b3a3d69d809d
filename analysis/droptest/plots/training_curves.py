# SPDX-License-Identifier: Apache-2.0
"""Validation and training loss over steps, one panel per series, one curve per loss rate."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.figure import Figure

from droptest import style
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw
from droptest.records import Records
from droptest.statistics import mean_interval

NAME = "training_curves"
TITLE = "Training curves"
CAPTION = (
    "Validation loss (top) and training loss (bottom) over steps. Lines: mean over seeds; bands: 95 % interval of the "
    "mean (Student t), none with one seed. A curve goes as far as all its runs have values; a cross marks where a run "
    "diverged."
)
ROWS = (("validation_loss", "validation loss\n(nats per token)"), ("train_loss", "training loss\n(nats per token)"))


def data(records: Records) -> pd.DataFrame:
    """One row per series, loss rate, metric (validation_loss, train_loss: nats per token) and step: mean, low and high
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
    marks = panels.rate_marks(data)
    shown = list(dict.fromkeys(data["panel"]))
    columns = min(panels.PANELS_PER_ROW, len(shown))
    blocks = math.ceil(len(shown) / columns)
    width = style.SINGLE_COLUMN if columns == 1 else style.DOUBLE_COLUMN
    figure, axes = style.figure(width, 3.6 * blocks, 2 * blocks, columns, sharex=True)
    handles: dict[str, object] = {}
    for index, series in enumerate(shown):
        block, column = divmod(index, columns)
        for row, (metric, label) in enumerate(ROWS):
            ax = axes[2 * block + row][column]
            mine = data[(data["panel"] == series) & (data["metric"] == metric)]
            for curve, part in panels.curves_in(mine):
                handles.setdefault(curve, panels.band(ax, part, "step", marks[curve]))
                ends = part[part["diverged"]]
                ax.plot(ends["step"], ends["mean"], "x", color=marks[curve].color, markersize=7, markeredgewidth=1.6,
                        zorder=5)  # fmt: skip
            if column == 0:
                ax.set_ylabel(label)
            style.plain_ticks(ax)
            ax.margins(x=0.02)
            ax.tick_params(labelbottom=True)
        axes[2 * block][column].set_title(panels.panel_title(series, 60 // columns + 10))
        axes[2 * block + 1][column].set_xlabel("step")
    for index in range(len(shown), blocks * columns):
        for row in range(2):
            axes[2 * (index // columns) + row][index % columns].set_visible(False)
    _share_y(axes, blocks)
    if data.attrs["remark"]:
        figure.suptitle(data.attrs["remark"], fontsize=7)
    names = [name for name in marks if name in handles]
    style.legend_below(figure, [handles[name] for name in names], names, "packet loss rate")
    return figure


def _comparable(records: Records, group) -> tuple[str, ...]:
    """The runs of the group that have ended; those that go on only where there are no others."""
    runs = records.runs[records.runs["run_id"].isin(group.run_ids)]
    ended = runs[runs["status"].isin(["completed", "diverged"])]
    return tuple((ended if len(ended) else runs[runs["status"] == "unfinished"])["run_id"])


def _share_y(axes, blocks: int) -> None:
    """The same range in all panels of one metric."""
    for row in range(2):
        same = [ax for block in range(blocks) for ax in axes[2 * block + row] if ax.get_visible() and ax.lines]
        if same:
            low, high = min(ax.get_ylim()[0] for ax in same), max(ax.get_ylim()[1] for ax in same)
            for ax in same:
                ax.set_ylim(low, high)
