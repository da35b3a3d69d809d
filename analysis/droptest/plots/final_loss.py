# SPDX-License-Identifier: Apache-2.0
"""Final validation loss against the loss rate, and the paired difference to the lossless twin."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from droptest import drawing, words
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw
from droptest.records import Records
from droptest.statistics import interval_columns

NAME = "final_loss"
TITLE = "Final validation loss"
CAPTION = (
    "Final validation loss, and its difference to that of the lossless twin, the run without loss with the same seeds. "
    "Points: mean over seeds; bars: 95 % interval (Student t), none with one seed. The differences are paired by seed, "
    "so the spread between seeds does not widen their intervals. Dotted line: no difference. Values above a "
    "picture: the best one of each point, in the shade of its curve. An axis with a shaded part is linear in that part "
    f"and logarithmic outside. {panels.CROSS_CAPTION} Runs that diverged have no final "
    f"loss. {panels.FAR_CAPTION}"
)
LONGEST_NAME, LONGEST_VALUE = 30, 14  # characters, of what is above the panel
MOST_WINNERS = 4  # curves; the best values of more would fill the figure: table and hover text have them
LOSS_LABEL, DIFFERENCE_LABEL = "final validation loss", "difference to lossless twin"


def data(records: Records) -> pd.DataFrame:
    """One row per curve (`panel`, a series with its lossless twins) and loss rate: final_mean, final_low and final_high
    of the final validation loss over final_seeds, difference_... likewise of the difference to the lossless twins, nats
    per token; diverged, runs (counts); missing_rate (the place on the axis: the loss rate with late packets); name.

    attrs: rate_pointer (Records). Raises: NothingToDraw without a finished run.
    """
    shown, remark = panels.shown_curves(records)
    rows = [
        panels.point_columns(series, group)
        | interval_columns(group.final, "final_") | interval_columns(group.difference, "difference_")
        | {"diverged": group.count("diverged"), "runs": sum(group.statuses.values()),
           "missing_rate": group.missing_rate, "name": group.name_with_rate}
        for series, groups in shown.items() for group in groups
    ]  # fmt: skip
    if not any(row["final_seeds"] or row["diverged"] for row in rows):
        raise NothingToDraw("no finished run has a validation loss")
    result = panels.frame_of(rows, remark)
    result.attrs["rate_pointer"] = records.rate_pointer
    return result


def describe(data: pd.DataFrame) -> dict[str, Any]:
    """Curves over the loss rate; at a single rate a row per point."""
    unit, far, paired = data.attrs["unit"], data.attrs["far"], data["difference_seeds"].any()
    if panels.one_rate(data):
        points = data.drop_duplicates(["series", "loss_rate"])
        found = [drawing.in_rows(points, "final_", LOSS_LABEL, unit, points["name"], sign="")]
        if paired:
            rows = points.assign(diverged=0)
            found.append(drawing.in_rows(rows, "difference_", DIFFERENCE_LABEL, unit, points["name"]))
            found[1]["lines"] = [{"x": 0, "dash": "dot"}]
            drawing.fit(found[1:], far, "x", include=(0,))
        drawing.fit(found[:1], far, "x")
        return drawing.figure(data, found, least=480)
    found = [drawing.over_rate(data, "final_", LOSS_LABEL, unit, sign="", diverged=True)]
    drawing.fit(found, far)
    if data["panel"].nunique() <= MOST_WINNERS:
        found[0]["above"] = _above(data)
    if paired:
        found.append(drawing.over_rate(data[~data["without_loss"]], "difference_", DIFFERENCE_LABEL, unit))
        found[1]["lines"] = [drawing.NO_DIFFERENCE]
        drawing.fit(found[1:], far, include=(0,), signed=True)
    return drawing.figure(data, found)


def winners(data: pd.DataFrame) -> tuple[str, list[str]]:
    """The name of the best values, and the value of each row: "learning rate" and "0.001", "0.002", ...

    The values of several pointers, or labels, have no name in common: they are given whole.
    """
    split = [text.rpartition(" ") for text in data["best_value"]]
    names = {name for (name, _, value) in split if value}
    if len(names) == 1 and "," not in (name := names.pop()) and len(name) <= LONGEST_NAME:
        return name, [value for _, _, value in split]
    return "value", list(data["best_value"])


def _above(data: pd.DataFrame) -> dict[str, Any] | None:
    """The best value of each point above the panel, a line per curve."""
    name, values = winners(data)
    if not any(values):
        return None
    shown, looks = list(dict.fromkeys(data["panel"])), drawing.looks(data)
    rows = [(100 * p.missing_rate, shown.index(p.panel), words.cut(value, LONGEST_VALUE))
            for p, value in zip(data.itertuples(), values, strict=True) if not math.isnan(p.missing_rate)]  # fmt: skip
    return {"title": f"best {name} of each point", "texts": rows, "looks": [looks.curve(series) for series in shown]}
