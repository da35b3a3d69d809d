# SPDX-License-Identifier: Apache-2.0
"""The error of each transformer block's collectives, by traffic class and loss rate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from droptest import drawing, words
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw
from droptest.records import Records
from droptest.statistics import Interval, interval_columns, mean_interval, ratio_interval
from droptest.summary import Group

NAME = "layers"
TITLE = "Error by layer"
CAPTION = (
    "Error of the results of collectives on sampled steps, by transformer block. NMSE: sum of the squared errors over "
    "the sum of the squared exact results, both over all seeds. Bias: mean error over the root mean square (RMS) of "
    "the exact results, mean over seeds. Bands: 95 % interval (Student t; of the logarithm for NMSE). A hollow "
    "triangle at the edge: an NMSE of 0. Lossless runs without an error have no line."
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
        (
            known.loc[_lacks_energies(known), "run_id"].nunique(),
            "without sums of squared errors: seeds have equal weights",
        ),
    ]
    told = [(count, "run", remark) for count, remark in counts]
    told.append((zeros, "point", "with NMSE 0, at the edge of the logarithmic axis"))
    return [f"{count} {noun}{'s' if count > 1 else ''} {remark}" for count, noun, remark in told if count]


def describe(data: pd.DataFrame) -> dict[str, Any]:
    """Two rows of panels per series, a column per class."""
    axes = {"nmse": {"title": "NMSE (fraction)", "type": "log"}, "bias": {"title": "bias (in RMS of\nexact results)"}}
    x = {"title": "transformer block", "whole": True}
    found, every = {quantity: [] for quantity in QUANTITIES}, []
    for series in panels.series_in(data):
        for quantity in QUANTITIES:
            for traffic_class in dict.fromkeys(data["class"]):
                mine = data[(data["panel"] == series) & (data["quantity"] == quantity)
                            & (data["class"] == traffic_class)]  # fmt: skip
                lines = [drawing.NO_DIFFERENCE] if quantity == "bias" else []
                every.append(panels.lines_over(mine, "layer", x, axes[quantity], (series, words.spoken(traffic_class)),
                                                *lines))  # fmt: skip
                found[quantity].append(every[-1])
    drawing.fit(found["nmse"])
    drawing.fit(found["bias"], include=(0,))
    drawing.fit(every, along="x")
    return drawing.figure(data, every, min(data["class"].nunique(), 3), key="packet loss rate",
                          order=panels.rates_in_order(data))  # fmt: skip
