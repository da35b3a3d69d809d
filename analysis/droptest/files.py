# SPDX-License-Identifier: Apache-2.0
"""Reads the files of one run (docs/records.md), each error naming the file."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from droptest import rank_counts
from droptest.json_values import object_of

SCHEMA_VERSION = 1
RUN_FILES = (
    "spec.json",
    "metrics.jsonl",
    "loss_statistics.json",
    "diagnostics.json",
    "summary.json",
    "predictions.json",
)
FINISHED = ("completed", "diverged", "failed")
# Of another program, of which no record says whether it has ended: all ranks have written their counts, some, none.
COUNTED, PARTLY_COUNTED, NOT_COUNTED = OF_PROGRAMS = ("counted", "partly counted", "not counted")
ENTRIES = ("links", "burst_histogram")  # of loss_statistics.json: an entry for each link and burst length


class RecordError(Exception):
    """A record that cannot be used; the message names the file and the expected content."""


class MissingRecord(RecordError):
    """A folder or file that ought to be there is not."""


class MalformedRecord(RecordError):
    """A file does not have the format of docs/records.md."""


@dataclass
class MetricsFile:
    """The lines of a metrics.jsonl, and a warning where the last one was torn off."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    warning: str | None = None


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises MissingRecord or MalformedRecord, also for a newer schema_version."""
    value = read_json_of_any_version(path)
    if value.get("schema_version", SCHEMA_VERSION) != SCHEMA_VERSION:
        raise MalformedRecord(f"{path}: {error_of_version(value, SCHEMA_VERSION)}")
    return value


def error_of_version(record: dict[str, Any], want: int) -> str:
    return f"/schema_version: got {record.get('schema_version')!r}, this program reads {want}"


def read_json_of_any_version(path: Path) -> dict[str, Any]:
    """As read_json, for files whose version has another number."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MissingRecord(f"{path}: no such file") from None
    except OSError as error:
        raise MissingRecord(f"{path}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise MalformedRecord(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise MalformedRecord(f"{path}: got {type(value).__name__}, want a JSON object")
    return value


def metric_lines(path: Path, warnings: list[str]) -> Iterator[dict[str, Any]]:
    """The lines of a metrics.jsonl in order of the file, one at a time.

    A run that was killed can leave half a line at the end: it is dropped, with a warning. A bad line anywhere else
    raises MalformedRecord with its number.
    """
    bad: tuple[int, str] | None = None
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for number, row in enumerate(file, 1):
                if not row.strip():
                    continue
                if bad is not None:
                    break
                try:
                    line = json.loads(row)
                    problem = (
                        None if isinstance(line, dict) and type(line.get("step")) is int else "no object with a step"
                    )
                except (json.JSONDecodeError, RecursionError) as error:
                    problem = str(error)
                if problem is None:
                    yield line
                else:
                    bad = (number, problem)
            else:
                if bad is not None:
                    warnings.append(f"{path}: line {bad[0]} is torn off and was left out")
                return
    except FileNotFoundError:
        raise MissingRecord(f"{path}: no such file") from None
    except OSError as error:
        raise MissingRecord(f"{path}: cannot be read: {error.strerror}") from error
    raise MalformedRecord(f"{path}: line {bad[0]}: {bad[1]}")


def read_metrics(path: Path) -> MetricsFile:
    """The lines of a metrics.jsonl, in order of their steps. A line with a smaller step than the one before is of a
    program that has begun again, and replaces the lines from that step on. Of two lines with one step that follow each
    other the later counts, and has the members of the earlier one that it lacks: a program's last line has only the
    validation loss.

    Raises: as metric_lines.
    """
    warnings: list[str] = []
    lines: list[dict[str, Any]] = []
    for line in metric_lines(path, warnings):
        if lines and line["step"] < lines[-1]["step"]:
            while lines and lines[-1]["step"] >= line["step"]:
                lines.pop()
        if lines and lines[-1]["step"] == line["step"]:
            lines[-1] |= line
        else:
            lines.append(line)
    return MetricsFile(lines, *warnings)


STEP = re.compile(rb'"step"\s*:\s*(-?[0-9]+)')


def _steps_rise(path: Path) -> bool:
    """Whether the lines of a metrics.jsonl are in order of their steps as they stand, each step once, for sure."""
    last = -1
    try:
        with path.open("rb") as file:
            for row in file:
                found = STEP.findall(row)
                if len(found) != 1 and (found or row.endswith(b"\n")):
                    return False  # of a torn last line nothing may be left
                if found and int(found[0]) <= last:
                    return False
                last = int(found[0]) if found else last
    except OSError:
        return False
    return True


@dataclass
class Contents:
    """What the files of a run hold line by line and entry by entry: most of their bytes."""

    path: Path  # of metrics.jsonl
    loss_statistics: dict[str, Any] = field(default_factory=dict)
    diagnostics: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)  # of lines()
    last_step: int | None = None  # of lines()

    def lines(self) -> Iterator[dict[str, Any]]:
        """As read_metrics(); one line at a time where the steps of the file rise, as they do unless a run was killed
        and went on from a checkpoint. None without the file. Raises: MalformedRecord."""
        if _steps_rise(self.path):
            lines: Iterable[dict[str, Any]] = metric_lines(self.path, self.warnings)
        elif self.path.exists():
            whole = read_metrics(self.path)
            self.warnings += [whole.warning] if whole.warning else []
            lines = whole.lines
        else:
            return
        for line in lines:
            self.last_step = line["step"]
            yield line


@dataclass
class Run:
    """One run as its files describe it; values without a record are empty.

    A run keeps no lines and no histograms, so that an experiment of many runs fits into memory: `metrics` and
    `diagnostics` read their files at each use, and `loss_statistics` has no links and no histograms.
    """

    run_id: str
    path: Path
    point: dict[str, Any] = field(default_factory=dict)
    seeds: tuple[int, int, int] | None = None  # of weights, data and network
    status: str = "missing"
    error: str | None = None
    of_program: bool = False  # not of droptest's own training
    spec: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    loss_statistics: dict[str, Any] = field(default_factory=dict)
    last_step: int | None = None  # of metrics.jsonl
    warnings: list[str] = field(default_factory=list)
    idle: tuple[str, ...] = ()  # warnings about the spec: "/network: no packet is sent, so none is lost"
    labels: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)  # a text and the pointers it stands for
    other_points: list[dict[str, Any]] = field(default_factory=list)  # of the sweep, that are this run as well
    other_network_seeds: list[int] = field(default_factory=list)  # of the sweep, likewise
    listed: int = 1  # entries of the sweep that are this run
    marks: tuple[tuple[str, str], ...] = ()  # events that results may depend on: ("resumed", "/checkpoint: ...")
    twin_omits: tuple[str, ...] | None = None  # pointers in which its lossless twin may differ; None: not recorded

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; none without the file. Raises: MalformedRecord."""
        file = self.path / "metrics.jsonl"
        return read_metrics(file).lines if file.is_file() else []

    @property
    def diagnostics(self) -> dict[str, Any]:
        """diagnostics.json; empty without the file. Raises: MalformedRecord."""
        file = self.path / "diagnostics.json"
        return read_json(file) if file.is_file() else {}


def labels_of(record: dict[str, Any]) -> list[tuple[str, tuple[str, ...]]]:
    """The `labels` of a summary.json, or of a run of sweep.json."""
    found = record.get("labels")
    entries = [object_of(entry) for entry in found] if isinstance(found, list) else []
    return [(str(e["label"]), tuple(map(str, e["pointers"]))) for e in entries if {"label", "pointers"} <= set(e)]


def idle_parts(record: dict[str, Any]) -> tuple[str, ...]:
    """The `warnings` about the spec in a summary.json, or in a run of sweep.json, as texts."""
    return tuple(text for mark, text in _warnings_of(record) if not mark)


def marks_of(record: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """The `warnings` about the run in a summary.json: its marks in words ("fewer replicas"), each with the text."""
    return tuple((mark.replace("_", " "), text) for mark, text in _warnings_of(record) if mark)


def _warnings_of(record: dict[str, Any]) -> list[tuple[str, str]]:
    found = record.get("warnings")
    entries = [object_of(entry) for entry in found] if isinstance(found, list) else []
    return [(str(entry.get("mark", "")), f"{entry['pointer']}: {entry['message']}")
            for entry in entries if {"pointer", "message"} <= set(entry)]  # fmt: skip


def seeds_of(*sources: dict[str, Any]) -> tuple[int, int, int] | None:
    """The seeds of weights, data and network: of the first of the records that has `seeds`, or one `seed` for all."""
    for source in sources:
        seeds = tuple(object_of(source.get("seeds")).get(key) for key in ("weights", "data", "network"))
        one = source.get("seed")
        if all(type(seed) is int for seed in seeds):
            return seeds
        if type(one) is int:
            return (one, one, one)
    return None


def is_run(path: Path) -> bool:
    """Whether `path` is the folder of one run, or of another program."""
    return path.is_dir() and (any((path / name).is_file() for name in RUN_FILES) or is_program(path))


def is_program(path: Path) -> bool:
    """Whether `path` is the folder of another program, of which the network alone has records (docs/pytorch.md), and
    those that the program writes itself. One that has no counts has its ranks' folder, or lines of its own."""
    if any((path / name).is_file() for name in ("spec.json", "summary.json")):
        return False
    if (path / "ranks").is_dir():
        return True
    if (path / "loss_statistics.json").is_file():
        try:
            return "ranks" in read_json(path / "loss_statistics.json")
        except RecordError:
            return False
    return (path / "metrics.jsonl").is_file() and not (path / "diagnostics.json").is_file()


def read_run(path: Path, take: Callable[[Run, Contents], object] | None = None) -> Run:
    """One run's folder. Never raises for a bad file: the run gets status `unreadable` and the reason as its error.

    Status: that of summary.json; `unfinished` without a summary (the run goes on or was stopped); `missing`
    where there is no folder; of another program one of OF_PROGRAMS. take: gets the run and what it does not keep,
    unless it is missing or unreadable; it uses all lines, and forgets the run where they raise MalformedRecord.
    """
    run = Run(run_id=path.name, path=path)
    if not is_run(path):
        return run
    run.status = "unfinished"
    problems = []

    def read(name: str) -> dict[str, Any]:
        try:
            return read_json(path / name)
        except MissingRecord:
            if (path / name).exists():
                problems.append(f"{path / name}: cannot be read")
        except MalformedRecord as error:
            problems.append(str(error))
        return {}

    run.spec, run.summary = read("spec.json"), read("summary.json")
    contents = Contents(path / "metrics.jsonl", read("loss_statistics.json"), read("diagnostics.json"))
    run.loss_statistics = _without_entries(contents.loss_statistics)
    if run.summary:
        status = run.summary.get("status")
        if status in FINISHED:
            run.status = status
        else:
            allowed = ", ".join(FINISHED)
            problems.append(f"{path / 'summary.json'}: /status: got {status!r}, want one of {allowed}")
        run.error = run.summary.get("error") or None
        run.point = object_of(run.summary.get("point"))
        run.labels = labels_of(run.summary)
    run.of_program = is_program(path)
    if run.of_program and not problems:
        try:
            _read_program(run, contents)
        except MalformedRecord as error:
            problems.append(str(error))
    elif not problems and ((path / "ranks").is_dir() or "ranks" in contents.loss_statistics):
        try:
            if missing_text := _read_counts(run, contents):
                run.warnings.append(f"{path}: {missing_text}")
        except MalformedRecord as error:
            problems.append(str(error))
    run.seeds = run.seeds or seeds_of(run.summary, run.spec)
    run.idle = idle_parts(run.summary)
    run.marks = marks_of(run.summary)
    omits = run.summary.get("twin_omits")
    run.twin_omits = tuple(map(str, omits)) if isinstance(omits, list) else None
    try:
        if take is None or problems:
            deque(contents.lines(), maxlen=0)
        else:
            take(run, contents)
        run.last_step = contents.last_step
        run.warnings += contents.warnings
    except MissingRecord:
        pass
    except MalformedRecord as error:
        problems.append(str(error))
    if problems:
        run.status = "unreadable"
        run.error = "; ".join(problems)
    return run


def _without_entries(statistics: Any) -> Any:
    """loss_statistics.json without its links and histograms."""
    if isinstance(statistics, list):
        return [_without_entries(entry) for entry in statistics]
    if not isinstance(statistics, dict):
        return statistics
    return {key: _without_entries(value) for key, value in statistics.items() if key not in ENTRIES}


def _read_program(run: Run, contents: Contents) -> None:
    """Another program has no records but its counts, which have its network. Where the last rank did not add up the
    counts of all, this does. Raises: MalformedRecord for a file that no rank has written."""
    missing_text = _read_counts(run, contents)
    counts = contents.loss_statistics
    network, ranks = object_of(counts.get("network")), object_of(counts.get("ranks"))
    classes = object_of(network.get("classes"))
    run.status = COUNTED
    if not ranks:
        run.status = NOT_COUNTED
        run.error = "no rank has written its counts: the program still runs, or has ended without them"
    elif missing_text:
        run.status, run.error = PARTLY_COUNTED, missing_text
    if type(network.get("seed")) is int:
        run.seeds = (network["seed"],) * 3  # it has no others that anybody knows
    if classes or (run.status == COUNTED and not counts.get("classes")):
        run.spec = {"network": {"classes": classes}}
    else:  # the counts have no loss process, but the rate that it had to have
        rates = {name: object_of(of).get("configured_rate") for name, of in object_of(counts.get("classes")).items()}
        run.point = {f"/network/classes/{name}/loss_rate": rate for name, rate in rates.items()}
        run.point = run.point or {"/network/loss_rate": None}
    if run.error:
        run.warnings.append(f"{run.path}: {run.error}")
    if counts and not classes:
        run.warnings.append(f"{run.path}: no rank has written loss_statistics.json: the counts are added up from "
                            "ranks/, which does not have the loss process")  # fmt: skip


def _read_counts(run: Run, contents: Contents) -> str:
    """The counts of a program's ranks, added up where the last rank has not done so. Returns which ranks' are missing
    in words; "": none. Raises: MalformedRecord."""
    counts = contents.loss_statistics
    if (run.path / "ranks").is_dir():
        counts = _counts_of_ranks(run.path / "ranks", counts)
    contents.loss_statistics, run.loss_statistics = counts, _without_entries(counts)
    ranks = object_of(counts.get("ranks"))
    missing = ranks.get("missing")
    if ranks and not (type(ranks.get("world_size")) is int and isinstance(missing, list)):
        raise MalformedRecord(f"{run.path / 'loss_statistics.json'}: /ranks: got {json.dumps(ranks)}, want world_size "
                              "and missing")  # fmt: skip
    if not missing:
        return ""
    one = len(missing) == 1
    return (f"the counts of rank{'s' * (not one)} {', '.join(map(str, missing))} are missing, of "
            f"{ranks['world_size']} ranks: {'it still runs, or has' if one else 'they still run, or have'} ended "
            "without them")  # fmt: skip


def _counts_of_ranks(folder: Path, record: dict[str, Any]) -> dict[str, Any]:
    """The record, where it has the counts of just these ranks, else a record of what they have written. Files of
    another world or network are those of an earlier program. Empty without any: a record beside it is that of an
    earlier program, whose ranks' files the next one in that folder removes."""
    files = [file for file in sorted(folder.glob("*.json")) if re.fullmatch(r"0|[1-9][0-9]*", file.stem, re.ASCII)]
    if _is_whole(folder.parent / "loss_statistics.json", record, files):
        return record
    found: dict[tuple[int, int, str], list[dict[str, Any]]] = {}
    for file in files:
        rank = read_json_of_any_version(file)
        try:
            rank_counts.check(rank, int(file.stem))
        except rank_counts.OtherVersion:
            if "ranks" in record:
                return record  # of the droptest that wrote these files
            raise MalformedRecord(f"{file}: {error_of_version(rank, rank_counts.SCHEMA_VERSION)}") from None
        except rank_counts.MalformedCounts as error:
            raise MalformedRecord(f"{file}: got a file that is not the counts of a rank: {error}") from None
        found.setdefault(rank_counts.program_of(rank), []).append(rank)
    if not found:
        return {}
    network = object_of(record.get("network"))
    of_record = (object_of(record.get("ranks")).get("world_size"), network.get("seed"), network.get("digest", ""))
    program = max(found, key=lambda one: (one == of_record, len(found[one]), one))
    known = record if program == of_record else {}
    merged = rank_counts.merged(found[program], known)
    return known if known and rank_counts.is_same(known, merged) else merged


def _is_whole(file: Path, record: dict[str, Any], of_ranks: list[Path]) -> bool:
    """Whether the record has all ranks and was written after their files, of which a large world has much to read."""
    ranks = object_of(record.get("ranks"))
    if ranks.get("missing") != [] or len(of_ranks) != ranks.get("world_size"):
        return False
    return file.stat().st_mtime_ns >= max(one.stat().st_mtime_ns for one in of_ranks)
