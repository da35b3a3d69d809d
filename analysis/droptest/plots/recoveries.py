# SPDX-License-Identifier: Apache-2.0
"""Benefit and cost of recoveries: difference to lossless, packets sent in addition, packets still missing."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from droptest import style
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw, NotMeant
from droptest.plots.step_time import seconds_per_step
from droptest.records import Records
from droptest.statistics import mean_interval
from droptest.summary import Group, cells_of, interval_columns
from droptest.variance import interval_of

NAME = "recoveries"
TITLE = "Benefit and price of recoveries"
CAPTION = (
    "Left: final validation loss minus that of the lossless run with the same seed; points: mean over seeds, bars: "
    "95 % interval (Student t), none with one seed. Dotted line: no difference. Right: packets sent in addition "
    "(parity packets and repetitions) and packets missing in the end, in percent of the data packets. "
    + panels.FAR_CAPTION
)
Y_LABEL = "difference to lossless twin"
SHARES = (("extra", "sent in addition", "o"), ("missing", "missing in the end", "x"))
MOST_ROWS = 40


def data(records: Records) -> pd.DataFrame:
    """One row per lossy point that has a run without any recovery to compare with (a point without one included):
    panel (loss process and rate), series; fractions of the data packets that were lost at first (lost), that stayed
    missing (missing), and that were sent in addition (extra); mean, low and high of the difference to the lossless twin
    over seeds, and saved_... of how much less the final validation loss is than without recovery, paired by seed, in
    `unit`; step_seconds (virtual time of a step; NaN without a clock); diverged, runs (counts), best_value.

    Raises: NotMeant where no run recovers anything, NothingToDraw where none has a finished pair.
    """
    runs = records.runs.set_index("run_id", drop=False)
    found, remark = panels.shown_curves(records)
    groups = [
        g
        for row in found.values()
        for g in row
        if not g.without_loss and runs.loc[list(g.run_ids), "bare"].notna().any()
    ]
    recovered = runs["bare"].notna() & (runs["bare"] != runs["run_id"])
    if not recovered.any():
        raise NotMeant("no run has a recovery and a run without it")
    rows = [_row(records, runs, group) for group in groups]
    if not any(row["seeds"] for row in rows):
        raise NothingToDraw("no finished run has a finished lossless twin")
    if len(rows) > MOST_ROWS:
        raise NothingToDraw(f"{len(rows)} series and loss rates, of which one figure holds {MOST_ROWS}")
    rows.sort(key=lambda row: (row["loss_rate"], row["panel"]))
    return panels.frame_of(rows, remark)


def _row(records: Records, runs: pd.DataFrame, group: Group) -> dict[str, Any]:
    mine = runs.loc[list(group.run_ids)]
    final = runs["final_validation_loss"]
    bare = mine["bare"].map(final).astype(float)
    saved = interval_of(cells_of(mine.assign(saved=bare - mine["final_validation_loss"]), "saved"))
    seconds = mean_interval(seconds_per_step(records, run_id) for run_id in group.run_ids).mean
    return {
        "panel": f"{group.loss_model}, {group.rate_words}", "series": group.series,
        "name": panels.named_with_rate(group), "loss_rate": group.loss_rate,
        **_packets(records, mine), **interval_columns(group.difference), **interval_columns(saved, "saved_"),
        "step_seconds": seconds, "diverged": group.count("diverged"), "runs": sum(group.statuses.values()),
        "best_value": group.best_value, "bare": bool((mine["bare"] == mine["run_id"]).all()),
    }  # fmt: skip


def _packets(records: Records, mine: pd.DataFrame) -> dict[str, float]:
    """Packets lost, missing in the end and sent in addition, as fractions of the data packets.

    The data packets of a message are those that the run without recovery sends of it.
    """
    keys = ["run_id", "class", "half"]
    counts = records.loss_statistics[records.loss_statistics["half"] != "both"].set_index(keys)
    counts = counts[["messages", "packets", "lost"]].join(records.recoveries.set_index(keys)[["residual", "resent"]])
    reliable = records.time.set_index("run_id")["repeated_packets"]
    data = lost = missing = sent = 0.0
    for run_id, bare in zip(mine["run_id"], mine["bare"], strict=True):
        if bare is None or bare not in counts.index or run_id not in counts.index:
            continue
        own, plain = counts.loc[run_id], counts.loc[bare]
        data += float((plain["packets"] / plain["messages"] * own["messages"]).sum())
        resent = own["resent"].sum() if own["resent"].notna().any() else reliable.get(run_id, 0.0)
        lost, sent = lost + own["lost"].sum(), sent + own["packets"].sum() + resent
        repeats = own["residual"].isna() & (
            reliable.get(run_id, 0.0) > 0
        )  # a reliable network repeats all that it loses
        missing += float(own["residual"].fillna(own["lost"].where(~repeats, 0.0)).sum())
    if not data:
        return dict.fromkeys(("lost", "missing", "extra"), math.nan)
    return {"lost": lost / data, "missing": missing / data, "extra": sent / data - 1}


def draw(data: pd.DataFrame) -> Figure:
    """A row per point: the difference on the left, packets on the right."""
    marks = style.marks(list(dict.fromkeys(data["series"])))
    figure, axes = style.figure(style.DOUBLE_COLUMN, 1.0 + 0.26 * len(data), 1, 2, sharey=True)
    cost, packets = axes[0]
    packets.set_xlabel("packets\n(% of the data packets)")
    handles = [
        packets.plot(100 * data[column], range(len(data)), marker, color=color, markersize=5, linestyle="none")[0]
        for (column, _, marker), color in zip(SHARES, ("tab:blue", "tab:red"), strict=True)
    ]  # fmt: skip
    panels.in_rows(cost, data, "", data["name"], [marks[series] for series in data["series"]], width=44,
                   far=data.attrs["far"], lines=(0.0,))  # fmt: skip
    cost.axvline(0, color="0.3", linestyle=":", linewidth=1)
    cost.set_xlabel(f"{Y_LABEL}\n({data.attrs['unit']})")
    if data.attrs["remark"]:
        figure.suptitle(data.attrs["remark"], fontsize=7)
    style.legend_below(figure, handles, [label for _, label, _ in SHARES])
    return figure
