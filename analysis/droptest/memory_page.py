# SPDX-License-Identifier: Apache-2.0
"""Peaks of memory by kind, and the reuse of buffers, from the member `memory` of summary.json."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from droptest.files import object_of
from droptest.records import Records

HEADER = ("series", "kind", "peak, MiB", "after step", "taken", "allocated", "runs")
NOTE = (
    "Memory of rank 0 since the last start of the run. Peak: the largest over the runs of a series; after step: the "
    "step after which it was first measured. Process: the whole process with all its ranks, the program and the data. "
    "Device: the GPU of the rank, with all programs on it. A pool has buffers that are used again: slots hold the "
    "activations of a micro-batch, messages and calls hold the copies and plans of collectives. Taken: how often a "
    "buffer was taken from the pool; allocated: how often that needed new memory."
)


def rows(records: Records) -> list[tuple[str, ...]]:
    """One row per series and kind of memory or pool; none where no summary has the member."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in records.runs.itertuples():
        file = records.files.get(run.run_id)
        for kind, entry in _entries(object_of(file.summary.get("memory")) if file else {}):
            found.setdefault((run.series, kind), []).append(entry)
    return [_row(series, kind, entries) for (series, kind), entries in found.items()]


def _entries(memory: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for kind, peak in object_of(memory.get("model")).items():
        yield kind.replace("_", " "), object_of(peak)
    for whole in ("process", "device"):
        if whole in memory:
            yield whole, object_of(memory[whole])
    for name, pool in object_of(memory.get("pools")).items():
        yield f"pool of {name}", object_of(pool)


def _row(series: str, kind: str, entries: list[dict[str, Any]]) -> tuple[str, ...]:
    largest = max(entries, key=lambda entry: entry.get("bytes", 0))
    size = f"{largest['bytes'] / 2**20:.1f}" if "bytes" in largest else "-"
    return (series, kind, size, *(str(largest.get(name, "-")) for name in ("step", "taken", "allocated")),
            str(len(entries)))  # fmt: skip
