# SPDX-License-Identifier: Apache-2.0
"""The description of a figure (drawing.py) as JSON for plotly.js: templates/report.js draws it.

Stretched and logarithmic axes are linear there, in decades, with ticks of their own. Marks at an edge have a place.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from droptest import plots
from droptest.drawing import Panel, Stretched
from droptest.looks import Look


def plain(value: Any) -> Any:
    """`value` as strict JSON has it: null for a number that is not finite."""
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, Look):
        return [value.hue, value.marker, value.dash]
    if isinstance(value, list | tuple | np.ndarray | pd.Series | pd.Index):
        return [plain(entry) for entry in value]
    if isinstance(value, float | np.floating):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


def figure_of(name: str, data: pd.DataFrame) -> dict[str, Any]:
    """The figure of that name as JSON has it. Raises: KeyError for a figure that is not there."""
    return page_of(plots.describe(name, data))


def page_of(figure: dict[str, Any]) -> dict[str, Any]:
    """A description as JSON has it."""
    panels = [one and _panel(one) for one in figure["panels"]]
    heat = next((one["heat"] for one in figure["panels"] if one and "heat" in one), None)
    bar = {"bar": {"title": figure["bar"], "low": heat["low"], "high": heat["high"]}} if heat else {}
    kept = {key: figure[key] for key in ("columns", "key", "order", "least") if key in figure}
    return plain(kept | bar | {"panels": panels})


def _panel(panel: Panel) -> Panel:
    places = {along: _place(panel[along]) for along in "xy"}
    axes = {along: _axis(panel[along]) for along in "xy"}
    curves = [_curve(curve, places, axes) for curve in panel["curves"]]
    for line in panel["lines"]:
        if "text" in line:  # a curve, which has a text at the cursor
            ends = np.linspace(*axes["y"]["range"], 31)
            curves.append({"name": line["name"], "look": line["look"], "kind": "line", "plain": True, "y": ends,
                           "x": [places["x"](line["x"])] * len(ends), "text": [line["text"]] * len(ends)})  # fmt: skip
    lines = [line | {along: places[along](line[along])} for line in panel["lines"] if "text" not in line
             for along in "xy" if along in line]  # fmt: skip
    bands = [{along: [places[along](end) for end in band[along]]} for band in panel.get("bands", ())
             for along in "xy" if along in band]  # fmt: skip
    kept = {key: panel[key] for key in ("title", "keyed", "heat", "inches") if key in panel}
    return kept | axes | {"curves": curves, "lines": lines, "bands": bands}


def _place(axis: dict[str, Any]) -> Any:
    return Stretched(*axis["stretch"]).place if "stretch" in axis else lambda value: value


def _axis(axis: dict[str, Any]) -> dict[str, Any]:
    place = _place(axis)
    made = {key: axis[key] for key in ("title", "type", "rows", "labels", "whole") if key in axis}
    if "ticks" in axis:
        made["ticks"] = [place(tick) for tick in axis["ticks"]]
    if "range" in axis:
        made["range"] = [math.log10(end) if axis.get("type") == "log" else place(end) for end in axis["range"]]
    return made


def _curve(curve: dict[str, Any], places: dict[str, Any], axes: dict[str, Any]) -> dict[str, Any]:
    """A curve with the places of its values; a mark at an edge is drawn inside the panel, near the edge."""
    step, bars = curve.get("nudge", 0.0), curve.get("along", "y")
    found = {key: value for key, value in curve.items() if key not in ("nudge", "side", "level", "labels")}
    for along in "xy":
        found[along] = [places[along](value) + (step if along == "x" and step else 0) for value in curve[along]]
    for end in ("low", "high"):
        if curve.get(end) is not None:
            found[end] = [places[bars](value) for value in curve[end]]
    if curve["kind"] == "edge":
        low, high = axes[bars]["range"]
        inset = (0.03 + 0.06 * curve.get("level", 0)) * (high - low)
        place = high - inset if curve["side"] == "high" else low + inset
        found[bars] = [10**place if axes[bars].get("type") == "log" else place] * len(curve[bars])
    return found
