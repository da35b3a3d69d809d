# SPDX-License-Identifier: Apache-2.0
"""The figures by name: the one list that a new figure is added to.

A figure is a module with NAME, TITLE, CAPTION and `draw(records) -> Figure`, which raises NothingToDraw where the
records do not have what it shows.
"""

from __future__ import annotations

from types import ModuleType

from droptest import style  # first: it sets up matplotlib's cache
from droptest.plots import (
    burst_lengths,
    divergence,
    final_loss,
    layers,
    loss_over_time,
    loss_rate_check,
    step_time,
    threshold,
    time_to_target,
    training_curves,
    variances,
)  # fmt: skip
from droptest.plots.nothing import NothingToDraw, NotMeant
from droptest.records import Records

__all__ = ["FIGURES", "NotMeant", "NothingToDraw", "draw"]

FIGURES: dict[str, ModuleType] = {
    module.NAME: module
    for module in (
        final_loss,
        threshold,
        variances,
        training_curves,
        loss_over_time,
        time_to_target,
        step_time,
        divergence,
        layers,
        burst_lengths,
        loss_rate_check,
    )
}


def draw(name: str, records: Records):
    """The matplotlib figure of that name. Raises: KeyError that lists the names; NothingToDraw with the reason."""
    if name not in FIGURES:
        raise KeyError(f"no figure {name!r}; there are {', '.join(FIGURES)}")
    with style.applied():
        return FIGURES[name].draw(records)
