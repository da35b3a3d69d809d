# SPDX-License-Identifier: Apache-2.0
"""Which classes a classifier takes for which, without loss and at the highest loss rate of each series."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from droptest import classification, drawing, words
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
        raise NothingToDraw("no finished run has the predictions of its classes")
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


def describe(data: pd.DataFrame) -> dict[str, Any]:
    """A map per point."""
    found = []
    for point in dict.fromkeys(data["panel"]):
        mine = data[data["panel"] == point]
        classes, shares = matrix_of(mine)
        text = [f"{row.label} taken for {row.prediction}: {drawing.counted(row.examples, 'example')}"
                for row in mine.itertuples()]  # fmt: skip
        size, names = len(classes), names_of(classes)
        x = {"title": "predicted class", "ticks": list(range(size)), "labels": names, "turned": True}
        found.append(drawing.heat_map(
            point, x, drawing.rows_axis(names) | {"title": "true class"}, shares, (0, 100),
            [text[size * i:size * (i + 1)] for i in range(size)],
            cells=[["" if math.isnan(share) else f"{share:.0f}" for share in row] for row in shares],
        ))  # fmt: skip
    return drawing.figure(data, found, min(3, len(found)), least=220 + 45 * size,
                          bar="examples of the true class (%)")  # fmt: skip
