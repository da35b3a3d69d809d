# SPDX-License-Identifier: Apache-2.0
"""Which tests pytest-xdist keeps in one process, one after the other: those of a file, since they share fixtures, and
those that start Slurm or other launchers, since they share ports and measure how soon ranks end."""

import pytest

LAUNCHERS = ("test_launchers", "test_launch_failures", "test_slurm_arrays")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(items):
    for item in items:
        group = "launchers" if item.path.stem in LAUNCHERS else item.path.stem
        item.add_marker(pytest.mark.xdist_group(group))
