# SPDX-License-Identifier: Apache-2.0
"""How every figure looks: sizes, fonts, and marks that can be told apart in grey. Import before matplotlib."""

from __future__ import annotations

import atexit
import io
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
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
from matplotlib.ticker import ScalarFormatter  # noqa: E402

from droptest.words import MOST_IN_DIGITS  # noqa: E402

SINGLE_COLUMN = 3.5  # inches: one column of a two-column page
DOUBLE_COLUMN = 7.16
DPI = 200
FORMATS = ("png", "svg")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "h", "p")
NAMED = {"ink": "#1c2024", "soft": "#5b6470", "shade 0": "#30363d", "shade 1": "#727a83", "shade 2": "#9aa1a9"}
DARKEST, LIGHTEST = 0.15, 0.84  # of the colours of loss rates: black is without loss, yellow is not seen on white
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


def colour(hue: float | str) -> str:
    """The colour of a hue of looks.py on paper."""
    if isinstance(hue, str):
        return NAMED.get(hue, hue)
    return matplotlib.colors.to_hex(matplotlib.colormaps["viridis"](DARKEST + (LIGHTEST - DARKEST) * hue))


def scale(steps: int = 64) -> list[str]:
    """The colours of loss rates and of maps from dark to light."""
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
    if not labels:
        return
    if len(labels) < 2 and not getattr(handles[0], "needs_key", False):  # one curve needs no key, only its name
        height = result.get_figheight() + 0.2
        result.set_figheight(height)
        result.get_layout_engine().set(rect=(0, 0.2 / height, 1, 1 - 0.2 / height))
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


def plain_text(text: str) -> str:
    """A user's text as matplotlib shows it as it is: no mathematics, no control characters."""
    shown = "".join(c if c.isprintable() or c == "\N{NO-BREAK SPACE}" else "?" for c in text).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def in_lines(text: str) -> str:
    """A text of several lines as matplotlib shows it as it is."""
    return "\n".join(map(plain_text, text.split("\n")))


def frame(x: float, y: float) -> Rectangle:
    """A frame around the cell at (x, y) of a map."""
    return Rectangle((x - 0.47, y - 0.47), 0.94, 0.94, fill=False, edgecolor="tab:red", linewidth=1.5)


class _PlainFormatter(ScalarFormatter):
    def __call__(self, x: float, pos: int | None = None) -> str:
        return super().__call__(x, pos) if abs(x) < MOST_IN_DIGITS else f"{x:.6g}".replace("-", "\N{MINUS SIGN}")


def plain_formatter() -> ScalarFormatter:
    """No offsets or powers on a linear axis, below the numbers that only diverged runs have."""
    formatter = _PlainFormatter(useOffset=False)
    formatter.set_scientific(False)
    return formatter


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
