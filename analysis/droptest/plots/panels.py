# SPDX-License-Identifier: Apache-2.0
"""Panels, one per series, with one curve per loss rate: the parts that several figures share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from droptest import drawing
from droptest.loss_model import percent
from droptest.records import Records
from droptest.series import NO_PROCESS
from droptest.statistics import Interval, interval_columns
from droptest.summary import Group, curves
from droptest.words import MOST_IN_DIGITS

MAX_SERIES = 12
MAX_RATES = 7
PANELS_PER_ROW = 3
FAR = 20
FAR_PERCENT = 100.0 * (FAR - 1)  # above the lossless twin
FAR_CAPTION = "A triangle at an edge: a value outside the panel, for example of a run that diverges."
CROSS_CAPTION = (
    "A cross at an edge: a point with runs that diverged. PNG and SVG files show the number beside the cross (1/3: 1 "
    "of 3 runs); the interactive figure shows it under the cursor. Each series has its own line of crosses, in the "
    "order of the legend."
)


def far_loss(records: Records) -> float:
    """A loss that only diverging runs have. Axes that reach beyond it would hide what lies below, so they end before
    the first such value.

    It is FAR times the lower decile of the validation losses and of the runs' first losses, but at least twice the
    largest first loss of a run that did not diverge. Training losses after the first say nothing of it, since a model
    that learns its examples by heart has almost none.
    """
    metrics, runs = records.metrics, records.runs
    kinds = ["validation_loss", "train_loss"]
    lines = metrics.reindex(columns=["run_id", "step", *kinds]).sort_values("step", kind="stable")
    losses = lines[kinds].astype(float).replace([math.inf, -math.inf], math.nan)
    first = losses["validation_loss"].fillna(losses["train_loss"]).groupby(lines["run_id"]).first()
    values = pd.concat([first, losses["validation_loss"], runs["final_validation_loss"]]).to_numpy(float)
    values = np.abs(values[np.isfinite(values)])
    values = values[values > 0]
    if not len(values):
        return math.inf
    at_start = first.drop(runs.loc[runs["status"] == "diverged", "run_id"], errors="ignore").abs()
    highest = at_start[at_start < MOST_IN_DIGITS].max()
    return max(FAR * float(np.quantile(values, 0.1)), 0.0 if math.isnan(highest) else 2 * float(highest))


def shown_curves(records: Records) -> tuple[dict[str, list[Group]], str]:
    """The series that a figure shows, and a remark where there are too many for all."""
    every = curves(records)
    shown = dict(list(every.items())[:MAX_SERIES])
    return shown, f"first {MAX_SERIES} of {len(every)} series" if len(every) > len(shown) else ""


def thinned_rates(shown: dict[str, list[Group]], remark: str) -> tuple[dict[str, list[Group]], str]:
    """At most MAX_RATES loss rates, evenly picked with the smallest and largest: more curves cannot be told apart."""
    lossy = [g for row in shown.values() for g in row if not g.without_loss]
    rates = sorted({g.loss_rate for g in lossy if not math.isnan(g.loss_rate)})
    if len(rates) <= MAX_RATES:
        return shown, remark
    kept = {rates[round(i * (len(rates) - 1) / (MAX_RATES - 1))] for i in range(MAX_RATES)}
    note = f"{len(kept)} of {len(rates)} loss rates"
    few = {series: [g for g in row if g.without_loss or g.loss_rate in kept] for series, row in shown.items()}
    return few, f"{remark}; {note}" if remark else note


def rate_label(group: Group) -> str:
    """A curve's name in the legend: its loss rate."""
    if group.without_loss or group.loss_model == NO_PROCESS:
        return group.loss_model
    return "rate ?" if math.isnan(group.loss_rate) else percent(group.loss_rate)


def common_steps(frame: pd.DataFrame, run_ids: tuple[str, ...], column: str) -> pd.DataFrame:
    """`column` by step (rows) and run (columns), at those steps at which each of the runs has a finite value.

    A mean over the runs that happen to be left would jump, and would hide those that diverged.
    """
    mine = frame[frame["run_id"].isin(run_ids)]
    table = mine.pivot_table(index="step", columns="run_id", values=column, dropna=False)
    return table.dropna() if len(table.columns) else table


def point_columns(series: str, group: Group) -> dict[str, Any]:
    """The panel and curve that a point of the experiment is drawn in, with its rate, late packets and best value."""
    return {"panel": series, "series": group.series, "curve": rate_label(group), "loss_rate": group.loss_rate,
            "lossless": group.lossless, "without_loss": group.without_loss, "late_rate": group.late_rate,
            "best_value": group.best_value}  # fmt: skip


def rows_over(
    table: pd.DataFrame, x: str, interval: Callable[[np.ndarray], Interval], keys: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """A row for each row of `table`, of which the columns are runs: `x` (its index) and the mean over the runs."""
    for place, values in zip(table.index, table.to_numpy(), strict=True):
        yield {**keys, x: place, **interval_columns(interval(values))}


def frame_of(rows: list[dict[str, Any]], remark: str) -> pd.DataFrame:
    """The data of a figure."""
    frame = pd.DataFrame(rows)
    frame.attrs["remark"] = remark
    return frame


def curves_in(part: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The curves of one panel by name. Lossless twins of several settings are curves of one name."""
    for _, rows in part.groupby(["series", "loss_rate"], sort=False, dropna=False):
        yield rows["curve"].iloc[0], rows


def lines_over(
    part: pd.DataFrame, x: str, x_axis: dict[str, Any], y_axis: dict[str, Any], title: str | tuple[str, str], *lines
) -> drawing.Panel:
    """Curves with bands over a column, one for each loss rate."""
    found = []
    for name, rows in curves_in(part):
        first = rows.iloc[0]
        look = drawing.looks(part).point(first["series"], first["loss_rate"], first["without_loss"])
        found.append(drawing.curve(name, look, rows[x], rows["mean"], low=rows["low"], high=rows["high"]))
    return drawing.panel(title, dict(x_axis), dict(y_axis), found, *lines)


def rates_in_order(data: pd.DataFrame) -> list[str]:
    """The values of `curve` for a legend: without loss first, then by loss rate."""
    ordered = data.assign(lossy=~data["without_loss"].astype(bool)).sort_values(["lossy", "loss_rate"], kind="stable")
    return list(dict.fromkeys(ordered["curve"]))


def series_in(data: pd.DataFrame) -> list[str]:
    """The panels of a figure."""
    return list(dict.fromkeys(data["panel"]))


def one_rate(data: pd.DataFrame) -> bool:
    """Whether the figure compares several series at a single rate: then there is no axis for curves."""
    return data.loc[~data["without_loss"], "loss_rate"].nunique(dropna=False) <= 1 and data["panel"].nunique() > 1
