# SPDX-License-Identifier: Apache-2.0
"""The settings that make PyTorch fast or slow on a CPU, and a search for the best of them for one model.

They are environment variables that must stand before Python starts, and options of peers/pytorch_gpt2.py.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from program_runs import ProgramError, say

# Memory that was given back to the kernel costs page faults when it is asked for again, in every step.
KEEP_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    "MALLOC_TOP_PAD_": "268435456",
}
MMAP_THRESHOLD = {"MALLOC_MMAP_THRESHOLD_": "100000000000", "MALLOC_TRIM_THRESHOLD_": "100000000000"}
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


@dataclass(frozen=True)
class Setting:
    """How one PyTorch process is started."""

    threads: int
    variables: dict[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()

    def as_json(self) -> dict:
        return {"threads": self.threads, "variables": self.variables, "options": list(self.options)}

    def with_variables(self, changes: dict[str, str]) -> "Setting":
        return replace(self, variables=self.variables | changes)


def blas_folders() -> dict[str, str]:
    """The folders of Debian's OpenBLAS builds by kind: openmp and pthread, as far as installed."""
    found = {}
    for kind in ("openmp", "pthread"):
        for library in sorted(Path("/usr/lib").glob(f"*/openblas-{kind}/libblas.so.3")):
            found[kind] = str(library.parent)
    return found


def default_blas() -> str:
    """The file of the system's libblas.so.3 where no variable names another."""
    for library in sorted(Path("/usr/lib").glob("*/libblas.so.3")):
        return str(library.resolve())
    return "none"


def as_shipped(threads: int) -> Setting:
    """Nothing set but the number of threads."""
    return Setting(threads)


def known_best(threads: int) -> Setting:
    """The best setting of the last search, on two cores: OpenBLAS with OpenMP, and memory that is not given back."""
    blas = blas_folders().get("openmp")
    chosen = Setting(threads, KEEP_MEMORY | HUGE_PAGES)
    return chosen.with_variables({"LD_LIBRARY_PATH": blas}) if blas else chosen


def _stages(threads: int) -> Iterator[Callable[[Setting], list[Setting]]]:
    """The stages in order: the settings to try in place of the best so far."""
    folders = list(blas_folders().values())

    def libraries(best: Setting) -> list[Setting]:
        tried = [best.with_variables({"LD_LIBRARY_PATH": folder}) for folder in folders]
        return tried + [s.with_variables({"OMP_WAIT_POLICY": "passive"}) for s in [best, *tried]]

    yield libraries
    yield lambda best: [best.with_variables(KEEP_MEMORY), best.with_variables(MMAP_THRESHOLD)]
    yield lambda best: [best.with_variables(HUGE_PAGES)]
    yield lambda best: [replace(best, threads=n) for n in sorted({1, threads} - {best.threads})]
    yield lambda best: [replace(best, options=("--foreach",))]


def tune(measure: Callable[[Setting], float], threads: int) -> tuple[Setting, list[dict]]:
    """The fastest setting found, stage by stage, and all that was tried.

    measure: tokens per second of a setting. A setting that cannot run counts as slow.
    """
    trials: list[dict] = []

    def rate(setting: Setting) -> float:
        try:
            value = measure(setting)
        except ProgramError as error:
            trials.append(setting.as_json() | {"error": str(error)})
            return 0.0
        trials.append(setting.as_json() | {"tokens_per_second": value})
        say(f"    {value:10.1f} tokens/s  {setting.threads} threads {setting.variables} {' '.join(setting.options)}")
        return value

    best = as_shipped(threads)
    best_rate = rate(best)
    for stage in _stages(threads):
        for setting in stage(best):
            setting_rate = rate(setting)
            if setting_rate > best_rate:
                best, best_rate = setting, setting_rate
    return best, trials
