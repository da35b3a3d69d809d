# SPDX-License-Identifier: Apache-2.0
"""Where loss hurts: the paired difference to lossless by the place of the loss (half, class, links, layers)."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from droptest import style
from droptest.loss_model import percent
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw, NotMeant
from droptest.records import Records
from droptest.statistics import Interval, interval_columns
from droptest.summary import Group, with_interval

NAME = "places"
TITLE = "Difference by place of the loss"
CAPTION = (
    "Final validation loss minus that of the lossless run with the same seed, by the place of the loss: half, traffic "
    "class, links or layers, as far as the runs differ in it. Points: mean over seeds; bars: 95 % interval (Student "
    "t), none with one seed. A cross at the upper edge: runs that diverged. Dotted line: no difference. An axis with a "
    "shaded stretch is linear there and logarithmic beyond. " + panels.FAR_CAPTION
)
LABEL = "difference to lossless twin"


def data(records: Records) -> pd.DataFrame:
    """One row per panel (everything but the place and the rate), place and missing_rate (share of packets lost or
    late): mean, low and high of the difference over seeds, in `unit`; diverged, runs (counts), best_value, series.

    attrs: rate_pointer (Records). Raises: NotMeant where all runs lose packets in the same place, NothingToDraw without
    a finished pair.
    """
    groups, remark = panels.shown_curves(records)
    of_run = records.runs.set_index("run_id")[["place", "rest"]]
    rows = [_row(g, *of_run.loc[g.run_ids[0]]) for row in groups.values() for g in row if not g.without_loss]
    frame = pd.DataFrame(rows, columns=None if rows else ["panel", "place", "seeds", "diverged", "missing_rate"])
    frame = frame[frame["place"] != ""]
    frame = frame[frame.groupby("panel")["place"].transform("nunique") > 1]
    if frame.empty:
        raise NotMeant("all runs lose packets in the same place")
    if not (frame["seeds"].any() or frame["diverged"].any()):
        raise NothingToDraw("no finished run has a finished lossless twin")
    same = frame.duplicated(["panel", "place", "missing_rate"], keep=False)
    frame.loc[frame["panel"].isin(frame.loc[same, "panel"]), "place"] = frame["series"]
    frame = frame.reset_index(drop=True)
    frame.attrs |= {"remark": remark, "rate_pointer": records.rate_pointer}
    return frame


def _row(group: Group, place: str, rest: str) -> dict[str, Any]:
    return {"panel": rest, "place": place, "series": group.series, "loss_rate": group.loss_rate,
            "missing_rate": group.missing_rate, **interval_columns(group.difference), "best_value": group.best_value,
            "diverged": group.count("diverged"), "runs": sum(group.statuses.values())}  # fmt: skip


def findings(data: pd.DataFrame) -> list[str]:
    """The differences by place at the highest loss rate of each panel, the largest first."""
    sentences = []
    for panel, part in data[data["seeds"] > 0].groupby("panel", sort=False):
        part = part[part["missing_rate"].eq(part["missing_rate"].max())].sort_values("mean", ascending=False)
        costs = [f"{row.place} {with_interval(Interval(row.mean, row.high - row.mean, row.seeds), signed='+')}"
                 for row in part.itertuples()]  # fmt: skip
        name = f"{panel}: at" if panel else "At"
        if len(part) > 1:
            rate = percent(part["missing_rate"].iloc[0])
            sentences.append(f"{name} {rate} loss, {data.attrs['unit']} above lossless: {'; '.join(costs)}.")
    return sentences


def over_rates(data: pd.DataFrame) -> bool:
    """Whether a place has points at several rates, which need an axis."""
    return bool(data.groupby(["panel", "place"])["missing_rate"].nunique().max() > 1)


def draw(data: pd.DataFrame) -> Figure:
    """A panel for each of the other settings: curves over the loss rate, or a row per place at a single rate."""
    shown = list(dict.fromkeys(data["panel"]))
    marks = style.marks(list(dict.fromkeys(data["place"])))
    if not over_rates(data):
        return _draw_rows(data, shown, marks)
    figure, grid = panels.grid(shown, 2.7)
    handles: dict[object, Any] = {}
    for name, (ax,) in grid.items():
        mine = data[data["panel"] == name]
        for place in dict.fromkeys(mine["place"]):
            shift = panels.shift_of(list(marks).index(place), len(marks))
            part = mine[mine["place"] == place]
            handles[place] = panels.over_rate(ax, part, "", shift, 0.0, marks[place], data.attrs["far"])
            lost = 100 * part.loc[part["diverged"] > 0, "missing_rate"]
            panels.at_edge(ax, lost * shift, 0.96, "x", marks[place].color)
        style.percent_axis(ax, mine["missing_rate"].tolist(), data.attrs["rate_pointer"])
        panels.signed_log_axis(ax, panels.ends_of(mine), data.attrs["far"])
        ax.axhline(0, color="0.3", linestyle=":", linewidth=1)
        if ax.get_subplotspec().is_first_col():
            ax.set_ylabel(f"{LABEL}\n({data.attrs['unit']})")
    if data.attrs["remark"]:
        figure.suptitle(data.attrs["remark"], fontsize=7)
    style.legend_below(figure, list(handles.values()), list(handles))
    return figure


def _draw_rows(data: pd.DataFrame, shown: list[str], marks: dict[object, style.Mark]) -> Figure:
    counts = [int((data["panel"] == name).sum()) for name in shown]
    figure, axes = style.figure(style.DOUBLE_COLUMN, 0.9 + 0.3 * sum(counts), len(shown), 1, sharex=True,
                                gridspec_kw={"height_ratios": counts})  # fmt: skip
    for name, (ax,) in zip(shown, axes, strict=True):
        mine = data[data["panel"] == name].reset_index(drop=True)
        names = mine["place"] + [f", {text}" if text else "" for text in mine["best_value"]]
        panels.in_rows(ax, mine, "", names, [marks[place] for place in mine["place"]], far=data.attrs["far"],
                       lines=(0.0,))  # fmt: skip
        ax.axvline(0, color="0.3", linestyle=":", linewidth=1)
        ax.set_title(panels.panel_title(name, 70))
    rates = {percent(rate) for rate in data["missing_rate"].dropna()}
    axes[-1][0].set_xlabel(f"{LABEL} ({data.attrs['unit']})" + (f" at {rates.pop()} loss" if len(rates) == 1 else ""))
    if data.attrs["remark"]:
        figure.suptitle(data.attrs["remark"], fontsize=7)
    return figure
