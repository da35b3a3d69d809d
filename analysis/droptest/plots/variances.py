# SPDX-License-Identifier: Apache-2.0
"""Standard deviations between trainings and between networks, one row per series and loss rate."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.figure import Figure

from droptest import seeds, style
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw, NotMeant
from droptest.records import Records
from droptest.variance import CROSSED, NESTED, Component

NAME = "variances"
TITLE = "Spread between trainings and between networks"
CAPTION = (
    "Standard deviation of the difference to the lossless run: between trainings (seeds of weights and data), between "
    "networks (seeds of fates), and the rest, their interaction, which nested runs have in the networks. Bars: 95 % "
    "intervals. A mark at the left edge: the estimate is 0; a bar that reaches the edge: the interval holds 0."
)
PARTS = ("trainings", "networks", "rest")
MOST_ROWS = 40


def rows_of(records: Records) -> list[tuple[seeds.Spread, dict[str, Component]]]:
    """The points whose runs tell trainings from networks, with the components that are known."""
    result = []
    for spread in seeds.spreads(records, seeds.DIFFERENCE):
        found = spread.found
        if found.design in (CROSSED, NESTED):
            parts = dict(zip(PARTS, (found.training, found.network, found.rest), strict=True))
            result.append((spread, {name: part for name, part in parts.items() if part.known and part.high > 0}))
    return [row for row in result if row[1]]


def data(records: Records) -> pd.DataFrame:
    """One row per point and part (trainings, networks, rest): name of the point, deviation (standard deviation, nats
    per token) with the ends low and high of its interval.

    Raises: NotMeant where no design tells trainings from networks, NothingToDraw with too many points.
    """
    rows = rows_of(records)
    if not rows:
        raise NotMeant("no runs cross trainings with networks")
    if len(rows) > MOST_ROWS:
        raise NothingToDraw(f"{len(rows)} series and loss rates, of which one figure holds {MOST_ROWS}")
    return panels.frame_of(
        [{"series": spread.group.series, "loss_rate": spread.group.loss_rate,
          "name": spread.group.name_with_rate, "part": part, "deviation": math.sqrt(found.variance),
          "low": math.sqrt(found.low), "high": math.sqrt(found.high)}
         for spread, parts in rows for part, found in parts.items()],
        "",
    )  # fmt: skip


def view(data: pd.DataFrame) -> tuple[float, float]:
    """The range of the axis, which is logarithmic: values of 0 stand at its left end."""
    shown = [value for value in data[["deviation", "low", "high"]].to_numpy().flat if value > 0]
    return min(shown) / 1.6, max(shown) * 1.3


def draw(data: pd.DataFrame) -> Figure:
    """A row per point, a bar per part."""
    points = [part for _, part in data.groupby(["series", "loss_rate"], sort=False, dropna=False)]
    names = [part["name"].iloc[0] for part in points]
    figure, axes = style.figure(style.DOUBLE_COLUMN, 0.8 + 0.36 * len(names))
    ax = axes[0][0]
    marks = style.marks(PARTS)
    left, right = view(data)
    handles = {}
    for row, part in enumerate(points):
        for place, bar in enumerate(part.itertuples()):
            y, mark = row + 0.22 * (place - 1), marks[bar.part]
            ax.plot([max(bar.low, left), max(bar.high, left)], [y, y], color=mark.color, linewidth=1)
            (handles[bar.part],) = ax.plot(max(bar.deviation, left), y, mark.marker, color=mark.color, markersize=4,
                                           clip_on=False)  # fmt: skip
    ax.set_xscale("log")
    ax.set_xlim(left, right)
    ax.set_xlabel(f"standard deviation ({data.attrs['unit']})")
    ax.set_yticks(range(len(names)), [panels.panel_title(name, 70) for name in names])
    ax.set_ylim(len(names) - 0.5, -0.5)
    style.legend_below(figure, [handles[p] for p in PARTS if p in handles], [p for p in PARTS if p in handles])
    return figure
