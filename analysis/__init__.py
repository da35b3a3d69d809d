# SPDX-License-Identifier: Apache-2.0
"""Records of droptest -> statistics -> plots -> report.

>>> import analysis
>>> records = analysis.load("results/quickstart")
>>> records.runs[["series", "loss_rate", "seed", "final_validation_loss", "difference"]]
>>> analysis.summary_table(records)

`Records` says which frames there are, with their columns and units. Plots are drawn by
`analysis.plots.draw("final_loss", records)`, which returns a matplotlib figure. docs/analysis.md has examples.
"""

from importlib import import_module

# Names are loaded at their first use, so that the command line can say which package is missing.
_MODULE_OF = {
    "Group": "analysis.summary",
    "Interval": "analysis.statistics",
    "MalformedRecord": "analysis.files",
    "MissingRecord": "analysis.files",
    "RecordError": "analysis.files",
    "Records": "analysis.records",
    "experiments_in": "analysis.records",
    "groups": "analysis.summary",
    "load": "analysis.records",
    "load_all": "analysis.records",
    "mean_interval": "analysis.statistics",
    "paired_difference": "analysis.statistics",
    "plots": "analysis.plots",
    "summary_table": "analysis.summary",
}
__all__ = list(_MODULE_OF)


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'analysis' has no attribute {name!r}")
    module = import_module(_MODULE_OF[name])
    return module if _MODULE_OF[name] == f"analysis.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE_OF])
