# SPDX-License-Identifier: Apache-2.0
"""Schemas have one layout, and formatting changes nothing but the layout."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts/format-schemas"
LONG = ["x" * 60] * 5


def call(*words):
    return subprocess.run([SCRIPT, *words], capture_output=True, text=True)


def formatted(tmp_path, text):
    file = tmp_path / "some.schema.json"
    file.write_text(text)
    ran = call(file)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    return file.read_text()


def test_an_object_that_fits_on_a_line_has_one(tmp_path):
    assert formatted(tmp_path, '{\n"b": [1,\n2], "a": {}}') == '{"b": [1, 2], "a": {}}\n'


def test_members_of_a_longer_object_begin_lines_of_their_own(tmp_path):
    rule = {"title": "t" * 100, "enum": ["a", "b"], "type": "string"}
    expected = '{\n  "title": "' + "t" * 100 + '",\n  "enum": ["a", "b"],\n  "type": "string"\n}\n'
    assert formatted(tmp_path, json.dumps(rule)) == expected


def test_the_longest_line_of_an_object_has_150_columns(tmp_path):
    around = len('{"a": ""}')
    assert formatted(tmp_path, json.dumps({"a": "x" * (150 - around)})).count("\n") == 1
    assert formatted(tmp_path, json.dumps({"a": "x" * (151 - around)})).count("\n") == 3
    letters = "\u00e4" * (150 - around)
    assert formatted(tmp_path, f'{{"a": "{letters}"}}').count("\n") == 1, "columns are characters, not bytes"


def test_texts_of_a_long_list_share_lines(tmp_path):
    lines = formatted(tmp_path, json.dumps(LONG)).splitlines()
    assert lines[0] == "[" and lines[-1] == "]"
    assert [line.count("x" * 60) for line in lines[1:-1]] == [2, 2, 1]


def test_formatting_twice_is_formatting_once(tmp_path):
    text = json.dumps({"properties": {"a": {"enum": LONG}, "b": [{"c": LONG}, {}, []]}, "e": []}, indent=7)
    once = formatted(tmp_path, text)
    assert formatted(tmp_path, once) == once
    assert call("--check", tmp_path / "some.schema.json").returncode == 0
    assert json.loads(once) == json.loads(text)


def test_the_order_of_members_and_the_spelling_of_numbers_stay(tmp_path):
    text = '{"z": 1e-3, "y": 0.10, "x": 18446744073709551615, "w": -0.0, "v": 1E+06, "u": 1' + "0" * 60 + "}\n"
    assert formatted(tmp_path, text) == text


def test_texts_keep_their_meaning(tmp_path):
    text = '{"pattern": "^[0-9]\\\\.$", "quoted": "\\"a\\"\\n", "dash": "\u2014"}\n'
    assert formatted(tmp_path, text) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expecting value"),
        ('{"a": 1', "line 1 column 8"),
        ('{"a": 1, "b": 2, "a": 3}', 'the key "a" appears twice'),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": "\\ud800"}', "surrogates not allowed"),
        ("[" * 100000, "nested too deeply"),
        (b"\xff", "can't decode byte 0xff"),
    ],
)
def test_what_is_not_json_is_refused_and_stays(tmp_path, text, message):
    file = tmp_path / "bad.schema.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    before = file.read_bytes()
    ran = call(file)
    assert ran.returncode == 1 and ran.stdout == ""
    assert ran.stderr.startswith(f"{file}: ") and message in ran.stderr and "Traceback" not in ran.stderr
    assert file.read_bytes() == before


def test_a_file_that_is_not_there_is_named(tmp_path):
    ran = call(tmp_path / "no.schema.json")
    assert ran.returncode == 1 and "no.schema.json" in ran.stderr and "No such file" in ran.stderr


def test_without_a_repository_files_are_asked_for(tmp_path):
    (tmp_path / "scripts").mkdir()
    script = shutil.copy(SCRIPT, tmp_path / "scripts")
    environment = {**os.environ, "GIT_DIR": str(tmp_path / "none")}
    ran = subprocess.run([script], capture_output=True, text=True, env=environment)
    assert ran.returncode == 2 and "without FILE, git lists the files" in ran.stderr and "Traceback" not in ran.stderr


def test_a_check_names_the_files_that_would_change_and_writes_nothing(tmp_path):
    good, bad = tmp_path / "good.schema.json", tmp_path / "bad.schema.json"
    good.write_text('{"a": 1}\n')
    bad.write_text('{"a":1}')
    ran = call("--check", good, bad)
    assert ran.returncode == 1 and ran.stderr == f"{bad}: scripts/format-schemas would change it\n"
    assert bad.read_text() == '{"a":1}'


def test_the_repository_has_this_layout():
    files = sorted(file for folder in ("api", "comm", "experiments") for file in (ROOT / folder).rglob("*.schema.json"))
    assert len(files) >= 16
    ran = call("--check", *files)
    assert (ran.returncode, ran.stderr) == (0, "")
