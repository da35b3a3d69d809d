#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/vectors/results_of_0_1: small results of one version of droptest, for every later one to read or refuse.

A sweep of two points, a run that was killed after a checkpoint, the lines of the same run without the kill, and the
statistics and saved state of a program's network. The name of the host, the times of day and the locks are taken out
of the records; no checksum covers them. Measured times are those of the run. tests/vectors/results_of_0_1/README.md
names the program. The folder is made once for each version and not again:

    DROPTEST_BINARY=build/dev/experiments/droptest python3 scripts/make_results_vector.py --out FOLDER
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ANALYSIS = ROOT / "analysis"
TEXT = "the quick brown fox jumps over a lazy dog while small rivers carry old songs to the wide sea"
LOSS = {"model": "gilbert_elliott", "loss_rate": "10%", "mean_burst_packets": 3}
SPEC = {
    "seed": 1,
    "model": {"layers": 1, "width": 8, "heads": 2, "context": 16, "vocabulary": 256},
    "data": {"text": "corpus.txt"},
    "parallel": {"tensor": 2},
    "backend": {"name": "local", "timeout_seconds": 20},
    "training": {"steps": 12, "batch_sequences": 1, "learning_rate": 0.01, "warmup_steps": 2},
    "validation": {"every_steps": 6, "tokens": 128},
    "record": {"every_steps": 3, "sample_every_steps": 6},
}
SWEEP = {
    **SPEC,
    "name": "sweep",
    "network": {"path": "direct", "payload_bytes": 64},
    "record": {**SPEC["record"], "links": "include"},
    "sweep": {"cross": {"/network/loss": [{"model": "none"}, LOSS]}},
}
INTERRUPTED = {
    **SPEC,
    "name": "interrupted",
    "network": {"path": "direct", "payload_bytes": 64, "fill": "stale", "loss": LOSS},
    "checkpoint": {"every_steps": 6, "async": False},
}
CHECKPOINT_STEP = 6
# Both ranks lose packets of their gradients; rank 1 saves its state and then loses 300 packets more.
PROGRAM = """
import json, sys
import numpy, droptest
source = {"network": {"loss": {"model": "gilbert_elliott", "loss_rate": 0.1, "mean_burst_packets": 4}},
          "seed": 7, "statistics": "results/program"}
rank = int(sys.argv[1])
network = droptest.Network(source, rank=rank, world_size=2)
flow = network.flow("dp_gradient", rank)
flow.lose(numpy.ones(500 * 352, numpy.float32))
if rank == 1:
    with open("state_of_rank_1.json", "w") as file:
        json.dump(network.state_dict(), file)
    flow.next(300 * 352)
network.close()
"""


def text_of(size):
    """Words in an order of a linear congruential generator: the same on every machine."""
    words = TEXT.split()
    text, length, state = [], 0, 1
    while length < size:
        state = (state * 1103515245 + 12345) % 2**31
        text.append(words[(state >> 16) % len(words)] + (".\n" if (state >> 8) % 9 == 0 else " "))
        length += len(text[-1])
    return "".join(text)


def interrupt(binary, folder):
    """Kills a run once its checkpoint is there, and takes out what it has done since. Returns the run's folder."""
    process = subprocess.Popen([binary, "run", "interrupted.json"], cwd=folder, stderr=subprocess.DEVNULL)
    while not list(folder.glob(f"results/interrupted/*/checkpoints/step-{CHECKPOINT_STEP}/manifest.json")):
        if process.poll() is not None:
            raise SystemExit(f"make_results_vector.py: the run ended by itself, with exit code {process.returncode}")
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (run,) = (folder / "results/interrupted").iterdir()
    for checkpoint in (run / "checkpoints").glob("step-*"):
        if checkpoint.name != f"step-{CHECKPOINT_STEP}":
            shutil.rmtree(checkpoint)
    (run / "checkpoints/LATEST").write_text(f"step-{CHECKPOINT_STEP}\n")
    return run


def neutral(folder):
    """Takes the machine and the time of day out of the records."""
    for path in folder.glob("**/summary.json"):
        summary = json.loads(path.read_text())
        times = {"started": "2026-01-01T00:00:00Z", "finished": "2026-01-01T00:00:01Z"}
        summary["provenance"] |= {"host": "node1", **times}
        path.write_text(json.dumps(summary, indent=2, sort_keys=True) + "\n")
    for path in [*folder.glob("**/lock"), *folder.glob("**/*.lock"), *folder.glob("**/hook.log")]:
        path.unlink()


def damage(folder, sweep, run):
    """Files that every version refuses, each as an interrupted copy or a bad disk leaves it."""
    bad = folder / "bad"
    bad.mkdir()
    lines = (sweep / "metrics.jsonl").read_text().splitlines()
    (bad / "metrics.jsonl").write_text("\n".join([lines[0], lines[1][: len(lines[1]) // 2], *lines[2:]]) + "\n")
    summary = (sweep / "summary.json").read_text()
    (bad / "summary.json").write_text(summary[: len(summary) // 2])
    manifest = (run / f"checkpoints/step-{CHECKPOINT_STEP}/manifest.json").read_text()
    (bad / "manifest.json").write_text(manifest[:2000])
    weights = (sweep / "weights.safetensors").read_bytes()
    (bad / "weights.safetensors").write_bytes(weights[: len(weights) // 2])
    (bad / "state_of_rank_1.json").write_text((folder / "state_of_rank_1.json").read_text().replace("A", "B", 1))


def make(binary, out):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "corpus.txt").write_text(text_of(3000))
        for spec in (SWEEP, INTERRUPTED):
            (folder / f"{spec['name']}.json").write_text(json.dumps(spec, indent=2) + "\n")
        subprocess.run([binary, "sweep", "sweep.json", "--quiet"], cwd=folder, check=True)
        subprocess.run([binary, "run", "interrupted.json", "--quiet", "--out", "whole"], cwd=folder, check=True)
        run = interrupt(binary, folder)
        whole = folder / "whole/interrupted" / run.name
        shutil.copy(whole / "loss_statistics.json", folder / "uninterrupted_loss_statistics.json")
        lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
        lines = [{name: line[name] for name in line if name not in ("ranks", "seconds")} for line in lines]
        (folder / "uninterrupted_metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        shutil.rmtree(folder / "whole")
        library = Path(binary).resolve().parents[1] / "api/libdroptest.so.0.1"
        environment = os.environ | {"PYTHONPATH": str(ANALYSIS), "DROPTEST_LIBRARY": str(library)}
        for rank in range(2):
            subprocess.run([sys.executable, "-c", PROGRAM, str(rank)], cwd=folder, check=True, env=environment)
        neutral(folder)
        lossy = next(path.parent for path in folder.glob("results/sweep/*/loss_statistics.json")
                     if json.loads(path.read_text())["classes"])  # fmt: skip
        damage(folder, lossy, run)
        shutil.copytree(folder, out, dirs_exist_ok=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder that is made")
    args = parser.parse_args()
    binary = os.environ.get("DROPTEST_BINARY", str(ROOT / "build/dev/experiments/droptest"))
    make(str(Path(binary).resolve()), args.out)


if __name__ == "__main__":
    main()
