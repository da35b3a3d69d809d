# SPDX-License-Identifier: Apache-2.0
"""Which loss rate is tolerable: the paired difference to lossless, each seed a point, with the tolerance."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from droptest import drawing
from droptest.loss_model import percent
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw
from droptest.records import Records
from droptest.rows_by_run import RowsByRun
from droptest.statistics import interval_columns
from droptest.summary import Group, cells_in
from droptest.variance import interval_of
from droptest.words import decimal

NAME = "tolerance"
TITLE = "Tolerable loss rate"
CAPTION = (
    "Final validation loss above that of the lossless twin, in percent of the twin's loss. Small points: single seeds; "
    "marks: mean over seeds with its 95 % interval (Student t). Dashed line: the tolerance. Dotted line: no "
    "difference. If points lie far from the tolerance, the first panel shows only its neighbourhood, and the second "
    "panel shows all points. A triangle at an edge: a mean outside the panel. " + panels.CROSS_CAPTION
)
TOLERANCE_PERCENT = 1.0  # that of a spec's `search`, where it names none
ABOVE = "above lossless twin"
PASSES, UNDECIDED, FAILS = "tolerable", "undecided", "not tolerable"


def data(records: Records) -> pd.DataFrame:
    """One row per series, loss rate (late packets included) and pair of runs with the same seeds: the pair's difference
    (NaN where the run has none), and of the point mean, low and high over seeds (number of pairs), diverged, runs and
    verdict; in percent of the lossless twin's final loss. tolerance: likewise.

    verdict: tolerable where the interval lies within the tolerance, not tolerable where it lies above it or a run
    diverged, else undecided. Raises: NothingToDraw where no run has a lossless twin.
    """
    shown, remark = panels.shown_curves(records)
    tolerance = records.search.tolerance_percent if records.search is not None else TOLERANCE_PERCENT
    final = records.runs.set_index("run_id")["final_validation_loss"]
    # Not the run's own loss minus the difference: beside the loss of a diverging run the twin's is rounded away.
    runs = records.runs.assign(percent=100 * records.runs["difference"] / records.runs["twin"].map(final).astype(float))
    of_run = RowsByRun(runs)
    rows = []
    for series, groups in shown.items():
        for group in (g for g in groups if not g.without_loss):
            interval = interval_of(cells_in(of_run, group, "percent"))
            columns = panels.point_columns(series, group) | interval_columns(interval)
            columns |= {"loss_rate": group.missing_rate, "diverged": group.count("diverged"),
                        "runs": sum(group.statuses.values()), "tolerance": tolerance}  # fmt: skip
            columns["verdict"] = _verdict(group, columns["low"], columns["high"], tolerance)
            rows += [
                columns | {"seed": str(seed), "difference": difference}
                for seed, difference in zip(*of_run.columns(group.run_ids, "seed", "percent"), strict=True)
            ]
    if not any(row["seeds"] or row["diverged"] for row in rows):
        raise NothingToDraw("no finished run has a finished lossless twin, both with a final validation loss")
    result = panels.frame_of(rows, remark)
    result.attrs["rate_pointer"] = records.rate_pointer
    return result


def _verdict(group: Group, low: float, high: float, tolerance: float) -> str:
    if group.count("diverged") or low > tolerance:
        return FAILS
    return PASSES if high <= tolerance else UNDECIDED


def points_of(data: pd.DataFrame) -> pd.DataFrame:
    """The rows of `data` by point, without the single pairs."""
    return data.drop(columns=["seed", "difference"]).drop_duplicates(["panel", "loss_rate"]).reset_index(drop=True)


def findings(data: pd.DataFrame) -> list[str]:
    """The tolerated loss rates of each series, a sentence each."""
    sentences = []
    for series, points in points_of(data).groupby("panel", sort=False):
        points = points.dropna(subset=["loss_rate"]).sort_values("loss_rate")
        verdicts = dict(zip(points["loss_rate"], points["verdict"], strict=True))
        passed = [r for r in verdicts if all(v == PASSES for other, v in verdicts.items() if other <= r)]
        failed = [r for r, verdict in verdicts.items() if verdict == FAILS]
        open_ = [r for r, verdict in verdicts.items() if verdict == UNDECIDED]
        alone = [r for r, verdict in verdicts.items() if verdict == PASSES and r not in passed]
        text = f"{series}: " + (
            f"{percent(max(passed))} is tolerable" if passed else "no tested rate is certainly tolerable"
        )
        if alone:
            text += f" together with all lower rates; by itself tolerable: {', '.join(map(percent, alone))}"
        text += f"; {percent(min(failed))} is not tolerable" if failed else ""
        text += f"; undecided until there are more seeds: {', '.join(map(percent, open_))}" if open_ else ""
        sentences.append(f"{text}.")
    return sentences


def view(data: pd.DataFrame) -> tuple[float, float]:
    """The range of the enlarged panel: the tolerance and, as far as four times that, means and pairs."""
    tolerance = data["tolerance"].iloc[0]
    seen = data[["mean", "difference"]].stack()
    seen = [0.0, *seen[seen.abs() <= 4 * tolerance]]
    return 1.15 * min(*seen, -0.6 * tolerance), 1.15 * max(*seen, 1.6 * tolerance)


def one_rate(data: pd.DataFrame) -> bool:
    """Whether the figure compares several series at a single rate."""
    return data["loss_rate"].nunique(dropna=False) <= 1 and data["panel"].nunique() > 1


def describe(data: pd.DataFrame) -> dict[str, Any]:
    """The neighbourhood of the tolerance, and everything where there is more; a row per series at a single rate."""
    points, limit = points_of(data), float(data["tolerance"].iloc[0])
    tolerance = {"dash": "dash", "name": f"tolerance {limit:g} %"}
    if one_rate(data):
        at = data["loss_rate"].iloc[0]
        label = f"{ABOVE} (% of its validation loss)" + ("" if math.isnan(at) else f" at {percent(at)} loss")
        whole = drawing.in_rows(points, "", ABOVE, "%", points["panel"], "panel")
        whole |= {"x": {"title": label}, "lines": [{"x": 0, "dash": "dot"}, {"x": limit, **tolerance}]}
        for row, series in enumerate(points["panel"]):
            whole["curves"].append(_pairs(data, series, [row + 0.22], "x"))
            if points["diverged"].iloc[row] and points["seeds"].iloc[row]:
                look = drawing.looks(data).point(series, at)
                text = [drawing.point_words(points.iloc[row], series)]
                whole["curves"].append(drawing.edge(series, look, [row], "x", "high", text, "x"))
        drawing.fit([whole], panels.FAR_PERCENT, "x", include=(0, limit))
        return drawing.figure(data, [whole], 1)
    low, high = view(data)
    seen = data[["mean", "low", "high", "difference"]].stack()
    found = []
    for title, limits in (("around the tolerance", (low, high)), ("everything", None)):
        one = drawing.over_rate(points, "", ABOVE, "% of its validation loss", rate="loss_rate", title=title,
                                diverged=True)  # fmt: skip
        every = panels.series_in(data)
        one["curves"] += [_pairs(data, series, None, "y", drawing.nudge(place, len(every), one["x"], 0.03))
                          for place, series in enumerate(every)]  # fmt: skip
        one["lines"] = [drawing.NO_DIFFERENCE, {"y": limit, **tolerance}]
        drawing.fit([one], panels.FAR_PERCENT, view=limits, include=(0, limit))
        found.append(one)
    seen = seen[seen.abs() <= panels.FAR_PERCENT]
    if not len(seen) or (low <= seen.min() and seen.max() <= high):
        return drawing.figure(data, [found[0] | {"title": ""}])
    return drawing.figure(data, found)


def _pairs(data: pd.DataFrame, series: str, rows: list[float] | None, along: str, step: float = 0.0) -> dict[str, Any]:
    """Each pair of a series as a small point, to the right of the mean of its rate."""
    mine = data[(data["panel"] == series) & data["difference"].notna()]
    mine = mine if rows else mine[mine["loss_rate"].notna()]
    looks, text = drawing.looks(data), [
        f"{series}\npacket loss rate {percent(p.loss_rate)}\n"
        f"seed {p.seed}: {decimal(p.difference, sign='+')} % {ABOVE}" for p in mine.itertuples()
    ]  # fmt: skip
    places = rows * len(mine) if rows else 100 * mine["loss_rate"]
    x, y = (mine["difference"], places) if along == "x" else (places, mine["difference"])
    return drawing.curve(series, looks.curve(series), x, y, "points", text=text, along=along, nudge=step,
                         hues=[looks.hue(rate) for rate in mine["loss_rate"]])  # fmt: skip
