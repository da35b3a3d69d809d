#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""How many runs a minute `droptest sweep` trains: on all cores, against the same runs one after the other on one core.

The same small sweeps of nano, with one rank and with four, in turns. Prints one JSON object: seconds of each sweep, and
how many times faster all cores are, round by round, with its median.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import machine
from program_runs import ProgramError, machine_meanwhile, median, output_of, program, ratios, run, say, write_json


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=machine.ROOT / "build" / "bench", help="CMake build folder")
    parser.add_argument("--text", type=Path, default=machine.ROOT / "corpus" / "kjv.txt", help="training text")
    parser.add_argument("--tensor", default="1,4", help="tensor-parallel ranks of each sweep (default: %(default)s)")
    parser.add_argument("--pin", default="cores,none", help="ways to place runs on all cores (default: %(default)s)")
    parser.add_argument(
        "--runs", type=int, default=2 * machine.allowed_cores(), help="in each sweep (default: two a core)"
    )
    parser.add_argument("--steps", type=int, default=60, help="of each run (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of all sweeps (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=900, help="seconds for one sweep (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="file for the JSON; standard output by default")
    args = parser.parse_args()
    for name in ("runs", "steps", "rounds"):
        if getattr(args, name) < 1:
            parser.error(f"--{name}: got {getattr(args, name)}, want at least 1")
    try:
        args.tensor = [int(word) for word in args.tensor.split(",")]
    except ValueError:
        parser.error(f"--tensor: got {args.tensor}, want integers such as 1,4")
    args.pin = args.pin.split(",")
    if not set(args.pin) <= {"cores", "none"}:
        parser.error(f"--pin: got {','.join(args.pin)}, want some of cores, none")
    if not args.text.is_file():
        parser.error(f"--text: {args.text}: no such file; ./scripts/prepare-corpus makes it")
    if shutil.which("taskset") is None:
        parser.error("taskset is not installed (Debian's util-linux has it)")
    return args


def spec(args: argparse.Namespace, tensor: int) -> dict:
    """Runs that differ by their seeds alone, and validate as little as can be."""
    return {
        "name": f"throughput-tp{tensor}",
        "model": {"preset": "nano"},
        "data": {"text": str(args.text.resolve())},
        "parallel": {"tensor": tensor},
        "network": {"path": "direct", "fill": "zero", "loss": {"model": "bernoulli", "loss_rate": "1%"}},
        "training": {"steps": args.steps, "batch_sequences": 4, "learning_rate": 0.003, "warmup_steps": 10},
        "validation": {"every_steps": args.steps, "tokens": 128},
        "repeat": {"seeds": args.runs},
    }


def sweep(droptest: Path, args: argparse.Namespace, tensor: int, cores: list[int], options: list[str]) -> dict:
    """The machine's load during one sweep without earlier results, and its seconds. Raises: ProgramError."""
    with tempfile.TemporaryDirectory(prefix="droptest-throughput-") as folder:
        file = Path(folder) / "spec.json"
        file.write_text(json.dumps(spec(args, tensor)))
        command = ["taskset", "-c", ",".join(map(str, cores)), str(droptest), "sweep", str(file), "--quiet"]
        with machine_meanwhile() as meanwhile:
            output_of([*command, "--out", f"{folder}/results", *options], timeout=args.timeout)
    return meanwhile


def compared(args: argparse.Namespace, samples: dict[str, list[dict]]) -> dict:
    """All samples of one sweep, and how each way compares with one core."""
    seconds = {way: [sample["seconds"] for sample in list_] for way, list_ in samples.items()}
    return {
        "samples": samples,
        "runs_per_minute": {way: 60 * args.runs / median(values) for way, values in seconds.items()},
        "times_faster_than_one_core": {
            way: ratios(seconds["one_core"], values) for way, values in seconds.items() if way != "one_core"
        },
    }


def main() -> int:
    args = parsed()
    droptest = program(args.build / "experiments" / "droptest", "droptest_cli")
    matmul_rate = args.build / "benchmarks" / "matmul_rate"
    cores = sorted(os.sched_getaffinity(0))
    ways = {"one_core": (cores[:1], ["--jobs", "1"])}
    ways |= {f"all_cores_pin_{pin}": (cores, ["--pin", pin]) for pin in args.pin}
    samples = {f"tp{tensor}": {way: [] for way in ways} for tensor in args.tensor}
    probes = []
    for number in range(args.rounds):
        if matmul_rate.exists():
            probes.append(run([matmul_rate, "--probe", "--threads", len(cores)]))
        for tensor in args.tensor:
            for way, (allowed, options) in ways.items():
                sample = sweep(droptest, args, tensor, allowed, options)
                samples[f"tp{tensor}"][way].append(sample)
                say(f"round {number + 1} of {args.rounds}: tp{tensor} {way}: {sample['seconds']:.2f} s")
    result = {
        "machine": machine.describe(),
        "commit": machine.commit(),
        "build": machine.build(args.build),
        "runs": args.runs,
        "steps": args.steps,
        "probe": probes,
        "sweeps": {name: compared(args, ways_) for name, ways_ in samples.items()},
    }
    write_json(result, args.out)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ProgramError as error:
        sys.exit(f"sweep_throughput: error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
