# SPDX-License-Identifier: Apache-2.0
"""Tests of droptest.torch with the installed PyTorch, and of the library of the build that DROPTEST_BINARY names."""

import os
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parents[1]
for folder in (ROOT / "analysis", TESTS):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
BINARY = Path(os.environ.get("DROPTEST_BINARY", ROOT / "build/dev/experiments/droptest"))
os.environ.setdefault("DROPTEST_LIBRARY", str(BINARY.parents[1] / "api/libdroptest.so.0.1"))


@pytest.fixture(scope="session")
def binary():
    if not BINARY.is_file():
        pytest.skip(f"no {BINARY}: set DROPTEST_BINARY")
    return BINARY


@pytest.fixture(scope="session")
def extension():
    """The backend's, built once, before the ranks need it."""
    from droptest.torch import build

    return build.extension()


def pytest_collection_modifyitems(items):
    try:
        import torch.distributed as dist

        reason = None if dist.is_available() and dist.is_gloo_available() else "this PyTorch has no gloo"
    except ImportError:
        reason = "no PyTorch: Debian's python3-torch"
    except AttributeError:  # before 2.0: builds of Linux have gloo
        reason = None
    for item in items:
        if item.path.parent == TESTS and reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
