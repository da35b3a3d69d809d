# SPDX-License-Identifier: Apache-2.0
"""Each figure as the page draws it: its frame, mapped to the panels, curves, rows and maps of drawing.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from droptest import words
from droptest.drawing import (
    Panel,
    counted,
    curve,
    heat_map,
    in_lines,
    in_rows,
    marks_of,
    near_axis,
    nudge,
    over_rate,
    plain,
    point_words,
    rate_axis,
    rows_axis,
    told,
)
from droptest.loss_model import percent
from droptest.plots import (
    accuracy,
    confusion,
    final_loss,
    layers,
    links,
    panels,
    places,
    rate_map,
    recoveries,
    threshold,
    tolerance,
    variances,
)
from droptest.words import decimal

ABOVE = "above lossless twin"
TITLE_WIDTHS = {1: 120, 2: 62, 3: 40, 4: 32}  # characters of a panel's title, by the columns of the figure
ZERO = {"y": 0, "dash": "dot"}


def _tolerance(data: pd.DataFrame) -> dict[str, Any]:
    points, limit = tolerance.points_of(data), float(data["tolerance"].iloc[0])
    if tolerance.one_rate(data):
        panel = in_rows(points, "", ABOVE, "%", points["panel"], "panel", far=panels.FAR_PERCENT)
        for row, (series, mark) in enumerate(marks_of(points["panel"]).items()):
            mine = data[(data["panel"] == series) & data["difference"].notna()]
            panel["curves"].append(curve(series, mark, mine["difference"], [row + 0.22] * len(mine), "points",
                                         text=_pairs(mine, series)))  # fmt: skip
        panel["lines"] = [{"x": 0, "dash": "dot"}, {"x": limit, "dash": "dash", "name": f"tolerance {limit:g} %"}]
        return {"panels": [panel], "columns": 1}
    found = []
    for title, limits in (("around the tolerance", tolerance.view(data)), ("everything", None)):
        panel = over_rate(points, "", ABOVE, "%", rate="loss_rate")
        limits = limits or panels.near_range(tolerance.seen_in(data), panels.FAR_PERCENT, (0.0, limit))
        panel |= {"title": title, "y": {"title": f"{ABOVE} (%)"} | ({"range": list(limits)} if limits else {})}
        _, place = rate_axis(data["loss_rate"])
        for series, mark in marks_of(data["panel"]).items():
            mine = data[(data["panel"] == series) & data["difference"].notna() & data["loss_rate"].notna()]
            x = [place(r) + nudge(mark) + 0.03 for r in mine["loss_rate"]]
            panel["curves"].append(curve(series, mark, x, mine["difference"], "points", text=_pairs(mine, series)))
            panel["curves"] += _edges(points[points["panel"] == series], series, mark,
                                      limits or (-math.inf, float(data[["mean", "high", "difference"]].max().max())),
                                      lambda rate, place=place, mark=mark: place(rate) + nudge(mark))  # fmt: skip
        panel["lines"] = [ZERO, {"y": limit, "dash": "dash", "name": f"tolerance {limit:g} %"}]
        found.append(panel)
    return {"panels": found, "columns": 2}


def _pairs(data: pd.DataFrame, series: str) -> list[str]:
    return [f"{series}<br>packet loss rate {percent(p.loss_rate)}<br>"
            f"seed {p.seed}: {decimal(p.difference, sign='+')} % {ABOVE}"
            for p in data.itertuples()]  # fmt: skip


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
                + (
                    f"{p.diverged} of {p.runs} runs diverged"
                    if diverged
                    else f"{decimal(p.mean, 3, '+')} %, outside this panel"
                )
                for p in part.itertuples()
            ]
            where = [place(rate) for rate in part["loss_rate"]]
            yield curve(series, mark, where, [y] * len(part), "points", text=text, symbol=symbol)


def _threshold(data: pd.DataFrame) -> dict[str, Any]:
    limit, estimate = float(data["tolerance"].iloc[0]), float(data["threshold"].iloc[0])
    axis, place = rate_axis(data["rate"])
    ends = (float(data[f"threshold_{end}"].iloc[0]) for end in ("low", "high"))
    band = {"x": [room if math.isnan(end) else place(end) for end, room in zip(ends, axis["room"], strict=True)]}
    judged = data.drop_duplicates("rate").assign(seeds=lambda d: [(data["rate"] == rate).sum() for rate in d["rate"]])
    marks = marks_of(threshold.COLORS)
    found = []
    for title, limits in (("around the tolerance", tolerance.view(data)), ("everything", None)):
        curves = []
        for verdict, mark in marks.items():
            mine, runs = judged[judged["verdict"] == verdict], data[data["verdict"] == verdict]
            known, lost = mine[mine["mean"].notna()].to_dict("records"), mine[mine["mean"].isna()]
            text = [f"{verdict}<br>packet loss rate {percent(row['rate'])}<br>{told(row, ABOVE, '%')}" for row in known]
            end = {e: [row[e] for row in known] for e in ("mean", "low", "high")}
            if len(mine):
                curves.append(curve(verdict, mark, [place(row["rate"]) for row in known], end["mean"], "bars",
                                    low=end["low"], high=end["high"], text=text))  # fmt: skip
            runs = runs[runs["difference"].notna()]
            text = [f"{verdict}<br>packet loss rate {percent(r)}<br>one run: {decimal(d, sign='+')} % {ABOVE}"
                    for r, d in zip(runs["rate"], runs["difference"], strict=True)]  # fmt: skip
            curves.append(
                curve(verdict, mark, [place(r) + 0.02 for r in runs["rate"]], runs["difference"], "points", text=text)
            )
            top = limits[1] if limits else float(data[["mean", "high", "difference"]].max().max())
            text = [f"packet loss rate {percent(r)}: runs diverged" for r in lost["rate"]]
            if len(lost):
                curves.append(curve(verdict, mark, [place(r) for r in lost["rate"]], [top] * len(lost), "points",
                                    text=text, symbol="x"))  # fmt: skip
        lines = [ZERO, {"y": limit, "dash": "dash", "name": f"tolerance {limit:g} %"}]
        if not math.isnan(estimate):
            lines.append({"x": place(estimate), "dash": "dot", "name": f"estimate {100 * estimate:.3g} %"})
        limits = limits or panels.near_range(tolerance.seen_in(data), panels.FAR_PERCENT, (0.0, limit))
        found.append({"title": title, "x": axis, "curves": curves, "lines": lines, "bands": [band],
                      "y": {"title": f"{ABOVE} (%)"} | ({"range": list(limits)} if limits else {})})  # fmt: skip
    return {"panels": found, "columns": 2, "key": "verdict"}


def _final_loss(data: pd.DataFrame) -> dict[str, Any]:
    unit, paired = data.attrs["unit"], data["difference_seeds"].any()
    label, far = final_loss.DIFFERENCE_LABEL, data.attrs["far"]
    if final_loss.one_rate(data):
        points = data.drop_duplicates(["series", "loss_rate"])
        found = [in_rows(points, "final_", final_loss.LOSS_LABEL, unit, points["name"], sign="", far=far)]
        if paired:
            lossy = points[points["difference_seeds"] > 0]
            found.append(
                in_rows(lossy, "difference_", label, unit, lossy["name"], far=far)
                | {"lines": [{"x": 0, "dash": "dot"}]}
            )
        return {"panels": found, "columns": 2 if len(points) < 8 else 1}
    found = [over_rate(data, "final_", final_loss.LOSS_LABEL, unit, sign="", far=far)]
    if paired:
        lossy = data[~data["without_loss"]]
        found.append(over_rate(lossy, "difference_", label, unit, far=far) | {"lines": [ZERO]})
    return {"panels": found, "columns": 2}


def _accuracy(data: pd.DataFrame) -> dict[str, Any]:
    found = []
    for measure in dict.fromkeys(data["measure"]):
        part = accuracy.scaled(data[data["measure"] == measure], accuracy.labels_of(measure)[2])
        unit, points = ("%", "percentage points") if measure == "accuracy" else ("", "")
        label = accuracy.DIFFERENCE_LABEL
        if accuracy.one_rate(data):
            rows = part.drop_duplicates(["series", "loss_rate"])
            lossy = rows[rows["difference_seeds"] > 0]
            found.append(in_rows(rows, "value_", measure, unit, rows["name"], sign=""))
            if len(lossy):
                found.append(
                    in_rows(lossy, "difference_", label, points, lossy["name"]) | {"lines": [{"x": 0, "dash": "dot"}]}
                )
            continue
        found.append(over_rate(part, "value_", measure, unit, sign=""))
        if part["difference_seeds"].any():
            found.append(over_rate(part[~part["without_loss"]], "difference_", label, points) | {"lines": [ZERO]})
    return {"panels": found, "columns": 2}


def _confusion(data: pd.DataFrame) -> dict[str, Any]:
    found = []
    for point in dict.fromkeys(data["panel"]):
        mine = data[data["panel"] == point]
        classes, shares = confusion.matrix_of(mine)
        text = [f"{row.label} taken for {row.prediction}: {counted(row.examples, 'example')}"
                for row in mine.itertuples()]  # fmt: skip
        size = len(classes)
        names = confusion.names_of(classes)
        x = {"title": confusion.X_LABEL, "ticks": list(range(size)), "labels": names}
        found.append(heat_map(
            point, x, rows_axis(names) | {"title": confusion.Y_LABEL}, shares, (0, 100), confusion.SCALE_LABEL,
            [text[size * i:size * (i + 1)] for i in range(size)],
            cells=[["" if math.isnan(share) else f"{share:.0f}" for share in row] for row in shares],
        ))  # fmt: skip
    return {"panels": found, "columns": 2, "least": 220 + 45 * size}


def _places(data: pd.DataFrame) -> dict[str, Any]:
    unit, far, found = data.attrs["unit"], data.attrs["far"], []
    for name in dict.fromkeys(data["panel"]):
        mine = data[data["panel"] == name]
        if places.over_rates(data):
            panel = over_rate(mine, "", places.LABEL, unit, "place", far=far) | {"lines": [ZERO]}
        else:
            panel = in_rows(mine, "", places.LABEL, unit, mine["place"], "place", far=far)
            panel["lines"] = [{"x": 0, "dash": "dot"}]
        found.append(panel | {"title": name or places.LABEL})
    return {"panels": found, "columns": 2}


def _recoveries(data: pd.DataFrame) -> dict[str, Any]:
    unit = data.attrs["unit"]
    cost = in_rows(data, "", recoveries.Y_LABEL, unit, data["name"], far=data.attrs["far"])
    cost["lines"] = [{"x": 0, "dash": "dot"}]
    curves = []
    for place, (column, label, _) in enumerate(recoveries.SHARES):
        rows = [(i, name, 100 * share) for i, (name, share) in enumerate(zip(data["name"], data[column], strict=True))
                if not math.isnan(share)]  # fmt: skip
        text = [f"{name}<br>{label}: {share:.3f} % of the data packets" for _, name, share in rows]
        curves.append(curve(label, [place, len(recoveries.SHARES)], [share for *_, share in rows],
                            [i for i, *_ in rows], "bars", text=text))  # fmt: skip
    packets = {"title": "packets", "x": {"title": "packets (% of the data packets)"},
               "y": rows_axis(data["name"]), "curves": curves, "lines": []}  # fmt: skip
    return {"panels": [cost, packets], "columns": 2, "least": 480}


def _rate_map(data: pd.DataFrame) -> dict[str, Any]:
    unit, found = data.attrs["unit"], []
    values = list(dict.fromkeys(data["value"]))
    span = rate_map.span_of(data)
    for series in dict.fromkeys(data["panel"]):
        mine = data[data["panel"] == series]
        rates = rate_map.rates_of(mine)
        z = np.full((len(values), len(rates)), math.nan)
        cells, text = ([[""] * len(rates) for _ in values] for _ in range(2))
        frames = []
        for row in mine.to_dict("records"):
            y, x = values.index(row["value"]), rates.index(row["loss_rate"])
            z[y, x], cells[y][x] = row["mean"], rate_map.cell(row)
            text[y][x] = _tried(row, unit)
            frames += [[x, y]] if row["best"] else []
        x_axis = {"title": "packet loss rate", "ticks": list(range(len(rates))), "labels": [percent(r) for r in rates]}
        found.append(heat_map(series, x_axis, rows_axis(values), z, span, f"validation loss<br>({unit})", text,
                              cells=cells, frames=frames))  # fmt: skip
    widest = max(len(panel["x"]["ticks"]) for panel in found)
    return {"panels": found, "columns": 2, "least": 220 + 45 * widest}  # so that the numbers fit into their cells


def _tried(row: dict[str, Any], unit: str) -> str:
    """A value that was tried at a point."""
    lines = [row["series"], f"packet loss rate {percent(row['loss_rate'])}", row["value"],
             told(row, "final validation loss", unit, sign="")]  # fmt: skip
    if not math.isnan(row["selection_loss"]):
        lines.append(f"on the selection tokens: {decimal(row['selection_loss'])} {unit}")
    lines += [
        f"{row[status]} of {counted(row['runs'], 'run')} {status}" for status in ("diverged", "failed") if row[status]
    ]
    return "<br>".join([*lines, "the best value here"] if row["best"] else lines)


def _variances(data: pd.DataFrame) -> dict[str, Any]:
    unit = data.attrs["unit"]
    left, right = variances.view(data)
    names, marks = list(dict.fromkeys(data["name"])), marks_of(variances.PARTS)
    curves = []
    for part, mark in marks.items():
        mine = data[data["part"] == part].to_dict("records")
        shown = {end: [max(row[end], left) for row in mine] for end in ("deviation", "low", "high")}
        text = [f"{row['name']}<br>{part}: standard deviation {row['deviation']:.4g} {unit}<br>"
                f"95 % interval {row['low']:.4g} to {row['high']:.4g} {unit}" for row in mine]  # fmt: skip
        y = [names.index(row["name"]) + 0.22 * (mark[0] - 1) for row in mine]
        if mine:
            curves.append(curve(part, mark, shown["deviation"], y, "bars", low=shown["low"], high=shown["high"],
                                along="x", text=text))  # fmt: skip
    x = {"title": f"standard deviation ({unit})", "type": "log", "range": [math.log10(left), math.log10(right)]}
    return {"columns": 1, "key": "between", "panels": [
        {"title": "standard deviation of the difference to lossless", "x": x, "y": rows_axis(names), "curves": curves,
         "lines": []}
    ]}  # fmt: skip


def _step_time(data: pd.DataFrame) -> dict[str, Any]:
    panel = in_rows(data, "", "virtual time of a step", "ms", data["name"], sign="", scale=1e3)
    panel["x"]["from"] = 0
    return {"panels": [panel], "columns": 1}


def _time_to_target(data: pd.DataFrame) -> dict[str, Any]:
    quantity = f"virtual time to a validation loss of {data['target_loss'].iloc[0]:.4g}"
    points = data.drop_duplicates(["series", "loss_rate"])
    reached = points.assign(seeds=points["seeds"].where(np.isfinite(points["mean"]), 0))
    panel = over_rate(reached, "", quantity, "s", "series", "loss_rate", sign="") | {"bands": []}
    panel["y"] = {"title": "virtual time (s)", "from": 0}
    _, place = rate_axis(points["loss_rate"])
    top = float(points.loc[np.isfinite(points["mean"]), ["mean", "high"]].max().max())
    marks = marks_of(data["series"])
    for shown in panel["curves"]:
        shown["hollow"] = not points.loc[points["series"] == shown["name"], "reliable"].iloc[0]
    for series, mark in marks.items():
        never = points[(points["series"] == series) & np.isinf(points["mean"])].to_dict("records")
        if never:
            text = [f"{point_words(row, series)}<br>a seed never reached the target" for row in never]
            panel["curves"].append(curve(series, mark, [place(row["loss_rate"]) for row in never], [top] * len(never),
                                         "points", text=text, symbol="triangle-up"))  # fmt: skip
    room = panel["x"]["room"]
    for row in data.dropna(subset=["against"]).drop_duplicates(["series", "against"]).itertuples():
        said = f"{row.series}, against {row.against}:<br>{row.break_even_words}"
        if 0 < row.break_even < math.inf:
            x = place(row.break_even)
            panel["lines"].append({"x": x, "dash": "dot"})
            panel["curves"].append(curve(row.break_even_words, marks[row.series], [x] * 31, np.linspace(0, top, 31),
                                         dotted=True, text=[said] * 31))  # fmt: skip
        if not math.isnan(row.break_even_low):
            ends = [room[0] if row.break_even_low == 0 else place(row.break_even_low),
                    room[1] if math.isinf(row.break_even_high) else place(row.break_even_high)]  # fmt: skip
            panel["bands"].append({"x": [max(ends[0], room[0]), min(ends[1], room[1])], "mark": marks[row.series]})
    return {"panels": [panel], "columns": 1, "key": "network"}


def _lines(
    data: pd.DataFrame, x: str, x_title: str, split: list[tuple[str, dict[str, Any], Panel]], far: float = math.inf
) -> dict[str, Any]:
    """Panels of curves with bands: for each (title, values of columns, further members of the panel) one. far: their
    axes end before values beyond it."""
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
            y = more["y"] | near_axis(panels.ends_of(part), far)
            found.append({"title": title, "x": {"title": x_title}, "curves": curves, "lines": [], **more, "y": y})
    return {"panels": found, "columns": 3, "key": "packet loss rate"}


def _series(data: pd.DataFrame) -> list[str]:
    return list(dict.fromkeys(data["panel"]))


def _training_curves(data: pd.DataFrame) -> dict[str, Any]:
    unit = data.attrs["unit"]
    split = [(f"{series}: {label}", {"panel": series, "metric": metric}, {"y": {"title": unit}})
             for metric, label in (("validation_loss", "validation loss"), ("train_loss", "training loss"))
             for series in _series(data)]  # fmt: skip
    return _lines(data, "step", "step", split, data.attrs["far"]) | {"columns": min(3, len(_series(data)))}


def _differences(data: pd.DataFrame) -> dict[str, Any]:
    more = {"y": {"title": f"above lossless ({data.attrs['unit']})"}, "lines": [{"y": 0, "dash": "dot"}]}
    split = [(series, {"panel": series}, more) for series in _series(data)]
    return _lines(data, "step", "step", split, data.attrs["far"])


def _loss_over_time(data: pd.DataFrame) -> dict[str, Any]:
    target = float(data["target_loss"].iloc[0])
    lines = [{"y": target, "dash": "dot", "name": "target"}] if math.isfinite(target) else []
    more = {"y": {"title": f"validation loss ({data.attrs['unit']})"}, "lines": lines}
    split = [(series, {"panel": series}, more) for series in _series(data)]
    return _lines(data, "virtual_seconds", "virtual time (s)", split, data.attrs["far"])


def _divergence(data: pd.DataFrame) -> dict[str, Any]:
    y = {"title": "RMS difference (parameter units)", "type": "log"}
    split = [(f"{series}: {words.spoken(group)}", {"panel": series, "group": group}, {"y": y})
             for series in _series(data) for group in dict.fromkeys(data["group"])]  # fmt: skip
    return _lines(data, "step", "step", split)


def _layers(data: pd.DataFrame) -> dict[str, Any]:
    axes = {"nmse": {"title": "NMSE (fraction)", "type": "log"}, "bias": {"title": "bias (RMS of exact)"}}
    split = [(f"{series}: {words.spoken(name)}", {"panel": series, "class": name, "quantity": q}, {"y": axes[q]})
             for series in _series(data) for q in axes for name in dict.fromkeys(data["class"])]  # fmt: skip
    return _lines(layers.drawable(data), "layer", "transformer block", split) | {"columns": 2}


def _links(data: pd.DataFrame) -> dict[str, Any]:
    found = []
    span = (0.0, 100 * float(data["realised_rate"].max()))
    for (name, traffic_class, half), part in data.groupby(["name", "class", "half"], sort=False):
        cells = links.matrix(part)
        ranks = range(len(cells))
        axis = {"ticks": list(ranks), "labels": list(map(str, ranks))}
        text = [[f"from rank {s} to rank {d}: {cells[s, d]:.4f} % of the packets lost" for d in ranks] for s in ranks]
        found.append(heat_map(
            f"{name}:<br>{words.spoken(traffic_class)},<br>{words.HALVES.get(half, half)}",
            axis | {"title": "destination (rank)"}, axis | {"title": "source (rank)", "rows": True}, cells, span,
            "packets lost (%)", text,
        ))  # fmt: skip
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


def _time_shares(data: pd.DataFrame) -> dict[str, Any]:
    rows, curves = list(dict.fromkeys(data["row"])), []
    for title, mark in marks_of(data["title"]).items():
        shares = data[data["title"] == title].set_index("row")["share"]
        text = [f"{row}<br>{title}: {100 * shares[row]:.2f} %" for row in rows]
        curves.append(curve(title, mark, [100 * shares[row] for row in rows], range(len(rows)), "stack", text=text))
    x = {"title": "share of the wall time (%)", "range": [0, 100]}
    return {
        "columns": 1,
        "panels": [{"title": "wall time", "x": x, "y": rows_axis(rows), "curves": curves, "lines": []}],
    }


FIGURES: dict[str, Callable[[pd.DataFrame], dict[str, Any]]] = {
    "tolerance": _tolerance,
    "threshold": _threshold,
    "final_loss": _final_loss,
    "accuracy": _accuracy,
    "confusion": _confusion,
    "rate_map": _rate_map,
    "variances": _variances,
    "training_curves": _training_curves,
    "differences": _differences,
    "loss_over_time": _loss_over_time,
    "time_to_target": _time_to_target,
    "step_time": _step_time,
    "divergence": _divergence,
    "places": _places,
    "recoveries": _recoveries,
    "layers": _layers,
    "links": _links,
    "burst_lengths": _bursts,
    "loss_rate_check": _rate_check,
    "time_shares": _time_shares,
}


def figure_of(name: str, data: pd.DataFrame) -> dict[str, Any]:
    """The panels of a figure, as JSON has them. Raises: KeyError for a figure that is not there."""
    figure = FIGURES[name](data)
    for panel in figure["panels"]:
        panel["title"] = in_lines(panel["title"], TITLE_WIDTHS[figure["columns"]])
    return plain(figure)
