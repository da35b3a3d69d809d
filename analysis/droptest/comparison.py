# SPDX-License-Identifier: Apache-2.0
"""Any two points of an experiment against each other: the differences of their specs, curves, paired differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pandas as pd
from scipy import stats

from droptest.files import Run
from droptest.loss_model import probability
from droptest.pointers import canonical, without
from droptest.power import Equivalence, equivalence
from droptest.records import Records
from droptest.rows_by_run import RowsByRun
from droptest.series import leaves, value_words
from droptest.statistics import Interval
from droptest.summary import LIMITS, Group, groups
from droptest.twins import omits, without_effect
from droptest.variance import decompose, interval_of
from droptest.words import decimal

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

    def cells(self, one: Group, other: Group) -> dict[tuple[Any, Any], tuple[str, str]]:
        """The matches with two finished runs by (training, network), as variance.decompose takes their differences."""
        found = {}
        for a, b in self.matches(one, other):
            run = self._rows[b if _base_of(one, other) is one else a]
            if math.isfinite(self.loss(a) - self.loss(b)):
                network = run.training if one.lossless and other.lossless else run.network_seed
                found[run.training, network] = (a, b)
        return found

    def loss(self, run_id: str) -> float:
        """The final validation loss; NaN where it has none."""
        return float(self._rows[run_id].final_validation_loss)

    def difference(self, one: Group, other: Group) -> Interval:
        """Of the final validation losses of `one` minus those of `other`, over the pairs of finished runs."""
        return interval_of({cell: self.loss(a) - self.loss(b) for cell, (a, b) in self.cells(one, other).items()})


Point = str | tuple[str, float | str] | Mapping[str, Any] | Group | pd.Series


@dataclass(frozen=True, eq=False)
class Comparison:
    """The final validation losses of point `a` minus those of point `b`, paired by seeds.

    a, b: their names. unit: of all losses. mean: of the differences; low, high: its 95 % interval by Student's t; p: of
    the two-sided t test that there is no difference (NaN with one pair). n: pairs that these are over. pairs: a row for
    each pair of finished runs: seed, run_a, run_b, loss_a, loss_b, difference. unpaired: finished runs without a
    finished partner. note: limits of the interval. equivalence: the test whether a and b are equal within `margin`, two
    one-sided t tests at 5 %.
    """

    a: str
    b: str
    unit: str
    mean: float
    low: float
    high: float
    p: float
    n: int
    pairs: pd.DataFrame
    unpaired: tuple[str, ...]
    note: str
    equivalence: Equivalence

    @property
    def margin(self) -> float | None:
        """Within which equality was asked for."""
        return self.equivalence.margin

    @property
    def verdict(self) -> str:
        """ "equal", "not equal" or "not decided" within the margin; "" without a margin."""
        return self.equivalence.verdict

    def __str__(self) -> str:
        words = f"{self.a} minus {self.b}: {decimal(self.mean, 4, '+')} {self.unit}"
        if self.n > 1:
            words += f", 95 % interval {decimal(self.low, 4, '+')} to {decimal(self.high, 4, '+')}, p = {self.p:.3g}"
        words += f", {self.n} pair{'s' * (self.n != 1)}"
        if self.margin is not None:
            words += f"; within {self.margin:g}: {self.verdict}"
            words += f" (p = {self.equivalence.p:.3g})" if self.n > 1 else ""
        return f"{words}; {self.note}" if self.note else words

    __repr__ = __str__


def compare(records: Records, a: Point, b: Point, margin: float | None = None) -> Comparison:
    """The paired difference of two points of an experiment, a minus b, in their final validation losses.

    a, b: each names one point, as
        a text: the series, where it has one point, or the series with its rate ("Bernoulli, 5 %");
        (series, loss rate): ("Bernoulli", 0.05), or ("Bernoulli", "5%");
        a mapping of swept pointers to values, as in the spec: {"/network/loss": {"model": "none"}}; a value may be in
        the words of `points`, too;
        a row of droptest.points(records), an object with its series and loss_rate, or one of droptest.groups(records).
    margin: asks whether the two are equal within so many nats.
    Runs of equal seeds are pairs, and a run and its lossless twin. With best_over the points are those of the best
    values. Raises: ValueError that names what was given, and the points that there are.
    """
    if margin is not None and not 0 < margin < math.inf:
        raise ValueError(f"margin: got {margin!r}, want a number above 0, in {records.unit}, or None")
    every = groups(records)
    one, other = (_found(records, every, name, given) for name, given in (("a", a), ("b", b)))
    if one is other:
        raise ValueError(f"a, b: got {one.name_with_rate} twice, want two points: {_names(every)}")
    pairing = Pairing(records)
    cells = pairing.cells(one, other)
    differences = {cell: pairing.loss(x) - pairing.loss(y) for cell, (x, y) in cells.items()}
    found, interval = decompose(differences), interval_of(differences)
    if found is None:
        seeds = "; ".join(f"{g.name_with_rate}: {_finished_text(records, g)}" for g in (one, other))
        raise ValueError(f"a, b: no run of the one has a finished partner of equal seeds in the other: {seeds}")
    error, degrees = found.standard_error, found.degrees_of_freedom
    if error > 0:
        p = float(2 * stats.t.sf(abs(found.mean) / error, degrees))
    else:
        p = math.nan if math.isnan(error) else float(found.mean == 0)
    paired = {run_id for pair in cells.values() for run_id in pair}
    unpaired = tuple(r for g in (one, other) for r in g.run_ids if r not in paired and math.isfinite(pairing.loss(r)))
    notes = [LIMITS.get(found.design, ""), "one pair: no interval" if found.runs == 1 else "",
             f"finished runs without a finished partner: {len(unpaired)}" if unpaired else "",
             f"pairs left out of an incomplete crossing: {found.left_out}" if found.left_out else ""]  # fmt: skip
    seed_of = dict(zip(records.best.runs["run_id"], records.best.runs["seed"], strict=True))
    frame = pd.DataFrame(
        [
            (seed_of[y if _base_of(one, other) is one else x], x, y, pairing.loss(x), pairing.loss(y))
            for x, y in cells.values()
        ],
        columns=["seed", "run_a", "run_b", "loss_a", "loss_b"],
    )
    frame["difference"] = frame["loss_a"] - frame["loss_b"]
    return Comparison(
        one.name_with_rate, other.name_with_rate, records.unit, interval.mean, interval.low, interval.high, p,
        found.runs, frame, unpaired, "; ".join(filter(None, notes)), equivalence(found.mean, error, degrees, margin),
    )  # fmt: skip


def _finished_text(records: Records, group: Group) -> str:
    rows = records.best.runs.set_index("run_id").loc[list(group.run_ids)]
    seeds = [str(seed) for seed in rows.loc[rows["final_validation_loss"].notna(), "seed"]]
    return f"finished with seeds {', '.join(seeds)}" if seeds else "no finished run"


MOST_NAMES = 20  # of points in an error


def _names(some: Sequence[Group]) -> str:
    more = f" and {len(some) - MOST_NAMES} more" if len(some) > MOST_NAMES else ""
    return f"{', '.join(repr(group.name_with_rate) for group in some[:MOST_NAMES])}{more}"


def _found(records: Records, every: Sequence[Group], name: str, given: Any) -> Group:
    """The one point that is meant. Raises: ValueError."""
    if isinstance(given, str):
        shown = repr(given)
        whole = [g for g in every if given in (g.name_with_rate, f"{g.series}, {g.rate_words}")]
        found = whole or [g for g in every if g.series == given]
    elif isinstance(given, tuple) and len(given) == 2 and not hasattr(given, "series"):
        shown = repr(given)
        found = [g for g in every if g.series == given[0] and _is_rate(g.loss_rate, probability(given[1]))]
    elif hasattr(given, "series") or (isinstance(given, Mapping) and "series" in given):
        row = given if isinstance(given, Mapping) else {k: getattr(given, k, math.nan) for k in ("series", "loss_rate")}
        shown = f"the series {row['series']!r} at the loss rate {row.get('loss_rate', math.nan)!r}"
        rate = probability(row.get("loss_rate", math.nan))
        found = [g for g in every if g.series == row["series"] and _is_rate(g.loss_rate, rate)]
    elif isinstance(given, Mapping) and given:
        shown = repr(dict(given))
        if unknown := [pointer for pointer in given if pointer not in records.best.varied]:
            raise ValueError(f"{name}: got {shown}, want pointers in which the points differ: "
                             f"{', '.join(records.best.varied) or 'there are none'}; not {unknown[0]!r}")  # fmt: skip
        meant = _of_values(records, given)
        found = [g for g in every if meant.intersection(g.run_ids)]
    else:
        raise ValueError(f"{name}: got {given!r}, want the name of a series, (series, loss rate), a mapping of pointers"
                         " to values, or a row of droptest.points(records)")  # fmt: skip
    if len(found) != 1:
        what = f"which are {len(found)} points" if found else "which is no point"
        raise ValueError(f"{name}: got {shown}, {what}; want one of {_names(found or every)}")
    return found[0]


def _is_rate(rate: float, wanted: float) -> bool:
    return math.isclose(rate, wanted, rel_tol=1e-9) or (math.isnan(rate) and math.isnan(wanted))


def _of_values(records: Records, given: Mapping[str, Any]) -> set[str]:
    """The run_ids with these values, in the words of the frames, or as another point that is the same run."""
    wanted = {pointer: _comparable(value) for pointer, value in given.items()}
    runs = records.best.runs
    found = set(runs.loc[[all(_comparable(row[p]) == v for p, v in wanted.items())
                          for row in runs[list(wanted)].to_dict("records")], "run_id"])  # fmt: skip
    for run_id in runs["run_id"]:
        points = (leaves(point) | point for point in records.files[run_id].other_points)
        if any(all(_comparable(point.get(p)) == v for p, v in wanted.items()) for point in points):
            found.add(run_id)
    return found


def _comparable(value: Any) -> Any:
    """A value of a spec or a frame in words, or as a number."""
    if isinstance(value, Mapping | list):
        return value_words(value)
    rate = probability(value)
    return value if math.isnan(rate) else rate
