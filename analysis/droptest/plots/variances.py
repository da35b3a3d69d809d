# SPDX-License-Identifier: Apache-2.0
"""Standard deviations between trainings and between networks, one row per series and loss rate."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from droptest import drawing, seeds
from droptest.looks import category
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw, NotMeant
from droptest.records import Records
from droptest.variance import CROSSED, NESTED, Component

NAME = "variances"
TITLE = "Spread between trainings and between networks"
CAPTION = (
    "Standard deviation of the difference to the lossless run: between trainings (seeds of weights and data), between "
    "networks (seeds of packet losses), and the rest (the interaction of the two). If each training has its own "
    "networks, the rest is part of the networks. Bars: 95 % intervals. A mark at the edge: the estimate is 0; a bar "
    "that reaches the edge: the interval contains 0."
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


def describe(data: pd.DataFrame) -> dict[str, Any]:
    """A row per point, a bar per part."""
    unit, (left, right) = data.attrs["unit"], view(data)
    names, curves = list(dict.fromkeys(data["name"])), []
    for place, part in enumerate(PARTS):
        mine = data[data["part"] == part].to_dict("records")
        shown = {end: [max(row[end], left) for row in mine] for end in ("deviation", "low", "high")}
        text = [f"{row['name']}\n{part}: standard deviation {row['deviation']:.4g} {unit}\n"
                f"95 % interval {row['low']:.4g} to {row['high']:.4g} {unit}" for row in mine]  # fmt: skip
        y = [names.index(row["name"]) + 0.22 * (place - 1) for row in mine]
        if mine:
            curves.append(drawing.curve(part, category(place), shown["deviation"], y, "bars", low=shown["low"],
                                        high=shown["high"], along="x", text=text))  # fmt: skip
    x = {"title": f"standard deviation ({unit})", "type": "log", "range": [left / 1.25, right]}
    whole = drawing.panel("", x, drawing.rows_axis(names), curves, inches=0.6 + 0.36 * len(names))
    return drawing.figure(data, [whole], 1, key="between")
