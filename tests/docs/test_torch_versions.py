# SPDX-License-Identifier: Apache-2.0
"""The versions of PyTorch that the pages promise are those that scripts/test-torch was run with."""

import importlib.util
import re
from pathlib import Path
from xml.sax.saxutils import quoteattr

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


def test_the_oldest_version_of_the_backend_and_of_fsdps_hooks_were_tested():
    pages = " ".join(page.read_text() for page in PAGES)
    assert (2, 6) in ROWS and "torch 2.6 to" in pages
    assert (2, 11) in ROWS and "torch 2.11" in pages


def test_each_version_was_tried_with_every_way_to_train():
    tried = {version: {(row[4].split(",")[0].split(" ")[0], row[5]) for row in tested_torch.PROOF.finditer(PAGE)
                       if (int(row[1]), int(row[2])) == version} for version in ROWS}  # fmt: skip
    by_backend = {"DDP", "DTensor", "pipeline", "functional", "coalesced", "Trainer", "Accelerate", "Lightning"}
    by_hook = {"DDP", "Trainer", "Accelerate", "Lightning"}
    for version, found in tried.items():
        wanted = {(name, "backend") for name in by_backend} | {(name, "hook") for name in by_hook}
        if version >= (2, 11):
            wanted |= {("FSDP2", "hook"), ("FSDP2", "backend")}
        assert found >= wanted, version


def test_no_rate_in_the_table_is_far_from_the_networks():
    found = [float(row[6].split(" | ")[1].split()[0]) for row in tested_torch.PROOF.finditer(PAGE)]
    assert all(abs(z) < 4 for z in found)
    assert sum(z * z for z in found) / len(found) < 2


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
    row = f"| {version} | 2026-02-02 | 3 passed, 1 skipped |\n"
    page = tested_torch.with_rows(TABLE, tested_torch.ROW, row, version)
    assert [".".join(row.groups()[:3]) for row in tested_torch.ROW.finditer(page)] == versions
    assert row in page
    assert page.startswith(HEAD + "| ") and page.endswith(" |\n\nEnd.\n")


def test_a_page_without_a_table_is_an_error():
    with pytest.raises(ValueError, match="no table of tested versions"):
        tested_torch.with_rows("# PyTorch\n", tested_torch.ROW, "", "2.15.0")


def test_what_tests_have_noted_becomes_rows():
    note = quoteattr('{"name": "FSDP2, bf16", "by": "hook", "packets": 13720, "z": -0.857}')
    junit = (f'<testsuites><testsuite><testcase name="a"><properties><property name="proof" value={note}/>'
             '<property name="other" value="1"/></properties></testcase></testsuite></testsuites>')  # fmt: skip
    row = "| 2.15.0 | FSDP2, bf16 | hook | equal | -0.86 of 13,720 | equal | whole |\n"
    assert tested_torch.proofs(junit, "2.15.0") == row
    table = "| 2.11.0 | DDP, plain | hook | equal | 1.00 of 5 | equal | whole |\n"
    page = tested_torch.with_rows(TABLE + table, tested_torch.PROOF, row, "2.15.0")
    assert page == TABLE + row + table  # and the dates of the first table are as they were
