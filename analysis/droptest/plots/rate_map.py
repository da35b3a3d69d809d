# SPDX-License-Identifier: Apache-2.0
"""Validation loss over loss rate and the values of best_over, as a map."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from droptest import style, words
from droptest.loss_model import percent
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw, NotMeant
from droptest.records import Records, best_over

NAME = "rate_map"
TITLE = "Loss rate and the best value"
CAPTION = (
    "Final validation loss for each loss rate (columns) and each value that was tried (rows), mean over the completed "
    "seeds; darker is lower. Frame: the value that won at this loss rate, by the loss on other tokens, the selection "
    "tokens. A cross: runs that diverged or failed, so that the value takes no part."
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
        raise NothingToDraw("no run has finished yet")
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


def draw(data: pd.DataFrame) -> Figure:
    """A map per series."""
    shown = list(dict.fromkeys(data["panel"]))
    values = list(dict.fromkeys(data["value"]))
    columns = min(panels.PANELS_PER_ROW - 1, len(shown))
    rows = math.ceil(len(shown) / columns)
    width = style.SINGLE_COLUMN if columns == 1 else style.DOUBLE_COLUMN
    figure, axes = style.figure(width, (0.9 + 0.3 * len(values)) * rows, rows, columns)
    low, high = span_of(data)
    for index, ax in enumerate(ax for row in axes for ax in row):
        if index < len(shown):
            picture = _draw_map(ax, data[data["panel"] == shown[index]], values, (low, high))
            ax.set_title(panels.panel_title(shown[index], 60 // columns + 10))
        else:
            ax.set_visible(False)
    figure.colorbar(picture, ax=[ax for row in axes for ax in row], label=f"validation loss\n({data.attrs['unit']})",
                    shrink=max(1 / rows, 0.3), anchor=(0.0, 1.0))  # fmt: skip
    if data.attrs["remark"]:
        figure.suptitle(data.attrs["remark"], fontsize=7)
    return figure


def _draw_map(ax, part: pd.DataFrame, values: list[str], span: tuple[float, float]):
    """The cells of one series; returns the picture, of which the scale of colours is."""
    rates = rates_of(part)
    table = np.full((len(values), len(rates)), math.nan)
    for row in part.itertuples():
        y, x = values.index(row.value), rates.index(row.loss_rate)
        table[y, x] = row.mean
        dark = row.mean < sum(span) / 2
        ax.text(x, y, cell(row._asdict()), ha="center", va="center", fontsize=6,
                color="white" if dark else "black")  # fmt: skip
        if row.best:
            ax.add_patch(style.frame(x, y))
    picture = ax.imshow(np.ma.masked_invalid(table), cmap="viridis", vmin=span[0], vmax=span[1], aspect="auto")
    ax.grid(visible=False)
    ax.set_xticks(range(len(rates)), [percent(rate) for rate in rates])
    names = [style.plain_text(name) for name in words.shortened(values, LONGEST_NAME)]
    ax.set_yticks(range(len(values)), names if ax.get_subplotspec().is_first_col() else [""] * len(values))
    ax.set_xlabel("packet loss rate")
    return picture
