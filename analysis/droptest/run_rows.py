# SPDX-License-Identifier: Apache-2.0
"""The rows of an experiment's frames, collected run by run as the files are read; records.Records describes them."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from droptest import loss_model
from droptest.files import Contents, MalformedRecord, Run, object_of
from droptest.series import LOSSLESS, has_deadline

NAN = float("nan")
METRIC_COLUMNS = (
    "tokens", "seconds", "virtual_seconds", "train_loss", "learning_rate", "gradient_norm", "validation_loss",
)  # fmt: skip
COUNT_COLUMNS = (
    "messages", "packets", "bytes", "lost", "lost_bytes", "configured_rate", "realised_rate", "z",
    "mean_burst_packets", "configured_mean_burst_packets",
)  # fmt: skip
CLASS_COLUMNS = ("collectives", "untouched_share", "nmse", "cosine", "divergence_max", "divergence_rms")
TEXT_COLUMNS = ("path", "loss", "fill", "digest")
LAYER_COLUMNS = (
    "steps", "untouched_share", "sampled_calls", "error_energy", "exact_energy", "bias", "nmse", "cosine",
    "divergence_max", "divergence_rms",
)  # fmt: skip
# Measures of sampled calls, and of packets. Older records have 0, and 1 for the cosine, where nothing was measured.
SAMPLED_COLUMNS = ("bias", "nmse", "cosine", "divergence_max", "divergence_rms")
PACKET_COLUMNS = ("configured_rate", "realised_rate", "z")
TIME_COLUMNS = (
    "virtual_seconds", "compute_seconds", "idle_seconds", "exposed_seconds", "network_seconds", "packets",
    "repeated_packets", "timeouts", "late_packets",
)  # fmt: skip
RECOVERY_COLUMNS = ("packets", "lost", "repaired", "residual", "residual_bytes", "resent", "resend_rounds")
LINK_COLUMNS = ("packets", "lost", "realised_rate", "z", "mean_burst_packets")
LINK_ENDS = ("class", "half", "source", "destination")
# Further numbers of a line have columns of their names, unless a column of another meaning has that name.
OTHER_MEMBERS = frozenset({
    "step", *METRIC_COLUMNS, "divergence_max", "divergence_rms", "run_id", "series", "label", "loss_rate", "seed",
    "divergence", "classes", "losses", "ranks", "classification",
})  # fmt: skip
# The columns of each frame that differ between the rows of a run. `metrics` has those of further numbers, too.
COLUMNS = {
    "metrics": ("step", *METRIC_COLUMNS, "divergence_max", "divergence_rms"),
    "divergence": ("step", "group", "max", "rms"),
    "samples": ("step", "class", "nmse", "cosine"),
    "loss_statistics": ("class", "half", *COUNT_COLUMNS, *CLASS_COLUMNS, *TEXT_COLUMNS),
    "bursts": ("class", "half", "length", "count", "expected"),
    "layers": ("class", "layer", *LAYER_COLUMNS),
    "gaps": ("class", "half", "from", "to", "count", "expected"),
    "links": (*LINK_ENDS, *LINK_COLUMNS),
    "time": (*TIME_COLUMNS, "late_rate"),
    "recoveries": ("class", "half", "policy", *RECOVERY_COLUMNS),
    "wall_seconds": ("rank", "kind", "name", "seconds"),
}
MOST_NEW = 1000  # lines of which the rows are no columns yet
WHOLE = frozenset({"step", "length", "count", "rank"})
NUMBERS = frozenset({
    *METRIC_COLUMNS, *COUNT_COLUMNS, *CLASS_COLUMNS, *LAYER_COLUMNS, *TIME_COLUMNS, *RECOVERY_COLUMNS, "late_rate",
    "max", "rms", "expected",
})  # fmt: skip


def number(value: Any) -> float:
    """A number of a record; NaN where it has none."""
    if type(value) is float:
        return value
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else NAN


class _Table:
    """The rows of one frame, by column: a dict for each row would take ten times the memory."""

    def __init__(self, columns: Sequence[str]):
        self.new: list[tuple] = []  # rows of the run that is read
        self._run_ids: list[str] = []
        self._further: dict[str, array] = {}  # columns of numbers that some rows have; NaN before their ends
        self._columns: dict[str, Any] = {
            name: array("q") if name in WHOLE else array("d") if name in NUMBERS else [] for name in columns
        }

    def add_further(self, name: str, value: float) -> None:
        """A number of the row that was added last."""
        column = self._further.setdefault(name, array("d"))
        row = len(self._run_ids) + len(self.new) - 1
        column.extend([NAN] * (row - len(column)))
        column.append(value)

    def take_new(self, run_id: str) -> None:
        """Puts the new rows, each with a value for every column, after those of the runs before."""
        if not self.new:
            return
        self._run_ids += [run_id] * len(self.new)
        for column, values in zip(self._columns.values(), zip(*self.new, strict=True), strict=True):
            column.extend(values)
        self.new.clear()

    def __len__(self) -> int:
        return len(self._run_ids)

    def cut(self, rows: int) -> None:
        """Forgets the new rows, and all after the first ones."""
        self.new.clear()
        for column in (self._run_ids, *self._columns.values(), *self._further.values()):
            del column[rows:]

    def columns(self) -> dict[str, np.ndarray]:
        found = {"run_id": objects(self._run_ids)}
        for name, values in self._columns.items():
            found[name] = objects(values) if isinstance(values, list) else np.array(values)
        for name, numbers in self._further.items():
            if not numbers:  # those that had some are cut off
                continue
            numbers.extend([NAN] * (len(self) - len(numbers)))
            found[name] = np.array(numbers)
        return found


def objects(values: Sequence[Any]) -> np.ndarray:
    """The values themselves, lists too."""
    found = np.empty(len(values), object)
    found[:] = values
    return found


class RunRows:
    """The rows of all frames but `runs` and `searches`. add() takes those of a run out of what its files hold, which
    nobody needs to keep then."""

    def __init__(self) -> None:
        self._tables = {kind: _Table(columns) for kind, columns in COLUMNS.items()}
        self._new = {kind: table.new for kind, table in self._tables.items()}

    def columns(self) -> dict[str, dict[str, np.ndarray]]:
        """`run_id` and the columns by frame. To be called once: the rows are given away, since two copies
        of them would take much memory."""
        return {kind: self._tables.pop(kind).columns() for kind in COLUMNS}

    def add(self, run: Run, contents: Contents) -> None:
        """The rows of one run, after those of the runs before. Raises: MalformedRecord, and has no rows of the run."""
        before = {kind: len(table) for kind, table in self._tables.items()}
        try:
            self._add_lines(run.run_id, contents)
        except MalformedRecord:
            for kind, table in self._tables.items():
                table.cut(before[kind])
            raise
        for traffic_class, statistics in object_of(contents.loss_statistics.get("classes")).items():
            self._add_class(traffic_class, object_of(statistics))
        for traffic_class, diagnostics in object_of(contents.diagnostics.get("classes")).items():
            self._add_diagnostics(traffic_class, object_of(diagnostics))
        if run.summary.get("time"):
            self._add_time(run)
        for link in contents.loss_statistics.get("links") or ():
            ends, numbers = map(link.get, LINK_ENDS), map(number, map(link.get, LINK_COLUMNS))
            self._new["links"].append((*ends, *numbers))
        self._take_new(run.run_id)

    def _take_new(self, run_id: str) -> None:
        for table in self._tables.values():
            table.take_new(run_id)

    def _add_lines(self, run_id: str, contents: Contents) -> None:
        """The rows of metrics, and the sums of wall seconds over the lines after step 0."""
        sums: dict[tuple[int, str, str], float] = {}
        for place, line in enumerate(contents.lines(), 1):
            self._add_metrics(line)
            if line["step"] > 0:
                _add_wall_seconds(sums, line.get("ranks"))
            if place % MOST_NEW == 0:
                self._take_new(run_id)
        self._new["wall_seconds"] += [(*place, seconds) for place, seconds in sums.items()]

    def _add_metrics(self, line: dict[str, Any]) -> None:
        step, divergence = line["step"], object_of(line.get("divergence"))
        whole = (number(divergence.get("max")), number(divergence.get("rms")))
        self._new["metrics"].append((step, *map(number, map(line.get, METRIC_COLUMNS)), *whole))
        for name, value in line.items():
            if name not in OTHER_MEMBERS and not math.isnan(value := number(value)):
                self._tables["metrics"].add_further(name, value)
        groups = object_of(divergence.get("groups"))
        for group, value in [("all", divergence), *groups.items()] if divergence else ():
            value = object_of(value)
            self._new["divergence"].append((step, group, number(value.get("max")), number(value.get("rms"))))
        for traffic_class, value in object_of(line.get("classes")).items():
            value = object_of(value)
            self._new["samples"].append((step, traffic_class, number(value.get("nmse")), number(value.get("cosine"))))

    def _add_time(self, run: Run) -> None:
        recorded = object_of(run.summary["time"])
        if "exposed_seconds" in recorded:
            recorded = recorded | {"exposed_seconds": sum(recorded["exposed_seconds"].values())}
        time = {column: number(recorded.get(column)) for column in TIME_COLUMNS}
        counted = (has_deadline(run) or time["late_packets"] > 0) and time["packets"] > 0
        late_rate = time["late_packets"] / time["packets"] if counted else NAN
        self._new["time"].append((*time.values(), late_rate))

    def _add_class(self, traffic_class: str, statistics: dict[str, Any]) -> None:
        halves = object_of(statistics.get("halves"))
        for half, counts in [("both", statistics), *sorted(halves.items(), reverse=True)]:
            counts = object_of(counts)
            row = _measured(counts, COUNT_COLUMNS)
            row |= _measured(counts, CLASS_COLUMNS) if half == "both" else dict.fromkeys(CLASS_COLUMNS, NAN)
            # An infinite z (loss where none was configured) is null in JSON.
            if math.isnan(row["z"]) and row["configured_rate"] == 0 and row["lost"] > 0:
                row["z"] = math.inf
            row |= {column: counts.get(column) for column in TEXT_COLUMNS}
            if row["loss"] is not None and not isinstance(row["loss"], str):
                row["loss"] = _loss_words(row["loss"])
            self._new["loss_statistics"].append((traffic_class, half, *row.values()))
            if recovery := object_of(counts.get("recovery")):
                found = (number(recovery.get(column, counts.get(column))) for column in RECOVERY_COLUMNS)
                self._new["recoveries"].append((traffic_class, half, recovery.get("policy"), *found))
            self._new["bursts"] += [
                (traffic_class, half, int(entry["length"]), int(entry["count"]), number(entry.get("expected")))
                for entry in counts.get("burst_histogram") or ()
            ]

    def _add_diagnostics(self, traffic_class: str, diagnostics: dict[str, Any]) -> None:
        for layer in diagnostics.get("layers") or ():
            place = layer.get("layer")
            measures = _measured(layer, LAYER_COLUMNS).values()
            self._new["layers"].append((traffic_class, -1 if place is None else place, *measures))
        for half, counts in sorted(object_of(diagnostics.get("halves")).items()):
            self._new["gaps"] += [
                (traffic_class, half, int(entry["from"]), int(entry["to"]), int(entry["count"]),
                 number(entry.get("expected")))
                for entry in object_of(counts).get("gap_histogram") or ()
            ]  # fmt: skip


def _add_wall_seconds(sums: dict[tuple[int, str, str], float], ranks: Any) -> None:
    """Adds the seconds of a line to the sums by rank, kind and name."""
    for rank, usage in enumerate(ranks if isinstance(ranks, list) else ()):
        wall = object_of(object_of(usage).get("wall_seconds"))
        for kind, member in (("phase", "phases"), ("communication", "communication"), ("waiting", "waiting")):
            for name, seconds in object_of(wall.get(member)).items():
                place = (rank, kind, name)
                sums[place] = sums.get(place, 0.0) + number(seconds)


def _measured(counts: Mapping[str, Any], columns: Sequence[str]) -> dict[str, float]:
    """Columns of a class, half, link or layer; NaN for measures of calls that were not sampled, or of no packets."""
    found = {column: number(counts.get(column)) for column in columns}
    for nothing, of_it in (("sampled_calls", SAMPLED_COLUMNS), ("packets", PACKET_COLUMNS)):
        if counts.get(nothing) == 0:
            found |= {column: NAN for column in of_it if column in found}
    return found


def _loss_words(value: Any) -> str:
    model = loss_model.from_spec(value)
    return LOSSLESS if model.lossless else f"{model.label}, {loss_model.percent(model.loss_rate)}"
