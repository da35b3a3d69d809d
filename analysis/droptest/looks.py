# SPDX-License-Identifier: Apache-2.0
"""One look per condition over all figures of an experiment: colour by loss rate, marker by loss process, dashes by
recovery."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

from droptest.files import Run, object_of
from droptest.pointers import canonical
from droptest.records import Records
from droptest.summary import Group, groups

INK, SOFT = "ink", "soft"  # hues of the text and of its second shade
SHADES = ("shade 0", "shade 1", "shade 2")  # hues of curves that have points of several loss rates
# Hues of what is no condition (parts of a time, verdicts): none of them is close to those of loss rates in grey or hue.
CATEGORIES = ("#4477aa", "#ee6677", "#ccbb44", "#aa3377", "#66ccee", "#bb8855", "#228833", "#bbbbbb", "#885500",
              "#000055", "#ff99cc", "#557788")  # fmt: skip
ONLY_RATE = 0.35


@dataclass(frozen=True)
class Look:
    """hue: a place in [0, 1] on the scale of loss rates, a name above, or "#rrggbb"; marker, dash: numbers."""

    hue: float | str
    marker: int = 0
    dash: int = 0


def category(place: int) -> Look:
    """The look of the part with that number of something that is no condition."""
    return Look(CATEGORIES[place % len(CATEGORIES)], place, place)


@dataclass(frozen=True)
class Looks:
    """rates: all loss rates above 0, in order; series: marker and dashes of each."""

    rates: tuple[float, ...] = ()
    series: dict[str, tuple[int, int]] = field(default_factory=dict)

    def hue(self, rate: float, without_loss: Any = False) -> float | str:
        """Of a point: its place among the loss rates; that of the text without loss."""
        if without_loss or not rate > 0:
            return INK
        place = bisect_left(self.rates, rate * (1 - 1e-9))
        return place / (len(self.rates) - 1) if len(self.rates) > 1 else ONLY_RATE

    def point(self, series: str, rate: float, without_loss: Any = False) -> Look:
        """Of a series at one loss rate."""
        hue = self.hue(rate, without_loss)
        return Look(INK) if hue == INK and without_loss else Look(hue, *self.series.get(series, (1, 0)))

    def curve(self, series: str) -> Look:
        """Of a series over its loss rates."""
        place = list(self.series).index(series) if series in self.series else 0
        return Look(SHADES[place % len(SHADES)], *self.series.get(series, (1, 0)))


def looks_of(records: Records) -> Looks:
    """The looks of all conditions. Series of one process and recovery, which differ in something else, have markers
    after those of all processes; marker 0 is that of points without loss."""
    lossy = [group for group in groups(records.best) if not group.without_loss]
    models = list(dict.fromkeys(group.loss_model for group in lossy))
    recoveries = list(dict.fromkeys(["[]", *(_recovery(records, group) for group in lossy)]))
    dash = {text: place for place, text in enumerate(recoveries)}
    marker = {model: place for place, model in enumerate(models, 1)}
    series: dict[str, tuple[int, int]] = {}
    used: set[tuple[int, int]] = set()
    further = len(models)
    for group in lossy:
        if group.series in series:
            continue
        look = (marker[group.loss_model], dash[_recovery(records, group)])
        if look in used:
            further += 1
            look = (further, look[1])
        series[group.series] = look
        used.add(look)
    rates = {group.loss_rate for group in lossy if group.loss_rate > 0 and math.isfinite(group.loss_rate)}
    return Looks(tuple(sorted(rates)), series)


def _recovery(records: Records, group: Group) -> str:
    """What the runs of a point do about lost packets, as a text to compare."""
    run: Run = records.files[group.run_ids[0]]
    classes = object_of(object_of(run.spec.get("network")).get("classes"))
    own = {canonical(found) for c in classes.values() for part in (c, *object_of(c).values())
           if (found := object_of(part).get("recovery"))}  # fmt: skip
    protocol = object_of(object_of(run.spec.get("time")).get("retransmission")).get("protocol", "none")
    return canonical([*sorted(own), *([protocol] if protocol != "none" else [])])
