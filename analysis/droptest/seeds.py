# SPDX-License-Identifier: Apache-2.0
"""Statistics over seeds: the sources of the spread, the number of seeds needed, and which points are equal.

Each table is a function that returns its numbers, and one that puts them into words for the report and the terminal.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from droptest.loss_model import percent
from droptest.power import (
    MOST_PAIRS,
    POWERS,
    Equivalence,
    Split,
    detectable,
    equivalence,
    pairs_needed,
    split_needed,
)
from droptest.records import Records
from droptest.rows_by_run import RowsByRun
from droptest.summary import Group, cells_in, groups, number
from droptest.variance import (
    CROSSED,
    DESIGNS,
    NESTED,
    ONE_NETWORK,
    ONE_TRAINING,
    Component,
    Decomposition,
    decompose,
)
from droptest.words import decimal

EFFECTS = (0.005, 0.01, 0.02, 0.05)  # nats per token
DIFFERENCE, FINAL = "difference to lossless", "final validation loss"
COLUMNS = {DIFFERENCE: "difference", FINAL: "final_validation_loss"}
# The unit that one more seed adds, by design.
UNITS = {ONE_TRAINING: "networks", ONE_NETWORK: "trainings"}


@dataclass(frozen=True)
class Spread:
    """The variances of one quantity (DIFFERENCE or FINAL) at one point."""

    group: Group
    quantity: str
    found: Decomposition


def spreads(records: Records, quantity: str) -> list[Spread]:
    """One for each point with losses that has at least two values."""
    records = records.best
    runs = RowsByRun(records.runs)
    result = []
    for group in groups(records):
        found = None if group.without_loss else decompose(cells_in(runs, group, COLUMNS[quantity]))
        if found is not None and found.runs > 1:
            result.append(Spread(group, quantity, found))
    return result


def deviation_of(found: Decomposition) -> Component:
    """The variance of one more run: with a new training and a new network, or as much of it as the design tells."""
    return next(c for c in (found.total, found.training, found.network) if c.known)


@dataclass(frozen=True)
class Needed:
    """Seeds that show an effect, by power. pairs_if_wider: at the upper end of the deviation's interval, POWERS[0]."""

    effect: float
    pairs: dict[float, int]
    pairs_if_wider: int
    splits: dict[float, Split | None]


@dataclass(frozen=True)
class Plan:
    """How many seeds the difference of one point needs. seen: the smallest effect that the runs at hand see with
    POWERS[0]."""

    spread: Spread
    seen: float
    needed: tuple[Needed, ...]


def plans(records: Records, effects: Sequence[float] = EFFECTS) -> list[Plan]:
    """From the variances of the differences at hand; splits where the runs cross trainings with networks."""
    result = []
    for spread in spreads(records, DIFFERENCE):
        found = spread.found
        variance = deviation_of(found)
        deviation, widest = math.sqrt(variance.variance), math.sqrt(variance.high)
        parts = [c.variance for c in (found.training, found.network, found.rest)]
        needed = tuple(
            Needed(
                effect,
                {power: pairs_needed(effect, deviation, power) for power in POWERS},
                pairs_needed(effect, widest, POWERS[0]),
                {power: split_needed(effect, *parts, power) for power in POWERS} if found.design == CROSSED else {},
            )
            for effect in effects
        )
        result.append(Plan(spread, detectable(found.standard_error, found.degrees_of_freedom), needed))
    return result


@dataclass(frozen=True)
class EqualityTest:
    """Whether two results at one rate are equal. first minus second, paired by training and network."""

    first: str
    second: str
    loss_rate: float
    runs: int
    result: Equivalence


def _pairs_of_equal_rates(every: Sequence[Group]) -> list[tuple[Group, Group]]:
    """All pairs of points with one known loss rate, in the order of the points."""
    later: dict[float, list[Group]] = defaultdict(list)  # the last one first
    pairs: list[tuple[Group, Group]] = []
    for group in reversed(every):
        if not math.isnan(group.loss_rate):
            pairs += [(group, other) for other in later[group.loss_rate]]
            later[group.loss_rate].append(group)
    return pairs[::-1]


def comparisons(records: Records, margin: float | None) -> list[EqualityTest]:
    """Each point with its lossless twins, and with a margin also with every other series at its rate."""
    result = [
        EqualityTest(s.group.series, "lossless", s.group.loss_rate, s.found.runs,
                   equivalence(s.found.mean, s.found.standard_error, s.found.degrees_of_freedom, margin))
        for s in spreads(records, DIFFERENCE)
    ]  # fmt: skip
    if margin is None:
        return result
    records = records.best
    runs = RowsByRun(records.runs)
    lossy = [g for g in groups(records) if not g.without_loss]
    cells = {g.run_ids: cells_in(runs, g, "final_validation_loss") for g in lossy}
    for first, second in _pairs_of_equal_rates(lossy):
        mine, its = cells[first.run_ids], cells[second.run_ids]
        found = decompose({key: mine[key] - its[key] for key in mine if key in its})
        if found is not None and found.runs > 1:
            test = equivalence(found.mean, found.standard_error, found.degrees_of_freedom, margin)
            result.append(EqualityTest(first.series, second.series, first.loss_rate, found.runs, test))
    return result


Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


def _deviation(component: Component) -> str:
    if not component.known:
        return "-"
    value, low, high = (math.sqrt(v) for v in (component.variance, component.low, component.high))
    return f"{value:.2g} ({low:.2g} to {high:.2g})"


def spread_table(records: Records) -> Table:
    """Standard deviations between trainings and between networks; no rows where no design tells them apart."""
    header = ("series", "loss rate", "quantity", "trainings", "networks", "left out", "sd of trainings",
              "sd of networks", "sd of the rest", "sd of one run")  # fmt: skip
    rows = [
        (s.group.series, percent(s.group.loss_rate), s.quantity, str(s.found.trainings), str(s.found.networks),
         str(s.found.left_out or "-"), _deviation(s.found.training), _deviation(s.found.network),
         _deviation(s.found.rest) if s.found.design == CROSSED else "in networks", _deviation(s.found.total))
        for quantity in (DIFFERENCE, FINAL) for s in spreads(records, quantity)
        if s.found.design in (CROSSED, NESTED)
    ]  # fmt: skip
    return header, rows


def plan_table(records: Records, effects: Sequence[float] = EFFECTS) -> Table:
    """Pairs (and splits) that each effect needs."""
    header = ("series", "loss rate", "runs", "sd of a difference", "seen now",
              *(f"to see {effect:g}" for effect in effects))  # fmt: skip
    rows = []
    for plan in plans(records, effects):
        found = plan.spread.found
        rows.append(
            (plan.spread.group.series, percent(plan.spread.group.loss_rate), str(found.runs),
             _deviation(deviation_of(found)), f"{plan.seen:.2g}",
             *(_needed_text(needed, UNITS.get(found.design, "pairs")) for needed in plan.needed))
        )  # fmt: skip
    return header, rows


def _needed_text(needed: Needed, unit: str) -> str:
    """ "12 / 15 pairs (up to 40); or 3 x 4 / 4 x 4": for 80 % and 90 %."""
    counts = " / ".join(_count(needed.pairs[power]) for power in POWERS)
    text = f"{counts} {unit} (up to {_count(needed.pairs_if_wider)})"
    if needed.splits:
        splits = [needed.splits[power] for power in POWERS]
        text += "; or " + " / ".join(f"{s.trainings} x {s.networks}" if s else "-" for s in splits)
    return text


def _count(pairs: int) -> str:
    return str(pairs) if pairs < MOST_PAIRS else "very many"


def comparison_table(records: Records, margin: float | None) -> Table:
    """Differences with their 90 % intervals, and the margins within which they are equal."""
    header = ("series", "against", "loss rate", "runs", "difference", "90 % interval", "equal within")
    rows = []
    for c in comparisons(records, margin):
        row = (c.first, c.second, percent(c.loss_rate), str(c.runs), decimal(c.result.mean, sign="+"),
               f"{decimal(c.result.low, sign='+')} to {decimal(c.result.high, sign='+')}",
               number(c.result.within))  # fmt: skip
        rows.append(row if margin is None else (*row, c.result.verdict, f"{c.result.p:.2g}"))
    return header if margin is None else (*header, f"within {margin:g}?", "p"), rows


def notes(records: Records) -> list[str]:
    """The limits of the designs at hand, one sentence for each."""
    designs = dict.fromkeys(s.found.design for s in spreads(records, DIFFERENCE))
    result = [f"{DESIGNS[design][0].upper()}{DESIGNS[design][1:]}." for design in designs if design != CROSSED]
    if designs and not {CROSSED, NESTED} & set(designs):
        result.append('"repeat": {"weights": 3, "network": 3} in the spec crosses 3 trainings with 3 networks.')
    return result


ON_SPREAD = (
    "Differences are to the lossless run with the same weights and batches. Standard deviations (sd) have their 95 % "
    "intervals in parentheses. A training is a pair of seeds (weights, data); a network is the seed that decides "
    "which packets are lost; the rest is the interaction of the two. In networks: each training has its own networks, "
    "so the rest is part of their sd. Left out: runs of an incomplete crossing that are not used."
)
ON_EFFECTS = (
    "An effect is a difference to the lossless twin, and a pair is a run with its lossless twin. Seen now: the "
    "smallest effect that the existing runs detect with a power of 80 %, by the t test at 5 %. To see an effect, "
    '"6 / 7 pairs (up to 123)": at the measured standard deviation, 6 pairs have a power of 80 % and 7 pairs 90 %; at '
    "the upper end of its 95 % interval, 123 pairs have 80 %."
)
ON_CROSSINGS = "3 x 4: 3 trainings crossed with 4 networks, the crossing with that power and the fewest runs."
ON_EQUALITY = (
    "Equal within: the smallest margin for which two one-sided t tests at 5 % find that the two are equal. An interval "
    "that contains 0 is no evidence of equality."
)
EXPLANATION = f"{ON_SPREAD} {ON_EFFECTS} {ON_CROSSINGS} {ON_EQUALITY}"
