# SPDX-License-Identifier: Apache-2.0
"""Panels, one per series, with one curve per loss rate: what several figures share."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from droptest import style
from droptest.loss_model import percent
from droptest.records import Records
from droptest.statistics import Interval
from droptest.summary import Group, curves

MAX_SERIES = 12
MAX_RATES = 7
PANELS_PER_ROW = 3


def shown_curves(records: Records) -> tuple[dict[str, list[Group]], str]:
    """The series that a figure shows, and a remark where there are too many for all."""
    every = curves(records)
    shown = dict(list(every.items())[:MAX_SERIES])
    return shown, f"first {MAX_SERIES} of {len(every)} series" if len(every) > len(shown) else ""


def thinned_rates(shown: dict[str, list[Group]], remark: str) -> tuple[dict[str, list[Group]], str]:
    """At most MAX_RATES loss rates, evenly picked with the smallest and largest: more curves cannot be told apart."""
    lossy = [g for row in shown.values() for g in row if not g.lossless]
    rates = sorted({g.loss_rate for g in lossy if not math.isnan(g.loss_rate)})
    if len(rates) <= MAX_RATES:
        return shown, remark
    kept = {rates[round(i * (len(rates) - 1) / (MAX_RATES - 1))] for i in range(MAX_RATES)}
    note = f"{len(kept)} of {len(rates)} loss rates"
    few = {series: [g for g in row if g.lossless or g.loss_rate in kept] for series, row in shown.items()}
    return few, f"{remark}; {note}" if remark else note


def rate_label(group: Group) -> str:
    """A curve's name in the legend: its loss rate."""
    return "lossless" if group.lossless else "rate ?" if math.isnan(group.loss_rate) else percent(group.loss_rate)


def named_with_rate(group: Group) -> str:
    """A row's name in figures with one row per series and loss rate."""
    return group.series if group.lossless else f"{group.series}, {percent(group.loss_rate)}"


def rate_marks(shown: dict[str, list[Group]]) -> dict[str, style.Mark]:
    """One mark per loss rate, the same in all panels, darkest for the smallest."""
    groups = sorted((g for row in shown.values() for g in row), key=lambda g: (not g.lossless, g.loss_rate))
    return style.marks(list(dict.fromkeys(rate_label(g) for g in groups)))


def panel_title(series: str, width: int = 34) -> str:
    lines = textwrap.wrap(style.plain_text(series).replace(" %", "\N{NO-BREAK SPACE}%"), width)
    return "\n".join(lines[:2]) + (" …" if len(lines) > 2 else "")


def common_steps(frame: pd.DataFrame, run_ids: tuple[str, ...], column: str) -> pd.DataFrame:
    """`column` by step (rows) and run (columns), at those steps at which each of the runs has a finite value.

    A mean over the runs that happen to be left would jump, and would hide those that diverged.
    """
    mine = frame[frame["run_id"].isin(run_ids)]
    table = mine.pivot_table(index="step", columns="run_id", values=column, dropna=False)
    return table.dropna() if len(table.columns) else table


def band(axes: Axes, table: pd.DataFrame, interval: Callable[[np.ndarray], Interval], mark: style.Mark, label: str):
    """Mean over runs with its interval as a band; returns the line, or None where there is nothing to draw."""
    if table.empty:
        return None
    intervals = [interval(row) for row in table.to_numpy()]
    steps = table.index.to_numpy()
    every = max(1, len(steps) // 8)
    (line,) = axes.plot(
        steps, [i.mean for i in intervals], color=mark.color, linestyle=mark.linestyle, marker=mark.marker,
        markevery=every, markersize=3, label=label,
    )  # fmt: skip
    if any(i.has_width for i in intervals):
        axes.fill_between(
            steps, [i.low for i in intervals], [i.high for i in intervals], color=mark.color, alpha=0.18, linewidth=0
        )
    return line
