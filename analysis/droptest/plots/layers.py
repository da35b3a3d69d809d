# SPDX-License-Identifier: Apache-2.0
"""The error of each transformer block's collectives, by traffic class and loss rate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from droptest import style, words
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw
from droptest.records import Records
from droptest.statistics import Interval, interval_columns, mean_interval, ratio_interval
from droptest.summary import Group

NAME = "layers"
TITLE = "Error by layer"
CAPTION = (
    "Error of the collectives' results on sampled steps, by transformer block: energy of the error over energy of the "
    "exact results (NMSE, above) and mean error over the root mean square of the exact results (bias, below). Lines: "
    "ratio of the energies' sums over seeds (NMSE) and mean over seeds (bias); bands: 95 % interval (Student t; of the "
    "logarithm for NMSE). Lossless runs without an error have no line."
)
MOST_SERIES = 2  # a row of panels each for NMSE and bias
QUANTITIES = ("nmse", "bias")


def data(records: Records) -> pd.DataFrame:
    """One row per series, loss rate, class, quantity (nmse: a fraction; bias: in RMS of the exact results) and layer:
    the ratio of sums (nmse) or the mean (bias), low and high over the seeds.

    Raises: NothingToDraw where no layer was sampled with an error.
    """
    frame = records.layers[records.layers["layer"] >= 0]
    measured = frame[_is_known(frame)]
    wrong = set(measured.loc[(measured["nmse"] > 0) | (measured["error_energy"] > 0), "run_id"])
    if not wrong:
        raise NothingToDraw("no run's collectives were sampled by layer and had an error")
    shown, remark = panels.thinned_rates(*panels.shown_curves(records))
    meant = wrong | set(frame["run_id"]) - set(records.runs.loc[records.runs["without_loss"], "run_id"])
    shown = {series: [g for g in groups if meant & set(g.run_ids)] for series, groups in shown.items()}
    known = meant & set(measured["run_id"])
    shown = {series: groups for series, groups in shown.items() if any(known & set(g.run_ids) for g in groups)}
    remarks = [remark]
    if len(shown) > MOST_SERIES:
        remarks.append(f"first {MOST_SERIES} of {len(shown)} series")
        shown = dict(list(shown.items())[:MOST_SERIES])
    rows = []
    for series, groups in shown.items():
        for quantity in QUANTITIES:
            for traffic_class in sorted(dict.fromkeys(measured["class"]), reverse=True):
                for group in groups:
                    one = frame[(frame["class"] == traffic_class) & frame["run_id"].isin(group.run_ids)]
                    keys = panels.point_columns(series, group) | {"class": traffic_class, "quantity": quantity}
                    rows += [{**keys, "layer": layer, **interval_columns(interval)}
                             for layer, part in one.groupby("layer")
                             if (interval := _over_seeds(part, quantity)).n]  # fmt: skip
    groups = [group for row in shown.values() for group in row]
    return panels.frame_of(rows, "; ".join(filter(None, [*remarks, *_left_out(frame, groups, rows)])))


def drawable(part: pd.DataFrame) -> pd.DataFrame:
    """The rows of a panel with gaps where its axis has no place: an NMSE of 0 on a logarithmic axis."""
    ends = ["mean", "low", "high"]
    return part.assign(**part[ends].where((part["quantity"] != "nmse") | (part["mean"] > 0)))


def _over_seeds(part: pd.DataFrame, quantity: str) -> Interval:
    """A quantity of one layer over the runs that have it."""
    if quantity == "bias":
        return mean_interval(part["bias"])
    part = part[_is_known(part)]
    if _lacks_energies(part).any():
        return ratio_interval(part["nmse"], np.ones(len(part)))
    return ratio_interval(part["error_energy"], part["exact_energy"])


def _lacks_energies(part: pd.DataFrame) -> pd.Series:
    return ~(np.isfinite(part["error_energy"]) & np.isfinite(part["exact_energy"]))


def _is_known(part: pd.DataFrame) -> pd.Series:
    """Rows with energies, which sums can use if an NMSE is infinite, or with the NMSE of an older record."""
    return ~_lacks_energies(part) | np.isfinite(part["nmse"])


def _left_out(frame: pd.DataFrame, groups: list[Group], rows: list[dict[str, Any]]) -> list[str]:
    """Remarks on the runs and points that the figure lacks, and on weights that are not those of the energies."""
    mine = frame[frame["run_id"].isin({run_id for group in groups for run_id in group.run_ids})]
    unknown, known = mine[~_is_known(mine)], mine[_is_known(mine)]
    zeros = sum(row["quantity"] == "nmse" and row["mean"] == 0 for row in rows)
    counts = [
        (unknown.loc[unknown["sampled_calls"] == 0, "run_id"].nunique(), "with layers that were not sampled"),
        (unknown.loc[unknown["sampled_calls"] != 0, "run_id"].nunique(), "with errors that are not finite, left out"),
        (known.loc[_lacks_energies(known), "run_id"].nunique(), "without energies: seeds have equal weights"),
    ]
    told = [(count, "run", remark) for count, remark in counts]
    told.append((zeros, "point", "with NMSE 0, not on the logarithmic axis"))
    return [f"{count} {noun}{'s' if count > 1 else ''} {remark}" for count, noun, remark in told if count]


def draw(data: pd.DataFrame) -> Figure:
    """Two rows of panels per series, a column per class."""
    classes = list(dict.fromkeys(data["class"]))
    marks = panels.rate_marks(data)
    rows = [(series, quantity) for series in dict.fromkeys(data["panel"]) for quantity in QUANTITIES]
    width = style.DOUBLE_COLUMN if len(classes) > 1 else style.SINGLE_COLUMN
    figure, axes = style.figure(width, 0.6 + 1.5 * len(rows), len(rows), len(classes), sharex=True)
    handles: dict[str, object] = {}
    for row, (series, column) in enumerate(rows):
        for place, traffic_class in enumerate(classes):
            ax = axes[row][place]
            mine = data[(data["panel"] == series) & (data["quantity"] == column) & (data["class"] == traffic_class)]
            for curve, part in panels.curves_in(mine):
                handles.setdefault(curve, panels.band(ax, drawable(part), "layer", marks[curve]))
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
    panels.finish(figure, data, handles, marks)
    return figure
