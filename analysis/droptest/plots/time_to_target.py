# SPDX-License-Identifier: Apache-2.0
"""Virtual time to a target loss against the loss rate, for reliable and tolerant networks."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.figure import Figure

from droptest import style, virtual_time
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw, NotMeant
from droptest.records import Records
from droptest.statistics import interval_columns

NAME = "time_to_target"
TITLE = "Time to a target loss"
CAPTION = (
    "Virtual time until the validation loss is 5 % above the worst final loss of the lossless runs, interpolated "
    "between evaluations. Points: mean over seeds; bars: 95 % interval (Student t), none with one seed. A triangle at "
    "the upper edge: a seed that never got there. Filled markers: reliable networks; hollow: tolerant ones. Vertical "
    "line and band: the rate at which tolerance stops being faster, with the 95 % interval of a paired t test over "
    "seeds. The axis is linear in the shaded stretch next to 0."
)
BREAK_EVEN = ("against", "break_even", "break_even_low", "break_even_high", "break_even_words")


def data(records: Records) -> pd.DataFrame:
    """One row per series and loss rate: reliable (whether the network repeats lost packets); mean, low and high of the
    virtual seconds to target_loss over the seeds, infinite where a seed never reached it. Rows of a tolerant series
    have its break-even rate with the reliable series `against`: break_even, break_even_low and break_even_high
    (fractions), break_even_words; several such series repeat the rows.

    attrs: rate_pointer (Records). Raises: NotMeant without virtual time, NothingToDraw without a target or a lossy run.
    """
    if not virtual_time.has_virtual_time(records):
        raise NotMeant("no run has a virtual clock")
    target = virtual_time.default_target(records)
    if math.isnan(target):
        raise NothingToDraw("no lossless or reliable run has finished, so there is no target loss")
    every = virtual_time.curves(records, target)
    if not every:
        raise NothingToDraw("no run that loses packets has finished on the virtual clock")
    found = virtual_time.break_evens(every)
    rows = []
    for curve in every:
        mine = [result for result in found if result.tolerant == curve.series] or [None]
        rows += [
            {"series": curve.series, "reliable": curve.reliable, "loss_rate": rate,
             **interval_columns(curve.interval(rate)), "target_loss": target, **_break_even_columns(result)}
            for result in mine for rate in curve.times if not math.isnan(rate)
        ]  # fmt: skip
    result = panels.frame_of(rows, "")
    result.attrs["rate_pointer"] = records.rate_pointer
    return result


def _break_even_columns(found: virtual_time.BreakEven | None) -> dict[str, object]:
    if found is None:
        return dict.fromkeys(BREAK_EVEN)
    return dict(zip(BREAK_EVEN, (found.reliable, found.rate, found.low, found.high, virtual_time.in_words(found)),
                    strict=True))  # fmt: skip


def draw(data: pd.DataFrame) -> Figure:
    """Curves over the loss rate, break-even rates as vertical lines."""
    figure, axes = style.figure(style.DOUBLE_COLUMN, 3.0)
    ax = axes[0][0]
    labels = list(dict.fromkeys(data["series"]))
    marks = style.marks(labels)
    handles = [_curve(ax, data[data["series"] == series].drop_duplicates("loss_rate"), marks[series])
               for series in labels]  # fmt: skip
    style.percent_axis(ax, data["loss_rate"].tolist(), data.attrs["rate_pointer"])
    found = data.dropna(subset=["against"]).drop_duplicates(["series", "against"])
    for result in found.itertuples():
        handles.append(_break_even(ax, result, marks[result.series].color))
        labels.append(result.break_even_words + (f": {result.series}" if len(found) > 1 else ""))
    ax.set_ylabel(f"virtual time to a validation loss of {data['target_loss'].iloc[0]:.4g} (s)")
    style.plain_ticks(ax)
    ax.set_ylim(bottom=0)
    style.legend_below(figure, handles, labels)
    return figure


def _curve(ax, part: pd.DataFrame, mark: style.Mark):
    reached, never = part[part["mean"] < math.inf], part[part["mean"] == math.inf]
    look = {"color": mark.color, "markerfacecolor": mark.color if part["reliable"].iloc[0] else "white"}
    handle = ax.errorbar(100 * reached["loss_rate"], reached["mean"], yerr=panels.distances(reached), elinewidth=1,
                         marker=mark.marker, linestyle=mark.linestyle, markersize=4.5, **look)  # fmt: skip
    for rate in never["loss_rate"]:
        ax.plot(100 * rate, 0.97, "^", markersize=6, clip_on=False, transform=ax.get_xaxis_transform(), **look)
    return handle


def _break_even(ax, result, color: str):
    """The rate as a line with its band, as far as they are on the axis; returns a handle for the legend."""
    low, high = ax.get_xlim()
    if not math.isnan(result.break_even_low):
        begin = max(100 * result.break_even_low, low)
        end = high if math.isinf(result.break_even_high) else min(100 * result.break_even_high, high)
        if end > begin:
            ax.axvspan(begin, end, color=color, alpha=0.1, linewidth=0)
    if 0 < result.break_even < math.inf:
        return ax.axvline(100 * result.break_even, color=color, linestyle=":", linewidth=1.2)
    return ax.plot([], [], color=color, linestyle=":", linewidth=1.2)[0]
