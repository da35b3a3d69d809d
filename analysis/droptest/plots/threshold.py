# SPDX-License-Identifier: Apache-2.0
"""What a search for the tolerable loss rate saw: the paired difference over the rate, and the threshold."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from droptest import style
from droptest.plots.nothing import NothingToDraw, NotMeant
from droptest.records import Records

NAME = "threshold"
TITLE = "Tolerable loss rate"
CAPTION = (
    "Final validation loss above the lossless run with the same seed, in percent of it, over the loss rate. Dots: "
    "runs; marks: mean over seeds with the interval that the rate was judged by (Student t, its error shared by all "
    "looks at the rate). Dashed line: the tolerance. Grey band: from the highest rate that surely passes to the "
    "lowest that surely fails; dotted line: the estimate. A cross at the upper edge: a rate with runs that diverged."
)
COLORS = {"passes": "tab:green", "undecided": "0.45", "fails": "tab:red"}
MARKERS = {"passes": "o", "undecided": "s", "fails": "^"}


def draw(records: Records) -> Figure:
    """Raises: NotMeant without a search, NothingToDraw where it has judged nothing."""
    search = records.search
    if search is None or not search.judged:
        raise NotMeant("no search was made") if search is None else NothingToDraw("the search has judged no rate yet")
    figure, axes = style.figure(style.SINGLE_COLUMN, 2.9)
    ax = axes[0][0]
    rates = [judged.rate for judged in search.judged]
    style.percent_axis(ax, rates)
    handles = {}
    for judged in search.judged:
        color, marker = COLORS[judged.verdict], MARKERS[judged.verdict]
        x = 100 * judged.rate
        ax.plot([x] * len(judged.differences), judged.differences, ".", color=color, alpha=0.4, markersize=3)
        if judged.mean is None:
            ax.plot(x, 0.97, "x", color=color, transform=ax.get_xaxis_transform(), clip_on=False)
            continue
        if judged.low is not None and judged.high is not None:
            ax.plot([x, x], [judged.low, judged.high], color=color, linewidth=1)
        (handle,) = ax.plot(x, judged.mean, marker, color=color, markersize=4.5)
        handles.setdefault(judged.verdict, handle)
    # Few seeds have wide intervals, which must not hide where the means lie.
    seen = [value for judged in search.judged for value in (judged.mean, *judged.differences) if value is not None]
    largest = max([abs(value) for value in seen] + [search.tolerance_percent])
    if largest > 10 * search.tolerance_percent:
        ax.set_yscale("symlog", linthresh=2 * search.tolerance_percent)
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.set_ylim(min([*seen, 0]) - search.tolerance_percent, 1.3 * max([*seen, search.tolerance_percent]))
    tolerance = ax.axhline(search.tolerance_percent, color="0.2", linestyle="--", linewidth=1)
    left = 100 * search.low if search.low is not None else ax.get_xlim()[0]
    right = 100 * search.high if search.high is not None else ax.get_xlim()[1]
    if left < right:
        ax.axvspan(left, right, color="0.85", zorder=0, linewidth=0)
    if search.threshold is not None:
        ax.axvline(100 * search.threshold, color="0.2", linestyle=":", linewidth=1)
    ax.set_ylabel("above lossless twin\n(% of its validation loss)")
    names = [name for name in COLORS if name in handles]
    style.legend_below(
        figure, [*(handles[name] for name in names), tolerance], [*names, f"{search.tolerance_percent:g} % tolerance"]
    )
    return figure
