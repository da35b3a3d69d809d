# SPDX-License-Identifier: Apache-2.0
"""Which classes a classifier takes for which, without loss and at the highest loss rate of each series."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from droptest import classification, style, words
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw, NotMeant
from droptest.records import Records

NAME = "confusion"
TITLE = "Confusion of classes"
CAPTION = (
    "Validation examples of each class (rows) by the class that is predicted (columns), in percent of the row, over "
    "the finished seeds: without loss, and at the highest loss rate of each series. The diagonal has the examples that "
    "are predicted right. Long names of classes are cut in the middle."
)
X_LABEL, Y_LABEL, SCALE_LABEL = "predicted class", "true class", "examples of the true class (%)"
MAX_POINTS = 6
LONGEST_NAME = 18  # characters


def data(records: Records) -> pd.DataFrame:
    """A row per `panel` (a point of the experiment), `label` and `prediction` (names of classes): `examples` (a count
    over the finished runs) and `share` of those of the label, a fraction; NaN where it has no example.

    Raises: NotMeant without a classifier, NothingToDraw without a finished run.
    """
    if not classification.is_classification(records):
        raise NotMeant("no run classifies")
    shown, remark = panels.shown_curves(records)
    points = {}
    for groups in shown.values():
        lossy = sorted((group for group in groups if not group.without_loss), key=lambda group: group.missing_rate)
        for group in [*(group for group in groups if group.without_loss), *lossy[-1:]]:
            points.setdefault(group.run_ids, group)
    found = [(group, *classification.confusion_over(records, group)) for group in points.values()]
    found = [(group, classes, counts) for group, classes, counts in found if counts]
    if not found:
        raise NothingToDraw("no run has finished yet")
    if len(found) > MAX_POINTS:
        remark = "; ".join(filter(None, [remark, f"first {MAX_POINTS} of {len(found)} points"]))
    rows = [
        {"panel": group.name_with_rate, "label": label, "prediction": prediction,
         "examples": count, "share": count / sum(of_label) if sum(of_label) else math.nan}
        for group, classes, counts in found[:MAX_POINTS]
        for label, of_label in zip(classes, counts, strict=True)
        for prediction, count in zip(classes, of_label, strict=True)
    ]  # fmt: skip
    return panels.frame_of(rows, remark)


def matrix_of(part: pd.DataFrame) -> tuple[list[str], np.ndarray]:
    """The classes and the shares in percent of a panel: [true class, predicted class]."""
    classes = list(dict.fromkeys(part["label"]))
    return classes, 100 * part["share"].to_numpy().reshape(len(classes), len(classes))


def names_of(classes: Iterable[str]) -> list[str]:
    """The names of classes as axes have room for them."""
    return words.shortened(classes, LONGEST_NAME)


def draw(data: pd.DataFrame) -> Figure:
    """A map per point."""
    shown = list(dict.fromkeys(data["panel"]))
    count = data["label"].nunique()
    longest = max(map(len, names_of(data["label"].unique())))
    figure, axes = panels.grid(shown, 1.1 + 0.28 * count + 0.04 * longest)
    for panel, (ax,) in axes.items():
        ax.set_title(panels.panel_title(panel, 60 // min(panels.PANELS_PER_ROW, len(shown)) + 4))
        classes, shares = matrix_of(data[data["panel"] == panel])
        picture = ax.imshow(np.ma.masked_invalid(shares), cmap="viridis", vmin=0, vmax=100, aspect="auto")
        ax.grid(visible=False)
        for (y, x), share in np.ndenumerate(shares):
            if math.isfinite(share):
                ax.text(x, y, f"{share:.0f}", ha="center", va="center", fontsize=6,
                        color="black" if share > 50 else "white")  # fmt: skip
        names = [style.plain_text(name) for name in names_of(classes)]
        ax.set_xticks(range(count), names, rotation=45, ha="right", rotation_mode="anchor")
        ax.set_yticks(range(count), names if ax.get_subplotspec().is_first_col() else [""] * count)
        ax.set_xlabel(X_LABEL)
        if ax.get_subplotspec().is_first_col():
            ax.set_ylabel(Y_LABEL)
    figure.colorbar(picture, ax=[ax for (ax,) in axes.values()], label=SCALE_LABEL)
    if data.attrs["remark"]:
        figure.suptitle(data.attrs["remark"], fontsize=7)
    return figure
