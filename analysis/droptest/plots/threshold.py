# SPDX-License-Identifier: Apache-2.0
"""The results of a search for the tolerable loss rate: the paired difference over the rate, and the threshold."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from droptest import style
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw, NotMeant
from droptest.records import Records

NAME = "threshold"
TITLE = "Tolerable loss rate"
CAPTION = (
    "Final validation loss above the lossless run with the same seed, in percent of it, over the loss rate. Dots: "
    "runs; marks: mean over seeds with the interval that the rate was judged by (Student t, its error shared by all "
    "looks at the rate). Dashed line: the tolerance. Grey band: from the highest rate that surely passes to the "
    "lowest that surely fails; dotted line: the estimate. A cross at the upper edge: a rate with runs that diverged. "
    + panels.FAR_CAPTION
)
COLORS = {"passes": "tab:green", "undecided": "0.45", "fails": "tab:red"}
MARKERS = {"passes": "o", "undecided": "s", "fails": "^"}


def data(records: Records) -> pd.DataFrame:
    """`Records.searches`: one row per run of the search.

    Raises: NotMeant without a search, NothingToDraw where it has judged nothing.
    """
    search = records.search
    if search is None or not search.judged:
        raise NotMeant("no search was made") if search is None else NothingToDraw("the search has judged no rate yet")
    return records.searches


def draw(data: pd.DataFrame) -> Figure:
    """Runs as dots, rates as marks, over the loss rate."""
    figure, axes = style.figure(style.SINGLE_COLUMN, 2.9)
    ax = axes[0][0]
    tolerance = data["tolerance"].iloc[0]
    style.percent_axis(ax, data["rate"].tolist())
    handles = {}
    for rate, runs in data.groupby("rate", sort=False):
        judged = runs.iloc[0]
        color, marker = COLORS[judged["verdict"]], MARKERS[judged["verdict"]]
        x = 100 * rate
        dots = runs["difference"][runs["difference"].abs() <= panels.FAR_PERCENT]
        ax.plot([x] * len(dots), dots, ".", color=color, alpha=0.4, markersize=3)
        if abs(judged["mean"]) > panels.FAR_PERCENT:
            panels.mark_far(ax, pd.Series([x]), pd.Series([judged["mean"]]), panels.FAR_PERCENT, color)
            continue
        if math.isnan(judged["mean"]):
            ax.plot(x, 0.97, "x", color=color, transform=ax.get_xaxis_transform(), clip_on=False)
            continue
        if not math.isnan(judged["low"]):
            ends = [max(judged["low"], -panels.FAR_PERCENT), min(judged["high"], panels.FAR_PERCENT)]
            ax.plot([x, x], ends, color=color, linewidth=1)
        (handle,) = ax.plot(x, judged["mean"], marker, color=color, markersize=4.5)
        handles.setdefault(judged["verdict"], handle)
    # Few seeds have wide intervals, which must not hide where the means lie.
    seen = data[["mean", "difference"]].stack()
    seen = seen[seen.abs() <= panels.FAR_PERCENT]
    if max(seen.abs().max(), tolerance) > 10 * tolerance:
        ax.set_yscale("symlog", linthresh=2 * tolerance)
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.set_ylim(min(seen.min(), 0) - tolerance, 1.3 * max(seen.max(), tolerance))
    line = ax.axhline(tolerance, color="0.2", linestyle="--", linewidth=1)
    threshold, low, high = (100 * data[c].iloc[0] for c in ("threshold", "threshold_low", "threshold_high"))
    left = ax.get_xlim()[0] if math.isnan(low) else low
    right = ax.get_xlim()[1] if math.isnan(high) else high
    if left < right:
        ax.axvspan(left, right, color="0.85", zorder=0, linewidth=0)
    if not math.isnan(threshold):
        ax.axvline(threshold, color="0.2", linestyle=":", linewidth=1)
    ax.set_ylabel("above lossless twin\n(% of its validation loss)")
    names = [name for name in COLORS if name in handles]
    style.legend_below(figure, [*(handles[name] for name in names), line], [*names, f"{tolerance:g} % tolerance"])
    return figure
