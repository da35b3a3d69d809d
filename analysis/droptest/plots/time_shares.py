# SPDX-License-Identifier: Apache-2.0
"""Shares of the wall time: a row per rank of a single run, or per point of a sweep."""

from __future__ import annotations

from typing import Any

import pandas as pd

from droptest import drawing, wall_time
from droptest.looks import category
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw
from droptest.records import Records

NAME = "time_shares"
TITLE = "Where the wall time goes"
CAPTION = (
    "Shares of the wall time, which add up to 100 %. A single run has a row for each rank; several runs have a row for "
    "each point, mean over ranks and seeds. Exposed transfer: the rank is in collectives and computes nothing. Parts "
    'below 0.5 % in all rows are added to "other". Step 0, which has the start of the run, is left out.'
)
MOST_ROWS = 40
SMALL = 0.005


def data(records: Records) -> pd.DataFrame:
    """One row per row of the figure and part, in the order of the figure: row (name), part, title, share (fraction).

    Raises: NothingToDraw where no run has the numbers, or where there are too many rows for one figure.
    """
    shares = wall_time.rank_shares(records)
    if shares.empty:
        raise NothingToDraw(
            "the records have no wall times of steps after step 0 (ranks[i].wall_seconds of metrics.jsonl): there are "
            "no such steps, or an older version recorded the run"
        )
    if shares["run_id"].nunique() == 1 and len(records.runs) == 1:
        shares["row"] = [f"rank {rank}" for rank in shares["rank"]]
        rows = list(dict.fromkeys(shares.sort_values("rank")["row"]))
    else:
        name_of = {i: one.group.name_with_rate for one in wall_time.breakdowns(records)
                   for i in one.group.run_ids}  # fmt: skip
        shares["row"] = shares["run_id"].map(name_of)
        rows = list(dict.fromkeys(name for name in name_of.values() if name in set(shares["row"])))
    if len(rows) > MOST_ROWS:
        raise NothingToDraw(f"{len(rows)} rows, of which one figure holds {MOST_ROWS}; the table has all")
    count = shares[["row", "run_id", "rank"]].drop_duplicates()["row"].value_counts()
    table = shares.pivot_table(index="row", columns="part", values="share", aggfunc="sum", fill_value=0.0)
    table = table.div(count, axis=0).loc[rows]
    small = [part for part in table if part not in (*wall_time.WORK, "other") and table[part].max() < SMALL]
    table["other"] = table.get("other", 0.0) + table[small].sum(axis=1)
    table = table.drop(columns=small)
    parts = wall_time.ordered(pd.Series(list(table)))
    return panels.frame_of(
        [{"row": row, "part": part, "title": wall_time.title_of(part), "share": float(table.loc[row, part])}
         for row in rows for part in parts], "",
    )  # fmt: skip


def describe(data: pd.DataFrame) -> dict[str, Any]:
    """Stacked bars, one on the other along the row, in percent."""
    rows, curves = list(dict.fromkeys(data["row"])), []
    for place, title in enumerate(dict.fromkeys(data["title"])):
        shares = data[data["title"] == title].set_index("row")["share"]
        text = [f"{row}\n{title}: {100 * shares[row]:.2f} %" for row in rows]
        curves.append(drawing.curve(title, category(place), [100 * shares[row] for row in rows], range(len(rows)),
                                    "stack", text=text))  # fmt: skip
    x = {"title": "share of the wall time (%)", "range": [0, 100]}
    return drawing.figure(data, [drawing.panel("", x, drawing.rows_axis(rows), curves)], 1, longest=46)
