# SPDX-License-Identifier: Apache-2.0
"""What the page draws of a figure's data by plotly.js: panels of curves, as JSON (templates/report.js draws them).

A figure is {"panels": [...], "columns": n, "key": title of the legend}; a panel has `title`, `x` and `y` (axes: title,
type, and ticks or range where they are fixed), `curves`, `lines` (across the panel) or `heat`. A curve has `name`,
`mark` ([place, number of marks], which gives colour, symbol and dashes), `x`, `y`, `low`, `high`, `text` (at the
cursor) and `kind`: line (with a band), marks (with bars) or points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from droptest import words
from droptest.loss_model import percent
from droptest.plots import links, panels, tolerance

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
    return {"title": title, "ticks": [place(r) for r in every], "labels": [percent(r) for r in every]}, place


def _texts(part: pd.DataFrame, series: str, prefix: str = "") -> list[str]:
    return [
        f"{series}<br>{percent(row['loss_rate'])}: {row[prefix + 'mean']:+.4f}"
        + ("" if math.isnan(row[prefix + "low"]) else f" ({row[prefix + 'low']:+.4f} to {row[prefix + 'high']:+.4f})")
        + f"<br>{row[prefix + 'seeds']} seed(s)"
        for _, row in part.iterrows()
    ]


def _rate_panel(data: pd.DataFrame, prefix: str, title: str, label: str) -> Panel:
    """Marks with bars over the loss rate, a curve per series."""
    axis, place = rate_axis(data["loss_rate"])
    marks, curves = marks_of(data["panel"]), []
    for series, mark in marks.items():
        part = data[(data["panel"] == series) & (data[f"{prefix}seeds"] > 0) & data["loss_rate"].notna()]
        part = part.sort_values("loss_rate")
        nudge = 0.05 * (mark[0] - (mark[1] - 1) / 2) / max(mark[1] - 1, 1)
        mean, low, high = (part[f"{prefix}{end}"] for end in ("mean", "low", "high"))
        text = _texts(part, series, prefix)
        x = [place(rate) + nudge for rate in part["loss_rate"]]
        curves.append(curve(series, mark, x, mean, "marks", low=low, high=high, text=text))
    return {"title": title, "x": axis, "y": {"title": label}, "curves": curves, "lines": [{"y": 0, "dash": "dot"}]}


def _tolerance(data: pd.DataFrame) -> dict[str, Any]:
    limit = float(data["tolerance"].iloc[0])
    points = tolerance.points_of(data)
    found = []
    for title, limits in (("around the tolerance", tolerance.view(data)), ("everything", None)):
        panel = _rate_panel(points, "", title, "above lossless twin (%)")
        _, place = rate_axis(data["loss_rate"])
        for series, mark in marks_of(data["panel"]).items():
            mine = data[(data["panel"] == series) & data["difference"].notna() & data["loss_rate"].notna()]
            text = [f"{series}<br>{percent(r)}, seed {s}: {d:+.4f} %"
                    for r, s, d in zip(mine["loss_rate"], mine["seed"], mine["difference"], strict=True)]  # fmt: skip
            nudge = 0.05 * (mark[0] - (mark[1] - 1) / 2) / max(mark[1] - 1, 1) + 0.03
            panel["curves"].append(curve(series, mark, [place(r) + nudge for r in mine["loss_rate"]],
                                         mine["difference"], "points", text=text))  # fmt: skip
            panel["curves"] += _edges(points[points["panel"] == series], series, mark,
                                      limits or (-math.inf, float(data[["mean", "high", "difference"]].max().max())),
                                      lambda rate, place=place, nudge=nudge: place(rate) + nudge - 0.03)  # fmt: skip
        panel["lines"].append({"y": limit, "dash": "dash", "name": f"tolerance {limit:g} %"})
        panel["y"] |= {"range": list(limits)} if limits else {}
        found.append(panel)
    return {"panels": found, "columns": 2}


def _edges(
    points: pd.DataFrame, series: str, mark: list[int], limits: tuple[float, float], place: Callable[[float], float]
) -> Iterator[dict[str, Any]]:
    """Marks at the edge of a panel for means beyond it, and for points with diverged runs."""
    low, high = limits
    points = points[points["loss_rate"].notna()]
    inset = 0.03 * (high - low) if math.isfinite(high - low) else 0.0
    for symbol, outside, y in (("triangle-up", points["mean"] > high, high - inset),
                               ("triangle-down", points["mean"] < low, low + inset),
                               ("x", points["diverged"] > 0, high if math.isfinite(high) else 0.0)):  # fmt: skip
        part = points[outside]
        if len(part):
            diverged = symbol == "x"
            text = [
                f"{series}<br>{percent(p.loss_rate)}: "
                + (f"{p.diverged} of {p.runs} runs diverged" if diverged else f"{p.mean:+.3f} %, outside this panel")
                for p in part.itertuples()
            ]
            places = [place(rate) for rate in part["loss_rate"]]
            yield curve(series, mark, places, [y] * len(part), "points", text=text, symbol=symbol)


def _final_loss(data: pd.DataFrame) -> dict[str, Any]:
    unit = data.attrs["unit"]
    data = data.assign(loss_rate=data["missing_rate"])
    found = [_rate_panel(data, "final_", "final validation loss", unit)]
    found[0]["lines"] = []
    if data["difference_seeds"].any():
        lossy = data[~data["lossless"]]
        found.append(_rate_panel(lossy, "difference_", "difference to lossless twin", unit))
    return {"panels": found, "columns": 2}


def _lines(data: pd.DataFrame, x: str, x_title: str, split: list[tuple[str, dict[str, Any], Panel]]) -> dict[str, Any]:
    """Panels of curves with bands: for each (title, values of columns, further members of the panel) one."""
    marks = marks_of(panels.rate_marks(data))
    found = []
    for title, values, more in split:
        part = data
        for column, value in values.items():
            part = part[part[column] == value]
        curves = [
            curve(name, marks[name], rows[x], rows["mean"], low=rows["low"], high=rows["high"])
            for name, rows in panels.curves_in(part) if len(rows)
        ]  # fmt: skip
        if curves:
            found.append({"title": title, "x": {"title": x_title}, "curves": curves, "lines": [], **more})
    return {"panels": found, "columns": 3, "key": "packet loss rate"}


def _series(data: pd.DataFrame) -> list[str]:
    return list(dict.fromkeys(data["panel"]))


def _training_curves(data: pd.DataFrame) -> dict[str, Any]:
    unit = data.attrs["unit"]
    split = [(f"{series}: {label}", {"panel": series, "metric": metric}, {"y": {"title": unit}})
             for metric, label in (("validation_loss", "validation loss"), ("train_loss", "training loss"))
             for series in _series(data)]  # fmt: skip
    return _lines(data, "step", "step", split) | {"columns": min(3, len(_series(data)))}


def _differences(data: pd.DataFrame) -> dict[str, Any]:
    more = {"y": {"title": f"above lossless ({data.attrs['unit']})"}, "lines": [{"y": 0, "dash": "dot"}]}
    return _lines(data, "step", "step", [(series, {"panel": series}, more) for series in _series(data)])


def _loss_over_time(data: pd.DataFrame) -> dict[str, Any]:
    target = float(data["target_loss"].iloc[0])
    lines = [{"y": target, "dash": "dot", "name": "target"}] if math.isfinite(target) else []
    more = {"y": {"title": f"validation loss ({data.attrs['unit']})"}, "lines": lines}
    return _lines(data, "virtual_seconds", "virtual time (s)", [(s, {"panel": s}, more) for s in _series(data)])


def _divergence(data: pd.DataFrame) -> dict[str, Any]:
    y = {"title": "RMS difference (parameter units)", "type": "log"}
    split = [(f"{series}: {words.spoken(group)}", {"panel": series, "group": group}, {"y": y})
             for series in _series(data) for group in dict.fromkeys(data["group"])]  # fmt: skip
    return _lines(data, "step", "step", split)


def _layers(data: pd.DataFrame) -> dict[str, Any]:
    axes = {"nmse": {"title": "NMSE (fraction)", "type": "log"}, "bias": {"title": "bias (RMS of exact)"}}
    split = [(f"{series}: {words.spoken(name)}", {"panel": series, "class": name, "quantity": q}, {"y": axes[q]})
             for series in _series(data) for q in axes for name in dict.fromkeys(data["class"])]  # fmt: skip
    return _lines(data, "layer", "transformer block", split) | {"columns": 2}


def _links(data: pd.DataFrame) -> dict[str, Any]:
    found = []
    most = 100 * float(data["realised_rate"].max())
    for (name, traffic_class, half), part in data.groupby(["name", "class", "half"], sort=False):
        cells = links.matrix(part)
        title = f"{name}: {words.spoken(traffic_class)}, {words.HALVES.get(half, half)}"
        found.append({"title": title, "x": {"title": "destination (rank)"}, "y": {"title": "source (rank)"},
                      "curves": [], "lines": [], "heat": {"z": cells, "most": most}})  # fmt: skip
    return {"panels": found, "columns": 4}


def _bursts(data: pd.DataFrame) -> dict[str, Any]:
    marks, found = marks_of(panels.rate_marks(data)), []
    for series in _series(data):
        counts, ratios = [], []
        for name, part in panels.curves_in(data[data["panel"] == series]):
            known, seen = part[part["expected"] >= 0.5], part[part["count"] > 0]
            counts.append(curve(name, marks[name], known["length"], known["expected"]))
            counts.append(curve(name, marks[name], seen["length"], seen["count"], "points"))
            fair = part[part["ratio"].notna()]
            low, high = fair["ratio"] - fair["deviation"], fair["ratio"] + fair["deviation"]
            ratios.append(curve(name, marks[name], fair["length"], fair["ratio"], "bars", low=low, high=high))
        x = {"title": "burst length (packets)"}
        found.append({"title": f"{series}: points realised, lines theory", "x": x, "curves": counts, "lines": [],
                      "y": {"title": "bursts", "type": "log"}})  # fmt: skip
        found.append({"title": f"{series}: realised / expected", "x": x, "y": {"title": "realised / expected"},
                      "curves": ratios, "lines": [{"y": 1, "dash": "dot"}]})  # fmt: skip
    return {"panels": found, "columns": 2, "key": "packet loss rate"}


def _rate_check(data: pd.DataFrame) -> dict[str, Any]:
    axis, place = rate_axis(data["configured_rate"], "configured packet loss rate")
    rates, scores = [], []
    for series, mark in marks_of(data["series"]).items():
        mine = data[data["series"] == series]
        nudge = 0.08 * (mark[0] - (mark[1] - 1) / 2) / max(mark[1] - 1, 1)
        x = [place(rate) + nudge for rate in mine["configured_rate"]]
        text = [
            f"{series}, seed {row['seed']}<br>{words.spoken(row['class'])}, "
            f"{words.HALVES.get(row['half'], row['half'])}<br>configured {percent(row['configured_rate'])}, "
            f"realised {100 * row['realised_rate']:.4f} %, z {row['z']:.2f}"
            for row in mine.to_dict("records")
        ]
        ratio = mine["realised_rate"] / mine["configured_rate"]
        rates.append(curve(series, mark, x, ratio, "points", text=text))
        scores.append(curve(series, mark, x, mine["z"].where(np.isfinite(mine["z"])), "points", text=text))
    limit = data.attrs["limit"]
    lines = [{"y": s * level, "dash": d} for level, d in ((1.96, "dot"), (limit, "dash")) for s in (-1, 1)]
    return {"columns": 2, "panels": [
        {"title": "realised / configured", "x": axis, "y": {"title": "ratio"}, "curves": rates,
         "lines": [{"y": 1, "dash": "dot"}]},
        {"title": "z", "x": axis, "y": {"title": "standard deviations"}, "curves": scores, "lines": lines},
    ]}  # fmt: skip


FIGURES: dict[str, Callable[[pd.DataFrame], dict[str, Any]]] = {
    "tolerance": _tolerance,
    "final_loss": _final_loss,
    "training_curves": _training_curves,
    "differences": _differences,
    "loss_over_time": _loss_over_time,
    "divergence": _divergence,
    "layers": _layers,
    "links": _links,
    "burst_lengths": _bursts,
    "loss_rate_check": _rate_check,
}


def figure_of(name: str, data: pd.DataFrame) -> dict[str, Any] | None:
    """The panels of a figure; None for figures that are pictures alone."""
    return plain(FIGURES[name](data)) if name in FIGURES else None
