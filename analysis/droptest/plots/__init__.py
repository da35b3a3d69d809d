# SPDX-License-Identifier: Apache-2.0
"""The figures by name: the one list that a new figure is added to.

A figure is a module with NAME, TITLE, CAPTION, `data(records) -> DataFrame`, which computes every number that the
figure shows and raises NothingToDraw where the records have none, and `describe(data)`, which returns the description
of the figure (drawing.py) for all renderers.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

import pandas as pd

from droptest.looks import looks_of
from droptest.plots import (
    accuracy,
    burst_lengths,
    confusion,
    differences,
    divergence,
    final_loss,
    layers,
    links,
    loss_over_time,
    loss_rate_check,
    panels,
    places,
    rate_map,
    recoveries,
    step_time,
    threshold,
    time_shares,
    time_to_target,
    tolerance,
    training_curves,
    variances,
)  # fmt: skip
from droptest.plots.nothing import NothingToDraw, NotMeant
from droptest.records import Records

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FIGURES", "NotMeant", "NothingToDraw", "data", "describe", "draw"]

FIGURES: dict[str, ModuleType] = {
    module.NAME: module
    for module in (
        tolerance,
        threshold,
        final_loss,
        rate_map,
        variances,
        accuracy,
        confusion,
        training_curves,
        differences,
        loss_over_time,
        time_to_target,
        step_time,
        divergence,
        places,
        recoveries,
        layers,
        links,
        burst_lengths,
        loss_rate_check,
        time_shares,
    )
}


def data(name: str, records: Records) -> pd.DataFrame:
    """The numbers behind the figure of that name; `data` of its module describes the columns.

    attrs: `unit` of losses; `far`, the loss beyond which only diverging runs are; `looks` of the conditions; `remark`
    (text on the runs that were left out, or ""), where the figure has one.
    Raises: KeyError that lists the names; NothingToDraw with the reason.
    """
    if name not in FIGURES:
        raise KeyError(f"no figure {name!r}; there are {', '.join(FIGURES)}")
    result = FIGURES[name].data(records if FIGURES[name] is rate_map else records.best)
    result.attrs |= {"unit": records.unit, "far": panels.far_loss(records), "looks": looks_of(records)}
    return result


def describe(name: str, data: pd.DataFrame) -> dict[str, Any]:
    """The figure of that name as panels of curves, rows and maps (drawing.py). data: of the function `data`."""
    return FIGURES[name].describe(data)


def draw(name: str, records: Records) -> Figure:
    """The matplotlib figure of that name. Raises: as `data`."""
    from droptest import pictures  # late: the numbers of figures can be had without matplotlib

    return pictures.draw(describe(name, data(name, records)))
