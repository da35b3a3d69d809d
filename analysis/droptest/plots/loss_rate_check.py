# SPDX-License-Identifier: Apache-2.0
"""Whether the network lost as configured: realised against configured loss rate, in standard deviations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from droptest import drawing, words
from droptest.looks import SOFT, Look
from droptest.loss_model import percent
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw
from droptest.records import Records
from droptest.statistics import rms_z, z_limit

NAME = "loss_rate_check"
TITLE = "Configured against realised loss"
CAPTION = (
    "A point for each run, traffic class and half. First panel: the loss rate that occurred (realised) against that of "
    "the spec (configured); on the line they are equal. Second panel: z, which is (lost packets - expected lost "
    "packets) / standard deviation of that number for this loss process. 95 % of single checks lie between the dotted "
    "lines. If all checks were independent, all would lie between the dashed lines with a probability of 95 %; runs "
    "of one seed share random numbers, so they are not independent. RMS: root mean square over all checks."
)


COLUMNS = ["run_id", "series", "loss_rate", "seed", "class", "half", "packets", "lost",
           "configured_rate", "realised_rate", "z"]  # fmt: skip


def data(records: Records) -> pd.DataFrame:
    """One row per run, class and half that can lose a packet, of the series that are shown: packets, lost,
    configured_rate and realised_rate (fractions), z (standard deviations).

    attrs: over all series the number of `checks`, their `rms_z`, and the `limit` that |z| of all stays below in 95 %.

    Raises: NothingToDraw where no class can lose a packet.
    """
    checks = records.loss_statistics
    halves = checks[checks["half"] != "both"]
    checks = halves if len(halves) else checks
    checks = checks[(checks["packets"] > 0) & (checks["configured_rate"] > 0)]
    if checks.empty:
        raise NothingToDraw("no packet could be lost, or no loss statistics are there yet")
    shown, remark = panels.shown_curves(records)
    result = checks.loc[checks["series"].isin(shown), COLUMNS].reset_index(drop=True)
    result.attrs |= {"remark": remark, "checks": len(checks), "rms_z": rms_z(checks["z"])}
    result.attrs["limit"] = z_limit(len(checks))
    return result


def describe(data: pd.DataFrame) -> dict[str, Any]:
    """Rates, and z."""
    looks, rates, scores = drawing.looks(data), [], []
    names = list(dict.fromkeys(data["series"]))
    x = drawing.rate_axis(data["configured_rate"], "configured packet loss rate (%)")
    for place, series in enumerate(names):
        mine = data[data["series"] == series]
        text = [
            f"{series}, seed {row['seed']}\n{words.spoken(row['class'])}, "
            f"{words.HALVES.get(row['half'], row['half'])}\nconfigured {percent(row['configured_rate'])}, "
            f"realised {100 * row['realised_rate']:.4f} %, z {row['z']:.2f}"
            for row in mine.to_dict("records")
        ]
        look, step = looks.curve(series), drawing.nudge(place, len(names), x)
        more = {"text": text, "hues": [looks.hue(rate) for rate in mine["loss_rate"]], "hollow": True}
        at = 100 * mine["configured_rate"]
        score = mine["z"].where(np.isfinite(mine["z"]))
        rates.append(drawing.curve(series, look, at, 100 * mine["realised_rate"], "points", **more))
        scores.append(drawing.curve(series, look, at, score, "points", nudge=step, **more))
    realised = pd.concat([data["configured_rate"], data["realised_rate"]])
    y = drawing.rate_axis(realised, "realised packet loss rate (%)")
    y |= {key: x[key] for key in ("ticks", "labels")}
    if (data["realised_rate"] == 0).any():
        y |= {"ticks": [0, *x["ticks"]], "labels": ["0", *x["labels"]]}
    ends = [100 * data["configured_rate"].min(), 100 * data["configured_rate"].max()]
    equal, equals = "realised = configured", []
    if ends[0] == ends[1]:
        y = {"title": y["title"]}
        equals.append({"y": ends[0], "dash": "dot", "name": equal})
    else:
        rates.append(drawing.curve(equal, Look(SOFT), ends, ends, plain=True,
                                   text=[f"{equal}: {end:g} %" for end in ends]))  # fmt: skip
    attrs = data.attrs
    lines = [{"y": sign * level, "dash": dash} for level, dash in ((1.96, "dot"), (attrs["limit"], "dash"))
             for sign in (-1, 1)]  # fmt: skip
    z = {"title": "z: (realised − configured)\n(standard deviations)"}
    title = ("", f"{attrs['checks']} checks, RMS of z {attrs['rms_z']:.2f} (expected 1)")
    lines.append({"y": 0, "dash": ""})
    found = [drawing.panel("", dict(x), y, rates, *equals), drawing.panel(title, dict(x), z, scores, *lines)]
    if equals:
        drawing.fit(found[:1], include=ends)
    drawing.fit(found[1:], include=(-attrs["limit"], attrs["limit"]))
    return drawing.figure(data, found)
