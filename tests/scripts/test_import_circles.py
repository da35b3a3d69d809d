# SPDX-License-Identifier: Apache-2.0
"""Modules of the Python package import one way."""

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts/import-circles"


@pytest.fixture
def call(tmp_path):
    """Looks at a package `some` of these modules."""
    tmp_path /= "some"
    tmp_path.mkdir()

    def run(**sources):
        for name, source in {"__init__": "", **sources}.items():
            (tmp_path / f"{name}.py").write_text(source)
        return subprocess.run([SCRIPT, tmp_path], capture_output=True, text=True)

    return run


def test_the_package_has_no_circle():
    ran = subprocess.run([SCRIPT], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_modules_that_import_one_way_pass(call):
    ran = call(low="import json", middle="from some import low", high="import some.low\nfrom some.middle import low")
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    "back",
    ["from some import high", "import some.high", "from some.high import x", "def f():\n    from some.high import x"],
)
def test_a_circle_is_named(call, back):
    ran = call(low=back, middle="from some.low import x", high="from some import middle")
    assert ran.returncode == 1
    way = ran.stderr.strip().removeprefix("modules import each other in a circle: ").split(" -> ")
    assert way[0] == way[-1] and set(way) == {"some.low", "some.middle", "some.high"}
    assert way[way.index("some.high") + 1] == "some.middle"
