# SPDX-License-Identifier: Apache-2.0
"""Which loss rate is tolerable: the paired difference to lossless, each seed a point, with the tolerance."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from droptest import style
from droptest.loss_model import percent
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw
from droptest.records import Records
from droptest.rows_by_run import RowsByRun
from droptest.statistics import interval_columns
from droptest.summary import Group, cells_in
from droptest.variance import interval_of

NAME = "tolerance"
TITLE = "Tolerable loss rate"
CAPTION = (
    "Final validation loss above the lossless run with the same seed, in percent of it. Small points: single seeds; "
    "marks: mean with its 95 % interval. Dashed: the tolerance. The left panel enlarges the neighbourhood of the "
    "tolerance: a triangle at its edge is a mean that lies outside. A cross at the upper edge: runs that diverged."
)
TOLERANCE_PERCENT = 1.0  # that of a spec's `search`, where it names none
LABEL = "above lossless twin\n(% of its validation loss)"
PASSES, UNDECIDED, FAILS = "tolerable", "undecided", "not tolerable"


def data(records: Records) -> pd.DataFrame:
    """One row per series, loss rate (late packets included) and pair of runs with the same seeds: the pair's difference
    (NaN where the run has none), and of the point mean, low and high over seeds (number of pairs), diverged, runs and
    verdict; in percent of the lossless twin's final loss. tolerance: likewise.

    verdict: tolerable where the interval lies within the tolerance, not tolerable where it lies above it or a run
    diverged, else undecided. Raises: NothingToDraw where no run has a lossless twin.
    """
    shown, remark = panels.shown_curves(records)
    tolerance = records.search.tolerance_percent if records.search is not None else TOLERANCE_PERCENT
    final = records.runs.set_index("run_id")["final_validation_loss"]
    # Not the run's own loss minus the difference: beside the loss of a diverging run the twin's is rounded away.
    runs = records.runs.assign(percent=100 * records.runs["difference"] / records.runs["twin"].map(final).astype(float))
    of_run = RowsByRun(runs)
    rows = []
    for series, groups in shown.items():
        for group in (g for g in groups if not g.without_loss):
            interval = interval_of(cells_in(of_run, group, "percent"))
            columns = panels.point_columns(series, group) | interval_columns(interval)
            columns |= {"loss_rate": group.missing_rate, "diverged": group.count("diverged"),
                        "runs": sum(group.statuses.values()), "tolerance": tolerance}  # fmt: skip
            columns["verdict"] = _verdict(group, columns["low"], columns["high"], tolerance)
            rows += [
                columns | {"seed": str(seed), "difference": difference}
                for seed, difference in zip(*of_run.columns(group.run_ids, "seed", "percent"), strict=True)
            ]
    if not any(row["seeds"] or row["diverged"] for row in rows):
        raise NothingToDraw("no finished run has a finished lossless twin")
    result = panels.frame_of(rows, remark)
    result.attrs["rate_pointer"] = records.rate_pointer
    return result


def _verdict(group: Group, low: float, high: float, tolerance: float) -> str:
    if group.count("diverged") or low > tolerance:
        return FAILS
    return PASSES if high <= tolerance else UNDECIDED


def points_of(data: pd.DataFrame) -> pd.DataFrame:
    """The rows of `data` by point, without the single pairs."""
    return data.drop(columns=["seed", "difference"]).drop_duplicates(["panel", "loss_rate"]).reset_index(drop=True)


def findings(data: pd.DataFrame) -> list[str]:
    """The tolerated loss rates of each series, a sentence each."""
    sentences = []
    for series, points in points_of(data).groupby("panel", sort=False):
        points = points.dropna(subset=["loss_rate"]).sort_values("loss_rate")
        verdicts = dict(zip(points["loss_rate"], points["verdict"], strict=True))
        passed = [r for r in verdicts if all(v == PASSES for other, v in verdicts.items() if other <= r)]
        failed = [r for r, verdict in verdicts.items() if verdict == FAILS]
        open_ = [r for r, verdict in verdicts.items() if verdict == UNDECIDED]
        text = f"{series}: " + (
            f"{percent(max(passed))} is tolerable" if passed else "no tested rate is surely tolerable"
        )
        text += f", {percent(min(failed))} is not" if failed else ""
        text += f"; undecided with these seeds: {', '.join(map(percent, open_))}" if open_ else ""
        sentences.append(f"{text}.")
    return sentences


def view(data: pd.DataFrame) -> tuple[float, float]:
    """The range of the enlarged panel: the tolerance and, as far as four times that, means and pairs."""
    tolerance = data["tolerance"].iloc[0]
    seen = data[["mean", "difference"]].stack()
    seen = [0.0, *seen[seen.abs() <= 4 * tolerance]]
    return 1.15 * min(*seen, -0.6 * tolerance), 1.15 * max(*seen, 1.6 * tolerance)


def seen_in(data: pd.DataFrame) -> pd.DataFrame:
    """All the values that the figure shows."""
    return data[["mean", "low", "high", "difference"]]


def one_rate(data: pd.DataFrame) -> bool:
    """Whether the figure compares several series at a single rate."""
    return data["loss_rate"].nunique(dropna=False) <= 1 and data["panel"].nunique() > 1


def draw(data: pd.DataFrame) -> Figure:
    """The neighbourhood of the tolerance on the left, everything on the right; a row per point at a single rate."""
    if one_rate(data):
        return _draw_by_series(data)
    low, high = view(data)
    seen = seen_in(data).stack()
    whole = len(seen) > 0 and (seen.max() > high or seen.min() < low)
    figure, axes = style.figure(style.DOUBLE_COLUMN if whole else style.SINGLE_COLUMN, 2.8, 1, 2 if whole else 1)
    marks = style.marks(list(dict.fromkeys(data["panel"])))
    handles = [_curves(ax, data, marks, (low, high) if ax is axes[0][0] else None) for ax in axes[0]]
    axes[0][0].set_title("around the tolerance" if whole else "")
    if whole:
        axes[0][1].set_title("everything")
    if data.attrs["remark"]:
        figure.suptitle(data.attrs["remark"], fontsize=7)
    style.legend_below(figure, handles[0], list(marks))
    return figure


def _curves(ax: Axes, data: pd.DataFrame, marks: dict[object, style.Mark], limits: tuple[float, float] | None) -> list:
    handles = []
    rates = data["loss_rate"].tolist()
    style.percent_axis(ax, rates, data.attrs["rate_pointer"])
    for index, (series, mark) in enumerate(marks.items()):
        shift = 1 if len(marks) == 1 else 1 + 0.07 * (index / (len(marks) - 1) - 0.5) * min(len(marks), 4)
        mine = data[(data["panel"] == series) & data["loss_rate"].notna()]
        pairs = mine["difference"].where(mine["difference"].abs() <= panels.FAR_PERCENT)
        ax.plot(100 * mine["loss_rate"] * shift * 1.055, pairs, ".", color=mark.color, alpha=0.7,
                markersize=4.5, markeredgewidth=0)  # fmt: skip
        points = points_of(mine).sort_values("loss_rate")
        known = points[points["seeds"] > 0]
        x = 100 * known["loss_rate"] * shift
        if limits is None:
            panels.mark_far(ax, x, known["mean"], panels.FAR_PERCENT, mark.color)
        else:
            panels.at_edge(ax, x[known["mean"] > limits[1]], 0.985, "^", mark.color)
            panels.at_edge(ax, x[known["mean"] < limits[0]], 0.015, "v", mark.color)
        near = known["mean"].abs() <= panels.FAR_PERCENT
        x, known = x[near], panels.clipped(known[near], panels.FAR_PERCENT)
        handles.append(ax.errorbar(x, known["mean"], yerr=panels.distances(known), color=mark.color, marker=mark.marker,
                                   linestyle=mark.linestyle, markersize=4.5, elinewidth=1))  # fmt: skip
        panels.at_edge(ax, 100 * points.loc[points["diverged"] > 0, "loss_rate"] * shift, 0.96, "x", mark.color)
    whole = panels.near_range(seen_in(data), panels.FAR_PERCENT, (0.0, data["tolerance"].iloc[0]))
    if limits is not None or whole is not None:
        ax.set_ylim(*(limits or whole))
    ax.axhline(0, color="0.3", linestyle=":", linewidth=1)
    ax.axhline(data["tolerance"].iloc[0], color="0.2", linestyle="--", linewidth=1)
    ax.set_ylabel(LABEL)
    style.plain_ticks(ax)
    return handles


def _draw_by_series(data: pd.DataFrame) -> Figure:
    """One row per series."""
    points = points_of(data)
    figure, axes = style.figure(style.DOUBLE_COLUMN, 0.9 + 0.24 * len(points))
    ax = axes[0][0]
    for row, (series, mark) in enumerate(style.marks(list(points["panel"])).items()):
        mine, point = data[data["panel"] == series], points.iloc[[row]]
        mine = mine[mine["difference"].abs() <= panels.FAR_PERCENT]
        ax.plot(mine["difference"], np.full(len(mine), row + 0.22), ".", color=mark.color, alpha=0.5, markersize=3.5)
        if point["diverged"].iloc[0] and point["seeds"].iloc[0]:
            ax.plot(0.97, row, "x", color=mark.color, transform=ax.get_yaxis_transform())
    panels.in_rows(ax, points, "", points["panel"], style.marks(list(points["panel"])).values(), width=44,
                   far=panels.FAR_PERCENT)  # fmt: skip
    tolerance = data["tolerance"].iloc[0]
    if (limits := panels.near_range(seen_in(data), panels.FAR_PERCENT, (0.0, tolerance))) is not None:
        ax.set_xlim(*limits)
    ax.axvline(0, color="0.3", linestyle=":", linewidth=1)
    ax.axvline(tolerance, color="0.2", linestyle="--", linewidth=1)
    rate = data["loss_rate"].iloc[0]
    ax.set_xlabel(LABEL.replace("\n", " ") + ("" if math.isnan(rate) else f" at a packet loss rate of {percent(rate)}"))
    if data.attrs["remark"]:
        figure.suptitle(data.attrs["remark"], fontsize=7)
    return figure
