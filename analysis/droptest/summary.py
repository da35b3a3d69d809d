# SPDX-License-Identifier: Apache-2.0
"""The summary table: one row per point of the experiment, over its paired seeds."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd

from droptest.files import COUNTED, NOT_COUNTED, OF_PROGRAMS, PARTLY_COUNTED
from droptest.loss_model import percent
from droptest.rows_by_run import RowsByRun
from droptest.series import NO_PROCESS
from droptest.statistics import NOTHING, Interval, interval_columns, pooled_z
from droptest.variance import ONE_NETWORK, ONE_TRAINING, design_of, interval_of
from droptest.words import decimal, shortened

# The limits of an interval over runs that share a seed.
LIMITS = {ONE_TRAINING: "interval over networks of one training", ONE_NETWORK: "interval over trainings of one network"}


class Frames(Protocol):
    """The frames that a summary is made of; records.Records has them all."""

    runs: pd.DataFrame
    loss_statistics: pd.DataFrame
    time: pd.DataFrame
    recoveries: pd.DataFrame
    varied: list[str]
    best_over: tuple[str, ...]

    @property
    def best(self) -> Frames:
        """The frames of the best value of each point."""


@dataclass(frozen=True)
class Group:
    """The runs of one point: equal but for the seed.

    loss_rate: fraction. final: final validation loss, nats per token. difference: to the lossless twins of the same
    seeds; `note` says why there is none. configured_rate, realised_rate: over all packets of the classes that lose.
    z: Stouffer's, over classes and seeds. late_rate: packets that missed a deadline; repaired_rate, resent_rate:
    packets that a recovery restored, or sent again (a reliable network's repetitions too); fractions of all packets
    sent at first, NaN where there is no deadline, recovery or repetition. lossless: all messages are exact;
    without_loss: no packet is missing, but messages may be compressed or transformed; compressed: those of some run
    are; reliable: all lost packets were repaired. marks: events that results may depend on ("resumed"), and in how many
    runs.
    """

    series: str
    loss_rate: float
    lossless: bool
    without_loss: bool
    compressed: bool
    loss_model: str
    mean_burst_packets: float
    run_ids: tuple[str, ...]
    twin_ids: tuple[str, ...]
    seeds: int
    statuses: Mapping[str, int]
    final: Interval
    difference: Interval
    note: str
    configured_rate: float
    realised_rate: float
    z: float
    best_value: str  # with best_over: the value that won, "learning rate 0.001"
    late_rate: float
    repaired_rate: float
    resent_rate: float
    reliable: bool
    marks: Mapping[str, int]

    @property
    def missing_rate(self) -> float:
        """Share of packets that a tolerant network misses: lost by the process, or in time for no deadline."""
        return self.loss_rate if math.isnan(self.late_rate) else 1 - (1 - self.loss_rate) * (1 - self.late_rate)

    @property
    def rate_words(self) -> str:
        """ "5 %", "5 % lost, 27 % late", "27 % late" without a loss process."""
        if math.isnan(self.late_rate):
            return "-" if self.loss_model == NO_PROCESS else percent(self.loss_rate)
        late = f"{100 * self.late_rate:.3g} % late"
        return late if self.loss_model == NO_PROCESS else f"{percent(self.loss_rate)} lost, {late}"

    @property
    def name_with_rate(self) -> str:
        """A row's name in figures with one row per series and loss rate."""
        words = [self.series] if self.without_loss or self.rate_words == "-" else [self.series, self.rate_words]
        return ", ".join(filter(None, [*words, self.best_value]))

    def count(self, status: str) -> int:
        return self.statuses.get(status, 0)


Columns = Mapping[str, Sequence[Any]]  # rows by column: a data frame, or lists


def cells_of(runs: Columns, column: str) -> dict[tuple[Any, Any], float]:
    """A column of the runs of one point by (training, network). Without loss no result depends on the network."""
    lossless = bool(np.all(runs["lossless"]))
    return {
        (training, training if lossless else network): float(value)
        for training, network, value in zip(runs["training"], runs["network_seed"], runs[column], strict=True)
        if math.isfinite(value)
    }  # fmt: skip


def cells_in(runs: RowsByRun, group: Group, column: str) -> dict[tuple[Any, Any], float]:
    """A column of the runs of a point by (training, network). runs: the frame `runs`."""
    names = ("lossless", "training", "network_seed", column)
    return cells_of(dict(zip(names, runs.columns(group.run_ids, *names), strict=True)), column)


def _known(values: Iterable[Any]) -> list[Any]:
    """The values that are neither None nor NaN."""
    return [value for value in values if value is not None and value == value]


def _difference(runs: Columns) -> tuple[Interval, str]:
    if set(runs["status"]) <= set(OF_PROGRAMS):
        return NOTHING, ""
    if all(runs["lossless"]):
        return NOTHING, "is the lossless twin"
    if all(runs["without_loss"]):
        limit = LIMITS.get(design_of(cells_of(runs, "final_validation_loss")), "")
        kind = "compression" if any(runs["compressed"]) else "transform"
        return NOTHING, "; ".join(filter(None, [f"is the twin of lossy runs with this {kind}", limit]))
    if not _known(runs["twin"]):
        return NOTHING, "no lossless twin"
    cells = cells_of(runs, "difference")
    interval = interval_of(cells)
    if interval.n == 0:
        return interval, "no finished pair"
    finished, paired = (len(_known(runs[column])) for column in ("final_validation_loss", "difference"))
    notes = [
        f"{paired} of {finished} finished runs have a finished lossless twin" if paired < finished else "",
        "to the same compression without loss" if any(runs["compressed"]) else "",
        "one pair: no interval" if interval.n == 1 else LIMITS.get(design_of(cells), ""),
    ]
    return interval, "; ".join(filter(None, notes))


class _Counts:
    """The counts of packets of the runs of a point."""

    def __init__(self, records: Frames):
        self._statistics = RowsByRun(records.loss_statistics)
        self._time = RowsByRun(records.time)
        self._recoveries = RowsByRun(records.recoveries)

    def rates(self, members: Columns) -> tuple[float, float, float]:
        """Configured and realised rate over all packets, and the pooled z; per half where halves are recorded.

        Of the runs with one network the first counts: trainings that meet the same network lose the same packets.
        Halves that cannot lose are left out, so that loss in one half alone keeps its own rate.
        """
        of_network: dict[Any, str] = {}
        for run_id, network in zip(members["run_id"], members["network_seed"], strict=True):
            if run_id in self._statistics:
                of_network.setdefault(network, run_id)
        half, configured, packets, lost, z = self._statistics.columns(
            of_network.values(), "half", "configured_rate", "packets", "lost", "z"
        )
        halves = half != "both"
        counted = (halves if halves.any() else ~halves) & ((configured > 0) | (lost > 0)) & (packets > 0)
        configured, packets, lost, z = (values[counted] for values in (configured, packets, lost, z))
        total = np.nansum(packets)
        if not total:
            return math.nan, math.nan, math.nan
        return float(np.nansum(configured * packets) / total), float(np.nansum(lost) / total), pooled_z(z)

    def handled(self, run_ids: Sequence[str]) -> dict[str, float]:
        """Shares of packets that came late, were repaired, and were sent again."""
        packets, repeated, late, late_rate = self._time.columns(
            run_ids, "packets", "repeated_packets", "late_packets", "late_rate"
        )
        sent, repaired, resent = self._recoveries.columns(run_ids, "packets", "repaired", "resent")
        again = _share(resent, sent) if len(sent) else _share(np.where(repeated > 0, repeated, math.nan), packets)
        timed = ~np.isnan(late_rate)
        return {"late_rate": _share(late[timed], packets[timed]), "repaired_rate": _share(repaired, sent),
                "resent_rate": again}  # fmt: skip


def _share(part: np.ndarray, whole: np.ndarray) -> float:
    total = np.nansum(whole)
    return float(np.nansum(part) / total) if total > 0 and not np.isnan(part).all() else math.nan


def _distinct(texts: Iterable[str]) -> list[str]:
    return [text for text in dict.fromkeys(texts) if text]


OF_MEMBERS = (
    "run_id", "training", "network_seed", "seed", "status", "lossless", "without_loss", "compressed", "reliable",
    "marks", "loss_model", "mean_burst_packets", "final_validation_loss", "difference", "twin", "idle", "same_points",
    "best_value", "error",
)  # fmt: skip


def points_in(runs: pd.DataFrame) -> Iterator[tuple[str, float, dict[str, list[Any]]]]:
    """Series, loss rate and the columns OF_MEMBERS of each point, in the order of its first run."""
    places: dict[tuple[str, float | None], list[int]] = {}
    for place, (series, rate) in enumerate(zip(runs["series"], runs["loss_rate"], strict=True)):
        places.setdefault((series, None if math.isnan(rate) else rate), []).append(place)
    columns = {name: runs[name].tolist() for name in OF_MEMBERS}
    for (series, rate), mine in places.items():
        members = {name: [values[place] for place in mine] for name, values in columns.items()}
        yield series, math.nan if rate is None else float(rate), members


def groups(records: Frames) -> list[Group]:
    """One group per series and loss rate: lossless ones first, then by series in order of the sweep, and by rate.

    With best_over they are of the best value of each point.
    """
    chosen = bool(records.best_over)
    records = records.best
    counts = _Counts(records)
    order = {series: index for index, series in enumerate(dict.fromkeys(records.runs["series"]))}
    result = []
    for series, rate, members in points_in(records.runs):
        difference, note = _difference(members)
        final = interval_of(cells_of(members, "final_validation_loss"))
        if final.n == 1 and difference.n == 0:
            note = f"{note}; one seed: no interval".removeprefix("; ")
        configured, realised, z = counts.rates(members)
        remarks = [note, *(f"one run for several points: {text}" for text in _distinct(members["same_points"])),
                   *(f"see the warning about {text}" for text in _distinct(members["idle"]))]  # fmt: skip
        reliable = all(members["reliable"])
        remarks += _distinct(error or "" for error, status in zip(members["error"], members["status"], strict=True)
                             if status in OF_PROGRAMS)  # fmt: skip
        remarks += ["reliable: all lost packets were repaired"] * reliable
        best_value = " | ".join(_distinct(members["best_value"]))
        remarks += ["no best value: no run has finished"] * (chosen and not best_value)
        marks = Counter(mark for text in members["marks"] for mark in text.split(", ") if mark)
        statuses = dict(Counter(members["status"]).most_common())
        absent = {status: count for status, count in statuses.items() if status not in ENDED}
        runs = len(members["run_id"])
        remarks += [f"{name}: {count} of {runs} run{'s' * (runs != 1)}" for name, count in (absent | marks).items()]
        bursts = _known(members["mean_burst_packets"])
        result.append(
            Group(
                series=series, loss_rate=rate, lossless=all(members["lossless"]),
                without_loss=all(members["without_loss"]), compressed=any(members["compressed"]),
                reliable=reliable, marks=marks,
                loss_model=" | ".join(dict.fromkeys(members["loss_model"])),
                mean_burst_packets=float(np.mean(bursts)) if bursts else math.nan,
                run_ids=tuple(members["run_id"]), twin_ids=tuple(dict.fromkeys(_known(members["twin"]))),
                seeds=len(set(_known(members["seed"]))), statuses=statuses,
                final=final, difference=difference, note="; ".join(filter(None, remarks)),
                configured_rate=configured, realised_rate=realised, z=z,
                best_value=best_value, **counts.handled(members["run_id"]),
            )
        )  # fmt: skip
    return sorted(result, key=lambda g: (not g.lossless, not g.without_loss, order[g.series], g.loss_rate))


def series_in(records: Frames) -> list[str]:
    """The series that lose packets, in order of the sweep; where there are none, the lossless ones."""
    runs = records.best.runs
    lossy = runs[~runs["without_loss"]]
    return list(dict.fromkeys((lossy if len(lossy) else runs)["series"]))


def curves(records: Frames) -> dict[str, list[Group]]:
    """The groups of each series by rate, its lossless twins first unless it has loss rate 0 itself.

    Runs without loss that are the twins of none are a series of their own, at the end.
    """
    every = groups(records)
    without_loss = [g for g in every if g.without_loss]
    place_of = {run_id: place for place, g in enumerate(without_loss) for run_id in g.run_ids}
    of_series: dict[str, list[Group]] = defaultdict(list)
    for group in every:
        of_series[group.series].append(group)
    result = {}
    for series in series_in(records):
        own = of_series[series]
        starts_at_zero = any(g.loss_rate == 0 for g in own)
        twins = {run_id for g in own for run_id in g.twin_ids} if not starts_at_zero else set()
        places = sorted({place_of[run_id] for run_id in twins if run_id in place_of})
        result[series] = [without_loss[i] for i in places if without_loss[i].series != series] + own
    shown = {run_id for groups in result.values() for g in groups for run_id in g.run_ids}
    return result | {g.series: [g] for g in without_loss if not shown & set(g.run_ids)}


def number(value: float, digits: int = 4) -> str:
    """A number for tables; a dash where there is none."""
    if value is None or math.isnan(value):
        return "-"
    return decimal(value, digits) if math.isfinite(value) else ("inf" if value > 0 else "-inf")


def percent_cell(rate: float) -> str:
    """A measured fraction for tables; a dash where there is none."""
    return "-" if math.isnan(rate) else f"{100 * rate:.4f} %"


def with_interval(interval: Interval, digits: int = 4, signed: str = "") -> str:
    """ "2.4012 +- 0.0021"; the mean alone where there is no interval."""
    if interval.n == 0:
        return "-"
    mean = decimal(interval.mean, digits, signed)
    return f"{mean} ± {decimal(interval.half_width, digits)}" if interval.has_width else mean


def interval_json(interval: Interval) -> dict[str, Any]:
    return {
        "mean": None if math.isnan(interval.mean) else interval.mean,
        "half_width_95": interval.half_width if interval.has_width else None,
        "n": interval.n,
    }


def as_json(group: Group) -> dict[str, Any]:
    """A group as a JSON object; absent values are null."""

    def finite(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return {
        "series": group.series, "loss_model": group.loss_model, "loss_rate": finite(group.loss_rate),
        "mean_burst_packets": finite(group.mean_burst_packets), "lossless": group.lossless,
        "without_loss": group.without_loss, "compressed": group.compressed, "reliable": group.reliable,
        "marks": dict(group.marks), "seeds": group.seeds, "runs": dict(group.statuses), "run_ids": list(group.run_ids),
        "final_validation_loss": interval_json(group.final), "difference_to_lossless": interval_json(group.difference),
        "note": group.note, "best_value": group.best_value or None,
        "configured_rate": finite(group.configured_rate),
        "realised_rate": finite(group.realised_rate), "z": finite(group.z), "late_rate": finite(group.late_rate),
        "repaired_rate": finite(group.repaired_rate), "resent_rate": finite(group.resent_rate),
    }  # fmt: skip


FINISHED = ("completed", COUNTED, PARTLY_COUNTED)
ENDED = (*FINISHED, "diverged", "failed", NOT_COUNTED)  # statuses that are no reason to say that a run is absent
POINT_RATES = ("configured_rate", "realised_rate", "z", "late_rate", "repaired_rate", "resent_rate")
HEADER = (
    "series", "loss model", "loss rate", "mean burst", "best value", "seeds", "final validation loss",
    "difference to lossless", "diverged", "failed", "realised rate", "z", "late", "repaired", "resent", "note",
)  # fmt: skip


def row_of(group: Group) -> tuple[str, ...]:
    """The cells of a group under HEADER."""
    completed = sum(map(group.count, FINISHED))
    total = sum(group.statuses.values())
    rate = "-" if group.loss_model == NO_PROCESS else percent(group.loss_rate)
    return (
        group.series, group.loss_model, rate, number(group.mean_burst_packets, 2), group.best_value or "-",
        f"{completed}/{total}" if completed != total else str(total), with_interval(group.final),
        with_interval(group.difference, signed="+"), str(group.count("diverged") or "-"),
        str(group.count("failed") or "-"), percent_cell(group.realised_rate), number(group.z, 2),
        percent_cell(group.late_rate), percent_cell(group.repaired_rate), percent_cell(group.resent_rate), group.note,
    )  # fmt: skip


def summary_table(records: Frames) -> pd.DataFrame:
    """The summary as a frame of text, one row per point, with the columns of HEADER.

    Losses are nats per token, mean with the 95 % Student-t interval over seeds; the difference is paired by seed.
    """
    return pd.DataFrame([row_of(group) for group in groups(records)], columns=list(HEADER))


def points(records: Frames) -> pd.DataFrame:
    """The summary in numbers: one row per point, over its seeds.

    Columns: series, label, loss_rate (fraction of the loss process), lossless, without_loss, compressed, loss_model,
    mean_burst_packets (configured), reliable, marks, best_value (text; with best_over); a column for each swept
    pointer; runs, completed, diverged, failed;
    final_mean, final_low, final_high, final_seeds: final validation loss with its 95 % interval (NaN with one seed) and
    the number of seeds; difference_...: likewise to the lossless twins, paired by seed; losses in nats per token;
    configured_rate, realised_rate, late_rate, repaired_rate, resent_rate (fractions of packets; NaN: none); z; note.
    """
    best = records.best
    first = best.runs.set_index("run_id", drop=False)
    rows = []
    for group in groups(best):
        run = first.loc[group.run_ids[0]]
        row = {"series": group.series, "label": run["label"], "loss_rate": group.loss_rate, "lossless": group.lossless,
               "without_loss": group.without_loss, "compressed": group.compressed,
               "loss_model": group.loss_model, "mean_burst_packets": group.mean_burst_packets,
               "reliable": group.reliable, "marks": ", ".join(group.marks), "best_value": group.best_value,
               **{pointer: run[pointer] for pointer in best.varied},
               "runs": sum(group.statuses.values())}  # fmt: skip
        row |= {status: group.count(status) for status in ("completed", "diverged", "failed")}
        for name, interval in (("final", group.final), ("difference", group.difference)):
            row |= interval_columns(interval, f"{name}_")
        rows.append(row | {key: getattr(group, key) for key in POINT_RATES} | {"note": group.note})
    return pd.DataFrame(rows)


def printable(text: str) -> str:
    """`text` without the characters that would move a terminal's cursor."""
    return "".join(c if c.isprintable() else "?" for c in text)


LONGEST_CELL = 60  # characters, of all columns of a terminal's table but the last


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]], left: Container[str]) -> str:
    """A table for a terminal; the columns named in `left` are set flush left. Long names are cut in the middle: a line
    that is folded would mix the columns."""
    table = [[printable(cell) for cell in row] for row in [header, *rows]]
    for i in range(len(header) - 1):
        every = list(dict.fromkeys(row[i] for row in table))
        short = dict(zip(every, shortened(every, LONGEST_CELL), strict=True))
        for row in table:
            row[i] = short[row[i]]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    lines = [
        "  ".join(cell.ljust(w) if name in left else cell.rjust(w)
                  for name, cell, w in zip(header, row, widths, strict=True)).rstrip()
        for row in table
    ]  # fmt: skip
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


def telling(columns: int, rows: Sequence[Sequence[str]]) -> list[int]:
    """The columns of a table that are shown: the first one, and those in which a row has more than a part of its first
    cell."""
    says = lambda row, cell: cell not in ("", "-") and f", {cell}, " not in f", {row[0]}, "  # noqa: E731
    return [i for i in range(columns) if i == 0 or any(says(row, row[i]) for row in rows)]


def text_table(records: Frames) -> str:
    """The summary for a terminal."""
    rows = [row_of(group) for group in groups(records)]
    kept = telling(len(HEADER), rows)
    return aligned([HEADER[i] for i in kept], [[row[i] for i in kept] for row in rows],
                   {"series", "loss model", "best value", "note"})  # fmt: skip
