# SPDX-License-Identifier: Apache-2.0
"""The pages are easy to read: links lead somewhere, lines fit on a screen, sentences begin with their subject, each
page begins with its question and shows an example, and numbers that are copied from results.md are there."""

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LISTED = subprocess.run(["git", "ls-files", "-z", "--", "*.md"], cwd=ROOT, capture_output=True, text=True, check=False)
PAGES = sorted(filter(None, LISTED.stdout.split("\0"))) or ["README.md"]
COLUMNS = {"README.md": 120}
USUAL_COLUMNS = 160  # of lines that are no row of a table
README_LINES = 150
LATE_SUBJECTS = re.compile(r"^[\s*>-]*(Where|Of|With|Under)\b")
MOST_LATE_SUBJECTS = 19  # in all pages together
# A map of the code and lists of changes answer no single question.
LISTS = ("CHANGELOG.md", "docs/architecture.md", "docs/results_changes.md")


@cache
def text_of(page):
    return (ROOT / page).read_text(encoding="utf-8")


def without_blocks(text):
    return re.sub(r"^ *```\w*\n.*?^ *```", "", text, flags=re.S | re.M)


def anchor(heading):
    """As GitHub makes it of the text of a heading."""
    heading = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@cache
def anchors(page):
    return {anchor(heading) for heading in re.findall(r"^#+ (.*)$", without_blocks(text_of(page)), re.M)}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", without_blocks(text_of(page))):
        if link.startswith(("http:", "https:")):
            continue
        file, _, place = link.partition("#")
        target = (ROOT / page).parent / file if file else ROOT / page
        assert target.exists(), link
        if place and target.suffix == ".md":
            assert place in anchors(str(target.resolve().relative_to(ROOT))), link


@pytest.mark.parametrize("page", [page for page in PAGES if page != "CHANGELOG.md"])
def test_lines_fit_on_a_screen(page):
    """Output in a block, and rows of a table, may be longer in other pages than the first one."""
    text = text_of(page)
    lines = (
        text.splitlines()
        if page in COLUMNS
        else re.sub(r"^ *\|.*\|$", "", without_blocks(text), flags=re.M).splitlines()
    )
    assert [line for line in lines if len(line) > COLUMNS.get(page, USUAL_COLUMNS)] == []


def test_the_first_page_is_short():
    assert len(text_of("README.md").splitlines()) <= README_LINES


def test_sentences_begin_with_their_subject():
    late = [
        f"{page}: {line}"
        for page in PAGES
        for line in without_blocks(text_of(page)).splitlines()
        if LATE_SUBJECTS.match(line)
    ]
    assert len(late) <= MOST_LATE_SUBJECTS, "\n".join(late)


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/") and page not in LISTS])
def test_a_page_begins_with_its_question_and_an_example(page):
    head, title, body = re.split(r"^# (.*)\n", text_of(page), maxsplit=1, flags=re.M)
    assert re.fullmatch(r"\s*(<!--.*?-->\s*)?", head)
    sections = re.split(r"^## .*\n", body, flags=re.M)
    assert "?" in title or "?" in without_blocks(sections[0]), "want the question that the page answers at its begin"
    assert re.search(r"^```|^\||^!\[", "\n".join(sections[:2]), re.M), "want an example near the begin"


def test_what_is_known_has_the_numbers_of_the_results():
    """Each number with a decimal point of a row is in the section that the row links to."""
    parts = re.split(r"^## ", text_of("docs/results.md"), flags=re.M)
    sections = {anchor(part.partition("\n")[0]): part for part in parts}
    plain = {name: re.sub(r"\s+", " ", body) for name, body in sections.items()}
    lines = text_of("docs/what_is_known.md").splitlines()
    rows = [line for line in lines if "](results.md#" in line and line.startswith("| ")]
    assert len(rows) > 25
    for row in rows:
        (place,) = re.findall(r"\]\(results\.md#([\w-]+)\)", row)
        numbers = re.findall(
            r"[+-]?\d+\.\d+(?: ± \d+\.\d+)?(?: \(\d+\.\d+ to \d+\.\d+\))?", row.split("](results.md#")[0]
        )
        missing = [number for number in numbers if number not in plain[place]]
        assert not missing, f"{row}: {missing} not in section {place}"
