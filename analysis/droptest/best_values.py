# SPDX-License-Identifier: Apache-2.0
"""The best of several values at each point of a sweep with best_over (docs/specs.md)."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pandas as pd

from droptest.files import Run
from droptest.series import SeriesNamer
from droptest.statistics import interval_columns, mean_interval


def values_at_points(runs: Iterable[Run], frame: pd.DataFrame, namer: SeriesNamer) -> pd.DataFrame:
    """The rows of records.best_over. frame: `runs` of the records; namer: of points without those pointers."""
    of_run = frame.set_index("run_id", drop=False)
    members: dict[tuple[str, float, str], list[str]] = {}
    for run in runs:
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
    found = pd.DataFrame(
        rows,
        columns=None if rows else ["series", "loss_rate", "value", "completed", "selection_loss", "run_ids", "marks"],
    )
    found["shown"] = False
    for _, values in found.groupby(["series", "loss_rate"], sort=False, dropna=False):
        judged = values["selection_loss"]
        if judged.isna().all():
            judged = _loss_over_common_seeds(values[values["completed"] == values["completed"].max()], of_run)
        found.loc[values["completed"].idxmax() if judged.isna().all() else judged.idxmin(), "shown"] = True
    found["best"] = found["shown"] & (found["completed"] > 0)
    return found


def _loss_over_common_seeds(values: pd.DataFrame, of_run: pd.DataFrame) -> pd.Series:
    """The mean selection loss of values whose runs have not all completed: over the seeds that completed for all."""
    completed = [of_run.loc[list(ids)].query("status == 'completed'") for ids in values["run_ids"]]
    common = set.intersection(*(set(mine["seed"].map(str)) for mine in completed))
    means = [mine.loc[mine["seed"].map(str).isin(common), "selection_loss"].mean() for mine in completed]
    return pd.Series(means, index=values.index, dtype=float)
