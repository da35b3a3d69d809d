# SPDX-License-Identifier: Apache-2.0
"""Where packets were lost: a heat map of the links, source by destination."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from droptest import drawing, words
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw, NotMeant
from droptest.records import Records

NAME = "links"
TITLE = "Loss of each link"
CAPTION = (
    "Share of packets lost on each link, from the source (row) to the destination (column), over all seeds of a point, "
    "by traffic class and half. Grey: no packet was sent."
)
MOST_POINTS = 6


def data(records: Records) -> pd.DataFrame:
    """One row per point, class, half, source and destination: packets, lost (sums over the seeds), realised_rate and
    z (of the sum, by Stouffer).

    Raises: NotMeant without records of links, NothingToDraw where none of them lost a packet.
    """
    links = records.links.dropna(subset=["source", "destination"]) if len(records.links) else records.links
    if not len(links):
        raise NotMeant("links were not recorded")
    shown, remark = panels.shown_curves(records)
    recorded = set(links["run_id"])
    groups = [(s, g) for s, row in shown.items() for g in row if not g.without_loss and recorded & set(g.run_ids)]
    if len(groups) > MOST_POINTS:
        remark = "; ".join(filter(None, [remark, f"first {MOST_POINTS} of {len(groups)} points"]))
    parts = []
    for series, group in groups[:MOST_POINTS]:
        mine = links[links["run_id"].isin(group.run_ids)]
        found = mine.groupby(["class", "half", "source", "destination"], as_index=False).agg(
            packets=("packets", "sum"), lost=("lost", "sum"), z=("z", "sum"), seeds=("run_id", "nunique"))  # fmt: skip
        found = found[found["packets"] > 0]
        found["realised_rate"], found["z"] = found["lost"] / found["packets"], found["z"] / np.sqrt(found["seeds"])
        parts.append(found.assign(**panels.point_columns(series, group), name=group.name_with_rate))
    result = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame({"lost": []})
    if not (result["lost"] > 0).any():
        raise NothingToDraw("no link lost a packet")
    result.attrs["remark"] = remark
    return result


def matrix(part: pd.DataFrame) -> np.ndarray:
    """Realised loss rates in percent, source by destination; NaN where nothing was sent."""
    ranks = int(max(part["source"].max(), part["destination"].max())) + 1
    cells = np.full((ranks, ranks), np.nan)
    cells[part["source"].astype(int), part["destination"].astype(int)] = 100 * part["realised_rate"]
    return cells


def describe(data: pd.DataFrame) -> dict[str, Any]:
    """A row of maps per point, a column per class and half, with one scale of colours."""
    names = list(dict.fromkeys(data["name"]))
    columns = list(dict.fromkeys(zip(data["class"], data["half"], strict=True)))
    found, most = [], 100 * float(data["realised_rate"].max())
    for name in names:
        for traffic_class, half in columns:
            part = data[(data["name"] == name) & (data["class"] == traffic_class) & (data["half"] == half)]
            if part.empty:
                found.append(None)
                continue
            cells = matrix(part)
            ranks = range(len(cells))
            some = list(ranks)[:: -(-len(cells) // 8)]
            axis = {"ticks": some, "labels": list(map(str, some))}
            text = [["" if math.isnan(cells[s, d]) else
                     f"from rank {s} to rank {d}: {cells[s, d]:.4f} % of the packets lost" for d in ranks]
                    for s in ranks]  # fmt: skip
            title = (name, f"{words.spoken(traffic_class)}, {words.HALVES.get(half, half)}")
            sources = axis | {"title": "source (rank)", "rows": len(cells)}
            found.append(drawing.heat_map(title, axis | {"title": "destination (rank)"}, sources, cells, (0.0, most),
                                          text, square=True))  # fmt: skip
    return drawing.figure(data, found, min(len(columns), 4), bar="packets lost (%)", least=200)
