# SPDX-License-Identifier: Apache-2.0
"""Final validation loss against the loss rate, and the paired difference to the lossless twin."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from droptest import style
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw
from droptest.records import Records
from droptest.summary import interval_columns

NAME = "final_loss"
TITLE = "Final validation loss"
CAPTION = (
    "Final validation loss (left) and its difference to the lossless run with the same seed (right). Points: mean over "
    "seeds; bars: 95 % interval (Student t), none with one seed. The differences are paired by seed, so their "
    "intervals leave out the spread between seeds. A cross at the upper edge: runs that diverged, which have no final "
    "loss. Dotted line: no difference. An axis with a shaded stretch is linear there and logarithmic beyond."
)
LOSS_LABEL, DIFFERENCE_LABEL = "final validation loss", "difference to lossless twin"


def data(records: Records) -> pd.DataFrame:
    """One row per curve (`panel`, a series with its lossless twins) and loss rate: final_mean, final_low and final_high
    of the final validation loss over final_seeds, difference_... likewise of the difference to the lossless twins, nats
    per token; diverged, runs (counts); missing_rate (the place on the axis: the loss rate with late packets); name.

    attrs: rate_pointer (Records). Raises: NothingToDraw without a finished run.
    """
    shown, remark = panels.shown_curves(records)
    rows = [
        panels.point_columns(series, group)
        | interval_columns(group.final, "final_") | interval_columns(group.difference, "difference_")
        | {"diverged": group.count("diverged"), "runs": sum(group.statuses.values()),
           "missing_rate": group.missing_rate, "name": panels.named_with_rate(group)}
        for series, groups in shown.items() for group in groups
    ]  # fmt: skip
    if not any(row["final_seeds"] or row["diverged"] for row in rows):
        raise NothingToDraw("no run has finished yet")
    result = panels.frame_of(rows, remark)
    result.attrs["rate_pointer"] = records.rate_pointer
    return result


def draw(data: pd.DataFrame) -> Figure:
    """Curves over the loss rate; at a single rate a row per point."""
    paired = data["difference_seeds"].any()
    # Curves need an axis: at a single rate the series themselves are what is compared.
    if data.loc[~data["lossless"], "loss_rate"].nunique(dropna=False) <= 1 and data["panel"].nunique() > 1:
        return _draw_by_series(data, paired)
    return _draw_over_rate(data, paired)


def _draw_over_rate(data: pd.DataFrame, paired: bool) -> Figure:
    pointer = data.attrs["rate_pointer"]
    figure, axes = style.figure(style.DOUBLE_COLUMN if paired else style.SINGLE_COLUMN, 2.7, 1, 2 if paired else 1)
    shown = list(dict.fromkeys(data["panel"]))
    marks = style.marks(shown)
    rates = data["missing_rate"].tolist()
    handles = []
    for index, series in enumerate(shown):
        part = data[data["panel"] == series]
        # Equal rates would hide each other's intervals: a small shift sideways.
        shift = 1.0 if len(shown) == 1 else 1 + 0.05 * (index / (len(shown) - 1) - 0.5) * min(len(shown), 4)
        smallest = min((r for r in rates if r > 0), default=1.0)
        nudge = (shift - 1) * smallest * 100
        handles.append(_curve(axes[0][0], part, "final", shift, nudge, marks[series]))
        if paired:
            _curve(axes[0][1], part[~part["lossless"]], "difference", shift, nudge, marks[series])
    style.percent_axis(axes[0][0], rates, pointer)
    axes[0][0].set_ylabel(f"{LOSS_LABEL}\n({data.attrs['unit']})")
    style.plain_ticks(axes[0][0])
    _mark_diverged(axes[0][0], data, marks)
    if paired:
        ax = axes[0][1]
        style.percent_axis(ax, data.loc[~data["lossless"], "missing_rate"].tolist(), pointer)
        ax.set_ylabel(f"{DIFFERENCE_LABEL}\n({data.attrs['unit']})")
        style.signed_log_axis(ax, data["difference_mean"], data["difference_low"], data["difference_high"])
        ax.axhline(0, color="0.3", linestyle=":", linewidth=1)
    if data.attrs["remark"]:
        figure.suptitle(data.attrs["remark"], fontsize=7)
    style.legend_below(figure, handles, shown)
    return figure


def _curve(ax: Axes, part: pd.DataFrame, quantity: str, shift: float, nudge: float, mark: style.Mark):
    part = part[(part[f"{quantity}_seeds"] > 0) & part["missing_rate"].notna()]
    return ax.errorbar(
        [100 * rate * shift if rate else nudge for rate in part["missing_rate"]], part[f"{quantity}_mean"],
        yerr=panels.distances(part, f"{quantity}_"), color=mark.color, marker=mark.marker, linestyle=mark.linestyle,
        markersize=4.5, elinewidth=1,
    )  # fmt: skip


def _mark_diverged(ax: Axes, data: pd.DataFrame, marks: dict[object, style.Mark]) -> None:
    at: dict[float, int] = {}
    for point in data[(data["diverged"] > 0) & data["missing_rate"].notna()].itertuples():
        level = at[point.missing_rate] = at.get(point.missing_rate, -1) + 1
        ax.plot(100 * point.missing_rate, 0.97 - 0.07 * level, "x", color=marks[point.panel].color, markersize=6,
                markeredgewidth=1.6, transform=ax.get_xaxis_transform(), clip_on=False)  # fmt: skip
        ax.annotate(
            f"{point.diverged}/{point.runs}",
            (100 * point.missing_rate, 0.97 - 0.07 * level), xycoords=ax.get_xaxis_transform(),
            xytext=(-5, 0), textcoords="offset points", ha="right", va="center", fontsize=6,
        )  # fmt: skip


def _draw_by_series(data: pd.DataFrame, paired: bool) -> Figure:
    """One row per point; the lossless twins among them."""
    points = data.drop_duplicates(["series", "loss_rate"]).reset_index(drop=True)
    figure, axes = style.figure(style.DOUBLE_COLUMN, 0.9 + 0.24 * len(points), 1, 2 if paired else 1, sharey=True)
    columns = [("final", LOSS_LABEL), ("difference", DIFFERENCE_LABEL)][: 2 if paired else 1]
    for ax, (quantity, label) in zip(axes[0], columns, strict=True):
        for series, mark in style.marks(list(dict.fromkeys(points["series"]))).items():
            part = points[(points["series"] == series) & (points[f"{quantity}_seeds"] > 0)]
            ax.errorbar(part[f"{quantity}_mean"], part.index, xerr=panels.distances(part, f"{quantity}_"),
                        color=mark.color, marker=mark.marker, linestyle="none", markersize=5)  # fmt: skip
            if quantity == "final":
                lost = points[(points["series"] == series) & (points["final_seeds"] == 0) & (points["diverged"] > 0)]
                ax.plot([0.97] * len(lost), lost.index, "x", color=mark.color, transform=ax.get_yaxis_transform())
        ax.set_xlabel(f"{label} ({data.attrs['unit']})")
        if quantity == "difference":
            ax.axvline(0, color="0.3", linestyle=":", linewidth=1)
    axes[0][0].set_yticks(range(len(points)), [panels.panel_title(name, 44) for name in points["name"]])
    axes[0][0].set_ylim(len(points) - 0.5, -0.5)
    if data.attrs["remark"]:
        figure.suptitle(data.attrs["remark"], fontsize=7)
    return figure
