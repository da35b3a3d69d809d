# SPDX-License-Identifier: Apache-2.0
"""Benefit and cost of recoveries: difference to lossless, packets sent in addition, packets still missing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from droptest import drawing
from droptest.looks import category
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw, NotMeant
from droptest.plots.step_time import seconds_per_step
from droptest.records import Records
from droptest.rows_by_run import RowsByRun
from droptest.statistics import interval_columns, mean_interval
from droptest.summary import Group, cells_of
from droptest.variance import interval_of

NAME = "recoveries"
TITLE = "Benefit and price of recoveries"
CAPTION = (
    "Final validation loss minus that of the lossless run with the same seed; points: mean over seeds, bars: 95 % "
    "interval (Student t), none with one seed. Dotted line: no difference. Packets sent in addition (parity packets "
    "and repetitions) and packets missing in the end, in percent of the data packets. " + panels.FAR_CAPTION
)
Y_LABEL = "difference to lossless twin"
SHARES = (("extra", "sent in addition"), ("missing", "missing in the end"))
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
    if not any(group.difference.n for group in groups):
        raise NothingToDraw("no finished run has a finished lossless twin, both with a final validation loss")
    if len(groups) > MOST_ROWS:
        raise NothingToDraw(f"{len(groups)} series and loss rates, of which one figure holds {MOST_ROWS}")
    packets, seconds = _Packets(records), seconds_per_step(records)
    rows = [_row(runs, packets, seconds, group) for group in groups]
    rows.sort(key=lambda row: (row["loss_rate"], row["panel"]))
    return panels.frame_of(rows, remark)


def _row(runs: pd.DataFrame, packets: _Packets, seconds: Mapping[str, float], group: Group) -> dict[str, Any]:
    mine = runs.loc[list(group.run_ids)]
    final = runs["final_validation_loss"]
    bare = mine["bare"].map(final).astype(float)
    saved = interval_of(cells_of(mine.assign(saved=bare - mine["final_validation_loss"]), "saved"))
    return {
        "panel": f"{group.loss_model}, {group.rate_words}", "series": group.series,
        "name": group.name_with_rate, "loss_rate": group.loss_rate,
        **packets.shares(mine), **interval_columns(group.difference), **interval_columns(saved, "saved_"),
        "step_seconds": mean_interval(seconds.get(run_id, math.nan) for run_id in group.run_ids).mean,
        "diverged": group.count("diverged"), "runs": sum(group.statuses.values()),
        "best_value": group.best_value, "bare": bool((mine["bare"] == mine["run_id"]).all()),
    }  # fmt: skip


class _Packets:
    """The packets of each run, by class and half."""

    def __init__(self, records: Records):
        keys = ["run_id", "class", "half"]
        counts = records.loss_statistics[records.loss_statistics["half"] != "both"]
        recovered = records.recoveries[[*keys, "residual", "resent"]]
        self._counts = RowsByRun(counts[[*keys, "messages", "packets", "lost"]].merge(recovered, "left", keys))
        self._repeated = dict(zip(records.time["run_id"], records.time["repeated_packets"], strict=True))

    def shares(self, mine: pd.DataFrame) -> dict[str, float]:
        """Packets lost, missing in the end and sent in addition, as fractions of the data packets.

        The data packets of a message are those that the run without recovery sends of it.
        """
        data = lost = missing = sent = 0.0
        for run_id, bare in zip(mine["run_id"], mine["bare"], strict=True):
            if bare is None or bare not in self._counts or run_id not in self._counts:
                continue
            own_lost, packets, residual, resent = self._counts.columns(
                [run_id], "lost", "packets", "residual", "resent"
            )
            data += self._data_packets(run_id, bare)
            repeated = self._repeated.get(run_id, 0.0)
            again = np.nansum(resent) if not np.isnan(resent).all() else repeated
            lost, sent = lost + np.nansum(own_lost), sent + np.nansum(packets) + again
            # A reliable network repeats all that it loses.
            missing += np.nansum(np.where(np.isnan(residual), 0.0 if repeated > 0 else own_lost, residual))
        if not data:
            return dict.fromkeys(("lost", "missing", "extra"), math.nan)
        return {"lost": float(lost / data), "missing": float(missing / data), "extra": float(sent / data - 1)}

    def _data_packets(self, run_id: str, bare: str) -> float:
        names = ("class", "half", "packets", "messages")
        each = {
            (traffic_class, half): packets / messages if messages else math.nan
            for traffic_class, half, packets, messages in zip(*self._counts.columns([bare], *names), strict=True)
        }
        own = zip(*self._counts.columns([run_id], "class", "half", "messages"), strict=True)
        return float(np.nansum([each.get((traffic_class, half), math.nan) * messages
                                for traffic_class, half, messages in own]))  # fmt: skip


def describe(data: pd.DataFrame) -> dict[str, Any]:
    """A row per point: the difference, and packets."""
    cost = drawing.in_rows(data, "", Y_LABEL, data.attrs["unit"], data["name"])
    cost["lines"] = [{"x": 0, "dash": "dot"}]
    drawing.fit([cost], data.attrs["far"], "x", include=(0,))
    curves = []
    for place, (column, label) in enumerate(SHARES):
        rows = [(i, name, 100 * share) for i, (name, share) in enumerate(zip(data["name"], data[column], strict=True))
                if not math.isnan(share)]  # fmt: skip
        text = [f"{name}\n{label}: {share:.3f} % of the data packets" for _, name, share in rows]
        places, _, shares = zip(*rows, strict=True) if rows else ((), (), ())
        curves.append(drawing.curve(label, category(place), shares, places, "bars", text=text, along="x"))
    packets = drawing.panel("", {"title": "packets (% of the data packets)"}, drawing.rows_axis(data["name"]), curves)
    drawing.fit([packets], along="x", include=(0,))
    return drawing.figure(data, [cost, packets], least=480)
