# SPDX-License-Identifier: Apache-2.0
"""The error of each transformer block's collectives, by traffic class and loss rate."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from droptest import style, words
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw
from droptest.records import Records
from droptest.statistics import geometric_interval, mean_interval

NAME = "layers"
TITLE = "Error by layer"
CAPTION = (
    "Error of the collectives' results on sampled steps, by transformer block: energy of the error over energy of the "
    "exact results (NMSE, above) and mean error over the root mean square of the exact results (bias, below). Lines: "
    "geometric mean (NMSE) and mean (bias) over seeds; bands: 95 % interval (Student t)."
)
MOST_SERIES = 2  # a row of panels each for NMSE and bias
INTERVALS = {"nmse": geometric_interval, "bias": mean_interval}


def data(records: Records) -> pd.DataFrame:
    """One row per series, loss rate, class, quantity (nmse: a fraction; bias: in RMS of the exact results) and layer:
    mean, low and high over the seeds.

    Raises: NothingToDraw where no layer was sampled with an error.
    """
    frame = records.layers[(records.layers["layer"] >= 0) & (records.layers["nmse"] > 0)]
    shown, remark = panels.thinned_rates(*panels.shown_curves(records))
    shown = {series: [g for g in groups if frame["run_id"].isin(g.run_ids).any()] for series, groups in shown.items()}
    shown = {series: groups for series, groups in shown.items() if groups}
    if not shown:
        raise NothingToDraw("no run's collectives were sampled by layer and had an error")
    if len(shown) > MOST_SERIES:
        remark = f"{remark}; " if remark else ""
        remark += f"first {MOST_SERIES} of {len(shown)} series"
        shown = dict(list(shown.items())[:MOST_SERIES])
    rows = []
    for series, groups in shown.items():
        for quantity, interval in INTERVALS.items():
            for traffic_class in sorted(dict.fromkeys(frame["class"]), reverse=True):
                for group in groups:
                    one = frame[(frame["class"] == traffic_class) & frame["run_id"].isin(group.run_ids)]
                    table = one.pivot_table(index="layer", columns="run_id", values=quantity, dropna=False).dropna()
                    keys = panels.point_columns(series, group) | {"class": traffic_class, "quantity": quantity}
                    rows += panels.rows_over(table, "layer", interval, keys)
    return panels.frame_of(rows, remark)


def draw(data: pd.DataFrame) -> Figure:
    """Two rows of panels per series, a column per class."""
    classes = list(dict.fromkeys(data["class"]))
    marks = panels.rate_marks(data)
    rows = [(series, quantity) for series in dict.fromkeys(data["panel"]) for quantity in INTERVALS]
    width = style.DOUBLE_COLUMN if len(classes) > 1 else style.SINGLE_COLUMN
    figure, axes = style.figure(width, 0.6 + 1.5 * len(rows), len(rows), len(classes), sharex=True)
    handles: dict[str, object] = {}
    for row, (series, column) in enumerate(rows):
        for place, traffic_class in enumerate(classes):
            ax = axes[row][place]
            mine = data[(data["panel"] == series) & (data["quantity"] == column) & (data["class"] == traffic_class)]
            for curve, part in panels.curves_in(mine):
                handles.setdefault(curve, panels.band(ax, part, "layer", marks[curve]))
            if column == "nmse":
                ax.set_yscale("log")
            else:
                ax.axhline(0, color="0.3", linestyle=":", linewidth=1)
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
            if row == 0:
                ax.set_title(words.spoken(traffic_class))
            if row == len(rows) - 1:
                ax.set_xlabel("transformer block")
        title = panels.panel_title(series, 24) + "\n" if column == "nmse" else ""
        axes[row][0].set_ylabel(
            f"{title}{'NMSE (fraction)' if column == 'nmse' else 'bias (RMS of exact)'}", fontsize=7
        )
    handles = {name: line for name, line in handles.items() if np.any(line.get_ydata())}
    panels.finish(figure, data, handles, marks)
    return figure
