# SPDX-License-Identifier: Apache-2.0
"""The figures of scaling.py, in the look of the reports' figures."""

from __future__ import annotations

import sys
from pathlib import Path

import machine

sys.path.insert(0, str(machine.ROOT / "analysis"))
from droptest import style  # before matplotlib: it sets up matplotlib's cache

# isort: split
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

X_LABELS = {
    "width": "model width (6 layers, context 128)",
    "context": "context length in tokens (6 layers, width 384)",
    "ranks": "tensor-parallel ranks on the same cores",
}


def draw(result: dict, folder: Path) -> list[Path]:
    """scaling_FIGURE.png for each figure that the result has values of. Returns their paths."""
    paths = []
    with style.applied():
        for name, label in X_LABELS.items():
            chosen = [setting for setting in result["settings"] if setting["figure"] == name]
            if chosen:
                paths.append(_save(_figure(chosen, label), folder, f"scaling_{name}"))
    return paths


def _figure(chosen: list[dict], label: str):
    """Medians as lines; every round's value as a faint point, so that the spread is seen."""
    names = list(dict.fromkeys(setting["series"] for setting in chosen))
    figure, ((axes,),) = style.figure(style.SINGLE_COLUMN * 1.3, 2.6)
    handles = []
    for place, name in enumerate(names):
        color, marker = style.colour(place / max(len(names) - 1, 1)), style.MARKERS[place % len(style.MARKERS)]
        series = sorted((s for s in chosen if s["series"] == name), key=lambda s: s["x"])
        for setting in series:
            rates = [sample["tokens_per_second"] for sample in setting["samples"]]
            axes.plot([setting["x"]] * len(rates), rates, linestyle="none", marker=marker, color=color,
                      alpha=0.25, markersize=3, markeredgewidth=0)  # fmt: skip
        handles += axes.plot(
            [s["x"] for s in series], [s["tokens_per_second"] for s in series],
            color=color, marker=marker, linestyle=style.DASHES[place % len(style.DASHES)],
        )  # fmt: skip
    places = sorted({setting["x"] for setting in chosen})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(places))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    _label_rates(axes, [sample["tokens_per_second"] for s in chosen for sample in s["samples"]])
    axes.set_xlabel(label)
    axes.set_ylabel("tokens per second")
    style.legend_below(figure, handles, names)
    return figure


def _label_rates(axes, rates: list[float]) -> None:
    """Round numbers on the logarithmic y axis: 1, 2 and 5 times powers of ten, from the one below to the one above."""
    ticks = [digit * 10.0**power for power in range(-3, 10) for digit in (1, 2, 5)]
    low = max(tick for tick in ticks if tick < min(rates) * 0.95)
    high = min(tick for tick in ticks if tick > max(rates) * 1.05)
    shown = [tick for tick in ticks if low <= tick <= high]
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(FixedLocator(shown))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))


def _save(figure, folder: Path, name: str) -> Path:
    """The PNG; documents show no other format."""
    paths = style.save(figure, folder, name)
    for path in paths:
        if path.suffix != ".png":
            path.unlink()
    return next(path for path in paths if path.suffix == ".png")
