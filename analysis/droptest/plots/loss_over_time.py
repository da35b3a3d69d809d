# SPDX-License-Identifier: Apache-2.0
"""Validation loss over virtual time, one panel per series, one curve per loss rate."""

from __future__ import annotations

import math

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
    "loss (Student t), none with one seed. Dotted line: the target of the next figure."
)


def draw(records: Records) -> Figure:
    """Raises: NotMeant without virtual time, NothingToDraw without a validation loss on it."""
    if not virtual_time.has_virtual_time(records):
        raise NotMeant("no run has a virtual clock")
    shown, remark = panels.thinned_rates(*panels.shown_curves(records))
    if records.metrics["validation_loss"].isna().all():
        raise NothingToDraw("no run has logged a validation loss yet")
    marks = panels.rate_marks(shown)
    columns = min(panels.PANELS_PER_ROW, len(shown))
    rows = math.ceil(len(shown) / columns)
    width = style.SINGLE_COLUMN if columns == 1 else style.DOUBLE_COLUMN
    figure, axes = style.figure(width, 2.4 * rows, rows, columns, sharex=True, sharey=True)
    target = virtual_time.default_target(records)
    handles: dict[str, object] = {}
    for index, (series, groups) in enumerate(shown.items()):
        row, column = divmod(index, columns)
        ax = axes[row][column]
        for group in groups:
            name = panels.rate_label(group)
            line = _curve(ax, records, group.run_ids, marks[name], name)
            if line is not None:
                handles.setdefault(name, line)
        if math.isfinite(target):
            ax.axhline(target, color="0.3", linestyle=":", linewidth=1)
        ax.set_title(panels.panel_title(series, 60 // columns + 10))
        ax.set_xlabel("virtual time (s)")
        ax.tick_params(labelbottom=True)
        style.plain_ticks(ax)
        if column == 0:
            ax.set_ylabel("validation loss\n(nats per token)")
    for index in range(len(shown), rows * columns):
        axes[index // columns][index % columns].set_visible(False)
    if remark:
        figure.suptitle(remark, fontsize=7)
    names = [name for name in marks if name in handles]
    style.legend_below(figure, [handles[name] for name in names], names, "packet loss rate")
    return figure


def _curve(ax, records: Records, run_ids: tuple[str, ...], mark: style.Mark, name: str):
    """Mean loss over mean time at the steps that all runs have; None where there are none."""
    losses = panels.common_steps(records.metrics, run_ids, "validation_loss")
    seconds = panels.common_steps(records.metrics, run_ids, "virtual_seconds")
    steps = losses.index.intersection(seconds.index)
    if not len(steps):
        return None
    intervals = [mean_interval(row) for row in losses.loc[steps].to_numpy()]
    times = seconds.loc[steps].to_numpy().mean(axis=1)
    (line,) = ax.plot(times, [i.mean for i in intervals], color=mark.color, linestyle=mark.linestyle,
                      marker=mark.marker, markersize=3, markevery=max(1, len(steps) // 8), label=name)  # fmt: skip
    if any(i.has_width for i in intervals):
        ax.fill_between(times, [i.low for i in intervals], [i.high for i in intervals], color=mark.color, alpha=0.18,
                        linewidth=0)  # fmt: skip
    return line
