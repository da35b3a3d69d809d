# SPDX-License-Identifier: Apache-2.0
"""The versions of PyTorch that the pages promise are those that scripts/test-torch was run with."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("tested_torch", ROOT / "scripts/tested_torch.py")
tested_torch = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tested_torch)

PAGE = (ROOT / "docs/pytorch.md").read_text()
ROWS = {(int(row[1]), int(row[2])): row[5] for row in tested_torch.ROW.finditer(PAGE)}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("pytorch*.md"))]


def test_the_newest_version_that_a_page_promises_was_tested():
    promises = [
        (page.name, tuple(int(part) for part in newest.split(".")))
        for page in PAGES
        for newest in re.findall(r"[Tt]orch \d+\.\d+ to (\d+\.\d+)", page.read_text())
    ]
    assert {name for name, _ in promises} >= {"pytorch.md", "pytorch_backend.md"}
    assert {newest for _, newest in promises} == {max(ROWS)}, promises


def test_the_tests_of_each_version_passed():
    assert list(ROWS) == sorted(ROWS, reverse=True)
    for version, tests in ROWS.items():
        assert re.fullmatch(r"\d+ passed(, \d+ skipped)?", tests), version


HEAD = "| a | b | c |\n| --- | --- | --- |\n"
TABLE = HEAD + "| 2.13.0 | 2026-01-01 | 1 passed |\n| 2.6.0 | 2026-01-01 | 2 passed |\n\nEnd.\n"


@pytest.mark.parametrize(
    ("version", "versions"),
    [
        ("2.15.0", ["2.15.0", "2.13.0", "2.6.0"]),
        ("2.13.1", ["2.13.1", "2.6.0"]),
        ("2.9.0", ["2.13.0", "2.9.0", "2.6.0"]),
        ("1.13.0", ["2.13.0", "2.6.0", "1.13.0"]),
    ],
)
def test_a_run_takes_the_row_of_its_minor_version(version, versions):
    page = tested_torch.with_row(TABLE, version, "2026-02-02", "3 passed, 1 skipped")
    assert [".".join(row.groups()[:3]) for row in tested_torch.ROW.finditer(page)] == versions
    assert f"| {version} | 2026-02-02 | 3 passed, 1 skipped |\n" in page
    assert page.startswith(HEAD + "| ") and page.endswith(" |\n\nEnd.\n")


def test_a_page_without_a_table_is_an_error():
    with pytest.raises(ValueError, match="no table of tested versions"):
        tested_torch.with_row("# PyTorch\n", "2.15.0", "2026-02-02", "3 passed")
