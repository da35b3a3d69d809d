# SPDX-License-Identifier: Apache-2.0
"""scripts/format-member-tables writes the tables of members in docs/ from the schemas, and --check finds stale ones."""

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts/format-member-tables"
HEADER = "| member | values | default | meaning |\n| --- | --- | --- | --- |\n"


@pytest.fixture
def call(tmp_path):
    """A function of a page's text and options: what the script does, and the text that it leaves."""
    page = tmp_path / "data.md"

    def run(text, *options):
        page.write_text(text)
        ran = subprocess.run([SCRIPT, *options, page], capture_output=True, text=True)
        return ran, page.read_text()

    return run


def table(place, rows=""):
    return f"Before.\n\n<!-- members of spec {place} -->\n{rows}<!-- end of members -->\n\nAfter.\n"


def test_the_pages_have_the_tables_of_the_schemas():
    ran = subprocess.run([SCRIPT, "--check"], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_a_table_has_the_rows_of_the_schema_and_a_second_call_changes_nothing(call):
    place = "/training only steps schedule flat"
    ran, after = call(table(place, "stale\n"))
    schema = json.loads((ROOT / "experiments/schema/spec.schema.json").read_text())
    steps = schema["properties"]["training"]["properties"]["steps"]
    row = f"| `training.steps` | integer >= 1 | `{steps['default']}` | {steps['description']} |\n"
    assert ran.returncode == 0 and after.startswith(table(place).split("<!-- end")[0] + HEADER + row)
    assert "schedule.kind" not in after and after.endswith("-->\n\nAfter.\n")
    assert call(after, "--check")[0].returncode == 0


def test_members_of_members_and_of_lists_have_rows(call):
    _, after = call(table("/failures only replicas"))
    assert "| `failures.replicas[].from` | integer >= 1 | required |" in after
    _, after = call(table("/network/recovery only hadamard"))
    assert "| `network.recovery.hadamard.block` | integer >= 2 | `1024` |" in after


def test_pages_named_in_a_description_become_links(call):
    _, after = call(table("/data only manifest shuffle examples"))
    assert "([below](#the-manifest))" in after and "[classification.md](classification.md#examples)" in after
    assert "docs/" not in after


def test_check_names_a_stale_page_and_leaves_it(call):
    stale = table("/record", "stale\n")
    ran, after = call(stale, "--check")
    assert ran.returncode == 1 and after == stale
    assert ran.stderr.endswith("data.md: scripts/format-member-tables would change it\n")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (table("/nowhere"), "/nowhere: no object in the schema"),
        (table("/record only nothing"), "the schema spec has no member record.nothing"),
        (table("/record but links"), "/record: got but, want one of only, without, flat"),
        (table("/record").replace("of spec", "of specs"), "got the schema specs, want one of spec,"),
        ("<!-- members of spec /record -->\n", "is wrong, or has no end"),
    ],
)
def test_a_wrong_comment_is_an_error_that_names_it(call, text, error):
    ran, after = call(text)
    assert ran.returncode == 1 and error in ran.stderr and after == text
