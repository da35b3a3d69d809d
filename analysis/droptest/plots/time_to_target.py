# SPDX-License-Identifier: Apache-2.0
"""Virtual time to a target loss against the loss rate, for reliable and tolerant networks."""

from __future__ import annotations

import math

from matplotlib.figure import Figure

from droptest import style, virtual_time
from droptest.plots.nothing import NothingToDraw, NotMeant
from droptest.records import Records

NAME = "time_to_target"
TITLE = "Time to a target loss"
CAPTION = (
    "Virtual time until the validation loss is 5 % above the worst final loss of the lossless runs, interpolated "
    "between evaluations. Points: mean over seeds; bars: 95 % interval (Student t), none with one seed. A triangle at "
    "the upper edge: a seed that never got there. Filled markers: reliable networks; hollow: tolerant ones. Vertical "
    "line and band: the rate at which tolerance stops being faster, with the 95 % interval of a paired t test over "
    "seeds."
)


def draw(records: Records) -> Figure:
    """Raises: NotMeant without virtual time, NothingToDraw without a target or a lossy run."""
    if not virtual_time.has_virtual_time(records):
        raise NotMeant("no run has a virtual clock")
    target = virtual_time.default_target(records)
    if math.isnan(target):
        raise NothingToDraw("no lossless or reliable run has finished, so there is no target loss")
    every = virtual_time.curves(records, target)
    if not every:
        raise NothingToDraw("no run that loses packets has finished on the virtual clock")
    figure, axes = style.figure(style.DOUBLE_COLUMN, 3.0)
    ax = axes[0][0]
    marks = style.marks([curve.series for curve in every])
    handles, labels = [], []
    for curve in every:
        handles.append(_curve(ax, curve, marks[curve.series]))
        labels.append(curve.series)
    style.percent_axis(ax, [rate for curve in every for rate in curve.times], records.rate_pointer)
    found = virtual_time.break_evens(every)
    for result in found:
        handles.append(_break_even(ax, result, marks[result.tolerant].color))
        labels.append(virtual_time.in_words(result) + (f": {result.tolerant}" if len(found) > 1 else ""))
    ax.set_ylabel(f"virtual time to a validation loss of {target:.4g} (s)")
    style.plain_ticks(ax)
    ax.set_ylim(bottom=0)
    style.legend_below(figure, handles, labels)
    return figure


def _curve(ax, curve: virtual_time.Curve, mark: style.Mark):
    intervals = {rate: curve.interval(rate) for rate in curve.times if not math.isnan(rate)}
    reached = {rate: i for rate, i in intervals.items() if math.isfinite(i.mean)}
    look = {"color": mark.color, "markerfacecolor": mark.color if curve.reliable else "white"}
    handle = ax.errorbar(
        [100 * rate for rate in reached], [i.mean for i in reached.values()],
        yerr=[i.half_width if i.has_width else 0.0 for i in reached.values()], marker=mark.marker,
        linestyle=mark.linestyle, markersize=4.5, elinewidth=1, **look,
    )  # fmt: skip
    for rate in intervals.keys() - reached.keys():
        ax.plot(100 * rate, 0.97, "^", markersize=6, clip_on=False, transform=ax.get_xaxis_transform(), **look)
    return handle


def _break_even(ax, result: virtual_time.BreakEven, color: str):
    """The rate as a line with its band, as far as they are on the axis; returns a handle for the legend."""
    low, high = ax.get_xlim()
    if not math.isnan(result.low):
        begin = max(100 * result.low, low)
        end = high if math.isinf(result.high) else min(100 * result.high, high)
        if end > begin:
            ax.axvspan(begin, end, color=color, alpha=0.1, linewidth=0)
    if 0 < result.rate < math.inf:
        return ax.axvline(100 * result.rate, color=color, linestyle=":", linewidth=1.2)
    return ax.plot([], [], color=color, linestyle=":", linewidth=1.2)[0]
