# SPDX-License-Identifier: Apache-2.0
"""Realised burst lengths against the theory of the loss process."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from droptest import style
from droptest.files import Run, object_of
from droptest.loss_model import GilbertElliott, chain_of, processes_in
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw
from droptest.records import Records

NAME = "burst_lengths"
TITLE = "Burst lengths"
CAPTION = (
    "Top: how many bursts of each length occurred (points), over all seeds, links and classes of a point, and how many "
    "the theory of the loss process expects (lines). Bottom: realised over expected; bars: 95 % of Poisson counts. "
    "Lengths for which fewer than five bursts are expected are left out below; a triangle at the edge is a ratio above "
    "two."
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


def draw(data: pd.DataFrame) -> Figure:
    """Counts and expectations above, their ratios below."""
    marks = panels.rate_marks(data)
    shown = list(dict.fromkeys(data["panel"]))
    blocks = -(-len(shown) // panels.PANELS_PER_ROW)
    figure, grid = panels.grid(shown, 3.5, 2, gridspec_kw={"height_ratios": [2, 1] * blocks})
    for series, (top, bottom) in grid.items():
        for curve, part in panels.curves_in(data[data["panel"] == series]):
            _draw_group(top, bottom, part, marks[curve])
        top.set_yscale("log")
        top.set_ylim(bottom=0.5)
        top.tick_params(labelbottom=False)
        bottom.axhline(1, color="0.3", linestyle=":", linewidth=1)
        bottom.set_ylim(0, MOST_RATIO)
        bottom.set_xlabel("burst length (packets)")
        bottom.set_xlim(top.get_xlim())
        for ax in (top, bottom):
            ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if top.get_subplotspec().is_first_col():
            top.set_ylabel("number of bursts")
            bottom.set_ylabel("realised /\nexpected")
    handles = {name: Line2D([], [], color=m.color, marker=m.marker, linestyle=m.linestyle, markersize=4)
               for name, m in marks.items()}  # fmt: skip
    panels.finish(figure, data, handles, marks)
    return figure


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


def _draw_group(top, bottom, table: pd.DataFrame, mark: style.Mark) -> None:
    length = table["length"].to_numpy()
    count, expected = table["count"].to_numpy(float), table["expected"].to_numpy(float)
    known = np.isfinite(expected) & (expected >= 0.5)
    top.plot(length[known], expected[known], color=mark.color, linestyle=mark.linestyle, linewidth=1, zorder=2)
    seen = count > 0
    size = 3.5 if len(table) < 40 else 2
    top.plot(length[seen], count[seen], color=mark.color, marker=mark.marker, linestyle="none", markersize=size,
             markeredgewidth=0, zorder=3)  # fmt: skip
    fair = table[table["ratio"].notna()]
    bottom.errorbar(
        fair["length"], fair["ratio"], yerr=fair["deviation"], color=mark.color,
        marker=mark.marker, linestyle="none", markersize=size, markeredgewidth=0, elinewidth=0.5, capsize=0,
    )  # fmt: skip
    panels.at_edge(bottom, fair.loc[fair["ratio"] > MOST_RATIO, "length"], 0.97, "^", mark.color)
