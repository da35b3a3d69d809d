# SPDX-License-Identifier: Apache-2.0
"""Draws the description of a figure (drawing.py) with matplotlib, for paper."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from droptest import style  # before matplotlib: it sets up matplotlib's cache
from droptest.drawing import Panel, Stretched
from droptest.looks import INK, Look

# isort: split
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, LogFormatterSciNotation, LogLocator, MaxNLocator, NullLocator

SYMBOLS = {"triangle-up": "^", "triangle-down": "v", "triangle-right": ">", "triangle-left": "<", "x": "x"}
DASHES = {"dot": ":", "dash": "--", "": "-"}
HATCHES = ("", "////", "....")
LETTER = 0.055  # inches: the width of a letter in the smallest text
FEW_DECADES = 2  # a logarithmic axis of fewer has ticks between its powers of ten
INSIDE = 0.72  # the share of a panel's width that is inside its axes, at least


def draw(figure: dict[str, Any]) -> Figure:
    """The picture of a description."""
    with style.applied():
        return _drawn(figure)


def _drawn(figure: dict[str, Any]) -> Figure:
    panels, columns = figure["panels"], min(figure["columns"], len(figure["panels"]))
    rows = [panels[start : start + columns] for start in range(0, len(panels), columns)]
    heights = [max(_inches(one, len(rows)) for one in row if one) for row in rows]
    rowed = any(one["y"].get("rows") for one in panels if one and "heat" not in one)
    narrow = columns == 1 and not figure.get("wide") and not rowed
    width = style.SINGLE_COLUMN if narrow else style.DOUBLE_COLUMN
    result, axes = style.figure(width, sum(heights) + 0.15, len(rows), columns, gridspec_kw={"height_ratios": heights})
    handles: dict[str, Any] = {}
    lines: dict[str, Any] = {}
    picture = None
    for row, places in zip(rows, axes, strict=True):
        for column, ax in enumerate(places):
            one = row[column] if column < len(row) else None
            if one is None:
                ax.set_visible(False)
                continue
            left = row[column - 1] if column else None
            picture = _panel(ax, one, left, width / columns, handles, lines) or picture
    if "bar" in figure:
        shown = [ax for places in axes for ax in places]
        result.colorbar(picture, ax=shown, label=style.in_lines(figure["bar"]), shrink=min(1, 2.5 / sum(heights)),
                        anchor=(0, 1), aspect=15)  # fmt: skip
    if figure["remark"]:
        result.suptitle(style.plain_text(figure["remark"]), fontsize=7)
    order = [name for name in figure.get("order", handles) if name in handles]
    order += [name for name in handles if name not in order]
    handles, order = handles | lines, [*order, *lines]
    style.legend_below(result, [handles[name] for name in order], order, figure.get("key"))
    return result


def _inches(panel: Panel, rows: int) -> float:
    """The height of a panel; rows: of the figure, of which two have to fit on half a page."""
    if "inches" in panel:
        return panel["inches"]
    titles = 0.13 * (panel["title"].count("\n") + bool(panel["title"]))
    if "heat" in panel:
        turned = 0.045 * max(map(len, panel["x"]["labels"]), default=0) if panel["x"].get("turned") else 0
        return titles + turned + (1.85 if panel["heat"].get("square") else 0.75 + 0.3 * len(panel["y"]["labels"]))
    if panel["y"].get("rows"):
        return titles + 0.65 + 0.24 * len(panel["y"]["labels"])
    above = 0.1 + 0.11 * len(panel["above"]["looks"]) if panel.get("above") else 0
    return titles + above + (2.2 if rows < 3 else 1.55)


def _panel(ax: Axes, panel: Panel, left: Panel | None, width: float, handles: dict[str, Any], lines: dict[str, Any]):
    """Draws a panel; returns the picture of a map. `left`: the panel to its left; `width`: in inches; `handles` and
    `lines`: entries of the legend, to which the panel adds its own."""
    for along, axis in (("x", panel["x"]), ("y", panel["y"])):
        _axis(ax, along, axis, alike=bool(left) and along == "y" and axis == left["y"])
        if "range" in axis:  # before the curves: a logarithmic axis of zeros alone has no range of its own
            (ax.set_xlim if along == "x" else ax.set_ylim)(*axis["range"])
    ax.set_title(style.in_lines(panel["title"]))
    for band in panel.get("bands", ()):
        span, ends = (ax.axvspan, band["x"]) if "x" in band else (ax.axhspan, band["y"])
        span(*ends, color="0.94", zorder=0, linewidth=0)
    for line in panel["lines"]:
        look = {"color": style.colour(line["look"].hue) if "look" in line else "0.3", "linestyle": DASHES[line["dash"]]}
        across, place = (ax.axvline, line["x"]) if "x" in line else (ax.axhline, line["y"])
        across(place, linewidth=1, zorder=1.5, **look)
        if "name" in line:
            lines[line["name"]] = Line2D([], [], linewidth=1, **look)
            lines[line["name"]].needs_key = True  # a line across the panel is known by its dashes only
    stacked: dict[int, float] = {}
    for curve in panel["curves"]:
        handle = _curve(ax, panel, curve, stacked)
        if handle is not None and len(curve["x"]) and panel.get("keyed", True):
            handles.setdefault(curve["name"], handle)
    if panel.get("above"):
        _texts_above(ax, panel, INSIDE * width)
    _labels_of_edges(ax, panel, INSIDE * width)
    return _map(ax, panel["heat"]) if "heat" in panel else None


def _axis(ax: Axes, along: str, axis: dict[str, Any], alike: bool) -> None:
    one, scale = (ax.xaxis, ax.set_xscale) if along == "x" else (ax.yaxis, ax.set_yscale)
    if axis.get("type") == "log":
        scale("log")
        few = math.log10(axis["range"][1] / axis["range"][0]) < FEW_DECADES if "range" in axis else False
        one.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,), numticks=6))
        one.set_major_formatter(LogFormatterSciNotation(labelOnlyBase=False, minor_thresholds=(math.inf, math.inf)))
        one.set_minor_locator(NullLocator())
    elif "stretch" in axis:
        stretched = Stretched(*axis["stretch"])
        scale("function", functions=(stretched.place, stretched.value))
    else:
        one.set_major_locator(MaxNLocator(5 if along == "y" else 6, integer=axis.get("whole", False)))
        one.set_major_formatter(style.plain_formatter())
    if "ticks" in axis:
        labels = [style.in_lines(label) for label in axis["labels"]]
        one.set_major_locator(FixedLocator(axis["ticks"]))
        one.set_minor_locator(NullLocator())
        one.set_ticklabels([""] * len(labels) if alike and axis.get("rows") else labels)
        if axis.get("turned"):
            ax.tick_params("x", rotation=45)
            for label in one.get_ticklabels():
                label.set(ha="right", rotation_mode="anchor")
    if axis.get("rows"):
        ax.set_ylim(axis["rows"] - 0.5, -0.5)
        ax.grid(axis="y", visible=False)
    if not (alike and axis.get("rows")):
        one.set_label_text("" if alike else style.in_lines(axis["title"]))


def _curve(ax: Axes, panel: Panel, curve: dict[str, Any], stacked: dict[int, float]) -> Any:
    """Draws a curve; returns its handle in a legend."""
    look: Look = curve["look"]
    color, marker = style.colour(look.hue), style.MARKERS[look.marker % len(style.MARKERS)]
    dashes = ":" if curve.get("plain") else style.DASHES[look.dash % len(style.DASHES)]
    face = {"markerfacecolor": "white"} if curve.get("hollow") else {}
    kind, step = curve["kind"], 10 ** curve.get("nudge", 0.0)
    x, y = np.asarray(curve["x"], float), np.asarray(curve["y"], float)
    if step != 1 and "stretch" in panel["x"]:
        x = np.where(x == 0, (step - 1) * panel["x"]["stretch"][0], x * step)
    if kind == "edge":
        _edge(ax, curve, x, y, color)
        return Line2D([], [], color=color, marker=marker, linestyle=dashes, markersize=4)  # all marks are at the edge
    if kind == "stack":
        place = look.marker
        left = [stacked.get(row, 0.0) for row in range(len(y))]
        stacked |= {row: a + b for row, (a, b) in enumerate(zip(left, x, strict=True))}
        bars = ax.barh(y, x, 0.8, left=left, color=color, edgecolor="white", linewidth=0.4,
                       hatch=HATCHES[place % 3], label=curve["name"])  # fmt: skip
        return Patch(facecolor=color, edgecolor="white", hatch=HATCHES[place % 3]) if len(bars) else None
    if kind == "points":
        symbol = SYMBOLS.get(curve.get("symbol", ""), marker if curve.get("hollow") else ".")
        size = {"x": 6.5}.get(symbol, 4 if curve.get("hollow") else 4.5)
        for hue in dict.fromkeys(curve.get("hues", [look.hue])):
            mine = [h == hue for h in curve["hues"]] if "hues" in curve else slice(None)
            ax.plot(x[mine], y[mine], symbol, color=style.colour(hue), markersize=size,
                    alpha=1 if symbol == "x" else 0.7, **_edge_of_mark(symbol, curve))  # fmt: skip
        return Line2D([], [], color=color, marker=marker, linestyle="none", markersize=4, **_edge_of_mark("", curve))
    if kind == "line":
        (line,) = ax.plot(x, y, color=color, linestyle=dashes, marker="" if curve.get("plain") else marker,
                          markevery=max(1, len(x) // 8), markersize=3)  # fmt: skip
        low, high = (np.asarray(curve.get(end) or [math.nan], float) for end in ("low", "high"))
        if np.isfinite(low).any():
            ax.fill_between(x, low, high, color=color, alpha=0.18, linewidth=0)
        return line
    return _marks(ax, curve, x, y, color, marker, dashes if kind == "marks" else "none", face)


def _marks(ax: Axes, curve: dict[str, Any], x, y, color: str, marker: str, dashes, face: dict[str, Any]) -> Any:
    """Marks with error bars; points of several loss rates have colours of their own."""
    along = curve.get("along", "y")
    bars = {}
    if curve.get("low") is not None:
        low, high = (np.asarray(curve[end], float) for end in ("low", "high"))
        mean = x if along == "x" else y
        bars = {f"{along}err": np.nan_to_num(np.array([mean - low, high - mean]))}
    legend = Line2D([], [], color=color, marker=marker, linestyle=dashes, markersize=4, **face)
    if not (np.isfinite(x) & np.isfinite(y)).any():  # all are beyond the panel
        return legend
    size, width, cap = (4.5, 1, 2) if len(x) < 40 else (2, 0.5, 0)
    hues = [style.colour(hue) for hue in curve.get("hues", [])]
    if hues and dashes == "none":  # rows: each has its bar
        for place, hue in enumerate(hues):
            own = {f"{along}err": error[:, place : place + 1] for error in bars.values()}
            ax.errorbar(x[place], y[place], color=hue, marker=_mark_of(curve, place, marker), linestyle="none",
                        markersize=size, elinewidth=width, capsize=cap, **own, **face)  # fmt: skip
        return legend
    ax.errorbar(x, y, color=color, marker="" if hues else marker, linestyle=dashes, markersize=size, elinewidth=width,
                capsize=cap, **bars, **face)  # fmt: skip
    for place, hue in enumerate(hues):
        ax.plot(x[place], y[place], _mark_of(curve, place, marker), color=hue, markersize=size + 0.5, zorder=3, **face)
    return legend


def _mark_of(curve: dict[str, Any], place: int, marker: str) -> str:
    """The marker of a point: that of points without loss, or that of the curve."""
    return style.MARKERS[0] if curve["hues"][place] == INK else marker


def _edge_of_mark(symbol: str, curve: dict[str, Any]) -> dict[str, Any]:
    if curve.get("hollow"):
        return {"markeredgewidth": 0.8, "markerfacecolor": "none"}
    return {"markeredgewidth": 1.6 if symbol == "x" else 0}


def _edge(ax: Axes, curve: dict[str, Any], x, y, color: str) -> None:
    """Marks at a side of the panel, in a row for each level where several curves have one."""
    along, symbol = curve["along"], SYMBOLS[curve["symbol"]]
    place = _height(curve)
    transform = ax.get_xaxis_transform() if along == "y" else ax.get_yaxis_transform()
    for i, hue in enumerate(curve.get("hues") or [None] * len(x)):
        spot = (x[i], place) if along == "y" else (place, y[i])
        ax.plot(*spot, symbol, color=color if hue is None else style.colour(hue), markersize=5.5, clip_on=False,
                transform=transform, **_edge_of_mark(symbol, curve))  # fmt: skip


def _height(curve: dict[str, Any]) -> float:
    """The place of marks at an edge, as a share of the panel: curves with labels have lines of their own."""
    inset = 0.03 if curve["symbol"] == "x" else 0.015
    return 1 - inset - 0.07 * curve.get("level", 0) if curve["side"] == "high" else inset


def _labels_of_edges(ax: Axes, panel: Panel, width: float) -> None:
    """The labels of marks at the upper edge, to their left, where no mark and no other label is; width: in inches."""
    edges = [curve for curve in panel["curves"] if curve["kind"] == "edge" and curve["along"] == "y"]
    if not any("labels" in curve for curve in edges):
        return
    scale = Stretched(*panel["x"]["stretch"])
    ends = [scale.place(end) for end in panel["x"]["range"]]
    at = lambda x, curve: width * (scale.place(x) + curve.get("nudge", 0.0) - ends[0]) / (ends[1] - ends[0])  # noqa: E731
    taken = [(at(x, c) - 0.04, at(x, c) + 0.04, _height(c)) for c in edges for x in c["x"]]
    for curve in edges:
        for x, text in zip(curve["x"], curve.get("labels", ()), strict=False):
            right = at(x, curve) - 0.05
            box = (right - LETTER * len(text), right, _height(curve))
            if not any(box[0] < high and low < box[1] and abs(box[2] - y) < 0.06 for low, high, y in taken):
                taken.append(box)
                spot = (x * 10 ** curve.get("nudge", 0.0), box[2])
                ax.annotate(text, spot, xycoords=ax.get_xaxis_transform(), xytext=(-5, 0), textcoords="offset points",
                            ha="right", va="center", fontsize=6)  # fmt: skip


def _texts_above(ax: Axes, panel: Panel, width: float) -> None:
    """The texts above a panel, a line for each curve, as far as they do not touch; width: of the panel in inches."""
    above, scale = panel["above"], Stretched(*panel["x"]["stretch"])
    ends = [scale.place(end) for end in panel["x"]["range"]]
    last: dict[int, float] = {}
    for x, line, text in sorted(above["texts"]):
        middle, half = width * (scale.place(x) - ends[0]) / (ends[1] - ends[0]), 0.5 * LETTER * len(text)
        if middle - half < last.get(line, -math.inf):
            continue
        last[line] = middle + half + 0.06
        level = len(above["looks"]) - 1 - line
        ax.annotate(style.plain_text(text), (x, 1.0), xycoords=ax.get_xaxis_transform(), fontsize=6,
                    xytext=(0, 3 + 8 * level), textcoords="offset points", ha="center", va="bottom",
                    color=style.colour(above["looks"][line].hue), annotation_clip=False)  # fmt: skip
    ax.set_title(style.plain_text(above["title"]), fontsize=6.5, pad=5 + 8 * len(above["looks"]))


def _map(ax: Axes, heat: dict[str, Any]) -> Any:
    ax.grid(visible=False)
    ax.set_facecolor("0.9")
    z, (low, high) = np.asarray(heat["z"], float), (heat["low"], heat["high"])
    picture = ax.imshow(np.ma.masked_invalid(z), cmap="viridis", vmin=low, vmax=high,
                        aspect="equal" if heat.get("square") else "auto")  # fmt: skip
    for y, row in enumerate(heat.get("cells", ())):
        for x, text in enumerate(row):
            dark = not z[y, x] > (low + high) / 2
            ax.text(x, y, text, ha="center", va="center", fontsize=6,
                    color="black" if math.isnan(z[y, x]) or not dark else "white")  # fmt: skip
    for x, y in heat.get("frames", ()):
        ax.add_patch(style.frame(x, y))
    return picture
