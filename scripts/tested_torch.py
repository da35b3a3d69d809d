#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a row of the table "Tested versions" of docs/pytorch.md, in place of the one of the same minor version.

scripts/test-torch calls it.
"""

import argparse
import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs/pytorch.md"
ROW = re.compile(r"^\| (\d+)\.(\d+)\.(\d+) \| (\d{4}-\d\d-\d\d) \| (.*) \|\n", re.MULTILINE)


def with_row(page: str, version: str, date: str, tests: str) -> str:
    """The page with that row. The newest version is the first."""
    rows = {(int(row[1]), int(row[2])): row[0] for row in ROW.finditer(page)}
    first = next(ROW.finditer(page), None)
    if first is None:
        raise ValueError("docs/pytorch.md: has no table of tested versions, want one with a row")
    major, minor, _ = (int(part) for part in version.split("."))
    rows[major, minor] = f"| {version} | {date} | {tests} |\n"
    begin, rest = first.start(), ROW.sub("", page)
    return rest[:begin] + "".join(rows[key] for key in sorted(rows, reverse=True)) + rest[begin:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", help="of torch, for example 2.13.0")
    parser.add_argument("date", help="of the run, for example 2026-11-29")
    parser.add_argument("tests", help="what pytest says of them, for example: 61 passed, 13 skipped")
    args = parser.parse_args()
    PAGE.write_text(with_row(PAGE.read_text(), args.version, args.date, args.tests))
    print(f"docs/pytorch.md: torch {args.version}: {args.tests}")


if __name__ == "__main__":
    main()
