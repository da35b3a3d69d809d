# SPDX-License-Identifier: Apache-2.0
"""The tables by name, for the report and for `droptest table --name`."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from droptest import classification, memory_page, seeds, virtual_time, wall_time, words
from droptest.loss_model import percent
from droptest.records import Records
from droptest.summary import HEADER, groups, number, row_of, telling, with_interval
from droptest.words import decimal

ABSENT = ("missing", "unfinished", "unreadable")
TEXTS = frozenset({"series", "loss model", "note", "against", "quantity", "class", "half", "path", "fill", "network",
                   "run", "part", "severity", "what would help", "status", "why", "verdict", "best value",
                   "kind", "measure"})  # fmt: skip


@dataclass(frozen=True)
class Questions:
    """The questions to the tables on seeds. effects: how many seeds are needed to see each; margin: which points are
    equal within it, None: the smallest margin alone. In the unit of the loss."""

    effects: Sequence[float] = seeds.EFFECTS
    margin: float | None = None


NO_QUESTIONS = Questions()


@dataclass(frozen=True)
class Table:
    """A table as text, and a note on its meaning."""

    name: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""

    def numeric(self, column: int) -> bool:
        name = self.header[column]
        return name not in TEXTS and not name.startswith("to see")

    def as_csv(self) -> str:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows(self.rows)
        return out.getvalue()


def _table(name: str, title: str, header: Sequence[str], rows: Sequence[Sequence[object]], note: str = "") -> Table:
    """A table without the columns that tell nothing."""
    texts = [tuple(map(str, row)) for row in rows]
    kept = telling(len(header), texts)
    return Table(name, title, tuple(header[i] for i in kept), tuple(tuple(row[i] for i in kept) for row in texts), note)


def _whole(name: str, title: str, table: tuple[Sequence[str], Sequence[Sequence[str]]], note: str = "") -> Table | None:
    """A table with its empty columns; None without rows."""
    header, rows = table
    return Table(name, title, tuple(header), tuple(tuple(map(str, row)) for row in rows), note) if rows else None


def _summary(records: Records, _: Questions) -> Table:
    of_losses = "" if records.of_programs else (
        f"Losses and differences are {records.unit}: mean ± half of the 95 % interval (Student t) over the finished "
        "seeds; if each training met several networks, the interval counts both. The difference is to the lossless "
        "twin, the run without loss with the same spec and seeds, paired by "
        f"seed{', each of the two at its own best value' if records.best_over else ''}. "
    )  # fmt: skip
    rows = [row_of(group) for group in groups(records)]
    return _table("summary", "Results of each point", HEADER, rows, of_losses + (
        "A point: runs that differ only in their seeds. The mean burst is in packets. z: (lost packets - expected lost "
        "packets) / standard deviation of that number for this loss process, combined over classes, halves and seeds "
        "(Stouffer's method); in 95 % of all cases z is between -2 and 2."
    ))  # fmt: skip


def _tolerance(records: Records, _: Questions) -> Table | None:
    from droptest import plots  # late: tables can be had without matplotlib
    from droptest.plots import tolerance

    try:
        points = tolerance.points_of(plots.data("tolerance", records))
    except plots.NothingToDraw:
        return None
    limit = points["tolerance"].iloc[0]
    rows = [
        (p.panel, percent(p.loss_rate), p.verdict, f"{decimal(p.mean, 3, '+')} %" if p.seeds else "-",
         "-" if math.isnan(p.low) else f"{decimal(p.low, 3, '+')} % to {decimal(p.high, 3, '+')} %", p.seeds,
         p.diverged or "-")
        for p in points.itertuples()
    ]  # fmt: skip
    header = ("series", "loss rate", "verdict", "above lossless twin", "95 % interval", "seeds", "diverged")
    return _table("tolerance", f"Tolerable within {limit:g} %", header, rows, (
        "Final validation loss above that of the lossless twin, in percent of the twin's loss. Tolerable: the whole "
        f"interval is at most {limit:g} %; not tolerable: the whole interval is above it, or a run diverged; else "
        "undecided."
    ))  # fmt: skip


def _recoveries(records: Records, _: Questions) -> Table | None:
    from droptest import plots  # late: tables can be had without matplotlib

    try:
        points = plots.data("recoveries", records)
    except plots.NothingToDraw:
        return None
    share = lambda value, sign="": "-" if math.isnan(value) else f"{100 * value:{sign}.3f} %"  # noqa: E731
    rows = [
        (p.series, p.panel, share(p.lost), share(p.missing), share(p.extra, "+"),
         "-" if math.isnan(p.step_seconds) else f"{1e3 * p.step_seconds:.4g} ms",
         with_ends(p.mean, p.low, p.high), "-" if p.bare else with_ends(p.saved_mean, p.saved_low, p.saved_high),
         p.seeds, p.diverged or "-", p.best_value or "-")
        for p in points.itertuples()
    ]  # fmt: skip
    header = ("series", "loss model", "lost at first", "missing in the end", "sent in addition",
              "virtual time of a step", "difference to lossless", "saved by the recovery", "seeds", "diverged",
              "best value")  # fmt: skip
    return _table("recoveries", "Benefit and price of each recovery", header, rows, (
        f"Shares are in percent of the data packets. Losses are in {records.unit}, with 95 % intervals, paired by "
        "seed. Sent in addition: parity packets and repeated packets. Saved: final validation loss without any "
        "recovery minus that with the recovery, at the same packet loss rate."
    ))  # fmt: skip


def with_ends(mean: float, low: float, high: float) -> str:
    """ "+0.0106 (+0.0029 to +0.0183)"; the mean alone where there is no interval."""
    if math.isnan(mean):
        return "-"
    text = decimal(mean, sign="+")
    return text if math.isnan(low) else f"{text} ({decimal(low, sign='+')} to {decimal(high, sign='+')})"


def _virtual_time(records: Records, _: Questions) -> Table | None:
    if not virtual_time.has_virtual_time(records):
        return None
    target = virtual_time.default_target(records)
    if math.isnan(target):
        return None
    rows = [
        (curve.series, "reliable" if curve.reliable else "tolerant", percent(rate), len(times),
         with_interval(curve.interval(rate)) if math.isfinite(curve.interval(rate).mean) else "not all seeds")
        for curve in virtual_time.curves(records, target) for rate, times in curve.times.items()
    ]  # fmt: skip
    header = ("series", "network", "loss rate", "seeds",
              f"virtual seconds to a validation loss of {target:.4g} {records.unit}")  # fmt: skip
    return _table("virtual_time", "Time to the target loss", header, rows, (
        "Target: 5 % above the highest final validation loss of the lossless runs (of the reliable runs if there are "
        "none). A reliable network repeats lost packets until all arrive; on a tolerant network, packets can stay "
        "lost. Not all seeds: at least one seed did not reach the target."
    ))  # fmt: skip


def _loss_statistics(records: Records, _: Questions) -> Table | None:
    frame = records.best.loss_statistics
    if frame.empty:
        return None
    places: dict[tuple, list[int]] = {}
    keys = ("series", "loss_rate", "class", "half")
    for place, (series, rate, *rest) in enumerate(zip(*(frame[name] for name in keys), strict=True)):
        places.setdefault((series, None if math.isnan(rate) else rate, *rest), []).append(place)
    columns = {name: frame[name].to_numpy() for name in COUNTED}
    rows = []
    for (series, rate, traffic_class, half), mine in places.items():
        part = {name: values[mine] for name, values in columns.items()}
        packets, lost = np.nansum(part["packets"]), np.nansum(part["lost"])
        configured = np.nansum(part["configured_rate"] * part["packets"]) / packets if packets else math.nan
        rows.append(
            (series, percent(math.nan if rate is None else rate), words.spoken(traffic_class),
             words.HALVES.get(half, half), _first(part["path"]), _first(part["fill"]), len(mine),
             _count(part["collectives"]), _count(part["packets"]), _count(part["lost"]),
             "-" if math.isnan(configured) else f"{100 * configured:.4f} %",
             f"{100 * lost / packets:.4f} %" if packets else "-",
             *(number(z, 2) for z in _z_range(part["z"][(part["configured_rate"] > 0) | (part["lost"] > 0)])),
             *(number(_mean(part[name][part[name] > 0]), 3)
               for name in ("configured_mean_burst_packets", "mean_burst_packets")), _share(part["untouched_share"]),
             number(_mean(part["nmse"]), 5), number(_mean(part["cosine"]), 5))
        )  # fmt: skip
    header = ("series", "loss rate", "class", "half", "path", "fill", "runs", "collectives", "packets", "lost",
              "configured", "realised", "smallest z", "largest z", "configured burst", "realised burst", "untouched",
              "NMSE", "cosine")  # fmt: skip
    return _table("loss_statistics", "Loss statistics", header, rows, (
        "Collectives, packets and lost packets are sums over the runs of a point; NMSE, cosine, bursts and untouched "
        "are means. Configured: the expected loss rate of all packets, also of those that cannot be lost. Realised: "
        "lost packets / sent packets. z: (lost packets - "
        "expected lost packets) / standard deviation of that number; smallest and largest over the runs. Half: the "
        "reduce or the gather half of a collective. Path: the algorithm of the collective. Fill: the value in the "
        "place of a lost packet. Bursts: mean length in packets. Untouched: the share of collectives in which no "
        "packet stayed missing. NMSE: squared error of the results over the squared exact results. Cosine: of the "
        "angle "
        "between results and exact results. NMSE and cosine are those of the sampled collectives only."
    ))  # fmt: skip


COUNTED = (
    "path", "fill", "collectives", "packets", "lost", "configured_rate", "z", "configured_mean_burst_packets",
    "mean_burst_packets", "untouched_share", "nmse", "cosine",
)  # fmt: skip


def _known(values: np.ndarray) -> np.ndarray:
    return values[~np.isnan(values)]


def _mean(values: np.ndarray) -> float:
    known = _known(values)
    return float(known.mean()) if len(known) else math.nan


def _first(values: np.ndarray) -> str:
    return " | ".join(dict.fromkeys(words.spoken(str(v)) for v in values if not pd.isna(v))) or "-"


def _count(values: np.ndarray) -> str:
    known = _known(values)
    return f"{known.sum():,.0f}".replace(",", " ") if len(known) else "-"


def _share(values: np.ndarray) -> str:
    mean = _mean(values)
    return "-" if math.isnan(mean) else f"{100 * mean:.1f} %"


def _z_range(values: np.ndarray) -> tuple[float, float]:
    known = _known(values)
    return (known.min(), known.max()) if len(known) else (math.nan, math.nan)


def _missing(records: Records, _: Questions) -> Table | None:
    frame = records.of_status("failed", *ABSENT)
    rows = [(row.run_id, row.series, percent(row.loss_rate), seed_text(row.seed), row.status, _why(row))
            for row in frame.itertuples()]  # fmt: skip
    header = ("run", "series", "loss rate", "seed", "status", "why")
    return _table("missing", "What is missing", header, rows) if rows else None


def seed_text(seed: object) -> str:
    return "-" if seed is None or seed != seed else str(seed)


def _why(row) -> str:
    if row.error:
        return row.error
    if row.status == "missing":
        return "planned in sweep.json, not run yet"
    step = "" if math.isnan(row.last_step) else f", last logged step {row.last_step:.0f}"
    return f"no summary.json: the run goes on or was stopped{step}"


def _runs(records: Records, _: Questions) -> Table:
    rows = []
    for row in records.runs.itertuples():
        status = row.status if math.isnan(row.diverged_step) else f"{row.status} at step {row.diverged_step:.0f}"
        if row.skipped_steps > 0:
            status += f", {row.skipped_steps:.0f} of {row.steps:.0f} steps skipped"
        status += f", {row.marks}" if row.marks else ""
        rows.append(
            (row.run_id, row.series, percent(row.loss_rate), seed_text(row.seed), status,
             number(row.final_validation_loss),
             "-" if math.isnan(row.difference) else decimal(row.difference, sign="+"),
             number(row.tokens_per_second, 0), number(row.seconds, 1))
        )  # fmt: skip
    header = ("run", "series", "loss rate", "seed", "status", "final validation loss", "difference",
              "tokens/s", "seconds")  # fmt: skip
    note = "" if records.of_programs else f"Losses, and differences to the lossless twin, are {records.unit}."
    if records.best_over:
        names = " and ".join(pointer.rpartition("/")[2].replace("_", " ") for pointer in records.best_over)
        note += f" Here a run and its twin have the same {names}; in other tables each has its best one."
    return _table("runs", "Runs", header, rows, note)


def _memory(records: Records, _: Questions) -> Table | None:
    return _whole("memory", "Peak memory and reuse of buffers", (memory_page.HEADER, memory_page.rows(records)),
                  memory_page.NOTE)  # fmt: skip


def _wall_time(records: Records, _: Questions) -> Table | None:
    rows = [row for found in wall_time.breakdowns(records) for row in wall_time.rows_of(found, found.parts)]
    return _table("wall_time", "Parts of the wall time", wall_time.HEADER, rows, wall_time.NOTE) if rows else None


def _spread(records: Records, _: Questions) -> Table | None:
    return _whole("spread", "Spread between seeds", seeds.spread_table(records),
                  f"Losses are {records.unit}. {seeds.ON_SPREAD}")  # fmt: skip


def _plan(records: Records, questions: Questions) -> Table | None:
    plan = seeds.plan_table(records, questions.effects)
    note = f"Effects and standard deviations (sd) are {records.unit}. {seeds.ON_EFFECTS}"
    if any(" x " in cell for row in plan[1] for cell in row[5:]):
        note += f" {seeds.ON_CROSSINGS}"
    return _whole("seeds_needed", "Seeds that an effect needs", plan, note)


def _comparison(records: Records, questions: Questions) -> Table | None:
    return _whole("equality", "What is equal", seeds.comparison_table(records, questions.margin),
                  f"Differences and margins are {records.unit}. {seeds.ON_EQUALITY}")  # fmt: skip


def _classification(records: Records, _: Questions) -> Table | None:
    header, rows = classification.table_of(records)
    return _table("classification", "Quality of the classifiers", header, rows, classification.NOTE) if rows else None


TABLES: dict[str, Callable[[Records, Questions], Table | None]] = {
    "tolerance": _tolerance,
    "summary": _summary,
    "classification": _classification,
    "missing": _missing,
    "recoveries": _recoveries,
    "loss_statistics": _loss_statistics,
    "virtual_time": _virtual_time,
    "spread": _spread,
    "seeds_needed": _plan,
    "equality": _comparison,
    "memory": _memory,
    "wall_time": _wall_time,
    "runs": _runs,
}


def table(name: str, records: Records, questions: Questions = NO_QUESTIONS) -> Table | None:
    """The table of that name; None where the records have nothing for it. Raises: KeyError that lists the names."""
    if name not in TABLES:
        raise KeyError(f"no table {name!r}; there are {', '.join(TABLES)}")
    return TABLES[name](records, questions)
