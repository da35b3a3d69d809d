# SPDX-License-Identifier: Apache-2.0
"""Runs the droptest command as its users do: a binary, files, exit codes."""

import json
import os
import subprocess
import time
from pathlib import Path

BINARY = os.environ.get("DROPTEST_BINARY", str(Path(__file__).parents[2] / "build/dev/experiments/droptest"))

# The environment without variables of launchers and of the report, which would change a test's results.
CLEAN_ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("OMPI_", "PMI", "SLURM_", "TORCHELASTIC_", "DROPTEST_"))
    and name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    and name not in ("MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME")
}


def start(*arguments, cwd, environment=None):
    """Starts the command; its output is text."""
    return subprocess.Popen(
        [BINARY, *map(str, arguments)],
        cwd=cwd,
        env={**CLEAN_ENVIRONMENT, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*arguments, cwd, expect=0, environment=None, timeout=600):
    """Runs the command to its end and checks the exit code."""
    process = start(*arguments, cwd=cwd, environment=environment)
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    assert process.returncode == expect, f"{arguments}: exit code {process.returncode}\n{out}\n{err}"
    process.out, process.err = out, err
    return process


def marks_of(summary):
    """The messages of the marks of a run: events that its results may depend on."""
    return {one["mark"]: one["message"] for one in summary["warnings"] if "mark" in one}


def write_corpus(path, size=20000):
    """English-like text: the same for every test."""
    text_words = "the quick brown fox jumps over a lazy dog while small rivers carry old songs to the wide sea"
    words = text_words.split()
    text, state = [], 1
    length = 0
    while length < size:
        state = (state * 1103515245 + 12345) % 2**31
        word = words[(state >> 16) % len(words)]
        text.append(word + (".\n" if (state >> 8) % 9 == 0 else " "))
        length += len(text[-1])
    path.write_text("".join(text))


def tiny_spec(**changes):
    """A run that takes a fraction of a second; `changes` replace whole top-level members."""
    spec = {
        "name": "tiny",
        "seed": 1,
        "model": {"layers": 1, "width": 32, "heads": 4, "context": 32, "vocabulary": 256},
        "data": {"text": "corpus.txt"},
        "parallel": {"tensor": 2},
        "backend": {"name": "local", "timeout_seconds": 20},
        "network": {
            "path": "direct",
            "payload_bytes": 256,
            "loss": {"model": "bernoulli", "loss_rate": 0.05},
        },
        "training": {"steps": 12, "batch_sequences": 4, "learning_rate": 0.01, "warmup_steps": 2},
        "validation": {"every_steps": 6, "tokens": 256},
        "record": {"every_steps": 2, "sample_every_steps": 6},
    }
    spec.update(changes)
    return spec


def write_spec(folder, file="spec.json", **changes):
    if not (folder / "corpus.txt").exists():
        write_corpus(folder / "corpus.txt")
    (folder / file).write_text(json.dumps(tiny_spec(**changes)))
    return file


def run_folders(folder, name="tiny", out="results"):
    """The folders of the runs of an experiment."""
    root = folder / out / name
    return sorted(p for p in root.iterdir() if p.is_dir()) if root.exists() else []


def summary_of(run_folder):
    return json.loads((run_folder / "summary.json").read_text())


def lines_of(path):
    """The complete lines of a file of JSON lines: of the last one, a run that goes on may have written only a part."""
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def metrics_of(run_folder):
    return lines_of(run_folder / "metrics.jsonl")


def events_of(run_folder):
    """None where the run has no anomaly."""
    path = run_folder / "events.jsonl"
    return lines_of(path) if path.exists() else []


def losses_of(run_folder):
    """Step -> the losses of that step."""
    return {m["step"]: (m.get("train_loss"), m.get("validation_loss")) for m in metrics_of(run_folder)}


def wait_until(condition, seconds=600):
    """Polls; fails the test where the condition does not come true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError("timed out waiting")


def processes_with(text, cwd=None):
    """Ids of the processes whose command line contains the text, and that work in the folder where one is given."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
            elsewhere = cwd is not None and (entry / "cwd").readlink() != cwd
        except OSError:
            continue
        if text in command and state != "Z" and not elsewhere:
            found.append(int(entry.name))
    return found
