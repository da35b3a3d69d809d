# SPDX-License-Identifier: Apache-2.0
"""Final validation loss against the loss rate, and the paired difference to the lossless twin."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from droptest import style
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw
from droptest.records import Records
from droptest.statistics import Interval
from droptest.summary import Group

NAME = "final_loss"
TITLE = "Final validation loss"
CAPTION = (
    "Final validation loss (left) and its difference to the lossless run with the same seed (right). Points: mean over "
    "seeds; bars: 95 % interval (Student t), none with one seed. The differences are paired by seed, so their "
    "intervals leave out the spread between seeds. A cross at the upper edge: runs that diverged, which have no final "
    "loss. Dotted line: no difference."
)
LOSS_LABEL = "final validation loss\n(nats per token)"
DIFFERENCE_LABEL = "difference to lossless twin\n(nats per token)"


def draw(records: Records) -> Figure:
    """Raises: NothingToDraw without a finished run."""
    shown, remark = panels.shown_curves(records)
    groups = [g for row in shown.values() for g in row]
    if not any(g.final.n or g.count("diverged") for g in groups):
        raise NothingToDraw("no run has finished yet")
    paired = any(g.difference.n for g in groups)
    rates = {g.loss_rate for g in groups if not g.lossless}
    # Curves need an axis: at a single rate the series themselves are what is compared.
    if len(rates) <= 1 and len(shown) > 1:
        return _draw_by_series(shown, paired, remark)
    return _draw_over_rate(shown, paired, remark, records.rate_pointer)


def _draw_over_rate(shown: dict[str, list[Group]], paired: bool, remark: str, pointer: str | None) -> Figure:
    count = 2 if paired else 1
    figure, axes = style.figure(style.DOUBLE_COLUMN if paired else style.SINGLE_COLUMN, 2.7, 1, count)
    marks = style.marks(list(shown))
    rates = [g.loss_rate for row in shown.values() for g in row]
    handles = []
    for index, (series, groups) in enumerate(shown.items()):
        # Equal rates would hide each other's intervals: a small shift sideways.
        shift = 1.0 if len(shown) == 1 else 1 + 0.05 * (index / (len(shown) - 1) - 0.5) * min(len(shown), 4)
        smallest = min((r for r in rates if r > 0), default=1.0)
        nudge = (shift - 1) * smallest * 100
        handles.append(_curve(axes[0][0], groups, "final", shift, nudge, marks[series]))
        if paired:
            lossy = [g for g in groups if not g.lossless]
            _curve(axes[0][1], lossy, "difference", shift, nudge, marks[series])
    style.percent_axis(axes[0][0], rates, pointer)
    axes[0][0].set_ylabel(LOSS_LABEL)
    style.plain_ticks(axes[0][0])
    _mark_diverged(axes[0][0], shown, marks)
    if paired:
        ax = axes[0][1]
        style.percent_axis(ax, [g.loss_rate for row in shown.values() for g in row if not g.lossless], pointer)
        ax.set_ylabel(DIFFERENCE_LABEL)
        style.signed_log_axis(ax, [g.difference for row in shown.values() for g in row])
        ax.axhline(0, color="0.3", linestyle=":", linewidth=1)
    if remark:
        figure.suptitle(remark, fontsize=7)
    style.legend_below(figure, handles, list(shown))
    return figure


def _curve(ax: Axes, groups: list[Group], attribute: str, shift: float, nudge: float, mark: style.Mark):
    points: list[tuple[Group, Interval]] = [(g, getattr(g, attribute)) for g in groups]
    points = [(g, i) for g, i in points if i.n and not math.isnan(g.loss_rate)]
    return ax.errorbar(
        [100 * g.loss_rate * shift if g.loss_rate else nudge for g, _ in points],
        [i.mean for _, i in points],
        yerr=[i.half_width if i.has_width else 0.0 for _, i in points],
        color=mark.color, marker=mark.marker, linestyle=mark.linestyle, markersize=4.5,
        elinewidth=1,
    )  # fmt: skip


def _mark_diverged(ax: Axes, shown: dict[str, list[Group]], marks: dict[object, style.Mark]) -> None:
    at: dict[float, int] = {}
    for series, groups in shown.items():
        for group in groups:
            if not group.count("diverged") or math.isnan(group.loss_rate):
                continue
            level = at[group.loss_rate] = at.get(group.loss_rate, -1) + 1
            ax.plot(100 * group.loss_rate, 0.97 - 0.07 * level, "x", color=marks[series].color, markersize=6,
                    markeredgewidth=1.6, transform=ax.get_xaxis_transform(), clip_on=False)  # fmt: skip
            ax.annotate(
                f"{group.count('diverged')}/{sum(group.statuses.values())}",
                (100 * group.loss_rate, 0.97 - 0.07 * level), xycoords=ax.get_xaxis_transform(),
                xytext=(-5, 0), textcoords="offset points", ha="right", va="center", fontsize=6,
            )  # fmt: skip


def _draw_by_series(shown: dict[str, list[Group]], paired: bool, remark: str) -> Figure:
    """One row per point; the lossless twins among them."""
    groups = list({(g.series, g.loss_rate): g for row in shown.values() for g in row}.values())
    height = 0.9 + 0.24 * len(groups)
    figure, axes = style.figure(style.DOUBLE_COLUMN, height, 1, 2 if paired else 1, sharey=True)
    marks = style.marks(list(dict.fromkeys(g.series for g in groups)))
    columns = [("final", LOSS_LABEL), ("difference", DIFFERENCE_LABEL)][: 2 if paired else 1]
    for ax, (attribute, label) in zip(axes[0], columns, strict=True):
        for row, group in enumerate(groups):
            interval: Interval = getattr(group, attribute)
            mark = marks[group.series]
            if interval.n:
                ax.errorbar(interval.mean, row, xerr=interval.half_width if interval.has_width else 0.0,
                            color=mark.color, marker=mark.marker, linestyle="none", markersize=5)  # fmt: skip
            elif attribute == "final" and group.count("diverged"):
                ax.plot(0.97, row, "x", color=mark.color, transform=ax.get_yaxis_transform())
        ax.set_xlabel(label.replace("\n", " "))
        if attribute == "difference":
            ax.axvline(0, color="0.3", linestyle=":", linewidth=1)
    names = [panels.named_with_rate(g) for g in groups]
    axes[0][0].set_yticks(range(len(groups)), [panels.panel_title(name, 44) for name in names])
    axes[0][0].set_ylim(len(groups) - 0.5, -0.5)
    if remark:
        figure.suptitle(remark, fontsize=7)
    return figure
