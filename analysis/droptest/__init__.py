# SPDX-License-Identifier: Apache-2.0
"""droptest from Python: run, load, compare, draw.

>>> import droptest
>>> records = droptest.sweep("experiments/specs/quickstart.json")  # or droptest.load("results/quickstart")
>>> droptest.points(records)[["series", "loss_rate", "difference_mean", "difference_low", "difference_high"]]
>>> records.to_csv("tables")

`Records` says which frames there are, with their columns and units. `droptest.plots.draw("final_loss", records)` is a
matplotlib figure, `droptest.plots.data("final_loss", records)` the frame with its numbers. docs/python.md has examples.
"""

import re
from importlib import import_module, metadata
from pathlib import Path

from droptest.extras import needed_by

# Names are loaded at their first use: a Network needs numpy only. __init__.pyi has the same names for type checkers.
_MODULE_OF = {
    "CollectiveGroup": "droptest.network",
    "CommandError": "droptest.program",
    "Comparison": "droptest.comparison",
    "Flow": "droptest.network",
    "Group": "droptest.summary",
    "Interval": "droptest.statistics",
    "LibraryError": "droptest.library",
    "MalformedRecord": "droptest.files",
    "MissingRecord": "droptest.files",
    "Network": "droptest.network",
    "NetworkError": "droptest.library",
    "RecordError": "droptest.files",
    "Records": "droptest.records",
    "Statistics": "droptest.network",
    "best_over": "droptest.records",
    "binary": "droptest.program",
    "compare": "droptest.comparison",
    "experiments_in": "droptest.records",
    "fates": "droptest.commands",
    "follow": "droptest.watching",
    "groups": "droptest.summary",
    "load": "droptest.records",
    "load_all": "droptest.records",
    "mean_interval": "droptest.statistics",
    "paired_difference": "droptest.statistics",
    "plots": "droptest.plots",
    "points": "droptest.summary",
    "run": "droptest.commands",
    "summary_table": "droptest.summary",
    "sweep": "droptest.commands",
    "watch": "droptest.watching",
}
__all__ = ["__version__", *_MODULE_OF]


def _version() -> str:
    """CMakeLists.txt has the version; the package that pip built from it repeats it."""
    build = Path(__file__).resolve().parents[2] / "CMakeLists.txt"
    if not build.is_file():
        return metadata.version("droptest")
    return re.search(r"project\(droptest VERSION ([0-9.]+)", build.read_text())[1]


def __getattr__(name: str) -> object:
    if name == "__version__":
        return _version()
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'droptest' has no attribute {name!r}")
    with needed_by(f"droptest.{name}"):
        module = import_module(_MODULE_OF[name])
    return module if _MODULE_OF[name] == f"droptest.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    """The names for users: modules and helpers of the package are none."""
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
