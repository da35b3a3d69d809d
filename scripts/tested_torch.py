#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what the tests of tests/torch found with one version of PyTorch into docs/pytorch.md, in place of what stands
there of the same minor version: its row of the table "Tested versions", and a row for each way to train that was tried.

scripts/test-torch calls it.
"""

import argparse
import json
import re
from pathlib import Path
from xml.etree import ElementTree

PAGE = Path(__file__).resolve().parents[1] / "docs/pytorch.md"
ROW = re.compile(r"^\| (\d+)\.(\d+)\.(\d+) \| (\d{4}-\d\d-\d\d) \| (.*) \|\n", re.MULTILINE)
PROOF = re.compile(r"^\| (\d+)\.(\d+)\.(\d+) \| (?!\d{4}-)(.*?) \| (\w+) \| (.*) \|\n", re.MULTILINE)


def with_rows(page: str, row: re.Pattern[str], rows: str, version: str) -> str:
    """The page with these rows of a version in the table whose rows match. The newest version is the first. Raises:
    ValueError without such a table."""
    found: dict[tuple[int, int], str] = {}
    for old in row.finditer(page):
        key = int(old[1]), int(old[2])
        found[key] = found.get(key, "") + old[0]
    first = next(row.finditer(page), None)
    if first is None:
        raise ValueError("docs/pytorch.md: has no table of tested versions, want one with a row")
    major, minor, _ = (int(part) for part in version.split("."))
    found[major, minor] = rows
    begin, rest = first.start(), row.sub("", page)
    return rest[:begin] + "".join(found[key] for key in sorted(found, reverse=True)) + rest[begin:]


def proofs(junit: str, version: str) -> str:
    """The rows of the trainings that the tests noted (tests/torch/proofs.py) in a JUnit file of pytest."""
    notes = [json.loads(of.get("value")) for of in ElementTree.fromstring(junit).iter("property")
             if of.get("name") == "proof"]  # fmt: skip
    row = "| {} | {name} | {by} | equal | {z:.2f} of {packets:,} | equal | whole |\n"
    return "".join(row.format(version, **of) for of in notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", help="of torch, for example 2.13.0")
    parser.add_argument("date", help="of the run, for example 2026-11-29")
    parser.add_argument("tests", help="what pytest says of them, for example: 61 passed, 13 skipped")
    parser.add_argument("junit", type=Path, help="pytest's --junitxml of the run, in which all tests passed")
    args = parser.parse_args()
    page = with_rows(PAGE.read_text(), ROW, f"| {args.version} | {args.date} | {args.tests} |\n", args.version)
    PAGE.write_text(with_rows(page, PROOF, proofs(args.junit.read_text(), args.version), args.version))
    print(f"docs/pytorch.md: torch {args.version}: {args.tests}")


if __name__ == "__main__":
    main()
