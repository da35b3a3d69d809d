# SPDX-License-Identifier: Apache-2.0
"""The lossless twin of a run: a run with the same weights and batches that loses no packet (docs/records.md)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from droptest.files import Run, object_of
from droptest.pointers import canonical, within, without

# The omitted ones among the members that records of programs without `twin_omits` have.
OMITTED_BY_OLDER_RECORDS = (
    *("/network", "/time", "/seeds/network", "/name", "/description", "/record", "/numerics_version"),
    *("/backend/timeout_seconds", "/backend/rendezvous", "/backend/threads_per_rank", "/validation/network"),
)
# Members in which a twin may differ because it loses nothing. A run that loses packets depends on them.
OF_LOSS = ("/network", "/time", "/numerics_version", "/validation/network")


def compressions(spec: dict[str, Any]) -> dict[str, object]:
    """The compression of each traffic class that has one."""
    classes = object_of(object_of(spec.get("network")).get("classes"))
    parts = {name: object_of(object_of(part).get("compression")) for name, part in classes.items()}
    return {name: part for name, part in parts.items() if part.get("kind", "none") != "none"}


def transforms(spec: dict[str, Any]) -> dict[str, object]:
    """The Hadamard transform of each traffic class that has one: without loss, too, sums are rounded in another way."""
    classes = object_of(object_of(spec.get("network")).get("classes"))
    parts = {name: object_of(object_of(part).get("recovery")).get("hadamard") for name, part in classes.items()}
    return {name: part for name, part in parts.items() if part is not None}


def fill_omits(runs: Iterable[Run]) -> None:
    """Gives the runs of an experiment that have none the pointers of the others: unfinished runs, and older ones."""
    runs = list(runs)
    for compressed in (False, True):
        alike = [run for run in runs if bool(compressions(run.spec)) == compressed]
        known = tuple(dict.fromkeys(pointer for run in alike for pointer in run.twin_omits or ()))
        for run in alike:
            if run.twin_omits is None and known:
                run.twin_omits = known


def omits(run: Run) -> tuple[str, ...]:
    """The pointers of the run's resolved spec in which its twin may differ."""
    return OMITTED_BY_OLDER_RECORDS if run.twin_omits is None else run.twin_omits


def without_effect(run: Run) -> tuple[str, ...]:
    """The pointers of the run's resolved spec that no result depends on, lossless or not."""
    return tuple(p for p in omits(run) if not any(within(p, member) for member in OF_LOSS))


def twin_key(run: Run, moved: Sequence[str] = ()) -> str | None:
    """Equal for runs whose resolved specs differ in what their twins omit, and in these pointers; None without a spec.

    Runs with different compressions have different keys, and so has a run that computed with another kernel than its
    spec asks for.
    """
    if not run.spec:
        return None
    spec = without(run.spec, (*omits(run), *moved))
    return canonical([spec, compressions(without(run.spec, moved)), "other kernel" in dict(run.marks)])
