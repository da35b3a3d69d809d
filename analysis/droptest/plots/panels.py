# SPDX-License-Identifier: Apache-2.0
"""Panels, one per series, with one curve per loss rate: the parts that several figures share."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from droptest import style
from droptest.loss_model import percent
from droptest.records import Records
from droptest.series import NO_PROCESS
from droptest.statistics import Interval, interval_columns
from droptest.summary import Group, curves
from droptest.words import MOST_IN_DIGITS

MAX_SERIES = 12
MAX_RATES = 7
PANELS_PER_ROW = 3


FAR = 20
FAR_PERCENT = 100.0 * (FAR - 1)  # above the lossless twin
FAR_CAPTION = "A triangle at an edge: a value beyond it, as diverging runs have."


def far_loss(records: Records) -> float:
    """A loss that only diverging runs have. Axes that reach beyond it would hide what lies below, so they end before
    the first such value.

    It is FAR times the lower decile of the validation losses and of the runs' first losses, but at least twice the
    largest first loss of a run that did not diverge. Training losses after the first say nothing of it, since a model
    that learns its examples by heart has almost none.
    """
    metrics, runs = records.metrics, records.runs
    kinds = ["validation_loss", "train_loss"]
    lines = metrics.reindex(columns=["run_id", "step", *kinds]).sort_values("step", kind="stable")
    losses = lines[kinds].astype(float).replace([math.inf, -math.inf], math.nan)
    first = losses["validation_loss"].fillna(losses["train_loss"]).groupby(lines["run_id"]).first()
    values = pd.concat([first, losses["validation_loss"], runs["final_validation_loss"]]).to_numpy(float)
    values = np.abs(values[np.isfinite(values)])
    values = values[values > 0]
    if not len(values):
        return math.inf
    at_start = first.drop(runs.loc[runs["status"] == "diverged", "run_id"], errors="ignore").abs()
    highest = at_start[at_start < MOST_IN_DIGITS].max()
    return max(FAR * float(np.quantile(values, 0.1)), 0.0 if math.isnan(highest) else 2 * float(highest))


def near_range(values: Any, far: float, lines: tuple[float, ...] = ()) -> tuple[float, float] | None:
    """The range of an axis for those values that are at most `far` from 0, and for lines across the panel; None: all
    values are, and the axis needs none."""
    values = np.asarray(values, float)
    values = values[np.isfinite(values)]
    near = values[np.abs(values) <= far]
    if len(near) == len(values):
        return None
    near = [*near, *lines] or [0.0, far]
    low, high = float(min(near)), float(max(near))
    room = 0.08 * (high - low) or 0.1 * max(abs(high), 1e-9)
    return low - room, high + room


def ends_of(data: pd.DataFrame, prefix: str = "") -> pd.DataFrame:
    """The columns of a mean and its interval."""
    return data[[f"{prefix}{end}" for end in ("mean", "low", "high")]]


def clipped(data: pd.DataFrame, far: float, prefix: str = "") -> pd.DataFrame:
    """Means and intervals that matplotlib can draw: the parts beyond `far` are out of sight."""
    ends = ends_of(data, prefix).astype(float)
    return data.assign(**ends.clip(-far, far)) if (ends.abs() > far).any().any() else data


def mark_far(axes: Axes, x: pd.Series, means: pd.Series, far: float, color: str) -> None:
    """Triangles at the edges of the panel for means beyond `far`."""
    at_edge(axes, x[means > far], 0.985, "^", color)
    at_edge(axes, x[means < -far], 0.015, "v", color)


def shown_curves(records: Records) -> tuple[dict[str, list[Group]], str]:
    """The series that a figure shows, and a remark where there are too many for all."""
    every = curves(records)
    shown = dict(list(every.items())[:MAX_SERIES])
    return shown, f"first {MAX_SERIES} of {len(every)} series" if len(every) > len(shown) else ""


def thinned_rates(shown: dict[str, list[Group]], remark: str) -> tuple[dict[str, list[Group]], str]:
    """At most MAX_RATES loss rates, evenly picked with the smallest and largest: more curves cannot be told apart."""
    lossy = [g for row in shown.values() for g in row if not g.without_loss]
    rates = sorted({g.loss_rate for g in lossy if not math.isnan(g.loss_rate)})
    if len(rates) <= MAX_RATES:
        return shown, remark
    kept = {rates[round(i * (len(rates) - 1) / (MAX_RATES - 1))] for i in range(MAX_RATES)}
    note = f"{len(kept)} of {len(rates)} loss rates"
    few = {series: [g for g in row if g.without_loss or g.loss_rate in kept] for series, row in shown.items()}
    return few, f"{remark}; {note}" if remark else note


def rate_label(group: Group) -> str:
    """A curve's name in the legend: its loss rate."""
    if group.without_loss or group.loss_model == NO_PROCESS:
        return group.loss_model
    return "rate ?" if math.isnan(group.loss_rate) else percent(group.loss_rate)


def rate_marks(data: pd.DataFrame) -> dict[str, style.Mark]:
    """One mark for each value of `curve`, the same in all panels, darkest for the smallest rate."""
    ordered = data.assign(lossy=~data["without_loss"].astype(bool)).sort_values(["lossy", "loss_rate"], kind="stable")
    return style.marks(list(dict.fromkeys(ordered["curve"])))


def panel_title(series: str, width: int = 34) -> str:
    lines = textwrap.wrap(style.plain_text(series).replace(" %", "\N{NO-BREAK SPACE}%"), width)
    return "\n".join(lines[:2]) + (" …" if len(lines) > 2 else "")


def common_steps(frame: pd.DataFrame, run_ids: tuple[str, ...], column: str) -> pd.DataFrame:
    """`column` by step (rows) and run (columns), at those steps at which each of the runs has a finite value.

    A mean over the runs that happen to be left would jump, and would hide those that diverged.
    """
    mine = frame[frame["run_id"].isin(run_ids)]
    table = mine.pivot_table(index="step", columns="run_id", values=column, dropna=False)
    return table.dropna() if len(table.columns) else table


def point_columns(series: str, group: Group) -> dict[str, Any]:
    """The panel and curve that a point of the experiment is drawn in, with its rate, late packets and best value."""
    return {"panel": series, "series": group.series, "curve": rate_label(group), "loss_rate": group.loss_rate,
            "lossless": group.lossless, "without_loss": group.without_loss, "late_rate": group.late_rate,
            "best_value": group.best_value}  # fmt: skip


def rows_over(
    table: pd.DataFrame, x: str, interval: Callable[[np.ndarray], Interval], keys: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """A row for each row of `table`, of which the columns are runs: `x` (its index) and the mean over the runs."""
    for place, values in zip(table.index, table.to_numpy(), strict=True):
        yield {**keys, x: place, **interval_columns(interval(values))}


def frame_of(rows: list[dict[str, Any]], remark: str) -> pd.DataFrame:
    """The data of a figure."""
    frame = pd.DataFrame(rows)
    frame.attrs["remark"] = remark
    return frame


def distances(part: pd.DataFrame, prefix: str = "") -> np.ndarray:
    """Lengths of the error bars of a frame's rows, down and up, as matplotlib takes them; 0 without an interval."""
    mean, low, high = (part[f"{prefix}{end}"].to_numpy(float) for end in ("mean", "low", "high"))
    return np.nan_to_num(np.array([mean - low, high - mean]))


def curves_in(part: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The curves of one panel by name. Lossless twins of several settings are curves of one name."""
    for _, rows in part.groupby(["series", "loss_rate"], sort=False, dropna=False):
        yield rows["curve"].iloc[0], rows


def grid(shown: list[str], height: float, rows: int = 1, **options) -> tuple[Figure, dict[str, list[Axes]]]:
    """A block of `rows` axes, one above the other, for each series, PANELS_PER_ROW in a line, with its title.

    height: of a block, in inches.
    """
    columns = min(PANELS_PER_ROW, len(shown))
    blocks = math.ceil(len(shown) / columns)
    width = style.SINGLE_COLUMN if columns == 1 else style.DOUBLE_COLUMN
    figure, axes = style.figure(width, height * blocks, rows * blocks, columns, **options)
    found = {}
    for index in range(blocks * columns):
        block, column = divmod(index, columns)
        mine = [axes[rows * block + row][column] for row in range(rows)]
        if index < len(shown):
            found[shown[index]] = mine
            mine[0].set_title(panel_title(shown[index], 60 // columns + 10))
            for ax in mine:
                ax.tick_params(labelbottom=True)
        else:
            for ax in mine:
                ax.set_visible(False)
    return figure, found


def finish(figure: Figure, data: pd.DataFrame, handles: dict[str, object], marks: dict[str, style.Mark]) -> None:
    """The remark above, and the legend of loss rates below."""
    if data.attrs["remark"]:
        figure.suptitle(data.attrs["remark"], fontsize=7)
    names = [name for name in marks if name in handles]
    style.legend_below(figure, [handles[name] for name in names], names, "packet loss rate")


def shift_of(place: int, count: int) -> float:
    """A small factor sideways for the points of one of `count` curves: equal rates would hide each other's bars."""
    return 1.0 if count == 1 else 1 + 0.05 * (place / (count - 1) - 0.5) * min(count, 4)


def over_rate(
    axes: Axes, part: pd.DataFrame, prefix: str, shift: float, at_zero: float, mark: style.Mark, far: float = math.inf
):
    """The means of one curve over missing_rate, in percent, with their intervals; at_zero: the place of rate 0. Means
    beyond `far` are triangles at the edge."""
    part = part[(part[f"{prefix}seeds"] > 0) & part["missing_rate"].notna()]
    x = pd.Series([100 * rate * shift if rate else at_zero for rate in part["missing_rate"]], part.index, float)
    mark_far(axes, x, part[f"{prefix}mean"], far, mark.color)
    near = part[f"{prefix}mean"].abs() <= far
    x, part = x[near], clipped(part[near], far, prefix)
    return axes.errorbar(
        x, part[f"{prefix}mean"], yerr=distances(part, prefix), color=mark.color, marker=mark.marker,
        linestyle=mark.linestyle, markersize=4.5, elinewidth=1,
    )  # fmt: skip


def in_rows(
    axes: Axes, part: pd.DataFrame, prefix: str, names: Iterable[str], marks: Iterable[style.Mark], scale: float = 1.0,
    width: int = 70, far: float = math.inf, lines: tuple[float, ...] = (),
) -> None:  # fmt: skip
    """A row for each row of `part`, the first at the top: mean and interval times `scale`, a triangle at an edge for a
    mean beyond `far`, a cross at the right where runs diverged and none has a value. width: of the names, in
    characters; lines: places along x that stay in view."""
    limits = near_range(ends_of(part, prefix), far, lines)
    means = part[f"{prefix}mean"]
    for row, mark in enumerate(marks):
        point = part.iloc[[row]]
        if abs(means.iloc[row]) > far:
            right = means.iloc[row] > 0
            axes.plot(0.985 if right else 0.015, row, ">" if right else "<", color=mark.color, markersize=5.5,
                      markeredgewidth=0, transform=axes.get_yaxis_transform(), clip_on=False)  # fmt: skip
        elif point[f"{prefix}seeds"].iloc[0]:
            point = clipped(point, far, prefix)
            axes.errorbar(scale * point[f"{prefix}mean"], [row], xerr=scale * distances(point, prefix),
                          color=mark.color, marker=mark.marker, linestyle="none", markersize=5)  # fmt: skip
        elif "diverged" in point and point["diverged"].iloc[0]:
            axes.plot(0.97, row, "x", color=mark.color, transform=axes.get_yaxis_transform())
    if limits is not None:
        axes.set_xlim(*(scale * limit for limit in limits))
        axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_yticks(range(len(part)), [panel_title(name, width) for name in names])
    axes.set_ylim(len(part) - 0.5, -0.5)


def signed_log_axis(axes: Axes, ends: pd.DataFrame, far: float) -> None:
    """`style.signed_log_axis` for means and intervals (ends_of) up to `far`."""
    limits = near_range(ends, far, (0.0,))
    if limits is not None:
        axes.set_ylim(*limits)
    near = ends.where(ends.abs() <= far)
    style.signed_log_axis(axes, *(near[column] for column in near))


def at_edge(axes: Axes, x: pd.Series, place: float, marker: str, color: str) -> None:
    """Marks at a place of the panel's height for values that it cannot show."""
    if len(x):  # an empty line that is not clipped would spoil the layout
        axes.plot(x, [place] * len(x), marker, color=color, markersize=5.5, markeredgewidth=1.5 if marker == "x" else 0,
                  transform=axes.get_xaxis_transform(), clip_on=False)  # fmt: skip


def band(axes: Axes, part: pd.DataFrame, x: str, mark: style.Mark, far: float = math.inf):
    """The means of one curve over column `x`, with their intervals as a band; returns the line. A triangle at the edge
    where the means are beyond `far` for the first time."""
    beyond = part[part["mean"].abs() > far].iloc[:1]
    mark_far(axes, beyond[x], beyond["mean"], far, mark.color)
    part = clipped(part, far)
    every = max(1, len(part) // 8)
    (line,) = axes.plot(part[x], part["mean"], color=mark.color, linestyle=mark.linestyle, marker=mark.marker,
                        markevery=every, markersize=3, label=part["curve"].iloc[0])  # fmt: skip
    if part["low"].notna().any():
        axes.fill_between(part[x], part["low"], part["high"], color=mark.color, alpha=0.18, linewidth=0)
    return line
