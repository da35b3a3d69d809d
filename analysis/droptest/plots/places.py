# SPDX-License-Identifier: Apache-2.0
"""Where loss hurts: the paired difference to lossless by the place of the loss (half, class, links, layers)."""

from __future__ import annotations

from typing import Any

import pandas as pd

from droptest import drawing
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
    "t), none with one seed. A cross at the edge: runs that diverged. Dotted line: no difference. An axis with a "
    "shaded part is linear in that part and logarithmic outside. " + panels.FAR_CAPTION
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
        raise NothingToDraw("no finished run has a finished lossless twin, both with a final validation loss")
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
            sentences.append(
                f"{name} a packet loss rate of {rate} the final validation loss minus that of the lossless "
                f"twin, in {data.attrs['unit']}: {'; '.join(costs)}."
            )
    return sentences


def over_rates(data: pd.DataFrame) -> bool:
    """Whether a place has points at several rates, which need an axis."""
    return bool(data.groupby(["panel", "place"])["missing_rate"].nunique().max() > 1)


def describe(data: pd.DataFrame) -> dict[str, Any]:
    """A panel for each of the other settings: curves over the loss rate, or a row per place at a single rate."""
    unit, far, over = data.attrs["unit"], data.attrs["far"], over_rates(data)
    found = []
    rates = {percent(rate) for rate in data["missing_rate"].dropna()}
    for name in panels.series_in(data):
        mine = data[data["panel"] == name]
        if over:
            found.append(drawing.over_rate(mine, "", LABEL, unit, "place", title=name, diverged=True))
        else:
            names = mine["place"] + [f", {text}" if text else "" for text in mine["best_value"]]
            found.append(drawing.in_rows(mine, "", LABEL, unit, names, "place", title=name))
            found[-1]["x"]["title"] = f"{LABEL} ({unit})" + (f" at {next(iter(rates))} loss" if len(rates) == 1 else "")
        found[-1]["lines"] = [{"y" if over else "x": 0, "dash": "dot"}]
    drawing.fit(found, far, "y" if over else "x", include=(0,), signed=over)
    return drawing.figure(data, found, min(3, len(found)) if over else 1)
