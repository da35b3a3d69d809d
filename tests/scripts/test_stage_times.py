# SPDX-License-Identifier: Apache-2.0
"""scripts/stage-times: which stages of CI have grown."""

import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts/stage-times"
REFERENCE = """# A page

| stage | elapsed (s) | processor (s) |
| --- | --- | --- |
| build | 60 | 100 |
| tests | 20 | 40 |
| layout | 1 | 2 |
| fuzzers | ? | ? |
| total | 81 | 142 |

A stage | with | 999 |
"""


def stage_times(folder, times, reference=REFERENCE):
    (folder / "times").write_text(times)
    (folder / "page.md").write_text(reference)
    command = [SCRIPT, "times", "page.md"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def notices(folder, times):
    ran = stage_times(folder, times)
    assert ran.returncode == 0, ran.stderr
    return [line.split("'")[1] for line in ran.stdout.splitlines() if line.startswith("NOTICE")]


def test_a_stage_that_grew_by_more_than_a_quarter_is_noticed(tmp_path):
    assert notices(tmp_path, "build\t900\t100\t25\ntests\t1\t49\t1\n") == []
    assert notices(tmp_path, "build\t10\t100\t25.1\ntests\t1\t50\t1\n") == ["build", "tests"]


def test_short_stages_and_new_ones(tmp_path):
    assert notices(tmp_path, "layout\t9\t9\t0\nlint\t1\t1\t0\n") == ["lint"]
    assert notices(tmp_path, "layout\t9\t9\t2\nfuzzers\t1\t1\t0\n") == ["layout", "fuzzers"]


def test_a_stage_that_took_no_time_before_is_noticed(tmp_path):
    ran = stage_times(tmp_path, "layout\t9\t9\t2\n", REFERENCE.replace("| layout | 1 | 2 |", "| layout | 0 | 0 |"))
    assert ran.returncode == 0, ran.stderr
    assert "'layout' took 11 s of processor time, more than the 0 s of page.md" in ran.stdout


def test_the_table_is_one_that_the_page_can_take(tmp_path):
    printed = stage_times(tmp_path, "build\t61.4\t100\t9.6\ntests\t20\t30\t1\n").stdout
    assert printed.splitlines() == [
        *("| stage | elapsed (s) | processor (s) |", "| --- | --- | --- |"),
        *("| build | 61 | 110 |", "| tests | 20 | 31 |", "| total | 81 | 141 |"),
    ]
    assert "NOTICE" not in stage_times(tmp_path, "build\t1\t137\t0\n", printed).stdout
    assert "'build' took 138 s of processor time, 1.25 times the 110 s" in (
        stage_times(tmp_path, "build\t1\t138\t0\n", printed).stdout
    )


def test_the_reference_of_the_project_names_every_stage_of_ci():
    root = Path(__file__).parents[2]
    names = [line.split('"')[1] for line in (root / ".ci/run").read_text().splitlines() if line.startswith("stage ")]
    page = (root / "docs/ci.md").read_text()
    assert len(names) > 4 and [name for name in names if f"\n| {name} | " not in page] == []


def test_bad_input_is_named(tmp_path):
    assert "got the line 'build 1 2 3'" in stage_times(tmp_path, "build 1 2 3\n").stderr
    assert "has no table | stage |" in stage_times(tmp_path, "build\t1\t2\t3\n", "# Empty\n").stderr
