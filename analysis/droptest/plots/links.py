# SPDX-License-Identifier: Apache-2.0
"""Where packets were lost: a heat map of the links, source by destination."""

from __future__ import annotations

import textwrap

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from droptest import style, words
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


def draw(data: pd.DataFrame) -> Figure:
    """A row of heat maps per point, a column per class and half."""
    names = list(dict.fromkeys(data["name"]))
    columns = list(dict.fromkeys(zip(data["class"], data["half"], strict=True)))
    figure, axes = style.figure(style.DOUBLE_COLUMN, 0.5 + 1.6 * len(names), len(names), len(columns))
    most = 100 * data["realised_rate"].max()
    for row, name in enumerate(names):
        for column, (traffic_class, half) in enumerate(columns):
            ax = axes[row][column]
            part = data[(data["name"] == name) & (data["class"] == traffic_class) & (data["half"] == half)]
            ax.grid(visible=False)
            ax.set_facecolor("0.9")
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
            ax.yaxis.set_major_locator(MaxNLocator(integer=True))
            if len(part):
                picture = ax.imshow(matrix(part), vmin=0, vmax=most, cmap="viridis")
            if row == 0:
                title = f"{words.spoken(traffic_class)}, {words.HALVES.get(half, half)}"
                ax.set_title("\n".join(textwrap.wrap(title, 18)), fontsize=7)
            if row == len(names) - 1:
                ax.set_xlabel("destination (rank)")
            if column == 0:
                ax.set_ylabel(panels.panel_title(name, 24) + "\nsource (rank)", fontsize=7)
    figure.colorbar(picture, ax=[ax for row in axes for ax in row], label="packets lost (%)", shrink=0.8)
    if data.attrs["remark"]:
        figure.suptitle(data.attrs["remark"], fontsize=7)
    return figure
