# SPDX-License-Identifier: Apache-2.0
"""The best of several values at each point of a sweep with best_over (docs/specs.md)."""

from __future__ import annotations

import math

import pandas as pd

from droptest.records import Records
from droptest.statistics import mean_interval
from droptest.summary import interval_columns


def best_over(records: Records) -> pd.DataFrame:
    """One row per point and value of the pointers of best_over: every value that was trained, with the one that won.

    Columns: series (without the pointers), loss_rate (fraction), lossless, value ("learning rate 0.001"), a column for
    each of the pointers; runs, completed, diverged, failed (counts); selection_loss (mean over the seeds; NaN unless
    all runs have completed, since the value takes no part then); mean, low and high of the final validation loss over
    the completed seeds; best; run_ids; marks (events of its runs
    that results may depend on, joined by commas). Losses are in nats per token (or byte).
    Where no value of a point takes part, the one with the most completed runs stands for it, of equal ones the first.
    """
    namer = records.best_namer
    of_run = records.runs.set_index("run_id", drop=False)
    members: dict[tuple[str, float, str], list[str]] = {}
    for run in records.files.values():
        rate = namer.rate(run)
        key = (namer.series(run), None if math.isnan(rate) else rate, namer.best_value(run))
        members.setdefault(key, []).append(run.run_id)
    rows = []
    for (series, rate, value), run_ids in members.items():
        mine = of_run.loc[run_ids]
        statuses = mine["status"].value_counts()
        complete = statuses.get("completed", 0) == len(mine)
        rows.append({
            "series": series, "loss_rate": math.nan if rate is None else rate, "lossless": bool(mine["lossless"].all()),
            "value": value, **{p: mine[p].iloc[0] for p in namer.varied if namer.is_best_over(p)},
            "runs": len(mine), **{s: int(statuses.get(s, 0)) for s in ("completed", "diverged", "failed")},
            "selection_loss": float(mine["selection_loss"].mean(skipna=False)) if complete else math.nan,
            **interval_columns(mean_interval(mine["final_validation_loss"])), "run_ids": tuple(run_ids),
            "marks": ", ".join(dict.fromkeys(mark for text in mine["marks"] for mark in text.split(", ") if mark)),
        })  # fmt: skip
    frame = pd.DataFrame(
        rows, columns=None if rows else ["series", "loss_rate", "value", "selection_loss", "run_ids", "marks"]
    )
    frame["best"] = False
    for _, values in frame.groupby(["series", "loss_rate"], sort=False, dropna=False):
        judged = values["selection_loss"]
        frame.loc[values["completed"].idxmax() if judged.isna().all() else judged.idxmin(), "best"] = True
    return frame
