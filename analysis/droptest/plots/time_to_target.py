# SPDX-License-Identifier: Apache-2.0
"""Virtual time to a target loss against the loss rate, for reliable and tolerant networks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from droptest import drawing, virtual_time
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw, NotMeant
from droptest.records import Records
from droptest.statistics import interval_columns

NAME = "time_to_target"
TITLE = "Time to a target loss"
CAPTION = (
    "Virtual time until the validation loss is 5 % above the highest final loss of the lossless runs, interpolated "
    "between evaluations. Points: mean over seeds; bars: 95 % interval (Student t), none with one seed. A triangle at "
    "the edge: at least one seed did not reach the target. Filled markers: reliable networks, which repeat lost "
    "packets until all arrive; hollow markers: tolerant networks, on which packets can stay lost. Vertical line and "
    "band: the break-even rate, from which the tolerant network is no longer faster, with its 95 % interval (paired t "
    "test over seeds)."
)
BREAK_EVEN = ("against", "break_even", "break_even_low", "break_even_high", "break_even_words")


def data(records: Records) -> pd.DataFrame:
    """One row per series and loss rate: reliable (whether the network repeats lost packets); mean, low and high of the
    virtual seconds to target_loss over the seeds, infinite where a seed never reached it. Rows of a tolerant series
    have its break-even rate with the reliable series `against`: break_even, break_even_low and break_even_high
    (fractions), break_even_words; several such series repeat the rows.

    attrs: rate_pointer (Records). Raises: NotMeant without virtual time, NothingToDraw without a target or a lossy run.
    """
    if not virtual_time.has_virtual_time(records):
        raise NotMeant("no run has a virtual clock")
    target = virtual_time.default_target(records)
    if math.isnan(target):
        raise NothingToDraw("no lossless or reliable run has finished, so there is no target loss")
    every = virtual_time.curves(records, target)
    if not every:
        raise NothingToDraw("no run that loses packets has finished on the virtual clock")
    found = virtual_time.break_evens(every)
    rows = []
    for curve in every:
        mine = [result for result in found if result.tolerant == curve.series] or [None]
        rows += [
            {"series": curve.series, "reliable": curve.reliable, "loss_rate": rate,
             **interval_columns(curve.interval(rate)), "target_loss": target, **_break_even_columns(result)}
            for result in mine for rate in curve.times if not math.isnan(rate)
        ]  # fmt: skip
    result = panels.frame_of(rows, "")
    result.attrs["rate_pointer"] = records.rate_pointer
    return result


def _break_even_columns(found: virtual_time.BreakEven | None) -> dict[str, object]:
    if found is None:
        return dict.fromkeys(BREAK_EVEN)
    return dict(zip(BREAK_EVEN, (found.reliable, found.rate, found.low, found.high, virtual_time.in_words(found)),
                    strict=True))  # fmt: skip


def describe(data: pd.DataFrame) -> dict[str, Any]:
    """Curves over the loss rate, break-even rates as vertical lines."""
    quantity = f"virtual time to a validation loss of {data['target_loss'].iloc[0]:.4g}"
    points = data.drop_duplicates(["series", "loss_rate"]).assign(without_loss=lambda d: d["loss_rate"] == 0)
    reached = points.assign(seeds=points["seeds"].where(np.isfinite(points["mean"]), 0))
    whole = drawing.over_rate(reached, "", quantity, "s", "series", "loss_rate", sign="") | {"bands": []}
    names = list(dict.fromkeys(data["series"]))
    looks = {c["name"]: c for c in whole["curves"]}
    for c in whole["curves"]:
        c["nudge"] = 0.0
        c["hollow"] = not points.loc[points["series"] == c["name"], "reliable"].iloc[0]
    for series in names:
        never = points[(points["series"] == series) & np.isinf(points["mean"])].to_dict("records")
        if never:
            text = [f"{drawing.point_words(row, series)}\na seed never reached the target" for row in never]
            same = {key: looks[series][key] for key in ("nudge", "hollow")}
            at = [100 * row["loss_rate"] for row in never]
            whole["curves"].append(drawing.edge(series, looks[series]["look"], at, "y", "high", text, **same))
    ends = whole["x"]["range"]
    found = data.dropna(subset=["against"]).drop_duplicates(["series", "against"])
    for row in found.itertuples():
        if 0 < row.break_even < math.inf:
            name = row.break_even_words + (f": {row.series}" if len(found) > 1 else "")
            said = f"{row.series}, against {row.against}:\n{row.break_even_words}"
            whole["lines"].append({"x": 100 * row.break_even, "dash": "dot", "look": looks[row.series]["look"],
                                   "name": name, "text": said})  # fmt: skip
        if not math.isnan(row.break_even_low):
            high = min(100 * row.break_even_high, ends[1])
            whole["bands"].append({"x": [max(100 * row.break_even_low, ends[0]), high]})
    drawing.fit([whole], include=(0,))
    whole["y"]["range"] = [0, whole["y"]["range"][1]]
    return drawing.figure(data, [whole | {"inches": 2.9}], 1, key="network", wide=True)
