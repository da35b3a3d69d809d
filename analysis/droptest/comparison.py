# SPDX-License-Identifier: Apache-2.0
"""Any two points of an experiment against each other: the differences of their specs, curves, paired differences."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

from droptest.files import Run
from droptest.plots.panels import named_with_rate
from droptest.pointers import canonical, without
from droptest.records import Records
from droptest.series import leaves
from droptest.summary import Group, groups
from droptest.twins import without_effect
from droptest.variance import interval_of

MOST_POINTS = 60
MOST_STEPS = 200  # of a curve in the page
UNINTERESTING = ("/seeds", "/backend")


def data(records: Records) -> dict[str, Any]:
    """points: name, spec (pointer -> value as JSON) and runs (seed, step, loss) each; pairs: "i,j" -> mean, low, high
    and number of final differences, point i minus point j, paired by training and network; omitted: points left out."""
    every = [group for group in groups(records) if group.count("completed") + group.count("diverged")]
    shown = every[:MOST_POINTS]
    return {
        "unit": records.unit,
        "points": [_point(records, group) for group in shown],
        "pairs": {f"{i},{j}": [d.mean, *((d.low, d.high) if d.has_width else (math.nan, math.nan)), d.n]
                  for (i, a), (j, b) in combinations(enumerate(shown), 2)
                  for d in [paired(records, a, b)] if d.n},
        "omitted": len(every) - len(shown),
    }  # fmt: skip


def _point(records: Records, group: Group) -> dict[str, Any]:
    first = next((records.files[i] for i in group.run_ids if records.files[i].spec), None)
    spec = {} if first is None else {f"/{key}": value for key, value in _compared_spec(first).items()}
    runs = []
    for run in records.runs[records.runs["run_id"].isin(group.run_ids)].itertuples():
        lines = records.metrics[records.metrics["run_id"] == run.run_id].dropna(subset=["validation_loss"])
        lines = lines.iloc[:: math.ceil(len(lines) / MOST_STEPS) or 1]
        runs.append({"seed": str(run.seed), "training": str(run.training), "network": str(run.network_seed),
                     "step": lines["step"], "loss": lines["validation_loss"]})  # fmt: skip
    return {"name": named_with_rate(group), "lossless": group.lossless, "runs": runs,
            "spec": {pointer: canonical(value) for pointer, value in leaves(spec).items()}}  # fmt: skip


def _compared_spec(run: Run) -> dict[str, Any]:
    return without(run.spec, (*without_effect(run), *UNINTERESTING))


def paired(records: Records, one: Group, other: Group):
    """The interval of final validation loss of `one` minus that of `other`, over runs of equal seeds; without loss the
    network's seed plays no part."""
    runs = records.runs[records.runs["final_validation_loss"].notna()]
    finals = []
    for group in (one, other):
        mine = runs[runs["run_id"].isin(group.run_ids)]
        finals.append({(r.training, r.network_seed): r.final_validation_loss for r in mine.itertuples()})
    if one.lossless or other.lossless:
        lossless = finals[0 if one.lossless else 1]
        by_training = {training: loss for (training, _), loss in lossless.items()}
        keys = finals[1 if one.lossless else 0]
        widened = {key: by_training[key[0]] for key in keys if key[0] in by_training}
        finals[0 if one.lossless else 1] = widened
    return interval_of({key: finals[0][key] - finals[1][key] for key in finals[0].keys() & finals[1].keys()})
