# SPDX-License-Identifier: Apache-2.0
"""Every script explains itself, and refuses unknown arguments before it does anything."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path.name for path in (ROOT / "scripts").iterdir() if os.access(path, os.X_OK) and path.is_file())
PYTHON = [name for name in SCRIPTS if "python" in (ROOT / "scripts" / name).read_text().splitlines()[0]]


@pytest.fixture
def call(tmp_path):
    """Runs a copy of a script where none of the programs that it works with is found."""
    (tmp_path / "bin").mkdir()
    for program in ("bash", "basename", "dirname", "sed"):
        (tmp_path / "bin" / program).symlink_to(shutil.which(program))
    (tmp_path / "bin" / "python3").symlink_to("/usr/bin/python3")
    shutil.copytree(ROOT / "scripts", tmp_path / "tree/scripts")
    shutil.copy(ROOT / "CMakePresets.json", tmp_path / "tree")
    before = sorted(tmp_path.rglob("*"))

    def run(*words):
        command = [tmp_path / "tree/scripts" / words[0], *words[1:]]
        environment = {"PATH": str(tmp_path / "bin"), "PYTHONDONTWRITEBYTECODE": "1"}
        ran = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
        assert sorted(tmp_path.rglob("*")) == before, "nothing was done"
        assert "command not found" not in ran.stderr
        return ran

    return run


def test_all_scripts_are_seen():
    assert {"quickstart", "test", "fuzz", "install-dependencies", "stage-times", "make_gpt2_vectors.py"} <= set(SCRIPTS)


@pytest.mark.parametrize("flag", ["--help", "-h"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_help_is_printed_and_nothing_is_done(call, script, flag):
    ran = call(script, flag)
    assert ran.returncode == 0 and ran.stderr == ""
    assert f"usage: {script}" in ran.stdout or f"usage: scripts/{script}" in ran.stdout
    assert len(ran.stdout) > 100 and "SPDX" not in ran.stdout and "set -" not in ran.stdout


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_unknown_option_is_refused_with_the_usage(call, script):
    ran = call(script, "--frobnicate")
    assert ran.returncode == 2 and ran.stdout == ""
    assert "usage: " in ran.stderr
    # argparse names missing arguments first.
    assert "--frobnicate" in ran.stderr or (script in PYTHON and "required" in ran.stderr)


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (["quickstart", "twice"], "quickstart: got 'twice', want at most 0 arguments"),
        (["check-layout", "sim"], "check-layout: got 'sim', want at most 0 arguments"),
        (["prepare-corpus", "kjv"], "prepare-corpus: got 'kjv', want at most 0 arguments"),
        (["install-dependencies", "all"], "install-dependencies: got 'all', want run or test"),
        (["install-dependencies", "run", "test"], "install-dependencies: got 'test', want at most 1 arguments"),
        (["test", "develop"], "test: got 'develop', want a preset: release dev unsanitized"),
        (["test", "dev", "build", "unit"], "test: got 'unit', want build, units, commands or package"),
        (["fuzz", "nowhere"], "fuzz: got 'nowhere', want the folder of a clang build"),
        (["build-wheel", "wheels", "more"], "build-wheel: got 'more', want at most 1 arguments"),
        (["build-wheel", "tree/scripts/test"], "build-wheel: got 'tree/scripts/test', want a folder"),
        (["test-torch", "2"], "test-torch: got '2', want a version of torch, for example 2.13, or newest"),
        (["fuzz", "scripts", "soon"], "fuzz: got 'soon', want a number of seconds"),
        (["fuzz", "merge", "scripts", "60"], "fuzz: got '60', want at most 2 arguments"),
        (["ctest-summary", "log"], "ctest-summary: got 1 arguments, want LOG and STATUS"),
        (["ctest-summary", "nowhere", "0"], "ctest-summary: got 'nowhere', want the log of a run of ctest"),
        (["stage-times", "a", "b", "c"], "stage-times: error: unrecognized arguments: c"),
        (["make_gpt2_vectors.py", "x"], "make_gpt2_vectors.py: error: unrecognized arguments: x"),
        (["check_collectives.py", "droptest", "x"], "check_collectives.py: error: unrecognized arguments: x"),
    ],
)
def test_an_argument_that_a_script_does_not_know_is_refused(call, words, refused):
    ran = call(*words)
    assert ran.returncode == 2 and refused in ran.stderr and "usage: " in ran.stderr
