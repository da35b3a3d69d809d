# SPDX-License-Identifier: Apache-2.0
"""Fixtures with which several test files launch runs."""

import sys
from pathlib import Path

import pytest
from holds import Holds
from slurm_cluster import CannotStart, SlurmCluster

# Packages for tests alone, by scripts/install-dependencies.
sys.path.append(str(Path(__file__).parents[2] / ".cache" / "python"))


@pytest.fixture(scope="session")
def slurm_or_reason(tmp_path_factory):
    """A Slurm that is started once and stopped at the end, or why there is none."""
    cluster = None
    try:
        cluster = SlurmCluster(tmp_path_factory.mktemp("slurm"))
        cluster.start()
        yield cluster
    except CannotStart as reason:
        yield str(reason)
    finally:
        if cluster is not None:
            cluster.stop()


@pytest.fixture
def slurm(slurm_or_reason):
    if isinstance(slurm_or_reason, str):
        pytest.skip(slurm_or_reason)
    return slurm_or_reason


@pytest.fixture
def holds(tmp_path):
    """Points at which the test's programs wait. At the end of the test none waits any more."""
    points = Holds(tmp_path / "holds")
    yield points
    points.release_all()
