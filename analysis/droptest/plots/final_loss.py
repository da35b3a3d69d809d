# SPDX-License-Identifier: Apache-2.0
"""Final validation loss against the loss rate, and the paired difference to the lossless twin."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from droptest import style, words
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw
from droptest.records import Records
from droptest.statistics import interval_columns

NAME = "final_loss"
TITLE = "Final validation loss"
CAPTION = (
    "Final validation loss (left) and its difference to the lossless run with the same seed (right). Points: mean over "
    "seeds; bars: 95 % interval (Student t), none with one seed. The differences are paired by seed, so their "
    "intervals leave out the spread between seeds. A cross at the upper edge: runs that diverged, which have no final "
    "loss. Where several values were tried, the best of each point stands above. Dotted line: no difference. An axis "
    "with a shaded stretch is linear there and logarithmic beyond. " + panels.FAR_CAPTION
)
LONGEST_NAME, LONGEST_VALUE = 30, 14  # characters, of what is above the panel
MOST_WINNERS = 4  # curves; the best values of more would fill the figure: table and hover text have them
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
           "missing_rate": group.missing_rate, "name": group.name_with_rate}
        for series, groups in shown.items() for group in groups
    ]  # fmt: skip
    if not any(row["final_seeds"] or row["diverged"] for row in rows):
        raise NothingToDraw("no run has finished yet")
    result = panels.frame_of(rows, remark)
    result.attrs["rate_pointer"] = records.rate_pointer
    return result


def one_rate(data: pd.DataFrame) -> bool:
    """Whether the figure compares several series at a single rate: then there is no axis for curves."""
    return data.loc[~data["without_loss"], "loss_rate"].nunique(dropna=False) <= 1 and data["panel"].nunique() > 1


def draw(data: pd.DataFrame) -> Figure:
    """Curves over the loss rate; at a single rate a row per point."""
    paired = data["difference_seeds"].any()
    if one_rate(data):
        return _draw_by_series(data, paired)
    return _draw_over_rate(data, paired)


def _draw_over_rate(data: pd.DataFrame, paired: bool) -> Figure:
    pointer, far = data.attrs["rate_pointer"], data.attrs["far"]
    figure, axes = style.figure(style.DOUBLE_COLUMN if paired else style.SINGLE_COLUMN, 2.7, 1, 2 if paired else 1)
    shown = list(dict.fromkeys(data["panel"]))
    marks = style.marks(shown)
    rates = data["missing_rate"].tolist()
    handles = []
    for index, series in enumerate(shown):
        part = data[data["panel"] == series]
        shift = panels.shift_of(index, len(shown))
        smallest = min((r for r in rates if r > 0), default=1.0)
        at_zero = (shift - 1) * smallest * 100
        handles.append(panels.over_rate(axes[0][0], part, "final_", shift, at_zero, marks[series], far))
        if paired:
            lossy = part[~part["without_loss"]]
            panels.over_rate(axes[0][1], lossy, "difference_", shift, at_zero, marks[series], far)
    style.percent_axis(axes[0][0], rates, pointer)
    axes[0][0].set_ylabel(f"{LOSS_LABEL}\n({data.attrs['unit']})")
    style.plain_ticks(axes[0][0])
    if (limits := panels.near_range(panels.ends_of(data, "final_"), far)) is not None:
        axes[0][0].set_ylim(*limits)
    _mark_diverged(axes[0][0], data, marks)
    if len(shown) <= MOST_WINNERS:
        _write_winners(axes[0][0], data, marks)
    if paired:
        ax = axes[0][1]
        style.percent_axis(ax, data.loc[~data["without_loss"], "missing_rate"].tolist(), pointer)
        ax.set_ylabel(f"{DIFFERENCE_LABEL}\n({data.attrs['unit']})")
        panels.signed_log_axis(ax, panels.ends_of(data, "difference_"), far)
        ax.axhline(0, color="0.3", linestyle=":", linewidth=1)
    if data.attrs["remark"]:
        figure.suptitle(data.attrs["remark"], fontsize=7)
    style.legend_below(figure, handles, shown)
    return figure


def winners(data: pd.DataFrame) -> tuple[str, list[str]]:
    """The name of the best values, and the value of each row: "learning rate" and "0.001", "0.002", ...

    The values of several pointers, or labels, have no name in common: they are given whole.
    """
    split = [text.rpartition(" ") for text in data["best_value"]]
    names = {name for (name, _, value) in split if value}
    if len(names) == 1 and "," not in (name := names.pop()) and len(name) <= LONGEST_NAME:
        return name, [value for _, _, value in split]
    return "value", list(data["best_value"])


def _write_winners(ax: Axes, data: pd.DataFrame, marks: dict[object, style.Mark]) -> None:
    """The best value of each point above the panel, a line per curve."""
    name, values = winners(data)
    if not any(values):
        return
    for point, value in zip(data.itertuples(), values, strict=True):
        if not math.isnan(point.missing_rate):
            level = len(marks) - 1 - list(marks).index(point.panel)
            text = style.plain_text(words.cut(value, LONGEST_VALUE))
            ax.annotate(
                text, (100 * point.missing_rate, 1.0), xycoords=ax.get_xaxis_transform(), fontsize=6,
                xytext=(0, 3 + 8 * level), textcoords="offset points", ha="center", va="bottom",
                color=marks[point.panel].color, annotation_clip=False,
            )  # fmt: skip
    ax.set_title(f"best {style.plain_text(name)} of each point", fontsize=6.5, pad=5 + 8 * len(marks))


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
    marks = style.marks(list(dict.fromkeys(points["series"])))
    for ax, (quantity, label) in zip(axes[0], columns, strict=True):
        shown = points if quantity == "final" else points.drop(columns="diverged")
        panels.in_rows(ax, shown, f"{quantity}_", points["name"], [marks[series] for series in points["series"]],
                       width=44, far=data.attrs["far"], lines=(0.0,) if quantity == "difference" else ())  # fmt: skip
        ax.set_xlabel(f"{label}\n({data.attrs['unit']})")
        if quantity == "difference":
            ax.axvline(0, color="0.3", linestyle=":", linewidth=1)
    if data.attrs["remark"]:
        figure.suptitle(data.attrs["remark"], fontsize=7)
    return figure
