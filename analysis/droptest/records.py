# SPDX-License-Identifier: Apache-2.0
"""Loads the records of an experiment into pandas (docs/records.md defines the files)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from droptest import overview, words
from droptest.best_values import values_at_points
from droptest.files import (
    MalformedRecord,
    MissingRecord,
    RecordError,
    Run,
    idle_parts,
    is_program,
    is_run,
    labels_of,
    object_of,
    read_json,
    read_run,
    seeds_of,
)
from droptest.frames import KEYS, frames_of
from droptest.pointers import canonical
from droptest.run_rows import COLUMNS, RunRows
from droptest.search import Search, read_search
from droptest.series import SeriesNamer
from droptest.summary import points
from droptest.twins import fill_omits

__all__ = ["MalformedRecord", "MissingRecord", "RecordError", "Records", "best_over", "experiments_in", "load",
           "load_all"]  # fmt: skip

FRAMES = ("runs", "metrics", "divergence", "samples", "loss_statistics", "bursts", "layers", "gaps", "links", "time",
          "recoveries", "searches", "wall_seconds")  # fmt: skip

# What the marks of runs say of them, in warnings.
MARKED = {
    "lost samples": "lost samples",
    "fewer replicas": "trained steps with fewer replicas",
    "other kernel": "computed with another kernel than the spec asks for",
    "resumed": "went on from a checkpoint",
}


@dataclass(repr=False)
class Records:
    """One experiment. Every frame has `run_id`, and `series`, `label`, `loss_rate`, `seed` of the run, and a column for
    each pointer that varies over the runs, such as `/training/learning_rate`: its value, a loss process in words.

    label: the labels that the spec gives the run's values, joined by commas.
    seed: a number; a text that names all three where weights, data and network have seeds of their own.

    runs: one row per run, planned ones too.
        status: completed, diverged, failed, unfinished (no summary), unreadable, missing (planned, not there); of
        another program (docs/pytorch.md) counted, partly counted, not counted: by how many of its ranks;
        error: text or None; series: the curve it belongs to; lossless: whether all messages are exact: none is
        compressed or transformed, and no packet is missing; without_loss: whether no packet is missing; compressed:
        whether a class compresses; reliable: whether packets were lost and all of them repaired; marks: "lost samples",
        "fewer replicas", "resumed", joined by commas;
        loss_rate: fraction, the place on the loss axis; loss_model: in words; mean_burst_packets: configured;
        final_validation_loss, best_validation_loss, final_train_loss: in `unit`; selection_loss: likewise, on the
        selection tokens (NaN: not measured);
        training: seeds of (weights, data); network_seed;
        twin: run_id of the run without loss with the same spec and training, which compresses what it does, or None;
        difference: final validation loss minus the twin's, in `unit`;
        bare: run_id of the run with the same spec and seeds that recovers nothing (its own, if that is it), or None;
        skipped_steps: with an overflow (NaN: no loss scale);
        diverged_step, steps, last_step, tokens, tokens_per_second, seconds, path, point;
        best_value: the value of the pointers of best_over in words ("learning rate 0.001");
        idle: pointers to settings of the spec with a warning (`warnings` has the words);
        same_points: the settings in which points of the sweep differ that share this run ("fill zero or stale");
        place: where it loses packets, as far as runs differ in it ("gather half"); rest: its series without the place.
    metrics: one row per logged step: step, tokens, seconds, virtual_seconds (where there is a clock),
        train_loss and validation_loss (in `unit`), learning_rate, gradient_norm, divergence_max, divergence_rms
        (units of the parameters), and each further number that some line has, by its name (NaN: the line has none).
    divergence: step, group (parameter group, or "all"), max, rms: difference between replicas.
    samples: step, class, nmse (fraction of energy), cosine: of collectives' results against the exact ones.
    loss_statistics: one row per class and half ("both" is the whole class): messages, packets, bytes, lost,
        lost_bytes, configured_rate and realised_rate (fractions), z, mean_burst_packets,
        configured_mean_burst_packets, collectives, untouched_share, nmse, cosine, divergence_max, divergence_rms,
        path, loss, fill, digest. NaN: measures of calls that were not sampled, rates and z without packets.
    bursts: class, half, length (packets), count, expected (by the theory).
    layers: class, layer (of the model; -1: messages of none), steps, untouched_share (of steps), sampled_calls,
        error_energy, exact_energy (NaN in older records), bias (mean error by the RMS of the exact results), nmse,
        cosine, divergence_max, divergence_rms (NaN: not sampled).
    gaps: class, half, from, to (packets), count, expected (by the theory; NaN: not known): runs of deliveries.
    links: class, half, source, destination, packets, lost, realised_rate, z, mean_burst_packets (where recorded).
    time: one row per run with a virtual clock: virtual_seconds, compute_seconds (mean over ranks), packets (sent at
        first), repeated_packets, timeouts, late_packets, late_rate (late_packets / packets; NaN without a deadline).
    recoveries: one row per class and half that recovers: policy, packets and lost (first transmissions, parity too),
        repaired and residual (data packets restored, and missing in the end), residual_bytes, resent (packets sent
        again), resend_rounds.
    wall_seconds: rank, kind (phase, communication, waiting), name (of the phase or traffic class), seconds: sums over
        the lines of metrics after step 0 (docs/profiling.md); waiting is a part of communication.
    searches: one row per run of a search: rate, verdict, mean, low, high, difference (percent of the twin's loss; NaN
        where it diverged), tolerance (percent), threshold, threshold_low, threshold_high (fractions).
    """

    path: Path
    name: str
    description: str
    spec: dict[str, Any]
    runs: pd.DataFrame
    metrics: pd.DataFrame
    divergence: pd.DataFrame
    samples: pd.DataFrame
    loss_statistics: pd.DataFrame
    bursts: pd.DataFrame
    layers: pd.DataFrame
    gaps: pd.DataFrame
    links: pd.DataFrame
    time: pd.DataFrame
    recoveries: pd.DataFrame
    searches: pd.DataFrame
    wall_seconds: pd.DataFrame
    planned: int | None  # runs in sweep.json; None without it
    varied: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    best_over: tuple[str, ...] = ()  # swept pointers, of which tables and figures show the best value of each point
    search: Search | None = None  # search.json, where a search was made
    names: dict[str, str] = field(default_factory=dict)  # of the swept pointers, as sweep.json has them
    rate_pointer: str | None = None  # the loss whose rate is `loss_rate`, where several vary on their own
    files: dict[str, Run] = field(default_factory=dict)  # by run_id
    # A user's functions of labels and predictions: measures of classifiers next to accuracy.
    own_measures: tuple[Any, ...] = ()
    unit: str = "nats per token"  # of losses; nats per byte where all runs train on the bytes of a text

    @cached_property
    def best_namer(self) -> SeriesNamer:
        """Names the series of all runs without the pointers of best_over, by the names and the order of the sweep."""
        return SeriesNamer(list(self.files.values()), self.best_over, self.names)

    @cached_property
    def best(self) -> Records:
        """These records with the runs of the best value of each point alone; the records themselves without best_over.
        A point without a finished run has the runs of its first value, and no `best_value`.

        Series say nothing of the pointers of best_over then, and the twin of a run is the lossless run of the same
        seeds at the lossless point's own best value.
        """
        if not self.best_over:
            return self
        found = best_over(self)
        chosen, best = ({run_id for run_ids in found.loc[found[column], "run_ids"] for run_id in run_ids}
                        for column in ("shown", "best"))  # fmt: skip
        runs = [run for run in self.files.values() if run.run_id in chosen]
        result = _of_runs(self.path, self.name, self.description, self.spec, runs, self.planned, self.search,
                         list(self.warnings), self.best_namer, self._rows_of(chosen))  # fmt: skip
        result.runs.loc[~result.runs["run_id"].isin(best), "best_value"] = ""
        result.own_measures = self.own_measures
        result.best = result
        return result

    def _rows_of(self, run_ids: Collection[str]) -> dict[str, dict[str, np.ndarray]]:
        """The columns of the rows of these runs by frame, without those that a namer gives."""
        found = {}
        for kind in COLUMNS:
            frame = getattr(self, kind)
            names = [name for name in frame.columns if name not in KEYS and not name.startswith("/")]
            rows = frame[frame["run_id"].isin(run_ids)]
            found[kind] = {name: rows[name].to_numpy() for name in ("run_id", *names)}
        return found

    def to_csv(self, folder: str | Path) -> list[Path]:
        """Writes every frame that has rows as <folder>/<name>.csv, and `points` (droptest.points). Returns the paths.

        Raises: OSError where the folder cannot be written.
        """
        frames = {name: getattr(self, name) for name in FRAMES} | {"points": points(self)}
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for name, frame in frames.items():
            if len(frame):
                paths.append(folder / f"{name}.csv")
                frame.to_csv(paths[-1], index=False)
        return paths

    def __repr__(self) -> str:
        return "\n".join(overview.lines(self))

    def _repr_html_(self) -> str:
        return overview.html(self)

    @property
    def of_programs(self) -> bool:
        """Whether all runs are other programs, of which the network alone has records."""
        return bool(self.files) and all(run.of_program for run in self.files.values())

    @property
    def are_counted_by_ranks(self) -> bool:
        """Whether the ranks of user's programs have counted the packets of all runs, finished ones too: there are no
        samples of collectives, of divergence and of wall times."""
        return bool(self.files) and all(run.of_program or "ranks" in run.loss_statistics for run in self.files.values())

    def of_status(self, *statuses: str) -> pd.DataFrame:
        """The runs of these statuses."""
        return self.runs[self.runs["status"].isin(statuses)]


def best_over(records: Records) -> pd.DataFrame:
    """One row per point and value of the pointers of best_over: every value that was trained, with the one that won.

    Columns: series (without the pointers), loss_rate (fraction), lossless, value ("learning rate 0.001"), a column for
    each of the pointers; runs, completed, diverged, failed (counts); selection_loss (mean over the seeds; NaN unless
    all runs have completed, since the value takes no part then); mean, low and high of the final validation loss over
    the completed seeds; best; shown (whether its runs stand for the point); run_ids; marks (events of its runs that
    results may depend on, joined by commas). Losses are in nats per token (or byte).
    If no value of a point takes part, the one with the most completed runs is the best, of equal ones the first. If no
    run of a point has completed, no value is the best, and the first one is shown.
    """
    return values_at_points(records.files.values(), records.runs, records.best_namer)


def _is_listed(path: Path) -> bool:
    return any((path / name).is_file() for name in ("sweep.json", "search.json"))


def _is_experiment(path: Path) -> bool:
    if not path.is_dir():
        return False
    return _is_listed(path) or any(is_run(child) and not is_program(child) for child in sorted(path.iterdir()))


def experiments_in(path: str | Path) -> list[Path]:
    """The folders that `load` takes, at or directly below `path`: a run, an experiment, or experiments with programs
    and runs next to them.

    Raises: MissingRecord where there is none.
    """
    path = Path(path)
    if not path.is_dir():
        raise MissingRecord(f"{path}: no such folder; give a folder of records, such as results/quickstart")
    if is_run(path) or _is_listed(path):
        return [path]
    children = sorted(path.iterdir())
    beside = [child for child in children if not is_run(child) and _is_experiment(child)]
    if not beside and _is_experiment(path):
        return [path]
    found = [child for child in children if child in beside or is_run(child)]
    if not found:
        raise MissingRecord(f"{path}: no records here (no sweep.json or search.json, and no folder with a spec.json)")
    return found


def load_all(path: str | Path) -> list[Records]:
    """Every experiment at or directly below `path`. Raises: RecordError."""
    return [load(folder) for folder in experiments_in(path)]


def load(path: str | Path) -> Records:
    """The experiment in `path`: results/<name>, or the folder of one run.

    A sweep that is not finished loads too: `runs` has a row for each planned run. A run whose files are damaged gets
    status `unreadable` and a warning. Where sweep.json or search.json list runs, folders that neither lists are left
    out. If sweep.json is no JSON object and there are runs, all runs of the folder are loaded, with a warning.
    Raises: MissingRecord, MalformedRecord (search.json, members of sweep.json), RecordError where `path` holds
    experiments.
    """
    path = Path(path)
    folders = experiments_in(path)
    if folders != [path]:
        names = ", ".join(folder.name for folder in folders)
        raise RecordError(f"{path}: holds several experiments ({names}); load one of them, or use load_all")
    warnings: list[str] = []
    sweep: dict[str, Any] = {}
    search = None if is_run(path) else read_search(path)
    rows = RunRows()
    read = partial(read_run, take=rows.add)
    if is_run(path):
        runs = [read(path)]
    elif search is not None or (path / "sweep.json").is_file():
        if (path / "sweep.json").is_file():
            try:
                sweep = read_json(path / "sweep.json")
            except MalformedRecord as error:
                if not any(is_run(child) for child in path.iterdir()):
                    raise
                warnings.append(f"{error}: the runs are those in the folder; what else was planned is not known")
                runs = _runs_in(path, read)
            else:
                runs = _planned_runs(path, sweep, search, warnings, read)
        else:
            runs = _planned_runs(path, sweep, search, warnings, read)
    else:
        runs = _runs_in(path, read)
    fill_omits(runs)
    for run in runs:
        warnings += run.warnings
        if run.status == "unreadable":
            warnings.append(f"run {run.run_id} was left out: {run.error}")
    warnings += _repeated_warnings([(run, run.idle) for run in runs])
    warnings += _mark_warnings(runs)
    warnings += [
        f"{run.path / 'spec.json'}: no such file: run {run.run_id} has no lossless twin, and is none of another run"
        for run in runs if run.status in ("completed", "diverged") and not run.spec
    ]  # fmt: skip
    for name, what in (("metrics.jsonl", "curves"), ("loss_statistics.json", "losses of packets")):
        without = [run for run in runs if run.summary.get("status") in ("completed", "diverged")
                   and not (run.path / name).is_file()]  # fmt: skip
        if without:
            more = f" and {len(without) - 1} more" if len(without) > 1 else ""
            again = "; droptest run or sweep with --again trains them once more"
            again = "" if any((run.path / "ranks").is_dir() for run in without) else again
            warnings.append(f"{without[0].path / name}{more}: no such file: these runs have no {what} here{again}")
    first = next((run for run in runs if run.spec), runs[0] if runs else Run("", path))
    return _of_runs(
        path,
        str(sweep.get("name") or first.spec.get("name") or first.summary.get("name") or path.resolve().name),
        str(sweep.get("description") or first.spec.get("description") or ""),
        object_of(sweep.get("spec")) or first.spec,
        runs,
        len(runs) if sweep else None,
        search,
        warnings,
        SeriesNamer(runs, names=names_of(sweep, path)),
        rows.columns(),
        _best_over(sweep, path),
    )


def _runs_in(path: Path, read: Callable[[Path], Run]) -> list[Run]:
    return [read(child) for child in sorted(path.iterdir()) if is_run(child)]


def names_of(sweep: dict[str, Any], path: Path) -> dict[str, str]:
    """The names of the swept pointers, in the order of the spec; records of earlier programs have none.

    Raises: MalformedRecord.
    """
    found = sweep.get("names", [])
    if not isinstance(found, list) or not all({"pointer", "name"} <= set(object_of(one)) for one in found):
        raise MalformedRecord(f"{path / 'sweep.json'}: /names: got {found!r}, want a list of pointers with names")
    return {str(one["pointer"]): str(one["name"]) for one in found}


def _best_over(sweep: dict[str, Any], path: Path) -> tuple[str, ...]:
    found = sweep.get("best_over", [])
    if not isinstance(found, list) or not all(isinstance(pointer, str) for pointer in found):
        raise MalformedRecord(f"{path / 'sweep.json'}: /best_over: got {found!r}, want a list of pointers")
    return tuple(found)


def _repeated_warnings(texts_of_runs: Sequence[tuple[Run, Sequence[str]]]) -> list[str]:
    """The texts about the runs, once each."""
    by_text: dict[str, list[str]] = {}
    for run, texts in texts_of_runs:
        for text in texts:
            by_text.setdefault(text, []).append(run.run_id)
    return [f"{len(ids)} of {len(texts_of_runs)} runs: {text} ({_ids_text(ids)})" for text, ids in by_text.items()]


def _mark_warnings(runs: Sequence[Run]) -> list[str]:
    """One text for each mark and pointer; steps and counts, in which runs differ, stay in the runs' own records."""
    marked: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        for mark, text in run.marks:
            marked.setdefault((mark, text.split(": ")[0]), []).append(run.run_id)
    return [f"{len(ids)} of {len(runs)} runs {MARKED.get(mark, f'have the mark {mark}')}: {pointer} ({_ids_text(ids)})"
            for (mark, pointer), ids in marked.items()]  # fmt: skip


def _ids_text(ids: Sequence[str]) -> str:
    return f"{', '.join(ids[:3])}{', ...' if len(ids) > 3 else ''}"


def _planned_runs(
    path: Path, sweep: dict[str, Any], search: Search | None, warnings: list[str], read: Callable[[Path], Run]
) -> list[Run]:
    """The runs of sweep.json in its order, then those of search.json, each read once.

    Points and seeds that resolve to the same run (as lossless ones do) are one run, which knows the others.
    """
    planned = sweep.get("runs") if sweep else []
    if not isinstance(planned, list):
        raise MalformedRecord(f"{path / 'sweep.json'}: /runs: got {type(planned).__name__}, want a list")
    runs: dict[str, Run] = {}
    for index, entry in enumerate(planned):
        run_id = entry.get("run_id") if isinstance(entry, dict) else None
        if not isinstance(run_id, str) or not run_id or Path(run_id).name != run_id:
            raise MalformedRecord(f"{path / 'sweep.json'}: /runs/{index}/run_id: got {run_id!r}, want a folder's name")
        if run_id in runs:
            known = runs[run_id]
            known.listed += 1
            seeds = seeds_of(entry)
            if seeds is None or seeds == known.seeds:
                known.other_points.append(object_of(entry.get("point")))
            elif seeds[2] not in known.other_network_seeds:
                known.other_network_seeds.append(seeds[2])
            known.idle = tuple(dict.fromkeys((*known.idle, *idle_parts(entry))))
            continue
        run = read(path / run_id)
        run.point = object_of(entry.get("point")) or run.point
        run.labels = labels_of(entry) or run.labels
        run.seeds = run.seeds or seeds_of(entry)
        run.idle = tuple(dict.fromkeys((*run.idle, *idle_parts(entry))))
        runs[run_id] = run
    _give_specs(runs.values())
    for run_id, seed in search.run_ids if search is not None else ():
        if Path(run_id).name != run_id:
            raise MalformedRecord(f"{path / 'search.json'}: got run_id {run_id!r}, want a folder's name")
        run = runs.get(run_id) or runs.setdefault(run_id, read(path / run_id))
        run.seeds = run.seeds or (seed, seed, seed)
    if search is not None:
        # A sweep's points and a search's name other members: the resolved specs name the members in which runs differ.
        for run in runs.values():
            if run.spec:
                run.point, run.labels = {}, []
    extra = [child.name for child in sorted(path.iterdir()) if child.name not in runs and is_run(child)]
    if extra:
        lists = " or ".join(name for name in ("sweep.json", "search.json") if (path / name).is_file())
        warnings.append(f"runs here that are not part of {lists} were left out: {', '.join(extra)}")
    return list(runs.values())


def _give_specs(runs: Iterable[Run]) -> None:
    """Runs that have not begun lose what the runs of their point lose: they get the resolved spec of one of these."""
    begun = {canonical(run.point): run.spec for run in runs if run.spec}
    for run in runs:
        spec = begun.get(canonical(run.point))
        if run.status == "missing" and spec is not None and run.seeds is not None:
            run.spec = {**spec, "seeds": dict(zip(("weights", "data", "network"), run.seeds, strict=True))}


def _of_runs(
    path: Path, name: str, description: str, spec: dict[str, Any], runs: list[Run], planned: int | None,
    search: Search | None, warnings: list[str], namer: SeriesNamer, rows: dict[str, dict[str, np.ndarray]],
    best_over: Sequence[str] = (),
) -> Records:  # fmt: skip
    frames = frames_of(path, runs, search, namer, rows)
    if not all(run.of_program for run in runs) and not frames["runs"]["without_loss"].any():
        warnings.append("there is no lossless run: differences to a lossless twin cannot be given")
    return Records(
        path=path, name=name, description=description, spec=spec, planned=planned, varied=namer.varied,
        rate_pointer=namer.rate_pointer, names=namer.given_names, best_over=tuple(best_over),
        search=search, warnings=warnings,
        unit=words.unit_of(run.spec for run in runs if run.spec), files={run.run_id: run for run in runs},
        **frames,
    )  # fmt: skip
