# SPDX-License-Identifier: Apache-2.0
"""Whether the network lost as configured: realised against configured loss rate, in standard deviations."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from droptest import style
from droptest.plots import panels
from droptest.plots.nothing import NothingToDraw
from droptest.records import Records
from droptest.statistics import rms_z, z_limit

NAME = "loss_rate_check"
TITLE = "Configured against realised loss"
CAPTION = (
    "One point per run, class and half. Left: realised against configured loss rate; the line is equality. Right: the "
    "deviation in standard deviations of the process's own count variance. Dotted: 95 % of single checks lie within; "
    "dashed: with probability 95 % all of the checks do, were they independent (runs of one seed share their draws)."
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


def draw(data: pd.DataFrame) -> Figure:
    """Rates on the left, z on the right."""
    shown = list(dict.fromkeys(data["series"]))
    marks = style.marks(shown)
    figure, axes = style.figure(style.DOUBLE_COLUMN, 2.6, 1, 2)
    rate_axes, z_axes = axes[0]
    handles = []
    for index, series in enumerate(shown):
        mine = data[data["series"] == series]
        mark = marks[series]
        shift = 1 if len(shown) == 1 else 1 + 0.06 * (index / (len(shown) - 1) - 0.5) * min(len(shown), 5)
        look = {"color": mark.color, "marker": mark.marker, "linestyle": "none", "markersize": 3.5,
                "markerfacecolor": "none", "markeredgewidth": 0.8}  # fmt: skip
        realised = mine[mine["realised_rate"] > 0]
        # Larger marks below smaller ones: on the line of equality they cannot be set side by side.
        size = 6.5 - 3.5 * index / max(len(shown) - 1, 1)
        handles += rate_axes.plot(100 * realised["configured_rate"], 100 * realised["realised_rate"],
                                  **look | {"markersize": size})  # fmt: skip
        finite = mine[np.isfinite(mine["z"])]
        z_axes.plot(100 * finite["configured_rate"] * shift, finite["z"], **look)
    rates = data["configured_rate"].tolist()
    ends = [100 * min(rates) / 1.3, 100 * max(rates) * 1.3]
    rate_axes.plot(ends, ends, color="0.3", linewidth=0.8, zorder=1)
    rate_axes.set_yscale("log")
    rate_axes.set_ylabel("realised packet loss rate (%)")
    style.percent_axis(rate_axes, rates)
    style.percent_axis(z_axes, rates)
    for ax in (rate_axes, z_axes):
        ax.set_xlabel("configured packet loss rate (%)")
    rate_axes.yaxis.set_major_locator(FixedLocator(rate_axes.get_xticks()))
    rate_axes.yaxis.set_minor_locator(NullLocator())
    rate_axes.yaxis.set_major_formatter(rate_axes.xaxis.get_major_formatter())
    limit = data.attrs["limit"]
    for level, dashes in ((1.96, ":"), (limit, "--")):
        z_axes.axhline(level, color="0.3", linestyle=dashes, linewidth=0.8)
        z_axes.axhline(-level, color="0.3", linestyle=dashes, linewidth=0.8)
    z_axes.axhline(0, color="0.3", linewidth=0.5)
    extreme = float(np.nanmax(np.abs(data["z"].replace([np.inf, -np.inf], np.nan)), initial=0.0))
    z_axes.set_ylim(-max(limit, extreme) * 1.15, max(limit, extreme) * 1.15)
    z_axes.set_ylabel("z: (realised - configured)\n(standard deviations)")
    z_axes.set_title(f"{data.attrs['checks']} checks, root mean square of z {data.attrs['rms_z']:.2f}")
    if data.attrs["remark"]:
        figure.suptitle(data.attrs["remark"], fontsize=7)
    style.legend_below(figure, handles, shown)
    return figure
