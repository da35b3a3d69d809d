# SPDX-License-Identifier: Apache-2.0
"""The figures of the page as JSON for plotly.js: panels of curves, rows and maps (templates/report.js draws them).

A figure is {"panels": [...], "columns": n, "key": title of the legend, "least": width of a panel in pixels}.
A panel has `title`, `x` and `y` (axes), `curves`, `lines` across it ({"y" or "x": place, "dash", "name"}), `bands`
({"x": [from, to], "mark"}) or a `heat` map; `keyed` false: its curves need no legend.
An axis has `title` (words with the unit), `type`, and where they are fixed `ticks` with `labels`, `range`, `from` (0:
it starts there), `rows` (the first tick is at the top).
A curve has `name`, `mark` ([place, number of marks], which gives colour, symbol and dashes), `x`, `y`, `low` and
`high` (along y, or along x with `along`), `text` (at the cursor), `hollow` (marks), `symbol` (in place of the mark's)
and `kind`: line (with a band), marks (with bars and a line), bars (without a line), points or stack (a part of a bar
along x in each row, after the parts of the curves before).
A heat map has `z`, `low`, `high`, `title` of its scale, `cells` (text in them), `text` (at the cursor) and `frames`
([column, row] each).
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd

from droptest.loss_model import percent
from droptest.plots.panels import ends_of, near_range
from droptest.words import decimal

Panel = dict[str, Any]


def plain(value: Any) -> Any:
    """`value` as strict JSON has it: null for a number that is not finite."""
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | np.ndarray | pd.Series | pd.Index):
        return [plain(entry) for entry in value]
    if isinstance(value, float | np.floating):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


def curve(name: str, mark: list[int], x: Iterable, y: Iterable, kind: str = "line", **more: Any) -> dict[str, Any]:
    return {"name": name, "mark": mark, "x": list(x), "y": list(y), "kind": kind, **more}


def marks_of(names: Iterable[str]) -> dict[str, list[int]]:
    every = list(dict.fromkeys(names))
    return {name: [place, len(every)] for place, name in enumerate(every)}


def rate_axis(rates: Iterable[float], title: str = "packet loss rate") -> tuple[dict[str, Any], Callable]:
    """An axis of loss rates, logarithmic with 0 at its left end; and the place of a rate on it."""
    every = sorted({rate for rate in rates if math.isfinite(rate)})
    least = min((rate for rate in every if rate > 0), default=1.0)
    place = lambda rate: math.log10(rate / least) if rate > 0 else -0.6  # noqa: E731
    room = (place(every[-1]) - place(every[0])) / 14 if every else 0.0  # labels closer than this would touch
    ticks: list[float] = []
    for rate in [*every[:1], *every[:0:-1]]:
        if all(abs(place(rate) - place(other)) >= room for other in ticks):
            ticks.append(rate)
    return {"title": title, "ticks": [place(r) for r in sorted(ticks)], "labels": [percent(r) for r in sorted(ticks)],
            "room": [place(every[0]) - 0.12, place(every[-1]) + 0.12] if every else [-1, 1]}, place  # fmt: skip


def nudge(mark: list[int], width: float = 0.05) -> float:
    """A small step sideways for the points of a curve: equal rates would hide each other's bars."""
    return width * (mark[0] - (mark[1] - 1) / 2) / max(mark[1] - 1, 1)


def told(
    row: Any, quantity: str, unit: str, prefix: str = "", digits: int = 4, sign: str = "+", scale: float = 1
) -> str:
    """The mean of a row with its interval in words: "difference: +0.0106 nats per byte<br>95 % interval ..."."""
    number = lambda end: decimal(scale * row[prefix + end], digits, sign)  # noqa: E731
    if not row[prefix + "seeds"]:
        return f"{quantity}: none"
    text = f"{quantity}: {number('mean')} {unit}"
    if not math.isnan(row[prefix + "low"]):
        text += f"<br>95 % interval {number('low')} to {number('high')} {unit}"
    return f"{text}<br>{counted(row[prefix + 'seeds'], 'seed')}"


def counted(count: int, noun: str) -> str:
    """ "1 seed", "3 seeds"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def point_words(row: Any, name: str) -> str:
    """Whose point a row is: the curve, the loss rate, the best value and the runs that diverged."""
    rate = row.get("missing_rate", row.get("loss_rate", math.nan))
    lines = [name]
    if not row.get("without_loss", False) and not math.isnan(rate):
        lines.append(f"packet loss rate {percent(rate)}")
    if row.get("best_value"):
        lines.append(f"best: {row['best_value']}")
    if row.get("diverged"):
        lines.append(f"{row['diverged']} of {counted(row['runs'], 'run')} diverged")
    return "<br>".join(lines)


def over_rate(
    data: pd.DataFrame, prefix: str, quantity: str, unit: str, by: str = "panel", rate: str = "missing_rate",
    sign: str = "+", rates: Iterable[float] | None = None, far: float = math.inf,
) -> Panel:  # fmt: skip
    """Marks with bars over the loss rate, a curve for each value of `by`; rates: of the axis (default: of the data);
    far: the axis ends before values beyond it."""
    axis, place = rate_axis(data[rate] if rates is None else rates)
    curves = []
    for name, mark in marks_of(data[by]).items():
        part = data[(data[by] == name) & (data[f"{prefix}seeds"] > 0) & data[rate].notna()].sort_values(rate)
        text = [f"{point_words(row, name)}<br>{told(row, quantity, unit, prefix, sign=sign)}"
                for row in part.to_dict("records")]  # fmt: skip
        mean, low, high = (part[f"{prefix}{end}"] for end in ("mean", "low", "high"))
        places = [place(value) + nudge(mark) for value in part[rate]]
        whole = curve(name, mark, places, mean, "marks", low=low, high=high, text=text)
        curves.append(whole | {"y": [value if abs(value) <= far else math.nan for value in whole["y"]]})
        curves += edge_marks(whole, near_range(ends_of(data, prefix), far), far)
    y = {"title": unit} | near_axis(ends_of(data, prefix), far)
    return {"title": quantity, "x": axis, "y": y, "curves": curves, "lines": []}


def near_axis(values: Any, far: float) -> dict[str, Any]:
    """The range of an axis of which diverging runs would leave nothing to see; empty: it shows all values."""
    limits = near_range(values, far)
    return {} if limits is None else {"range": list(limits)}


def in_lines(name: str, width: int) -> str:
    """A name in at most three lines; the rest of a longer one is left out."""
    parts = [line for part in name.split("<br>") for line in textwrap.wrap(
        part.replace(" %", "\N{NO-BREAK SPACE}%"), width)]  # fmt: skip
    return "<br>".join(parts[:3]) + (" …" if len(parts) > 3 else "")


def edge_marks(
    shown: dict[str, Any], limits: tuple[float, float] | None, far: float, along: str = "y"
) -> list[dict[str, Any]]:
    """Triangles at the edges of a panel for the values of a curve that are beyond `far`; limits: of the panel."""
    if limits is None:
        return []
    across, found = "xy"[along == "x"], []
    inset = 0.03 * (limits[1] - limits[0])
    for sign, edge in ((1, limits[1] - inset), (-1, limits[0] + inset)):
        beyond = [i for i, value in enumerate(shown[along]) if sign * value > far]
        if beyond:
            symbol = {"y1": "triangle-up", "y-1": "triangle-down", "x1": "triangle-right", "x-1": "triangle-left"}
            places = {along: [edge] * len(beyond), across: [shown[across][i] for i in beyond]}
            found.append(curve(shown["name"], shown["mark"], places["x"], places["y"], "points",
                               text=[shown["text"][i] for i in beyond], symbol=symbol[f"{along}{sign}"]))  # fmt: skip
    return found


def rows_axis(names: Iterable[str]) -> dict[str, Any]:
    """An axis of names, the first at the top."""
    labels = [in_lines(name, 40) for name in names]
    return {"title": "", "ticks": list(range(len(labels))), "labels": labels, "rows": True}


def in_rows(
    data: pd.DataFrame, prefix: str, quantity: str, unit: str, names: Iterable[str], by: str = "series",
    sign: str = "+", scale: float = 1.0, far: float = math.inf,
) -> Panel:  # fmt: skip
    """A row for each row of `data`: mean and interval along x, times `scale`; far: the axis ends before values beyond
    it."""
    names, rows = list(names), data.to_dict("records")
    curves = []
    for name, mark in marks_of(data[by]).items():
        mine = [i for i, row in enumerate(rows) if row[by] == name and row[f"{prefix}seeds"]]
        mean, low, high = ([scale * rows[i][f"{prefix}{end}"] for i in mine] for end in ("mean", "low", "high"))
        text = [f"{point_words(rows[i], name)}<br>{told(rows[i], quantity, unit, prefix, sign=sign, scale=scale)}"
                for i in mine]  # fmt: skip
        curves.append(curve(name, mark, mean, mine, "bars", low=low, high=high, along="x", text=text))
        curves += edge_marks(curves[-1], near_range(ends_of(data, prefix), far), far, "x")
    x = {"title": f"{quantity} ({unit})"} | near_axis(ends_of(data, prefix), far)
    return {"title": quantity, "x": x, "y": rows_axis(names), "curves": curves, "lines": [], "keyed": False}


def heat_map(
    title: str, x: dict[str, Any], y: dict[str, Any], z: np.ndarray, span: tuple[float, float], scale: str,
    text: list[list[str]], **more: Any,
) -> Panel:  # fmt: skip
    """A map of cells; span: of the colours; scale: their quantity with its unit; text: of each cell."""
    heat = {"z": z, "low": span[0], "high": span[1], "title": scale, "text": text, **more}
    return {"title": title, "x": x, "y": y, "curves": [], "lines": [], "heat": heat}
