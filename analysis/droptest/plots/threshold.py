# SPDX-License-Identifier: Apache-2.0
"""The results of a search for the tolerable loss rate: the paired difference over the rate, and the threshold."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from droptest import drawing
from droptest.looks import Look
from droptest.loss_model import percent
from droptest.plots import panels, tolerance
from droptest.plots.nothing import NothingToDraw, NotMeant
from droptest.plots.tolerance import ABOVE
from droptest.records import Records
from droptest.words import decimal

NAME = "threshold"
TITLE = "Search for the tolerable loss rate"
CAPTION = (
    "Final validation loss above the lossless run with the same seed, in percent of its loss, over the loss rate. "
    "Dots: runs; marks: mean over seeds with the interval of the verdict (Student t; the error probability is divided "
    "by the number of tests that a rate can get). Dashed line: the tolerance. Grey band: from the highest rate that "
    "passes to the lowest rate that fails, both by their intervals; dotted line: the estimate. A cross at the edge: a "
    "rate with runs that diverged. " + panels.FAR_CAPTION
)
LOOKS = {"passes": Look("#228833", 0), "undecided": Look("#888888", 1), "fails": Look("#cc3311", 2)}


def data(records: Records) -> pd.DataFrame:
    """`Records.searches`: one row per run of the search.

    Raises: NotMeant without a search, NothingToDraw where it has judged nothing.
    """
    search = records.search
    if search is None or not search.judged:
        raise NotMeant("no search was made") if search is None else NothingToDraw("the search has judged no rate yet")
    return records.searches


def describe(data: pd.DataFrame) -> dict[str, Any]:
    """Runs as dots, rates as marks, over the loss rate: around the tolerance, and everything where there is more."""
    limit, estimate = float(data["tolerance"].iloc[0]), float(data["threshold"].iloc[0])
    judged = data.drop_duplicates("rate").assign(seeds=lambda d: [(data["rate"] == rate).sum() for rate in d["rate"]])
    found = []
    view = tolerance.view(data)
    for title, limits in (("around the tolerance", view), ("everything", None)):
        axis, curves = drawing.rate_axis(data["rate"]), []
        for verdict, look in LOOKS.items():
            mine, runs = judged[judged["verdict"] == verdict], data[data["verdict"] == verdict]
            known, lost = mine[mine["mean"].notna()], mine[mine["mean"].isna()]
            runs = runs[runs["difference"].notna()]
            text = [f"{verdict}\npacket loss rate {percent(r)}\none run: {decimal(d, sign='+')} % {ABOVE}"
                    for r, d in zip(runs["rate"], runs["difference"], strict=True)]  # fmt: skip
            curves.append(drawing.curve(verdict, look, 100 * runs["rate"], runs["difference"], "points", text=text))
            if len(mine):
                text = [f"{verdict}\npacket loss rate {percent(row['rate'])}\n{drawing.told(row, ABOVE, '%')}"
                        for row in known.to_dict("records")]  # fmt: skip
                curves.append(drawing.curve(verdict, look, 100 * known["rate"], known["mean"], "bars",
                                            low=known["low"], high=known["high"], text=text))  # fmt: skip
            if len(lost):
                text = [f"packet loss rate {percent(r)}: runs diverged" for r in lost["rate"]]
                curves.append(drawing.edge(verdict, look, 100 * lost["rate"], "y", "high", text, "x"))
        lines = [drawing.NO_DIFFERENCE, {"y": limit, "dash": "dash", "name": f"tolerance {limit:g} %"}]
        if not math.isnan(estimate):
            lines.append({"x": 100 * estimate, "dash": "dot", "name": f"estimate {100 * estimate:.3g} %"})
        ends = (100 * float(data[f"threshold_{end}"].iloc[0]) for end in ("low", "high"))
        band = [edge if math.isnan(end) else end for end, edge in zip(ends, axis["range"], strict=True)]
        one = drawing.panel(title, axis, {"title": f"{ABOVE}\n(% of its validation loss)"}, curves, *lines,
                            bands=[{"x": band}])  # fmt: skip
        drawing.fit([one], panels.FAR_PERCENT, view=limits, include=(0, limit))
        found.append(one)
    seen = data[["mean", "difference"]].stack()
    seen = seen[seen.abs() <= panels.FAR_PERCENT]
    if len(seen) and view[0] <= seen.min() and seen.max() <= view[1]:
        found = [found[0] | {"title": ""}]
    return drawing.figure(data, found, key="verdict")
