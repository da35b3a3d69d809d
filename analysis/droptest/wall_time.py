# SPDX-License-Identifier: Apache-2.0
"""Where the wall time of runs goes: shares of the parts, bottlenecks with their severity, and what would help.

The numbers are `ranks[i].wall_seconds` of metrics.jsonl (docs/profiling.md), after the line of step 0, which has the
start of the run.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from droptest import words
from droptest.files import object_of
from droptest.records import Records
from droptest.rows_by_run import RowsByRun
from droptest.summary import Group, groups, printable

COMPUTE = ("products", "attention", "layer_norm", "gelu", "cross_entropy", "embedding", "bias")
PARTS = {
    "compute": "compute",
    "recomputation": "recomputation",
    "device": "GPU, with the host's wait for it",
    "optimizer": "optimizer",
    "reductions": "conversion of messages",
    "waiting": "waiting for the slowest rank",
    "data": "data",
    "evaluation": "evaluation",
    "sampling": "sampling of errors",
    "checkpoint": "checkpoints",
    "records": "records",
    "other": "other",
}  # the parts that are not the transfer of a traffic class, in the order of figures
UNKNOWN_PART = "a trace shows when it happens: record.profile_steps"  # what helps against it
WORK = ("compute", "device")  # what a run is for: no bottleneck
SEVERITIES = (("high", 0.20), ("medium", 0.10), ("low", 0.03))  # the least share of the time of each
MOST_ROWS = 3  # on the terminal


def part_of(kind: str, name: str) -> str:
    """The part that a phase or the time in a traffic class belongs to. A phase that is not known is its own."""
    if kind == "waiting":
        return "waiting"
    if kind == "communication":
        return f"transfer {name}"
    if name in COMPUTE:
        return "compute"
    return "optimizer" if name == "gradient_norm" else name


def title_of(part: str) -> str:
    """A part in words: "exposed transfer, data parallel, gradients"."""
    if part.startswith("transfer "):
        return f"exposed transfer, {words.spoken(part.removeprefix('transfer '))}"
    return PARTS.get(part) or words.spoken(part)


def severity_of(part: str, share: float) -> str:
    """high, medium, low, or "" for a part below the least of them, and for the work itself."""
    if part in WORK:
        return ""
    return next((name for name, least in SEVERITIES if share >= least), "")


def rank_shares(records: Records) -> pd.DataFrame:
    """One row per run, rank and part: run_id, rank, part, seconds, share (of the rank's time, in [0, 1]).

    The transfer of a class is its time in communication without the waiting.
    """
    frame = records.wall_seconds
    if frame.empty:
        return pd.DataFrame(columns=["run_id", "rank", "part", "seconds", "share"])
    waited = frame[frame["kind"] == "waiting"].assign(kind="communication", seconds=lambda d: -d["seconds"])
    rows = pd.concat([frame, waited], ignore_index=True)
    rows["part"] = [part_of(*pair) for pair in zip(rows["kind"], rows["name"], strict=True)]
    result = rows.groupby(["run_id", "rank", "part"], sort=False, as_index=False)["seconds"].sum()
    result["share"] = result["seconds"] / result.groupby(["run_id", "rank"])["seconds"].transform("sum")
    return result


def ordered(parts: Iterable[str]) -> list[str]:
    """The parts in the order of figures: compute, transfers, waiting, the rest."""
    parts, known = set(parts), list(PARTS)
    transfers = sorted(part for part in parts if part.startswith("transfer "))
    place = known.index("waiting")
    order = [*known[:place], *transfers, *known[place:]]
    return [part for part in order if part in parts] + sorted(parts - set(order))


@dataclass(frozen=True)
class Part:
    """A part of the time of a point of the experiment, over its runs and ranks."""

    part: str
    share: float  # mean over runs and ranks, in [0, 1]
    least: float  # over the ranks of all runs
    most: float
    step_seconds: float  # mean seconds of a step; NaN without steps
    severity: str
    help: str

    @property
    def title(self) -> str:
        return title_of(self.part)


@dataclass(frozen=True)
class Breakdown:
    """The parts of a point, the largest first; `known` of its `runs` have the numbers."""

    group: Group
    parts: tuple[Part, ...]
    known: int
    runs: int

    def bottlenecks(self) -> list[Part]:
        return [part for part in self.parts if part.severity]


def breakdowns(records: Records) -> list[Breakdown]:
    """One for each point of the experiment whose runs have the numbers."""
    records = records.best
    shares = RowsByRun(rank_shares(records))
    steps = dict(zip(records.runs["run_id"], records.runs["last_step"], strict=True))
    result = []
    for group in groups(records):
        columns = shares.columns(group.run_ids, "run_id", "rank", "part", "seconds", "share")
        seconds_of: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))  # by part and run
        shares_of: dict[str, dict[tuple[str, int], float]] = defaultdict(dict)  # by part, and run and rank
        for run_id, rank, part, seconds, share in zip(*columns, strict=True):
            seconds_of[part][run_id] += seconds
            shares_of[part][run_id, rank] = share
        if not shares_of:
            continue
        ranks = list(dict.fromkeys(rank for of_part in shares_of.values() for rank in of_part))
        in_run = Counter(run_id for run_id, _ in ranks)
        helps = advice(records.files[columns[0][0]].spec, shares_of.get("waiting", {}))
        parts = []
        for part in ordered(shares_of):
            of_ranks = [shares_of[part].get(rank, 0.0) for rank in ranks]
            per_step = [seconds_of[part].get(run_id, 0.0) / count / steps[run_id]
                        for run_id, count in in_run.items() if steps[run_id] > 0]  # fmt: skip
            known = [value for value in of_ranks if not math.isnan(value)] or [math.nan]
            share = _mean(known)
            severity = severity_of(part, share)
            shown = helps.get(part, UNKNOWN_PART) if severity or part in WORK else ""
            parts.append(Part(part, share, min(known), max(known), _mean(per_step), severity, shown))
        parts.sort(key=lambda p: -p.share)
        result.append(Breakdown(group, tuple(parts), len(in_run), len(group.run_ids)))
    return result


def _mean(values: Collection[float]) -> float:
    """The mean of the values that are there; NaN without any."""
    known = [value for value in values if not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan


def _now(spec: dict[str, Any], pointer: str) -> str:
    """ "parallel.bucket_bytes (now 1048576)"; the name alone where the resolved spec leaves it out."""
    value: Any = spec
    for name in pointer.split("."):
        value = object_of(value).get(name)
    return f"{pointer} (now {value})" if isinstance(value, int | float | str) else pointer


def advice(spec: dict[str, Any], waited: Mapping[tuple[str, int], float]) -> dict[str, str]:
    """What would make each part smaller, with the settings that decide it; a part that is not there needs a trace.

    waited: the share of its time that each rank of each run waits.
    """
    now = lambda pointer: _now(spec, pointer)  # noqa: E731
    has_chunks = object_of(spec.get("parallel")).get("chunks", 1) != 1
    fewer_stages = (
        f"fewer stages: {now('parallel.pipeline')}{'; smaller ' + now('parallel.chunks') if has_chunks else ''}"
    )
    return ({"waiting": _advice_on_waiting(spec, waited)} if waited else {}) | {
        "compute": f"more {now('backend.threads_per_rank')} where cores are idle, more ranks, or 16-bit GEMMs "
                   "(training.precision)",
        "device": "the phases of the GPU are in a trace: record.profile_steps",
        "transfer control": "fewer ranks, or longer steps: in each step the ranks agree on some numbers",
        "transfer tp_forward": f"fewer ranks in a tensor group: {now('parallel.tensor')}; 16-bit messages "
                               "(training.precision.message)",
        "transfer tp_backward": f"fewer ranks in a tensor group: {now('parallel.tensor')}; 16-bit messages "
                                "(training.precision.message)",
        "transfer dp_gradient": f"larger {now('parallel.bucket_bytes')} where messages are small, smaller where one "
                                f"bucket ends after the backward pass; more {now('training.accumulation')}; fewer "
                                f"replicas: {now('parallel.data')}",
        "transfer parameter_gather": f"lower {now('parallel.zero')}; larger {now('parallel.gather_bucket_bytes')}",
        "transfer pp_activation": fewer_stages,
        "transfer pp_gradient": fewer_stages,
        "transfer sequence_forward": f"fewer ranks along the sequence: {now('parallel.sequence')}",
        "transfer sequence_backward": f"fewer ranks along the sequence: {now('parallel.sequence')}",
        "transfer embedding_gradient": f"fewer stages: {now('parallel.pipeline')}",
        "transfer outer": "more inner steps between two outer ones",
        "recomputation": f"a strategy that saves more: {now('memory.strategy')}; larger {now('memory.every')}",
        "optimizer": f"{now('parallel.zero')} 1 or more shares the update over replicas; more "
                     f"{now('training.accumulation')}",
        "reductions": "messages of the type of activations (training.precision.message)",
        "data": f"longer files on a faster disk; fewer, longer steps: {now('training.batch_sequences')}",
        "evaluation": f"larger {now('validation.every_steps')}; fewer {now('validation.tokens')}",
        "sampling": f"larger {now('record.sample_every_steps')}",
        "checkpoint": f"larger {now('checkpoint.every_steps')}; checkpoint.async on a faster disk",
        "records": f"larger {now('record.every_steps')}",
        "other": "a trace shows the gaps between phases: record.profile_steps",
    }  # fmt: skip


def _advice_on_waiting(spec: dict[str, Any], waited_of: Mapping[tuple[str, int], float]) -> str:
    of_rank: dict[int, list[float]] = defaultdict(list)
    for (_, rank), share in waited_of.items():
        of_rank[rank].append(share)
    waited = {rank: _mean(of_rank[rank]) for rank in sorted(of_rank)}
    mean, last = _mean(waited.values()), min(waited, key=waited.__getitem__)
    stages = object_of(spec.get("parallel")).get("pipeline", 1)
    if stages > 1:
        return (f"bubbles of the pipeline: more {_now(spec, 'training.accumulation')} micro-batches, or the schedule "
                f"interleaved ({_now(spec, 'parallel.schedule')})")  # fmt: skip
    if len(waited) > 1 and waited[last] < mean / 2:
        return (f"the others wait for rank {last}, which waits {100 * waited[last]:.1f} % of its time: other programs "
                "on its cores, a slower machine, or more work than the others have")  # fmt: skip
    threads = object_of(spec.get("backend")).get("threads_per_rank", 1)
    return (f"the slowest rank changes, which suggests too few cores: give each of the {len(waited)} ranks {threads} "
            f"core{'' if threads == 1 else 's'}, or use fewer and larger collectives")  # fmt: skip


HEADER = ("series", "part", "share", "least", "most", "per step", "severity", "what would help")
NOTE = (
    "Share of the wall time of the ranks, mean over ranks and seeds; least and most: over the ranks; per step: time in "
    "milliseconds. Severity: high from 20 %, medium from 10 %, low from 3 %. Exposed transfer: time in collectives and "
    "messages in which the rank computes nothing, without the waiting. Waiting: until the last rank of a collective "
    "has begun it, estimated from the calls of the steps with a line in metrics.jsonl."
)


def rows_of(found: Breakdown, parts: list[Part] | tuple[Part, ...]) -> Iterator[tuple[str, ...]]:
    for part in parts:
        shares = (f"{100 * share:.1f} %" for share in (part.share, part.least, part.most))
        yield (found.group.name_with_rate, part.title, *shares,
               "-" if math.isnan(part.step_seconds) else f"{1e3 * part.step_seconds:.4g} ms", part.severity or "-",
               part.help or "-")  # fmt: skip


def findings(every: list[Breakdown]) -> Iterator[str]:
    """Per point its bottlenecks in words, the largest first."""
    for found in every:
        where = f"{found.group.name_with_rate}: " if len(every) > 1 else ""
        compute = sum(part.share for part in found.parts if part.part in WORK)
        text = f"{where}{100 * compute:.0f} % of the wall time is compute on CPU or GPU"
        named = [f"{p.title}: {100 * p.share:.1f} % ({p.severity}). Advice: {p.help}." for p in found.bottlenecks()]
        if not named:
            text += "; no other part has 3 %"
        if found.known < found.runs:
            text += f"; {found.known} of {found.runs} runs have the numbers"
        if not any(part.part == "waiting" for part in found.parts):
            transfers = any(part.part.startswith("transfer ") for part in found.parts)
            text += "; the records do not tell waiting and transfer apart" if transfers else ""
        yield text + "."
        yield from named


@dataclass(frozen=True)
class Bottleneck:
    """A part with its mean share over the points, and the remedy of the point in which its share is the largest."""

    part: Part
    mean: float
    where: str  # the share at that point, with its name; "" where all points are alike

    @property
    def severity(self) -> str:
        return severity_of(self.part.part, self.mean)


def largest(every: list[Breakdown]) -> list[Bottleneck]:
    """The bottlenecks over all points, the largest first."""
    of: dict[str, tuple[Breakdown, Part]] = {}
    sums: dict[str, float] = defaultdict(float)
    for one in every:
        for part in one.parts:
            sums[part.part] += part.share
            if part.part not in of or part.share > of[part.part][1].share:
                of[part.part] = (one, part)
    found = []
    for one, part in of.values():
        mean = sums[part.part] / len(every)
        here, usual = f"{100 * part.share:.1f} %", f"{100 * mean:.1f} %"
        where = "" if here == usual else f'; largest at "{one.group.name_with_rate}": {here}'
        found.append(Bottleneck(part, mean, where))
    return sorted((one for one in found if one.severity), key=lambda one: -one.mean)


def headlines(every: list[Breakdown]) -> list[str]:
    """The largest bottlenecks over all points, a sentence each."""
    of_all = f"of the wall time, mean over {len(every)} points" if len(every) > 1 else "of the wall time"
    return [f"{one.part.title}: {100 * one.mean:.1f} % {of_all} ({one.severity}{one.where}). Advice: {one.part.help}."
            for one in largest(every)[:MOST_ROWS]]  # fmt: skip


def text_table(records: Records) -> str:
    """The three largest bottlenecks for a terminal, a line each; "" where the records have none of the numbers."""
    every = breakdowns(records)
    if not every:
        return ""
    found = largest(every)
    if not found:
        return "where the wall time goes: compute; no other part has 3 %"
    lines = ["where the wall time goes" + (":" if len(every) == 1 else f", mean over {len(every)} points:")]
    lines += [f"{100 * one.mean:6.1f} %  {one.severity:6}  {one.part.title}{printable(one.where)}. "
              f"Advice: {one.part.help}" for one in found[:MOST_ROWS]]  # fmt: skip
    if (more := len(found) - MOST_ROWS) > 0:
        lines.append(f"{more} more {'is' if more == 1 else 'are'} in the report")
    return "\n".join(lines)
