# SPDX-License-Identifier: Apache-2.0
"""How every figure looks: sizes, fonts, and marks that can be told apart in grey. Import before matplotlib."""

from __future__ import annotations

import atexit
import io
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


def _use_writable_cache() -> None:
    """matplotlib wants a writable folder for its font cache, and warns on stderr where the home has none."""
    if "MPLCONFIGDIR" in os.environ:
        return
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    folder = home / "matplotlib"
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        cache = tempfile.mkdtemp(prefix="droptest-matplotlib-")
        os.environ["MPLCONFIGDIR"] = cache
        atexit.register(shutil.rmtree, cache, ignore_errors=True)


_use_writable_cache()

import matplotlib  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.patches import Rectangle  # noqa: E402
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, ScalarFormatter  # noqa: E402

from droptest.words import MOST_IN_DIGITS  # noqa: E402

SINGLE_COLUMN = 3.5  # inches: one column of a two-column page
DOUBLE_COLUMN = 7.16
DPI = 200
FORMATS = ("png", "svg")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "h", "p")
DASHES = ("-", (0, (5, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)), (0, (3, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (2, 2)))
RC = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "legend.title_fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.9",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "errorbar.capsize": 2,
    "legend.frameon": False,
    "legend.handlelength": 2.8,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "savefig.dpi": DPI,
    "figure.dpi": DPI,
    "svg.hashsalt": "droptest",
    "svg.fonttype": "path",
    "path.simplify": False,
}


@contextmanager
def applied() -> Iterator[None]:
    """The styles of figures on matplotlib's own defaults, whatever the user's matplotlibrc says; undone afterwards."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # leaves the backend alone: figures are drawn without pyplot
        matplotlib.rcParams.update(RC)
        yield


@dataclass(frozen=True)
class Mark:
    """How one curve looks. Colour, marker and dashes differ together, so that grey prints stay readable."""

    color: str
    marker: str
    linestyle: str | tuple[int, tuple[float, ...]]


def marks(names: Sequence[object], colormap: str = "viridis") -> dict[object, Mark]:
    """A mark for each name, in order: colours from dark to light, so that the order shows in grey too."""
    scale = matplotlib.colormaps[colormap]
    spread = max(len(names) - 1, 1)
    return {
        name: Mark(
            matplotlib.colors.to_hex(scale(0.82 * index / spread)),
            MARKERS[index % len(MARKERS)],
            DASHES[index % len(DASHES)],
        )
        for index, name in enumerate(names)
    }


def scale(steps: int = 32) -> list[str]:
    """The colours of marks from dark to light."""
    return [matplotlib.colors.to_hex(matplotlib.colormaps["viridis"](i / (steps - 1))) for i in range(steps)]


class NotebookFigure(Figure):
    """Shows itself in a notebook. Notebooks draw figures of pyplot only, and these are drawn without it."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """The picture, and its size on the page, which is half of its pixels."""
        picture = io.BytesIO()
        with applied():
            self.savefig(picture, format="png", metadata={"Software": None})
        width, height = self.get_size_inches() * DPI / 2
        return picture.getvalue(), {"width": round(width), "height": round(height)}


def figure(width: float, height: float, rows: int = 1, columns: int = 1, **options) -> tuple[Figure, list[list[Axes]]]:
    """A figure of width x height inches with a grid of axes, laid out so that nothing overlaps."""
    result = NotebookFigure(figsize=(width, height), layout="constrained")
    result.get_layout_engine().set(w_pad=0.06, h_pad=0.05)
    axes = result.subplots(rows, columns, squeeze=False, **options)
    return result, [list(row) for row in axes]


def legend_below(result: Figure, handles: list, labels: list[str], title: str | None = None) -> None:
    """One legend for all axes in a strip below them, in as many columns as fit the width; the figure grows by it.

    A single curve has its name there alone.
    """
    labels = [plain_text(label if len(label) <= 110 else label[:109] + "…") for label in labels]
    if len(labels) < 2:  # one curve needs no key, only its name
        height = result.get_figheight() + 0.2
        result.set_figheight(height)
        result.get_layout_engine().set(rect=(0, 0.2 / height, 1, 1 - 0.2 / height))
        if labels:
            text = f"{title}: {labels[0]}" if title else labels[0]
            result.text(0.5, 0.04 / height, text, ha="center", va="bottom", fontsize=7)
        return
    longest = max((len(label) for label in labels), default=1)
    columns = max(1, min(len(labels), int(result.get_figwidth() / (0.062 * longest + 0.62))))
    rows = math.ceil(len(labels) / columns)
    columns = math.ceil(len(labels) / rows)  # even rows
    strip = 0.16 * (rows + (title is not None)) + 0.1
    height = result.get_figheight() + strip
    result.set_figheight(height)
    result.get_layout_engine().set(rect=(0, strip / height, 1, 1 - strip / height))
    result.legend(handles, labels, title=title, loc="lower center", ncol=columns, borderaxespad=0.2)


def percent_axis(axes: Axes, rates: Sequence[float], pointer: str | None = None) -> None:
    """A packet loss rate axis in percent, logarithmic with 0 at its left end, ticks at the rates where they fit.

    pointer: the loss that the rate is of, where there are several.
    """
    axes.set_xlabel("packet loss rate (%)" if pointer is None else f"packet loss rate of {plain_text(pointer)} (%)")
    shown = sorted({100 * rate for rate in rates if math.isfinite(rate)})
    positive = [rate for rate in shown if rate > 0]
    if not positive:
        return
    # Without a zero the axis is plainly logarithmic; with it, the stretch from 0 to the first rate is linear.
    if shown[0] == 0:
        axes.set_xscale("symlog", linthresh=positive[0], linscale=0.4)
        axes.axvspan(-positive[0], positive[0], color="0.95", zorder=0, linewidth=0)  # the linear stretch
        axes.set_xlim(-0.25 * positive[0], positive[-1] * 1.35)
    else:
        axes.set_xscale("log")
        axes.set_xlim(positive[0] / 1.35, positive[-1] * 1.35)
    axes.xaxis.set_major_locator(FixedLocator(_thinned(shown, axes)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(_plain_number))


def _plain_number(value: float, _: object) -> str:
    return f"{value:.6g}".replace("-", "\N{MINUS SIGN}")


def plain_text(text: str) -> str:
    """A user's text as matplotlib shows it as it is: no mathematics, no control characters."""
    shown = "".join(c if c.isprintable() else "?" for c in text).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def _thinned(rates: Sequence[float], axes: Axes) -> list[float]:
    """The rates that can have a tick without their labels touching: 0 and the ends first, then from the left."""
    to_axes = axes.transData + axes.transAxes.inverted()
    place = {rate: to_axes.transform((rate, 1.0))[0] for rate in rates}
    kept: list[float] = []
    for rate in [rates[0], rates[-1], *rates[1:-1]]:
        if all(abs(place[rate] - place[other]) >= 0.09 for other in kept):
            kept.append(rate)
    return sorted(kept)


def signed_log_axis(axes: Axes, means: Sequence[float], *bounds: Sequence[float]) -> None:
    """A y axis for differences of either sign over decades: linear around 0, logarithmic beyond. NaN is left out.

    bounds: the ends of intervals, which are to be seen as well.
    """
    sizes = [abs(mean) for mean in means if mean and math.isfinite(mean)]
    if not sizes or max(sizes) < 20 * min(sizes):
        return
    threshold = 10.0 ** math.floor(math.log10(min(sizes)))
    # A difference that is tiny by chance must not stretch the axis.
    threshold = max(threshold, 10.0 ** math.floor(math.log10(max(sizes)) - 3))
    axes.set_yscale("symlog", linthresh=threshold, linscale=0.5)
    axes.axhspan(-threshold, threshold, color="0.95", zorder=0, linewidth=0)  # the linear stretch
    ends = [end for column in (means, *bounds) for end in column if math.isfinite(end)]
    low, high = min(0.0, *ends), max(0.0, *ends)
    axes.set_ylim(min(low * 1.7, -0.5 * threshold), max(high * 1.7, 0.5 * threshold))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(_plain_number))


def frame(x: float, y: float) -> Rectangle:
    """A frame around the cell at (x, y) of a map."""
    return Rectangle((x - 0.47, y - 0.47), 0.94, 0.94, fill=False, edgecolor="tab:red", linewidth=1.5)


class _PlainFormatter(ScalarFormatter):
    def __call__(self, x: float, pos: int | None = None) -> str:
        return super().__call__(x, pos) if abs(x) < MOST_IN_DIGITS else _plain_number(x, pos)


def plain_ticks(axes: Axes) -> None:
    """No offsets or powers on a linear y axis, below the numbers that only diverged runs have."""
    formatter = _PlainFormatter(useOffset=False)
    formatter.set_scientific(False)
    axes.yaxis.set_major_formatter(formatter)


def save(result: Figure, folder: Path, name: str) -> list[Path]:
    """Writes the figure as PNG and SVG; the files appear whole or not at all. Returns their paths.

    Determinism: equal figures give equal bytes, in another process too: no date, no program, a fixed salt.
    """
    metadata = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with applied():
        result.draw_without_rendering()  # lays the axes out once, for all formats
        result.set_layout_engine(None)  # so that savefig does not draw each format twice
        for extension in FORMATS:
            path = folder / f"{name}.{extension}"
            part = folder / f".{name}.{extension}.{os.getpid()}.part"
            try:
                result.savefig(part, format=extension, metadata=metadata[extension])
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)
            paths.append(path)
    return paths
