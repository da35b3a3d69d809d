# SPDX-License-Identifier: Apache-2.0
"""Compares the memory that `droptest plan` names with the peaks of short runs, over the ready specs.

Each spec is run for a few steps, once for each of its points that has another estimate, each in a fresh process.
Prints one JSON object: a row per run with bytes by kind, planned and measured, and the largest errors.

    python3 benchmarks/memory_estimate.py --binary build/release/experiments/droptest [--specs experiments/specs]
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import machine
from program_runs import machine_meanwhile, say

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("parameters", "gradients", "optimizer", "activations", "offload_buffers", "collectives", "loss_layer", "outer")
ALLOCATOR_SHARE = 0.05
PROCESS_SHARE, PROCESS_BYTES = 0.05, 100e6


def set_pointer(spec, pointer, value):
    """Sets the member; objects on the way are made."""
    *way, last = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    for part in way:
        spec = spec.setdefault(part, {})
    spec[last] = value


def short(spec, point, steps):
    """The point's spec with so few steps that its memory is reached: one evaluation and one sample are among them."""
    left_out = ("sweep", "repeat", "search", "checkpoint", "failures")
    one = {key: value for key, value in spec.items() if key not in left_out}
    for pointer, value in point.items():
        set_pointer(one, pointer, value)
    for section, limits in (("training", {"steps": steps}), ("validation", {"every_steps": steps})):
        one[section] = one.get(section, {}) | limits
    tokens = one["validation"].get("tokens")
    if isinstance(tokens, int):
        one["validation"]["tokens"] = min(tokens, 16384)
    one["training"].pop("warmup_steps", None)
    one["training"].pop("learning_rate_schedule", None)
    record = one.get("record", {})
    one["record"] = record | ({"sample_every_steps": 1} if record.get("sample_every_steps", 50) else {})
    one["device"] = "cpu"
    return one


def program(binary, *arguments):
    return subprocess.run([binary, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, check=False)


def plan_of(binary, path):
    done = program(binary, "plan", path, "--json")
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return json.loads(done.stdout)["runs"]


def measured(binary, path, out):
    done = program(binary, "run", path, "--out", out)
    summary = next(Path(out).glob("*/*/summary.json"), None)
    if done.returncode != 0 or summary is None:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no summary"])[-1])
    return json.loads(summary.read_text(encoding="utf-8"))["memory"]


def row_of(binary, name, spec, point, options):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.json"
        path.write_text(json.dumps(short(spec, point, options.steps)), encoding="utf-8")
        (run,) = plan_of(binary, path)
        planned = run["memory"]
        row = {"spec": name, "point": point, "planned": {k: planned[k] for k in (*KINDS, "total", "process")}}
        if planned["process"] > options.most_gib * 2**30:
            return row | {"skipped": f"the plan is above {options.most_gib} GiB"}
        memory = measured(binary, path, Path(folder) / "results")
    peaks = {kind: memory["model"].get(kind, {"bytes": 0})["bytes"] for kind in KINDS}
    row["measured"] = peaks | {"total": sum(peaks.values()), "process": memory["process"]["bytes"]}
    row["total_error"] = row["planned"]["total"] / row["measured"]["total"] - 1
    row["process_error_bytes"] = row["planned"]["process"] - row["measured"]["process"]
    row["holds"] = abs(row["total_error"]) <= ALLOCATOR_SHARE and abs(row["process_error_bytes"]) <= max(
        PROCESS_BYTES, PROCESS_SHARE * row["measured"]["process"]
    )
    return row


def rows_of(binary, path, options):
    name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
    spec = json.loads(path.read_text(encoding="utf-8"))
    backend = spec.get("backend", {})
    if (backend if isinstance(backend, str) else backend.get("name", "local")) != "local":
        yield {"spec": name, "skipped": "its ranks are processes"}
        return
    try:
        runs = plan_of(binary, path)
    except RuntimeError as error:
        yield {"spec": name, "skipped": str(error)}
        return
    points, seen = [], set()
    for run in runs:
        key = json.dumps(run["memory"], sort_keys=True)
        if key not in seen:
            seen.add(key)
            points.append(run["point"])
    for point in points[: options.points]:
        say(f"{name} {json.dumps(point)[:100]}")
        try:
            yield row_of(binary, name, spec, point, options)
        except (RuntimeError, ValueError) as error:
            yield {"spec": name, "point": point, "skipped": str(error)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True, type=lambda p: str(Path(p).resolve()))
    parser.add_argument("--specs", type=Path, default=ROOT / "experiments/specs", help="a folder, or one spec")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--points", type=int, default=4, help="of a spec, at most")
    parser.add_argument("--most-gib", type=float, default=8.0, help="runs whose plan is above it are left out")
    options = parser.parse_args()
    paths = sorted(options.specs.rglob("*.json")) if options.specs.is_dir() else [options.specs]
    with machine_meanwhile() as load:
        rows = [row for path in paths for row in rows_of(options.binary, path.resolve(), options)]
    run = [row for row in rows if "measured" in row]
    json.dump(
        {
            "machine": machine.describe(),
            "commit": machine.commit(),
            "meanwhile": load,
            "steps": options.steps,
            "runs": len(run),
            "hold": sum(row["holds"] for row in run),
            "largest_total_error": max((abs(row["total_error"]) for row in run), default=None),
            "largest_process_error_bytes": max((abs(row["process_error_bytes"]) for row in run), default=None),
            "rows": rows,
        },
        sys.stdout,
        indent=1,
    )
    print()


if __name__ == "__main__":
    main()
