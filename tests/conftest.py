# SPDX-License-Identifier: Apache-2.0
"""Which tests pytest-xdist keeps in one process, one after the other: those of a file, since they share fixtures, and
those that start Slurm or other launchers, since they share ports and measure how soon ranks end."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = Path(__file__).resolve().parents[1] / "analysis"
LAUNCHERS = ("test_launchers", "test_launch_failures", "test_slurm_arrays")
# These begin, since they take longest: Slurm's tests mostly wait.
ALL_CORES = pytest.StashKey[set[int]]()
FIRST = ("launchers", "test_cli_checkpoints", "test_browser")


def pytest_configure(config):
    """Gives each process of pytest-xdist one core in turn: ranks that wait for each other are then not woken across
    cores, which costs virtual machines more time than the tests themselves."""
    config.stash[ALL_CORES] = os.sched_getaffinity(0)
    if worker := getattr(config, "workerinput", None):
        cores = sorted(config.stash[ALL_CORES])
        os.sched_setaffinity(0, {cores[int(worker["workerid"].removeprefix("gw")) % len(cores)]})


@pytest.fixture
def all_cores(request):
    """The cores of pytest-xdist itself, on which the test may run, too."""
    old, cores = os.sched_getaffinity(0), request.config.stash[ALL_CORES]
    if len(cores) < 2:
        pytest.skip("needs two cores")
    os.sched_setaffinity(0, cores)
    yield cores
    os.sched_setaffinity(0, old)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(items):
    def group(item):
        return "launchers" if item.path.stem in LAUNCHERS else item.path.stem

    for item in items:
        item.add_marker(pytest.mark.xdist_group(group(item)))
    items.sort(key=lambda item: FIRST.index(group(item)) if group(item) in FIRST else len(FIRST))


@pytest.fixture(scope="session")
def analysis():
    """A function of (words, cwd) that is `python3 -m droptest WORDS...` in this process, which imports the package
    once: an import takes 0.7 s. Returns what subprocess.run() does. The program itself is run by
    tests/analysis/test_report.py."""
    if str(PACKAGES) not in sys.path:
        sys.path.insert(0, str(PACKAGES))
    main = pytest.importorskip("droptest.__main__").main

    def call(words, cwd):
        out, errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        with contextlib.chdir(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            try:
                status = main([str(word) for word in words])
            except SystemExit as end:
                status = end.code
        texts = [stream.buffer.getvalue().decode() for stream in (out, errors)]
        return subprocess.CompletedProcess(words, status, *texts)

    return call
