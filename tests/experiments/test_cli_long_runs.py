# SPDX-License-Identifier: Apache-2.0
"""Commands hold one line of a run at a time: their memory does not grow with the run."""

import json
import subprocess
import sys

import pytest
from cli_harness import BINARY, CLEAN_ENVIRONMENT, metrics_of, run, run_folders, summary_of, write_spec

LINES = 60_000


@pytest.fixture
def finished(tmp_path):
    """The folder of a finished run with a checkpoint of step 10."""
    training = {"steps": 12, "batch_sequences": 4, "learning_rate": 0.01, "warmup_steps": 2}
    write_spec(tmp_path, training=training, checkpoint={"every_steps": 10}, record={"every_steps": 1})
    run("run", "spec.json", cwd=tmp_path)
    (folder,) = run_folders(tmp_path)
    return folder


# The peak of a process begins with that of the one that forked it, so that is a small one.
PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def peak_mebibytes(*arguments, cwd):
    """Of the command, which must succeed."""
    words = [sys.executable, "-c", PEAK, BINARY, *map(str, arguments)]
    done = subprocess.run(words, cwd=cwd, env=CLEAN_ENVIRONMENT, capture_output=True, text=True, check=True)
    return int(done.stdout) / 1024


def lengthen(folder):
    """Puts many lines between the first two: steps count from 0 again and again, up to the second line's."""
    first, second, *rest = (json.dumps(line) + "\n" for line in metrics_of(folder))
    (folder / "metrics.jsonl").write_text(first + second * LINES + "".join(rest))


@pytest.mark.parametrize("command", [("watch", "--once"), ("resume", "--again", "--at", "10")])
def test_memory_does_not_grow_with_the_lines(finished, tmp_path, command):
    name, *options = command
    arguments = (name, finished.relative_to(tmp_path), *options)
    short = peak_mebibytes(*arguments, cwd=tmp_path)
    lengthen(finished)
    size = (finished / "metrics.jsonl").stat().st_size / 2**20
    assert size > 10
    assert peak_mebibytes(*arguments, cwd=tmp_path) < short + size / 2
    assert summary_of(finished)["status"] == "completed"
