# SPDX-License-Identifier: Apache-2.0
"""Any two points of an experiment against each other: the differences of their specs, curves, paired differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from droptest.files import Run
from droptest.pointers import canonical, without
from droptest.records import Records
from droptest.rows_by_run import RowsByRun
from droptest.series import leaves
from droptest.statistics import Interval
from droptest.summary import Group, groups
from droptest.twins import omits, without_effect
from droptest.variance import interval_of

MOST_POINTS = 60
MOST_STEPS = 200  # of a curve in the page
UNINTERESTING = ("/seeds", "/backend")


def data(records: Records) -> dict[str, Any]:
    """points: name, spec (pointer -> value as JSON) and runs (seed, step, loss) each; pairs: "i,j" -> mean, low, high
    and number of final differences, point i minus point j; matches: "i,j" -> pairs of runs by their places in `runs`;
    omitted: points left out."""
    pairing = Pairing(records)
    lines, rows = RowsByRun(records.metrics.dropna(subset=["validation_loss"])), RowsByRun(records.runs)
    every = [group for group in groups(records) if group.count("completed") + group.count("diverged")]
    shown = every[:MOST_POINTS]
    place = {run_id: index for group in shown for index, run_id in enumerate(group.run_ids)}
    return {
        "unit": records.unit,
        "points": [_point(records, rows, lines, group) for group in shown],
        "pairs": {f"{i},{j}": [d.mean, *((d.low, d.high) if d.has_width else (math.nan, math.nan)), d.n]
                  for (i, a), (j, b) in combinations(enumerate(shown), 2)
                  for d in [pairing.difference(a, b)] if d.n},
        "matches": {f"{i},{j}": [[place[k], place[m]] for k, m in found]
                    for (i, a), (j, b) in combinations(enumerate(shown), 2)
                    for found in [pairing.matches(a, b)] if found},
        "omitted": len(every) - len(shown),
    }  # fmt: skip


def _point(records: Records, rows: RowsByRun, lines: RowsByRun, group: Group) -> dict[str, Any]:
    first = next((records.files[i] for i in group.run_ids if records.files[i].spec), None)
    spec = {} if first is None else {f"/{key}": value for key, value in _compared_spec(first).items()}
    runs = []
    for run_id in group.run_ids:
        (seed,) = rows.columns([run_id], "seed")[0]
        steps, losses = lines.columns([run_id], "step", "validation_loss")
        some = slice(None, None, math.ceil(len(steps) / MOST_STEPS) or 1)
        runs.append({"seed": str(seed), "step": steps[some], "loss": losses[some]})
    return {"name": group.name_with_rate, "lossless": group.lossless, "runs": runs,
            "spec": {pointer: canonical(value) for pointer, value in leaves(spec).items()}}  # fmt: skip


def _compared_spec(run: Run) -> dict[str, Any]:
    return without(run.spec, (*without_effect(run), *UNINTERESTING))


def _base_of(one: Group, other: Group) -> Group:
    """The group with the partners of the other's runs: the one without loss, where there is one."""
    return next((g for kind in ("lossless", "without_loss") for g in (one, other) if getattr(g, kind)), one)


class Pairing:
    """Which runs of two points to compare: a run and its twin, or runs of equal seeds."""

    def __init__(self, records: Records):
        self._rows = {row.run_id: row for row in records.best.runs.itertuples()}
        self._of_any_network = {
            run_id for run_id, row in self._rows.items()
            if row.without_loss and "/seeds/network" in omits(records.files[run_id])
        }  # fmt: skip

    def _partners(self, run_ids: Sequence[str], base: Sequence[str]) -> dict[str, str]:
        """For each run the one of `base`: its twin, else the one of equal seeds, else one of the same training of which
        no result depends on the network's seed."""
        candidates = [self._rows[run_id] for run_id in base]
        by_seeds = {(row.training, row.network_seed): row.run_id for row in candidates}
        by_training = {row.training: row.run_id for row in candidates if row.run_id in self._of_any_network}
        found, in_base = {}, set(base)
        for row in (self._rows[run_id] for run_id in run_ids):
            alike = by_seeds.get((row.training, row.network_seed), by_training.get(row.training))
            partner = row.twin if row.twin in in_base else alike
            if partner is not None:
                found[row.run_id] = partner
        return found

    def matches(self, one: Group, other: Group) -> list[tuple[str, str]]:
        """run_ids of a run of `one` and its partner in `other`, or the other way around."""
        base = _base_of(one, other)
        partners = self._partners(one.run_ids if base is other else other.run_ids, base.run_ids)
        return [(partner, run) if base is one else (run, partner) for run, partner in partners.items()]

    def difference(self, one: Group, other: Group) -> Interval:
        """Of the final validation losses of `one` minus those of `other`, over the pairs of finished runs."""
        differences = {}
        for a, b in self.matches(one, other):
            difference = self._rows[a].final_validation_loss - self._rows[b].final_validation_loss
            run = self._rows[b if _base_of(one, other) is one else a]
            if math.isfinite(difference):
                network = run.training if one.lossless and other.lossless else run.network_seed
                differences[run.training, network] = difference
        return interval_of(differences)
