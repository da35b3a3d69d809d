# SPDX-License-Identifier: Apache-2.0
"""Time to a target loss on the virtual clock, for reliable and tolerant networks, and where the two break even.

Nouns. A *reliable* run repeats lost packets until all have arrived (time.retransmission of its spec), a *tolerant* one
leaves them lost, at once or when its budget of rounds is spent. The *advantage* of tolerance at a loss rate is
D = ln(time of tolerant / time of reliable) of two runs with one seed: below 0 tolerance is faster. The *break-even
rate* is where the mean of D over seeds becomes positive.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from droptest.files import Run, object_of
from droptest.records import Records
from droptest.statistics import Interval, mean_interval
from droptest.twins import twin_key

# How far above the worst lossless run the default target is: reliable runs of every seed reach it before their end.
TARGET_MARGIN = 1.05


def has_virtual_time(records: Records) -> bool:
    return bool(records.metrics["virtual_seconds"].notna().any())


def protocol_of(run: Run) -> str | None:
    """The protocol of a run's virtual clock, "none" on a tolerant network; None without a clock."""
    time = object_of(run.spec.get("time"))
    if not time:
        return None
    retransmission = object_of(time.get("retransmission"))
    return "none" if "rounds" in retransmission else str(retransmission.get("protocol", "none"))


def time_to_target(seconds: Sequence[float], losses: Sequence[float], target: float) -> float:
    """When the loss first is `target` or less, by linear interpolation between neighbours; infinity where it never is.

    seconds: increasing; losses: nats per token. Values that are not finite are left out.
    """
    points = [(t, y) for t, y in zip(seconds, losses, strict=True) if math.isfinite(t) and math.isfinite(y)]
    for index, (t, y) in enumerate(points):
        if y > target:
            continue
        if index == 0:
            return float(t)
        t0, y0 = points[index - 1]
        return float(t0 + (y0 - target) / (y0 - y) * (t - t0))
    return math.inf


def default_target(records: Records) -> float:
    """A little above the worst final validation loss of the lossless runs, nats per token; NaN without any.

    Where no run is lossless, the reliable ones stand for them: their results are the same.
    """
    records = records.best
    runs = records.runs[records.runs["final_validation_loss"].notna()]
    exact = runs[runs["without_loss"]]
    if exact.empty:
        exact = runs[[protocol_of(records.files[i]) not in (None, "none") for i in runs["run_id"]]]
    return TARGET_MARGIN * float(exact["final_validation_loss"].max()) if len(exact) else math.nan


@dataclass(frozen=True)
class Curve:
    """Time to the target over loss rates, by seed. times: rate -> seed -> virtual seconds, infinity for never."""

    series: str
    reliable: bool
    settings: str  # equal for curves that can be compared
    times: Mapping[float, Mapping[int, float]]

    def interval(self, rate: float) -> Interval:
        """Mean over seeds; of none where a seed never reached the target."""
        values = list(self.times[rate].values())
        return mean_interval(values) if all(map(math.isfinite, values)) else Interval(math.inf, math.nan, len(values))


def _settings(run: Run, loss_model: str) -> str:
    time = {
        k: v for k, v in object_of(run.spec.get("time")).items() if k not in ("retransmission", "deadline_microseconds")
    }
    return f"{twin_key(run, ('/seeds',))} {sorted(time.items())} {loss_model}"


def curves(records: Records, target: float) -> list[Curve]:
    """One curve per series that loses packets, with its lossless twins at rate 0."""
    records = records.best
    by_run: dict[str, float] = {}
    measured = records.metrics[records.metrics["validation_loss"].notna()]
    for run_id, lines in measured.groupby("run_id", sort=False):
        by_run[run_id] = time_to_target(list(lines["virtual_seconds"]), list(lines["validation_loss"]), target)
    runs = records.runs[records.runs["run_id"].isin(by_run) & records.runs["status"].isin(["completed", "diverged"])]
    result = []
    for series, members in runs[~runs["without_loss"]].groupby("series", sort=False):
        first = records.files[members["run_id"].iloc[0]]
        protocol = protocol_of(first)
        if protocol is None:
            continue
        times: dict[float, dict[int, float]] = {}
        for row in members.itertuples():
            times.setdefault(row.loss_rate, {})[row.seed] = by_run[row.run_id]
            if row.twin in by_run and protocol_of(records.files[row.twin]) == protocol:
                times.setdefault(0.0, {})[row.seed] = by_run[row.twin]
        result.append(Curve(str(series), protocol != "none", _settings(first, members["loss_model"].iloc[0]),
                            dict(sorted(times.items()))))  # fmt: skip
    return result


@dataclass(frozen=True)
class BreakEven:
    """Where a tolerant network stops being faster than a reliable one.

    rate: a fraction; 0 where tolerance is slower at every rate, infinity where it is faster at every rate. low, high:
    the 95 % interval, every rate at which a paired t test over seeds does not reject D = 0 (interpolated likewise);
    NaN with fewer than two seeds. advantages: rate -> interval of D over the seeds that both have.
    """

    tolerant: str
    reliable: str
    rate: float
    low: float
    high: float
    advantages: Mapping[float, Interval]


def crossing(rates: Sequence[float], values: Sequence[float], unknown: float = 0.5) -> float:
    """Where the values last go from negative to positive, interpolated over the logarithm of the rate.

    0 where none is negative, infinity where the last is not positive. Before an infinite value nothing says where the
    crossing is: it is taken at the share `unknown` of the way, half way, or 0 or 1 for the ends of an interval.
    """
    if not len(rates) or all(v >= 0 for v in values):
        return 0.0
    if values[-1] <= 0:
        return math.inf
    last = max(i for i, v in enumerate(values) if v < 0)
    below, above = values[last], values[last + 1]
    share = unknown if math.isinf(above) else -below / (above - below)
    return float(math.exp(math.log(rates[last]) + share * math.log(rates[last + 1] / rates[last])))


def break_even(tolerant: Curve, reliable: Curve) -> BreakEven:
    """By linear interpolation of the mean of D over the logarithm of the rate, paired by seed.

    A rate at which the tolerant runs of some seed never reach the target has D = infinity.
    """
    advantages: dict[float, Interval] = {}
    for rate in sorted(set(tolerant.times) & set(reliable.times) - {0.0}):
        mine, its = tolerant.times[rate], reliable.times[rate]
        pairs = [(mine[seed], its[seed]) for seed in sorted(mine.keys() & its.keys()) if math.isfinite(its[seed])]
        if not pairs:
            continue
        if any(math.isinf(a) for a, _ in pairs):
            advantages[rate] = Interval(math.inf, math.nan, len(pairs))
        else:
            advantages[rate] = mean_interval(math.log(a / b) for a, b in pairs)
    rates = list(advantages)
    means = [i.mean for i in advantages.values()]
    low = high = math.nan
    if all(i.n > 1 for i in advantages.values()):
        widths = [0.0 if math.isinf(i.mean) else i.half_width for i in advantages.values()]
        low = crossing(rates, [m + w for m, w in zip(means, widths, strict=True)], 0.0)
        high = crossing(rates, [m - w for m, w in zip(means, widths, strict=True)], 1.0)
    return BreakEven(tolerant.series, reliable.series, crossing(rates, means), low, high, advantages)


def break_evens(every: Sequence[Curve]) -> list[BreakEven]:
    """Each tolerant curve against each reliable one with the same settings otherwise."""
    found = [break_even(t, r) for t in every for r in every
             if not t.reliable and r.reliable and t.settings == r.settings]  # fmt: skip
    return [b for b in found if b.advantages]


def in_words(result: BreakEven) -> str:
    """The break-even rate with its interval, in percent."""
    span = f"{_percent(min(result.advantages))} to {_percent(max(result.advantages))}"
    if result.rate == 0:
        text = f"not faster at any rate from {span}"
    elif math.isinf(result.rate):
        text = f"faster or equal at the highest rate, {_percent(max(result.advantages))}"
    else:
        text = f"break-even at {_percent(result.rate)}"
    if not math.isnan(result.low):
        low = "below the lowest rate" if result.low == 0 else _percent(result.low)
        high = "above the highest rate" if math.isinf(result.high) else _percent(result.high)
        span = f"{low} to {high}" if math.isfinite(result.low) else high
        text += f" (95 % interval{'' if 0 < result.rate < math.inf else ' of the break-even rate'}: {span})"
    return text


def _percent(rate: float) -> str:
    return f"{100 * rate:.3g} %"
