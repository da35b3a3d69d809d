#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The share of a step that the breakdown of wall time costs, which every run records (docs/profiling.md). Prints JSON.

Counted: begins and ends of phases and calls in a traced step of a spec, times the cost of each (step_profile_bench),
over the time of the step. Measured: train_step with and without phases, in turns.

usage: benchmarks/profile_overhead.py --build BUILD [--spec SPEC] [--rounds N] [--json FILE]
"""

import argparse
import json
import resource
import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path

import machine
from program_runs import ProgramError, machine_meanwhile, output_of, program, ratios, run, say, write_json

STEPS = (6, 10)  # that are traced
STEP_OPTIONS = ("--layers", 4, "--width", 128, "--heads", 4, "--vocabulary", 256, "--batch", 8, "--length", 128,
                "--ranks", 2, "--threads", 1, "--steps", 60)  # fmt: skip


def nanoseconds(bench: Path) -> dict[str, float]:
    """The cost of each piece."""
    found = json.loads(output_of([str(bench), "--benchmark_format=json", "--benchmark_repetitions=5",
                                  "--benchmark_min_time=0.1",
                                  "--benchmark_report_aggregates_only=true"]))  # fmt: skip
    return {
        entry["run_name"]: entry["cpu_time"] for entry in found["benchmarks"] if entry["aggregate_name"] == "median"
    }


def steps_of(trace: dict) -> list[dict]:
    """Each step of each rank: its microseconds, and the spans of its thread by category."""
    result = []
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    for step in (event for event in events if event["cat"] == "step"):
        end = step["ts"] + step["dur"]
        spans = Counter(event["cat"] for event in events if event["pid"] == step["pid"] and event["tid"] % 1000 == 0
                        and step["ts"] <= event["ts"] < end)  # fmt: skip
        result.append({"microseconds": step["dur"], "phases": spans["compute"] + spans["trainer"],
                       "calls": spans["communication"]})  # fmt: skip
    return result


def counted(build: Path, spec: Path, cost: dict[str, float]) -> dict:
    binary = program(build / "experiments" / "droptest", "droptest")
    with tempfile.TemporaryDirectory() as folder, machine_meanwhile() as meanwhile:
        # The first run of a sweep's spec, without its loss: the shorter step has the larger share.
        output_of([str(binary), "run", str(spec), "--run", "1", "--out", folder, "--set", f"/training/steps={STEPS[1]}",
                   "--set", "/training/warmup_steps=0",
                   "--set", f"/record/profile_steps={json.dumps(STEPS)}"])  # fmt: skip
        (trace,) = Path(folder).rglob("trace.json")
        steps = steps_of(json.loads(trace.read_text()))
    typical = {key: statistics.median(step[key] for step in steps) for key in ("microseconds", "phases", "calls")}
    spent = (typical["phases"] * cost["phase"] + typical["calls"] * cost["communicator_call"]) / 1e3
    return {"spec": spec.name, "steps": len(steps), **typical, "breakdown_microseconds": spent,
            "share": spent / typical["microseconds"], "machine_meanwhile": meanwhile}  # fmt: skip


def processor_seconds() -> float:
    """Of the programs that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def in_turns(build: Path, rounds: int) -> dict:
    """Step and processor seconds of the same program without and with phases; a ratio above 1: phases cost time."""
    binary = program(build / "benchmarks" / "train_step", "train_step")
    plain, timed, plain_cpu, timed_cpu = [], [], [], []
    for index in range(rounds):
        say(f"round {index + 1} of {rounds}")
        order = ((), ("--profile",)) if index % 2 == 0 else (("--profile",), ())
        for option in order:
            before = processor_seconds()
            found = run([binary, *STEP_OPTIONS, *option])
            (timed if option else plain).append(found["step_seconds"])
            (timed_cpu if option else plain_cpu).append(processor_seconds() - before)
    return {"step_seconds": ratios(timed, plain), "processor_seconds": ratios(timed_cpu, plain_cpu)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--spec", type=Path, default=machine.ROOT / "experiments/specs/quickstart.json")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    try:
        cost = nanoseconds(program(options.build / "benchmarks" / "step_profile_bench", "step_profile_bench"))
        result = {
            "machine": machine.describe(), "commit": machine.commit(), "build": machine.build(options.build),
            "nanoseconds": cost, "counted": counted(options.build, options.spec, cost),
            "measured": in_turns(options.build, options.rounds) if options.rounds else None,
        }  # fmt: skip
    except ProgramError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    write_json(result, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
