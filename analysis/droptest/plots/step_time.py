# SPDX-License-Identifier: Apache-2.0
"""Virtual time of a training step, one row per series and loss rate."""

from __future__ import annotations

import math

from matplotlib.figure import Figure

from droptest import style, virtual_time
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw, NotMeant
from droptest.records import Records
from droptest.statistics import mean_interval
from droptest.summary import Group, groups

NAME = "step_time"
TITLE = "Virtual time of a step"
CAPTION = (
    "Mean virtual time of a training step on the slowest rank (docs/time.md). Points: mean over seeds; bars: 95 % "
    "interval (Student t), none with one seed."
)
MOST_ROWS = 40


def seconds_per_step(records: Records, run_id: str) -> float:
    """Virtual seconds of a run's last logged step over its number; NaN without a clock."""
    timed = records.metrics[records.metrics["run_id"] == run_id].dropna(subset=["virtual_seconds"])
    timed = timed[timed["step"] > 0]
    if timed.empty:
        return math.nan
    last = timed.loc[timed["step"].idxmax()]
    return float(last["virtual_seconds"] / last["step"])


def draw(records: Records) -> Figure:
    """Raises: NotMeant without virtual time, NothingToDraw where there are too many series for one figure."""
    if not virtual_time.has_virtual_time(records):
        raise NotMeant("no run has a virtual clock")
    rows: list[tuple[Group, list[float]]] = []
    for group in groups(records):
        seconds = [seconds_per_step(records, run_id) for run_id in group.run_ids]
        seconds = [s for s in seconds if not math.isnan(s)]
        if seconds:
            rows.append((group, seconds))
    if len(rows) > MOST_ROWS:
        raise NothingToDraw(f"{len(rows)} series and loss rates, of which one figure holds {MOST_ROWS}")
    figure, axes = style.figure(style.DOUBLE_COLUMN, 0.9 + 0.24 * len(rows), 1, 1)
    ax = axes[0][0]
    marks = style.marks(list(dict.fromkeys(group.series for group, _ in rows)))
    for row, (group, seconds) in enumerate(rows):
        interval = mean_interval([1e3 * s for s in seconds])
        mark = marks[group.series]
        ax.errorbar(interval.mean, row, xerr=interval.half_width if interval.has_width else 0.0,
                    color=mark.color, marker=mark.marker, linestyle="none", markersize=5)  # fmt: skip
    ax.set_xlabel("virtual time of a step (ms)")
    ax.set_xlim(left=0)
    names = [panels.named_with_rate(group) for group, _ in rows]
    ax.set_yticks(range(len(rows)), [panels.panel_title(name, 70) for name in names])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    return figure
