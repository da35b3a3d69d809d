# SPDX-License-Identifier: Apache-2.0
"""The description of a figure. pictures.py draws it with matplotlib, interactive.py turns it into JSON for plotly.js.

A figure is {"panels": [...], "columns": n, "key": title of the legend, "order": names in the legend, "least": width of
a panel of the page in pixels, "remark", "names": {short: whole} of shortened names, "bar": title of the one scale of
colours}. A panel that is None is a gap.
A panel has `title`, `x` and `y` (axes), `curves`, `lines` across it ({"y" or "x": place, "dash", "name"}), `bands`
({"x" or "y": [from, to], "hue"}) or a `heat` map, `above` (texts above it); `keyed` false: its curves need no legend.
An axis has `title` (words with the unit), `range`, and as it needs `type` "log", `stretch` ([unit, room]: Stretched),
`ticks` with `labels`, `whole` (ticks at whole numbers only), `rows` (their number; the first is at the top).
A curve has `name`, `look` (looks.py), `x`, `y`, `low` and `high` (along y, or along x with `along`), `text` (at the
cursor), `hues` (of its points), `nudge` (a small step along x, in decades), `hollow` (marks), `symbol` (in place of the
mark's) and `kind`: line (with a band), marks (with bars and a line), bars (without a line), points, stack (a part of a
bar along x in each row, after the parts of the curves before) or edge (marks at the `side` low or high of the panel
along `along`, with `labels`).
A heat map has `z`, `low`, `high`, `cells` (text in them), `text` (at the cursor) and `frames` ([column, row] each).
All numbers are in the units of the axes. A text is shown as it is, and may have several lines.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from droptest import words
from droptest.looks import Look, Looks
from droptest.loss_model import percent
from droptest.words import decimal

Panel = dict[str, Any]
LONGEST_NAME = 40  # characters
TITLE_WIDTHS = {1: 60, 2: 48, 3: 34, 4: 24}  # characters of a panel's title, by the columns of the figure
NO_DIFFERENCE = {"y": 0, "dash": "dot"}
SYMBOLS = {("y", "high"): "triangle-up", ("y", "low"): "triangle-down", ("x", "high"): "triangle-right",
           ("x", "low"): "triangle-left"}  # fmt: skip


@dataclass(frozen=True)
class Stretched:
    """A scale that is linear up to `unit` on either side of 0, in `room` decades, and logarithmic beyond."""

    unit: float
    room: float

    def place(self, value: Any) -> Any:
        size = np.abs(np.asarray(value, float)) / self.unit
        found = np.sign(value) * np.where(size <= 1, self.room * size, self.room + np.log10(np.maximum(size, 1)))
        return float(found) if np.ndim(value) == 0 else found

    def value(self, place: Any) -> Any:
        size = np.abs(np.asarray(place, float))
        beyond = 10 ** np.clip(size - self.room, 0, 308)
        found = np.sign(place) * self.unit * np.where(size <= self.room, size / self.room, beyond)
        return float(found) if np.ndim(place) == 0 else found


def curve(name: str, look: Look, x: Iterable, y: Iterable, kind: str = "line", **more: Any) -> dict[str, Any]:
    return {"name": name, "look": look, "x": list(x), "y": list(y), "kind": kind,
            **{key: list(value) if isinstance(value, pd.Series) else value for key, value in more.items()}}  # fmt: skip


def panel(title: str | tuple[str, str], x: dict[str, Any], y: dict[str, Any], curves: list, *lines, **more) -> Panel:
    """title: a series, or (series, quantity)."""
    return {"title": title, "x": x, "y": y, "curves": curves, "lines": list(lines), **more}


def figure(
    data: pd.DataFrame, panels: Sequence[Panel | None], columns: int = 2, longest: int = LONGEST_NAME, **more: Any
) -> dict[str, Any]:
    """The whole description, in which names have at most `longest` characters."""
    shown = [one for one in panels if one]
    titles = [one["title"][0] if isinstance(one["title"], tuple) else one["title"] for one in shown]
    rows = [name for one in shown for axis in (one["x"], one["y"]) for name in axis.get("names", ())]
    curves = (c["name"] for one in shown if one.get("keyed", True) for c in one["curves"])
    names = dict.fromkeys((*curves, *titles, *rows))
    head = words.shared_head(rows or names, longest)
    short = dict(zip(names, words.shortened(names, longest, head), strict=True))
    for one in shown:
        parts = one["title"] if isinstance(one["title"], tuple) else (one["title"],)
        shorter = [short[parts[0]], *parts[1:]]
        one["title"] = "\n".join(in_lines(part, TITLE_WIDTHS[min(columns, 4)]) for part in shorter if part)
        for c in one["curves"]:
            c["name"] = short.get(c["name"], c["name"])
        for axis in (one["x"], one["y"]):
            if "names" in axis:
                axis["labels"] = [in_lines(short[name], longest) for name in axis.pop("names")]
    if "order" in more:
        more["order"] = [short[name] for name in more["order"]]
    whole = {text: name for name, text in short.items() if text != name}
    remark = data.attrs.get("remark") or ""
    return {"panels": list(panels), "columns": columns, "remark": remark, "names": whole, **more}


def in_lines(text: str, width: int) -> str:
    """A text in lines; " %" stays with its number."""
    lines = [line for part in text.split("\n") for line in textwrap.wrap(
        part.replace(" %", "\N{NO-BREAK SPACE}%"), width)]  # fmt: skip
    return "\n".join(lines)


def rate_axis(rates: Iterable[float], title: str = "packet loss rate (%)") -> dict[str, Any]:
    """An axis of loss rates in percent, logarithmic with 0 at its left end."""
    every = sorted({100 * rate for rate in rates if math.isfinite(rate)})
    scale = Stretched(min((rate for rate in every if rate > 0), default=100.0), 0.6)
    place = [scale.place(rate) for rate in every]
    ends = [place[0] - 0.12, place[-1] + 0.12] if every else [0.5, 1.7]
    ticks: list[float] = []
    for rate in [*every[:1], *every[:0:-1]]:
        if all(abs(scale.place(rate) - scale.place(other)) >= (ends[1] - ends[0]) / 11 for other in ticks):
            ticks.append(rate)  # closer labels would touch
    ticks.sort()
    return {"title": title, "stretch": [scale.unit, scale.room], "range": [scale.value(end) for end in ends],
            "ticks": ticks, "labels": [plain_number(rate) for rate in ticks]}  # fmt: skip


def rate_title(data: pd.DataFrame) -> str:
    """The title of an axis of loss rates, with the loss that the rate is of where there are several."""
    pointer = data.attrs.get("rate_pointer")
    return f"packet loss rate of {pointer} (%)" if pointer else "packet loss rate (%)"


def plain_number(value: float) -> str:
    return f"{value:.6g}".replace("-", "\N{MINUS SIGN}")


def rows_axis(names: Iterable[str]) -> dict[str, Any]:
    """An axis of names, the first at the top."""
    names = list(names)
    return {"title": "", "ticks": list(range(len(names))), "names": names, "rows": len(names)}


def nudge(place: int, count: int, axis: dict[str, Any], more: float = 0.0) -> float:
    """A small step sideways for the points of a curve: equal rates would hide each other's bars, and steps that are
    long on a short axis would show a rate at the place of another one."""
    low, high = map(Stretched(*axis["stretch"]).place, axis["range"])
    share = min(1.0, (high - low) / 1.2) if len(axis["ticks"]) > 1 else 1.0
    return share * (more + (0.05 * (place / (count - 1) - 0.5) * min(count, 4) / 2 if count > 1 else 0.0))


def fit(
    panels: Sequence[Panel], far: float = math.inf, along: str = "y", view: tuple[float, float] | None = None,
    include: Iterable[float] = (), signed: bool = False,
) -> None:  # fmt: skip
    """Gives panels one range along an axis, and triangles at its ends for means outside of it.

    The range holds `include`, and all values and intervals up to `far`; or it is `view`. A 0 on a logarithmic axis is a
    hollow triangle. signed: differences over decades have a stretched axis.
    """
    axes, every = [one[along] for one in panels], [c for one in panels for c in one["curves"] if c["kind"] != "edge"]
    log = axes[0].get("type") == "log" if axes else False
    ends = [*include]
    for c in every:
        across = c.get("along", "y") != along
        seen = [c[along], *((c[end] for end in ("low", "high") if c.get(end) is not None) if not across else ())]
        ends += [v for values in seen for v in values if math.isfinite(v) and abs(v) <= far and (v > 0 or not log)]
    if not ends:
        ends = [0.0, far if math.isfinite(far) else 1.0] if not log else [1.0, 10.0]
    low, high = view or (min(ends), max(ends))
    if signed and (stretch := _stretch(every, far)):
        _stretch_axis(panels, stretch, along, low, high)
    else:
        span = math.log10(high / low) if log else high - low
        room = 0.0 if view else 0.08 * span or (0.1 if log else 0.1 * abs(high) or 1.0)
        limits = [low * 10**-room, high * 10**room] if log else [low - room, high + room]
        for axis in axes:
            axis["range"] = limits
    for one in panels:
        for c in [c for c in one["curves"] if c["kind"] != "edge"]:
            one["curves"] += _outside(c, along, far, view or (-math.inf, math.inf), log)


def _outside(c: dict[str, Any], along: str, far: float, view: tuple[float, float], log: bool) -> list[dict[str, Any]]:
    """Takes the values that a panel cannot show out of a curve; returns triangles for them."""
    sides: dict[str, list[int]] = {"high": [], "low": []}
    for i, value in enumerate(c[along]):
        if value > min(far, view[1]):
            sides["high"].append(i)
        elif value < max(-far, view[0]) or (log and value == 0):
            sides["low"].append(i)
    cut = lambda values: [v if abs(v) <= far or math.isnan(v) else math.copysign(far, v) for v in values]  # noqa: E731
    if c.get("along", "y") == along and math.isfinite(far):
        c |= {end: cut(c[end]) for end in ("low", "high") if c.get(end) is not None}
    values = c[along]
    if c["kind"] == "line":
        c[along] = cut(values)
        c |= {end: [b if abs(v) <= far else math.nan for v, b in zip(values, c[end], strict=True)]
              for end in ("low", "high") if along == "y" and c.get(end) is not None}  # fmt: skip
    else:
        c[along] = [v if abs(v) <= far else math.nan for v in values]
    if log:
        c[along] = [v if v > 0 else math.nan for v in c[along]]
    across, found = "xy"[along == "x"], []
    if c["kind"] == "points":
        return []
    for side, places in sides.items():
        first = places[:1] if c["kind"] == "line" and not log else places
        if first:
            text = [c["text"][i] for i in first] if "text" in c else [
                f"{c['name']}\n{decimal(values[i])}" for i in first]  # fmt: skip
            hues = {"hues": [c["hues"][i] for i in first]} if "hues" in c else {}
            found.append(edge(c["name"], c["look"], [c[across][i] for i in first], along, side, text, **hues,
                              nudge=c.get("nudge", 0.0), hollow=log))  # fmt: skip
    return found


def edge(
    name: str, look: Look, places: Iterable[float], along: str, side: str, text: list[str], symbol: str = "", **more
) -> dict[str, Any]:
    """Marks at a side of the panel. places: on the other axis."""
    across, places = "xy"[along == "x"], list(places)
    return {"name": name, "look": look, across: places, along: [math.nan] * len(places), "kind": "edge",
            "along": along, "side": side, "text": text, "symbol": symbol or SYMBOLS[along, side], **more}  # fmt: skip


def _stretch(curves: list[dict[str, Any]], far: float) -> Stretched | None:
    """The scale of differences of either sign over decades; None where they have one size."""
    sizes = [abs(v) for c in curves for v in c["y"] if v and math.isfinite(v) and abs(v) <= far]
    if not sizes or max(sizes) < 20 * min(sizes):
        return None
    # A difference that is tiny by chance must not stretch the axis.
    least = max(10.0 ** math.floor(math.log10(min(sizes))), 10.0 ** math.floor(math.log10(max(sizes)) - 3))
    return Stretched(least, 0.5)


def _stretch_axis(panels: Sequence[Panel], scale: Stretched, along: str, low: float, high: float) -> None:
    ends = [scale.place(min(low, -0.5 * scale.unit)) - 0.15, scale.place(max(high, 0.5 * scale.unit)) + 0.15]
    decades = range(int(max(abs(end) for end in ends) - scale.room) + 1)
    ticks = sorted({0.0, *(sign * scale.unit * 10.0**k for k in decades for sign in (1, -1))})
    ticks = [tick for tick in ticks if ends[0] <= scale.place(tick) <= ends[1]]
    for one in panels:
        one[along] |= {"stretch": [scale.unit, scale.room], "range": [scale.value(end) for end in ends],
                       "ticks": ticks, "labels": [plain_number(tick) for tick in ticks]}  # fmt: skip
        one["bands"] = [*one.get("bands", []), {along: [-scale.unit, scale.unit]}]


def told(
    row: Any, quantity: str, unit: str, prefix: str = "", digits: int = 4, sign: str = "+", scale: float = 1
) -> str:
    """The mean of a row with its interval in words, a line each: "difference: +0.0106 nats per byte", ..."""
    number = lambda end: decimal(scale * row[prefix + end], digits, sign)  # noqa: E731
    if not row[prefix + "seeds"]:
        return f"{quantity}: none"
    text = f"{quantity}: {number('mean')} {unit}"
    if not math.isnan(row[prefix + "low"]):
        text += f"\n95 % interval {number('low')} to {number('high')} {unit}"
    return f"{text}\n{counted(row[prefix + 'seeds'], 'seed')}"


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
    return "\n".join(lines)


def looks(data: pd.DataFrame) -> Looks:
    """The looks of the conditions of a figure's data."""
    return data.attrs.get("looks") or Looks()


def _hue(data: pd.DataFrame, row: dict[str, Any]) -> float | str:
    return looks(data).hue(row.get("loss_rate", math.nan), row.get("without_loss", False))


def over_rate(
    data: pd.DataFrame, prefix: str, quantity: str, unit: str, by: str = "panel", rate: str = "missing_rate",
    sign: str = "+", title: str = "", diverged: bool = False,
) -> Panel:  # fmt: skip
    """Marks with bars over the loss rate, a curve for each value of `by`; diverged: a cross for diverged runs."""
    curves, names, axis = [], list(dict.fromkeys(data[by])), rate_axis(data[rate], rate_title(data))
    for place, name in enumerate(names):
        every = data[(data[by] == name) & data[rate].notna()].sort_values(rate)
        part = every[every[f"{prefix}seeds"] > 0]
        rows = part.to_dict("records")
        text = [f"{point_words(row, name)}\n{told(row, quantity, unit, prefix, sign=sign)}" for row in rows]
        lossy = [row["series"] for row in every.to_dict("records") if not row.get("without_loss", False)]
        look, step = looks(data).curve(lossy[0] if lossy else name), nudge(place, len(names), axis)
        curves.append(curve(name, look, 100 * part[rate], part[f"{prefix}mean"], "marks", low=part[f"{prefix}low"],
                            high=part[f"{prefix}high"], text=text, hues=[_hue(data, row) for row in rows],
                            nudge=step))  # fmt: skip
        if diverged and len(gone := every[every["diverged"] > 0]):
            rows = gone.to_dict("records")
            curves.append(edge(name, look, 100 * gone[rate], "y", "high", [point_words(row, name) for row in rows],
                               "x", labels=[f"{row['diverged']}/{row['runs']}" for row in rows], level=place,
                               hues=[_hue(data, row) for row in rows], nudge=step))  # fmt: skip
    return panel(title, axis, {"title": f"{quantity}\n({unit})" if unit else quantity}, curves)


def in_rows(
    data: pd.DataFrame, prefix: str, quantity: str, unit: str, names: Iterable[str], by: str = "series",
    sign: str = "+", scale: float = 1.0, title: str = "",
) -> Panel:  # fmt: skip
    """A row for each row of `data`: mean and interval along x, times `scale`, or a cross for diverged runs."""
    names, rows = list(names), data.to_dict("records")
    curves = []
    for name in dict.fromkeys(data[by]):
        own = [i for i, row in enumerate(rows) if row[by] == name]
        mine = [i for i in own if rows[i][f"{prefix}seeds"]]
        gone = [i for i in own if not rows[i][f"{prefix}seeds"] and rows[i].get("diverged")]
        mean, low, high = ([scale * rows[i][f"{prefix}{end}"] for i in mine] for end in ("mean", "low", "high"))
        text = [f"{point_words(rows[i], name)}\n{told(rows[i], quantity, unit, prefix, sign=sign, scale=scale)}"
                for i in mine]  # fmt: skip
        first = rows[own[0]]
        look = looks(data).point(first["series"], first["loss_rate"], first.get("without_loss", False))
        hues = lambda places: [_hue(data, rows[i]) for i in places]  # noqa: E731
        curves.append(curve(name, look, mean, mine, "bars", low=low, high=high, along="x", text=text, hues=hues(mine)))
        if gone:
            curves.append(edge(name, look, gone, "x", "high", [point_words(rows[i], name) for i in gone], "x",
                               hues=hues(gone)))  # fmt: skip
    return panel(title, {"title": f"{quantity}\n({unit})" if unit else quantity}, rows_axis(names), curves, keyed=False)


def heat_map(
    title: str, x: dict[str, Any], y: dict[str, Any], z: np.ndarray, span: tuple[float, float],
    text: list[list[str]], **more: Any,
) -> Panel:  # fmt: skip
    """A map of cells; span: of the colours; text: of each cell."""
    return panel(title, x, y, [], heat={"z": z, "low": span[0], "high": span[1], "text": text, **more})


def blocks(columns: int, *kinds: Sequence[Panel | None]) -> list[Panel | None]:
    """Rows of panels: the first ones of each kind one above the other, then the next ones."""
    found: list[Panel | None] = []
    for start in range(0, len(kinds[0]), columns):
        for panels in kinds:
            row = list(panels[start : start + columns])
            found += [*row, *[None] * (columns - len(row))] if any(row) else []
    while found and found[-1] is None and len(found) > columns:
        found.pop()
    return found
