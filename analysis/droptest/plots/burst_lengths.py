# SPDX-License-Identifier: Apache-2.0
"""Realised burst lengths against the theory of the loss process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from droptest import drawing
from droptest.files import Run, object_of
from droptest.loss_model import GilbertElliott, chain_of, processes_in
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw
from droptest.records import Records

NAME = "burst_lengths"
TITLE = "Burst lengths"
CAPTION = (
    "A burst is a series of lost packets without a packet between them that arrives. Dots: number of bursts of each "
    "length, over all seeds, links and classes. Lines with marks: the number that the theory of the loss process "
    "expects, where there is one. A hollow triangle: no burst occurred, and at least one was expected. Ratios are "
    "realised over expected numbers; bars: 95 % of Poisson counts. A length with fewer than five expected bursts has "
    "no ratio; a triangle at the edge is a ratio above two."
)
LEAST_EXPECTED = 5.0
MOST_RATIO = 2.0


def data(records: Records) -> pd.DataFrame:
    """One row per series, loss rate and burst length (packets): count and expected (bursts, over all runs of a point),
    ratio (count / expected) and deviation (half of its 95 % interval), NaN where too few bursts are expected.

    Raises: NothingToDraw without a burst.
    """
    bursts = records.bursts
    halves = bursts[bursts["half"] != "both"]
    bursts = halves if len(halves) else bursts
    shown, remark = panels.thinned_rates(*panels.shown_curves(records))
    shown = {series: [g for g in groups if not g.without_loss] for series, groups in shown.items()}
    shown = {series: groups for series, groups in shown.items()
             if bursts["run_id"].isin([i for g in groups for i in g.run_ids]).any()}  # fmt: skip
    if not shown:
        raise NothingToDraw("no packet was lost, or no loss statistics are there yet")
    parts = []
    for series, groups in shown.items():
        for group in groups:
            table = counts(records, bursts, group.run_ids).rename_axis("length").reset_index()
            fair = table["expected"].where(table["expected"] >= LEAST_EXPECTED)
            table["ratio"], table["deviation"] = table["count"] / fair, 1.96 / np.sqrt(fair)
            parts.append(table.assign(**panels.point_columns(series, group)))
    result = pd.concat(parts, ignore_index=True)
    result.attrs["remark"] = remark
    return result


def counts(records: Records, bursts: pd.DataFrame, run_ids: tuple[str, ...]) -> pd.DataFrame:
    """count and expected by length (index, from 1 on without gaps), added up over runs, classes and halves.

    A record may list only the lengths that occurred. The expected counts of the others come from the process of the
    spec, at the record's own scale. So the sum over runs does not fall where one run's list ends.
    """
    mine = bursts[bursts["run_id"].isin(run_ids)]
    if mine.empty:
        return pd.DataFrame({"count": [], "expected": []})
    lengths = np.arange(1, mine["length"].max() + 1)
    place, count, expected = mine["length"].to_numpy() - 1, mine["count"].to_numpy(), mine["expected"].to_numpy()
    total = {"count": np.zeros(len(lengths)), "expected": np.zeros(len(lengths))}
    of_process = mine.groupby(["run_id", "class", "half"], sort=False).indices
    laws: dict[GilbertElliott, np.ndarray] = {}
    for key, rows in sorted(of_process.items(), key=lambda item: item[1][0]):
        np.add.at(total["count"], place[rows], count[rows])
        known = rows[~np.isnan(expected[rows])]
        own = np.full(len(lengths), np.nan)
        own[place[known]] = 0.0
        np.add.at(own, place[known], expected[known])
        if np.isnan(own).any() and own[place[known]].max(initial=0.0) > 0:
            run_id, *half = key
            if (chain := _chain_of(records.files[run_id], *half)) is not None:
                if chain not in laws:
                    laws[chain] = chain.bursts_per_packet(lengths)
                own = _completed(own, laws[chain])
        total["expected"] += own
    return pd.DataFrame(total, index=lengths)


def _chain_of(run: Run, traffic_class: str, half: str) -> GilbertElliott | None:
    """The process of the spec; of the summary, which has its rate and mean burst, where there is no spec."""
    process = processes_in(object_of(run.spec.get("network"))).get((traffic_class, half))
    return chain_of(process or object_of(object_of(run.summary.get("loss")).get(traffic_class)).get(half))


def _completed(expected: np.ndarray, law: np.ndarray) -> np.ndarray:
    """`expected`, of which one is above 0, with its gaps filled by the chain's law."""
    anchor = int(np.nanargmax(expected))
    if law[anchor] <= 0:
        return expected
    return np.where(np.isnan(expected), law * expected[anchor] / law[anchor], expected)


def describe(data: pd.DataFrame) -> dict[str, Any]:
    """Counts and expectations, and their ratios, for each series."""
    looks, number, ratio = drawing.looks(data), [], []
    x = {"title": "burst length (packets)", "whole": True}
    for series in panels.series_in(data):
        tops, bottoms = [], []
        for name, part in panels.curves_in(data[data["panel"] == series]):
            look = looks.point(part["series"].iloc[0], part["loss_rate"].iloc[0])
            known, seen = part[part["expected"] >= 0.5], part[(part["count"] > 0) | (part["expected"] >= 1)]
            tops.append(drawing.curve(name, look, known["length"], known["expected"]))
            text = [f"{name}\nbursts of {length:.0f} packets: {count:.0f}"
                    for length, count in zip(seen["length"], seen["count"], strict=True)]  # fmt: skip
            zero = seen["count"] == 0
            tops.append(drawing.curve(name, look, seen["length"], seen["count"].where(~zero), "points", text=text))
            if zero.any():
                tops.append(drawing.edge(name, look, seen.loc[zero, "length"], "y", "low",
                                         [one for one, none in zip(text, zero, strict=True) if none],
                                         hollow=True))  # fmt: skip
            fair = part[part["ratio"].notna()]
            low, high = fair["ratio"] - fair["deviation"], fair["ratio"] + fair["deviation"]
            bottoms.append(drawing.curve(name, look, fair["length"], fair["ratio"], "bars", low=low, high=high))
        number.append(drawing.panel((series, ""), dict(x), {"title": "number of bursts", "type": "log"}, tops))
        if not any(one["x"] for one in bottoms):
            ratio.append(None)
            continue
        ratio.append(drawing.panel((series, "") if len(data["panel"].unique()) > 1 else "", dict(x),
                                   {"title": "realised /\nexpected"}, bottoms, {"y": 1, "dash": "dot"},
                                   inches=1.3))  # fmt: skip
    drawing.fit(number, include=(0.5,))
    drawing.fit([one for one in ratio if one], view=(0.0, MOST_RATIO))
    for pair in zip(number, ratio, strict=True):
        drawing.fit([one for one in pair if one], along="x")
    columns = min(panels.PANELS_PER_ROW, len(number))
    return drawing.figure(data, drawing.blocks(columns, number, ratio), columns, key="packet loss rate",
                          order=panels.rates_in_order(data))  # fmt: skip
