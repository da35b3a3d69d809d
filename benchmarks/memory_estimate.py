# SPDX-License-Identifier: Apache-2.0
"""Compares the memory that `droptest plan` names with the peaks of short runs, over the ready specs.

Each spec is run for a few steps, once for each of its points that has another estimate, each in a fresh process.
Prints one JSON object: a row per run with bytes by kind, planned and measured, and the largest errors. With `--device
cuda` the process is the memory in use on the device, which other programs must leave alone.

    python3 benchmarks/memory_estimate.py --binary build/release/experiments/droptest [--device cuda]
                                          [--specs experiments/specs]

Without a GPU: build/dev/tests/experiments/droptest_fake_cuda_cli, with --no-context, since the double has none.
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
VALIDATION_TOKENS = 16384  # at most


def merged(path):
    """The spec with those that it extends (RFC 7396)."""

    def patch(base, change):
        if not isinstance(change, dict):
            return change
        both = dict(base) if isinstance(base, dict) else {}
        for key, value in change.items():
            both[key] = patch(both.get(key), value)
        return {key: value for key, value in both.items() if value is not None}

    spec = json.loads(path.read_text(encoding="utf-8"))
    base = spec.pop("extends", None)
    return patch(merged(path.parent / base), spec) if base else spec


def short(path, spec, steps, device="cpu"):
    """A change of the spec with so few steps that its memory is reached: an evaluation and a sample are among them."""
    changes = {"extends": str(path), "device": device}
    changes |= dict.fromkeys(("repeat", "search", "checkpoint", "failures"))
    changes["training"] = dict.fromkeys(("epochs", "warmup_steps", "schedule", "learning_rate_schedule"))
    changes["training"]["steps"] = steps
    changes["validation"] = {"every_steps": steps}
    if spec.get("validation", {}).get("tokens", 0) > VALIDATION_TOKENS:
        changes["validation"]["tokens"] = VALIDATION_TOKENS
    if "outer" in spec:
        changes["outer"] = {"every_steps": steps}
    if spec.get("record", {}).get("sample_every_steps", 50):
        changes["record"] = {"sample_every_steps": 1}
    return changes


def program(binary, *arguments):
    return subprocess.run([binary, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, check=False)


def plan_of(binary, path):
    done = program(binary, "plan", path, "--json")
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return json.loads(done.stdout)["runs"]


def measured(binary, path, number, out):
    done = program(binary, "run", path, "--run", number, "--out", out)
    summary = next(Path(out).glob("*/*/summary.json"), None)
    if done.returncode != 0 or summary is None:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no summary"])[-1])
    return json.loads(summary.read_text(encoding="utf-8"))["memory"]


def compare(row, memory):
    """Adds the measured bytes to a row with the planned ones, and whether the limits hold."""
    peaks = {kind: memory["model"].get(kind, {"bytes": 0})["bytes"] for kind in KINDS}
    process = memory.get("device", memory["process"])["bytes"]
    row["measured"] = peaks | {"total": sum(peaks.values()), "process": process}
    row["total_error"] = row["planned"]["total"] / row["measured"]["total"] - 1
    row["process_error_bytes"] = row["planned"]["process"] - row["measured"]["process"]
    row["holds"] = abs(row["total_error"]) <= ALLOCATOR_SHARE and abs(row["process_error_bytes"]) <= max(
        PROCESS_BYTES, PROCESS_SHARE * row["measured"]["process"]
    )


def rows_of(binary, path, folder, options):
    name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
    spec = merged(path)
    backend = spec.get("backend", {})
    if (backend if isinstance(backend, str) else backend.get("name", "local")) != "local":
        yield {"spec": name, "skipped": "its ranks are processes"}
        return
    changed = folder / "spec.json"
    changed.write_text(json.dumps(short(path, spec, options.steps, options.device)), encoding="utf-8")
    try:
        runs = plan_of(binary, changed)
    except RuntimeError as error:
        yield {"spec": name, "skipped": str(error)}
        return
    seen = []
    for number, run in enumerate(runs, 1):
        if run["memory"] in seen or len(seen) == options.points:
            continue
        if run["memory"] is None:
            yield {"spec": name, "point": run["point"], "skipped": "it has no plan"}
            continue
        seen.append(run["memory"])
        say(f"{name} {json.dumps(run['point'])[:100]}")
        planned = {kind: run["memory"][kind] for kind in (*KINDS, "total", "process")}
        if options.no_context:
            planned["process"] -= run["memory"]["context"]
        row = {"spec": name, "point": run["point"], "planned": planned}
        if planned["process"] > options.most_gib * 2**30:
            row["skipped"] = f"the plan is above {options.most_gib} GiB"
        else:
            try:
                compare(row, measured(binary, changed, number, folder / str(number)))
            except RuntimeError as error:
                row["skipped"] = str(error)
        yield row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True, type=lambda p: str(Path(p).resolve()))
    parser.add_argument("--specs", type=Path, default=ROOT / "experiments/specs", help="a folder, or one spec")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--no-context", action="store_true", help="CUDA's context takes no memory of this device")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--points", type=int, default=4, help="of a spec, at most")
    parser.add_argument("--most-gib", type=float, default=8.0, help="runs whose plan is above it are left out")
    options = parser.parse_args()
    paths = sorted(options.specs.rglob("*.json")) if options.specs.is_dir() else [options.specs]
    rows = []
    with machine_meanwhile() as load:
        for path in paths:
            with tempfile.TemporaryDirectory() as folder:
                rows += rows_of(options.binary, path.resolve(), Path(folder), options)
    run = [row for row in rows if "measured" in row]
    json.dump(
        {
            "machine": machine.describe(),
            "commit": machine.commit(),
            "meanwhile": load,
            "device": options.device,
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
