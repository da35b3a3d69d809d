# SPDX-License-Identifier: Apache-2.0
"""Validation loss over loss rate and the values of best_over, as a map."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from droptest import drawing, words
from droptest.loss_model import percent
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw, NotMeant
from droptest.records import Records, best_over
from droptest.words import decimal

NAME = "rate_map"
TITLE = "Loss rate and the best value"
CAPTION = (
    "Final validation loss for each loss rate (columns) and each value that was tried (rows), mean over the completed "
    "seeds. Frame: the best value at this loss rate. It has the lowest loss on a separate set of tokens (the selection "
    "tokens), not the lowest loss in the figure. A cross: a run of this value diverged or failed, so the value is not "
    "selected; if no value can be selected, the frame is at the value with the most completed runs. A loss rate "
    "without a frame: no run has completed there, so no value is the best."
)
LONGEST_NAME = 26  # characters of a value's name


def data(records: Records) -> pd.DataFrame:
    """`best_over(records)` of the series that are shown, with `panel`: each series has the lossless values too.

    Raises: NotMeant without best_over, NothingToDraw without a finished run.
    """
    if not records.best_over:
        raise NotMeant("the sweep has no best_over")
    found = best_over(records)
    if found["mean"].isna().all() and not found["diverged"].any():
        raise NothingToDraw("no finished run has a validation loss")
    shown, remark = panels.shown_curves(records)
    parts = []
    for series, groups in shown.items():
        own = {(group.series, group.loss_rate) for group in groups}
        mine = [(row.series, row.loss_rate) in own for row in found.itertuples()]
        parts.append(found[mine].assign(panel=series))
    result = pd.concat(parts, ignore_index=True)
    result.attrs["remark"] = remark
    return result


def rates_of(part: pd.DataFrame) -> list[float]:
    """The columns of the map of one series."""
    return sorted(part["loss_rate"].unique())


def cell(row: dict[str, Any]) -> str:
    """The text in a cell: the mean, and a cross where runs diverged or failed."""
    mean = "" if not row["completed"] else f"{row['mean']:.3f}" if abs(row["mean"]) < 1e4 else f"{row['mean']:.0e}"
    return f"{mean} \u00d7".strip() if row["diverged"] + row["failed"] else mean


def span_of(data: pd.DataFrame) -> tuple[float, float]:
    """The losses of the darkest and the lightest colour; those of diverging runs have the lightest, too."""
    near = data.loc[data["mean"].abs() <= data.attrs["far"], "mean"]
    near = near if len(near) else data["mean"]
    return float(near.min()), float(near.max())


def describe(data: pd.DataFrame) -> dict[str, Any]:
    """A map per series."""
    unit, found = data.attrs["unit"], []
    values = list(dict.fromkeys(data["value"]))
    for series in panels.series_in(data):
        mine = data[data["panel"] == series]
        rates = rates_of(mine)
        z = np.full((len(values), len(rates)), math.nan)
        cells, text = ([[""] * len(rates) for _ in values] for _ in range(2))
        frames = []
        for row in mine.to_dict("records"):
            y, x = values.index(row["value"]), rates.index(row["loss_rate"])
            z[y, x], cells[y][x] = row["mean"], cell(row)
            text[y][x] = _tried(row, unit)
            frames += [[x, y]] if row["best"] else []
        x_axis = {"title": "packet loss rate", "ticks": list(range(len(rates))), "labels": [percent(r) for r in rates]}
        found.append(drawing.heat_map(series, x_axis, drawing.rows_axis(words.shortened(values, LONGEST_NAME)), z,
                                      span_of(data), text, cells=cells, frames=frames))  # fmt: skip
    widest = max(len(one["x"]["ticks"]) for one in found)
    columns = 1 if widest > 6 else min(2, len(found))
    return drawing.figure(data, found, columns, wide=widest > 4, bar=f"validation loss\n({unit})",
                          least=220 + 45 * widest)  # so that the numbers fit into their cells  # fmt: skip


def _tried(row: dict[str, Any], unit: str) -> str:
    """A value that was tried at a point."""
    lines = [row["series"], f"packet loss rate {percent(row['loss_rate'])}", row["value"],
             drawing.told(row, "final validation loss", unit, sign="")]  # fmt: skip
    if not math.isnan(row["selection_loss"]):
        lines.append(f"on the selection tokens: {decimal(row['selection_loss'])} {unit}")
    lines += [f"{row[status]} of {drawing.counted(row['runs'], 'run')} {status}"
              for status in ("diverged", "failed") if row[status]]  # fmt: skip
    return "\n".join([*lines, "the best value here"] if row["best"] else lines)
