# SPDX-License-Identifier: Apache-2.0
"""Commands hold one line of a run at a time: their memory does not grow with the run."""

import json
import os
import subprocess

import pytest
from cli_harness import BINARY, CLEAN_ENVIRONMENT, metrics_of, run, run_folders, summary_of, write_spec

LINES = 60_000


@pytest.fixture
def stopped(tmp_path):
    """The folder of a run that was stopped at its last checkpoint, with that checkpoint."""
    training = {"steps": 12, "batch_sequences": 4, "learning_rate": 0.01, "warmup_steps": 2}
    write_spec(tmp_path, training=training, checkpoint={"every_steps": 10}, record={"every_steps": 1})
    run("run", "spec.json", cwd=tmp_path)
    (folder,) = run_folders(tmp_path)
    return folder


def peak_mebibytes(*arguments, cwd):
    """Of the command, which must succeed."""
    process = subprocess.Popen([BINARY, *map(str, arguments)], cwd=cwd, env=CLEAN_ENVIRONMENT, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss / 1024


def lengthen(folder):
    """Puts many lines between the first two: steps count from 0 again and again, up to the second line's."""
    first, second, *rest = (json.dumps(line) + "\n" for line in metrics_of(folder))
    (folder / "metrics.jsonl").write_text(first + second * LINES + "".join(rest))


@pytest.mark.parametrize("command", [("watch", "--once"), ("resume", "--again", "--at", "10")])
def test_memory_does_not_grow_with_the_lines(stopped, tmp_path, command):
    name, *options = command
    arguments = (name, stopped.relative_to(tmp_path), *options)
    short = peak_mebibytes(*arguments, cwd=tmp_path)
    lengthen(stopped)
    size = (stopped / "metrics.jsonl").stat().st_size / 2**20
    assert size > 10
    assert peak_mebibytes(*arguments, cwd=tmp_path) < short + size / 2
    assert summary_of(stopped)["status"] == "completed"
