# SPDX-License-Identifier: Apache-2.0
"""Tests of droptest.Network with the library of the build that DROPTEST_BINARY names."""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "analysis") not in sys.path:
    sys.path.insert(0, str(ROOT / "analysis"))
BINARY = Path(os.environ.get("DROPTEST_BINARY", ROOT / "build/dev/experiments/droptest"))
os.environ.setdefault("DROPTEST_LIBRARY", str(BINARY.parents[1] / "api/libdroptest.so.0.1"))


@pytest.fixture(autouse=True)
def _built(monkeypatch):
    if not Path(os.environ["DROPTEST_LIBRARY"]).is_file() or not BINARY.is_file():
        pytest.skip(f"no {os.environ['DROPTEST_LIBRARY']}: set DROPTEST_BINARY")
    monkeypatch.setenv("DROPTEST_BINARY", str(BINARY))
