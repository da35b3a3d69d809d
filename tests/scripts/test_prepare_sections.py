# SPDX-License-Identifier: Apache-2.0
"""scripts/prepare-sections: chapters are split, sections are balanced, and every call writes the same files."""

import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts/prepare-sections"
SECTIONS = (("law", 5), ("history", 12), ("wisdom", 5), ("prophets", 17), ("gospels", 5), ("letters", 22))
LABEL_OF_BOOK = dict(enumerate(name for name, count in SECTIONS for _ in range(count)))

# As many books, chapters and verses as `bible -l0` prints, with the place of a verse as its text.
FAKE_BIBLE = """#!/usr/bin/python3
chapters = [(book, chapter) for book in range(66) for chapter in range(1, 20 if book == 65 else 19)]
for number, (book, chapter) in enumerate(chapters):
    print(f"Book{book} {chapter}")
    for verse in range(1, 27 + (number < 188)):
        print(f"  {verse} b{book} c{chapter} v{verse}")
"""


def prepare(out, path, *more):
    return subprocess.run(
        [SCRIPT, "--out", out, *more], env=os.environ | {"PATH": f"{path}:{os.environ['PATH']}"},
        capture_output=True, text=True,
    )  # fmt: skip


@pytest.fixture
def fake(tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "bible").write_text(FAKE_BIBLE)
    (folder / "bible").chmod(0o755)
    return folder


def rows_of(file):
    header, *lines = file.read_text().splitlines()
    assert header == "label\ttext"
    return [tuple(line.split("\t")) for line in lines]


def test_no_chapter_is_in_both_files(tmp_path, fake):
    ran = prepare(tmp_path / "out", fake)
    assert ran.returncode == 0, ran.stderr
    train, validation = (rows_of(tmp_path / f"out/sections_{part}.tsv") for part in ("train", "validation"))
    assert Counter(label for label, _ in validation) == {name: 200 for name, _ in SECTIONS}
    places = {part: [tuple(map(int, re.findall(r"\d+", text))) for _, text in rows]
              for part, rows in (("train", train), ("validation", validation))}  # fmt: skip
    assert not {place[:2] for place in places["train"]} & {place[:2] for place in places["validation"]}
    for part, rows in (("train", train), ("validation", validation)):
        assert [label for label, _ in rows] == [LABEL_OF_BOOK[place[0]] for place in places[part]]
        assert len(set(places[part])) == len(rows), "a verse once"
    # Four fifths of the chapters are trained on, with all of their verses.
    chapters = {place[:2] for place in places["train"]}
    assert len(chapters) == pytest.approx(0.8 * 1189, rel=0.05)
    assert all(count >= 26 for count in Counter(place[:2] for place in places["train"]).values())


def test_every_call_writes_the_same(tmp_path, fake):
    for out in ("a", "b"):
        assert prepare(tmp_path / out, fake).returncode == 0
    for part in ("train", "validation"):
        first, second = ((tmp_path / out / f"sections_{part}.tsv").read_bytes() for out in ("a", "b"))
        assert first == second
    # Fewer verses are the first ones of the same draw.
    assert prepare(tmp_path / "c", fake, "--validation-verses", "50").returncode == 0
    few, many = (set(rows_of(tmp_path / out / "sections_validation.tsv")) for out in ("c", "a"))
    assert few < many and len(few) == 300


@pytest.mark.parametrize(
    ("bible", "more", "message"),
    [
        (FAKE_BIBLE, ["--validation-verses", "0"], "--validation-verses: got 0, want 1 to "),
        (FAKE_BIBLE, ["--validation-verses", "30000"], "(law has no more)"),
        (FAKE_BIBLE.replace("range(66)", "range(65)"), [], "want (66, 1189, 31102); is bible-kjv 4.38 installed?"),
        (FAKE_BIBLE.replace("  {verse} b", "  {verse} \\\"b"), [], "a verse has a quote"),
        ("#!/bin/sh\nexit 3\n", [], "cannot run bible"),
        ("#!/bin/sh\necho '?'\n", [], "bible printed '?', want verses and headings"),
    ],
)  # fmt: skip
def test_bad_input_is_named_and_leaves_no_file(tmp_path, fake, bible, more, message):
    (fake / "bible").write_text(bible)
    ran = prepare(tmp_path / "out", fake, *more)
    assert ran.returncode == 2 and message in ran.stderr, ran.stderr
    assert not list((tmp_path / "out").glob("*"))


@pytest.mark.skipif(shutil.which("bible") is None, reason="bible-kjv is not installed")
def test_the_bible_has_the_verses_that_the_docs_say(tmp_path):
    assert prepare(tmp_path, "").returncode == 0
    assert len(rows_of(tmp_path / "sections_train.tsv")) == 24946
    assert len(rows_of(tmp_path / "sections_validation.tsv")) == 1200
    cut = sum(len(text.encode()) > 256 for _, text in rows_of(tmp_path / "sections_train.tsv"))
    assert cut == 795, "docs/finetuning.md"
