# SPDX-License-Identifier: Apache-2.0
"""Records of droptest -> statistics -> plots -> report.

>>> import droptest
>>> records = droptest.load("results/quickstart")
>>> records.runs[["series", "loss_rate", "seed", "final_validation_loss", "difference"]]
>>> droptest.summary_table(records)

`Records` says which frames there are, with their columns and units. Plots are drawn by
`droptest.plots.draw("final_loss", records)`, which returns a matplotlib figure. docs/analysis.md has examples.
"""

import re
from importlib import import_module, metadata
from pathlib import Path

# Names are loaded at their first use, so that the command line can say which package is missing.
_MODULE_OF = {
    "Group": "droptest.summary",
    "Interval": "droptest.statistics",
    "MalformedRecord": "droptest.files",
    "MissingRecord": "droptest.files",
    "RecordError": "droptest.files",
    "Records": "droptest.records",
    "best_over": "droptest.best_values",
    "experiments_in": "droptest.records",
    "groups": "droptest.summary",
    "load": "droptest.records",
    "load_all": "droptest.records",
    "mean_interval": "droptest.statistics",
    "paired_difference": "droptest.statistics",
    "plots": "droptest.plots",
    "summary_table": "droptest.summary",
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
    module = import_module(_MODULE_OF[name])
    return module if _MODULE_OF[name] == f"droptest.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE_OF])
