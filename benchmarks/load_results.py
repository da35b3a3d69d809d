#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Seconds and peak memory of the analysis over sweeps of many runs: `load`, and then every table of the report.

The runs are copies of those of a small sweep (experiments/specs/tiny.json) with rates, learning rates, seeds, losses
and ids of their own: ten seeds a point, five learning rates, two kinds of loss process. Each measurement is a process
of its own. Prints one JSON object: seconds, processor seconds and peak memory (of the process, so far) for each number
of runs, round by round, with medians.
"""

import argparse
import copy
import itertools
import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import machine
from program_runs import ProgramError, median, output_of, program, run, say, write_json

LEARNING_RATES = (0.001, 0.002, 0.003, 0.004, 0.005)
SEEDS = 10
RECORDS = ("spec.json", "summary.json", "loss_statistics.json", "diagnostics.json", "metrics.jsonl")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=machine.ROOT / "build" / "bench", help="CMake build folder")
    parser.add_argument("--text", type=Path, default=machine.ROOT / "corpus" / "kjv.txt", help="training text")
    parser.add_argument("--sweep", type=Path, metavar="DIR", help="results of tiny.json; default: --build trains them")
    parser.add_argument("--package", type=Path, default=machine.ROOT / "analysis", help="folder of the package")
    parser.add_argument("--runs", default="100,1000,10000", help="numbers of runs (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of all numbers of runs (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds of one process (default: %(default)s)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where sweeps are written and stay for the next call")
    parser.add_argument("--out", type=Path, help="file for the JSON; standard output by default")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)  # the process that measures: a folder of results
    args = parser.parse_args()
    try:
        args.runs = [int(word) for word in args.runs.split(",")]
    except ValueError:
        parser.error(f"--runs: got {args.runs}, want integers such as 100,1000")
    least = len(LEARNING_RATES) * SEEDS
    if any(number < 2 * least or number % least for number in args.runs):
        parser.error(f"--runs: got {','.join(map(str, args.runs))}, want multiples of {least} from {2 * least} on")
    if args.rounds < 1:
        parser.error(f"--rounds: got {args.rounds}, want at least 1")
    if args.sweep is None and args.one is None and not args.text.is_file():
        parser.error(f"--text: {args.text}: no such file; ./scripts/prepare-corpus makes it")
    return args


def losses(count: int) -> list[dict]:
    """No loss, then Bernoulli and Gilbert-Elliott in turns, at rising rates."""
    found = [{"model": "none"}]
    for index in range(1, count):
        rate = {"loss_rate": (1 + (index - 1) // 2) / (2 * count)}
        found.append({"model": "bernoulli", **rate} if index % 2
                     else {"model": "gilbert_elliott", **rate, "mean_burst_packets": 4})  # fmt: skip
    return found


def templates(folder: Path) -> dict[str, dict]:
    """The records of a run of each loss process by its name. Raises: ProgramError."""
    found: dict[str, dict] = {}
    for path in sorted(folder.glob("*/summary.json")):
        texts = {name: (path.parent / name).read_text() for name in RECORDS}
        records = {name: json.loads(text) for name, text in texts.items() if name != "metrics.jsonl"}
        records["metrics.jsonl"] = [json.loads(line) for line in texts["metrics.jsonl"].splitlines()]
        found[records["summary.json"]["point"]["/network/loss"]["model"]] = records
    wanted = {"none", "bernoulli", "gilbert_elliott"}
    if not wanted <= set(found):
        raise ProgramError(f"{folder}: got runs of {', '.join(found) or 'no loss'}, want results of specs/tiny.json")
    return found


def copied(template: dict, run_id: str, point: dict, seed: int) -> dict:
    """The records of a run with a point, a seed and losses of its own."""
    records = copy.deepcopy(template)
    spec, summary = records["spec.json"], records["summary.json"]
    loss, rate = point["/network/loss"], point["/network/loss"].get("loss_rate", 0.0)
    seeds = dict.fromkeys(("weights", "data", "network"), seed)
    spec["seeds"] = seeds
    spec["training"]["learning_rate"] = point["/training/learning_rate"]
    for settings in spec["network"]["classes"].values():
        for half in ("reduce", "gather"):
            settings[half]["loss"] = loss
    for halves in summary["loss"].values():
        for half in halves.values():
            half["loss_rate"] = rate
    for traffic_class in records["loss_statistics.json"]["classes"].values():
        for counts in (traffic_class, *traffic_class["halves"].values()):
            counts["configured_rate"] = rate
    above = rate + 0.01 * (seed % 7) + 10 * abs(point["/training/learning_rate"] - 0.003)
    for line in records["metrics.jsonl"]:
        for kind in ("validation_loss", "train_loss"):
            if kind in line:
                line[kind] += above
    summary |= {"run_id": run_id, "seeds": seeds, "seed": seed, "point": point}
    for kind in ("best_loss", "final_loss"):
        summary["validation"][kind] += above
    return records


def write_sweep(folder: Path, template: dict[str, dict], runs: int) -> None:
    """The results of a sweep of that many runs."""
    pointers = ("/network/loss", "/training/learning_rate")
    cross = (losses(runs // (len(LEARNING_RATES) * SEEDS)), LEARNING_RATES)
    listed = []
    for index, (*values, seed) in enumerate(itertools.product(*cross, range(1, SEEDS + 1))):
        run_id, point = f"{index:016x}", dict(zip(pointers, values, strict=True))
        path = folder / run_id
        path.mkdir(parents=True)
        records = copied(template[point["/network/loss"]["model"]], run_id, point, seed)
        for name, record in records.items():
            lines = record if name == "metrics.jsonl" else [record]
            (path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
        seeds = records["spec.json"]["seeds"]
        listed.append({"run_id": run_id, "point": point, "seeds": seeds, "seed": seed})
    names = [{"pointer": pointer, "name": pointer.rsplit("/", 1)[-1]} for pointer in pointers]
    record = {"schema_version": 1, "name": folder.name, "description": "", "spec": {}, "runs": listed, "names": names}
    (folder / "sweep.json").write_text(json.dumps(record))


def measured(folder: Path, package: Path) -> dict:
    """Seconds and peak memory of this process, of loading the results and of all tables after it."""
    sys.path.insert(0, str(package))
    from droptest import plots, tables  # noqa: F401  (imports take seconds, and are not measured)
    from droptest.records import load

    def peak_mebibytes() -> float:
        return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)

    found: dict[str, float | int] = {"imports_peak_mebibytes": peak_mebibytes()}

    @contextmanager
    def measure(what: str) -> Iterator[None]:
        start, cpu = time.monotonic(), time.process_time()
        yield
        found[f"{what}_seconds"] = round(time.monotonic() - start, 3)
        found[f"{what}_cpu_seconds"] = round(time.process_time() - cpu, 3)
        found[f"{what}_peak_mebibytes"] = peak_mebibytes()

    with measure("load"):
        records = load(folder)
    with measure("tables"):
        made = [table for table in (tables.table(name, records) for name in tables.TABLES) if table is not None]
    return found | {"loaded_runs": len(records.runs), "tables": len(made)}


def trained(args: argparse.Namespace, folder: Path) -> Path:
    """The results of tiny.json, as the program trains them. Raises: ProgramError."""
    droptest = program(args.build / "experiments" / "droptest", "droptest_cli")
    spec = machine.ROOT / "experiments" / "specs" / "tiny.json"
    output_of([str(droptest), "sweep", str(spec), "--set", f"/data/text={args.text.resolve()}", "--quiet",
               "--out", str(folder)], timeout=args.timeout)  # fmt: skip
    return folder / "tiny"


def main() -> int:
    args = parsed()
    if args.one is not None:
        print(json.dumps(measured(args.one, args.package)))
        return 0
    with tempfile.TemporaryDirectory(prefix="droptest-load-") as scratch:
        folder = args.keep or Path(scratch)
        template = templates(args.sweep or trained(args, Path(scratch)))
        for number in args.runs:
            if not (folder / str(number) / "sweep.json").is_file():
                write_sweep(folder / str(number), template, number)
        samples: dict[int, list[dict]] = {number: [] for number in args.runs}
        for number, one in _rounds(args):
            command = [sys.executable, __file__, "--one", folder / str(one), "--package", args.package]
            sample = run(command, timeout=args.timeout)
            samples[one].append(sample)
            say(f"round {number + 1} of {args.rounds}: {one} runs: load {sample['load_seconds']} s, "
                f"tables {sample['tables_seconds']} s, {sample['tables_peak_mebibytes']} MiB")  # fmt: skip
    result = {
        "machine": machine.describe(),
        "commit": machine.commit(),
        "package": str(args.package),
        "runs": {number: {"medians": _medians(list_), "samples": list_} for number, list_ in samples.items()},
    }
    write_json(result, args.out)
    return 0


def _rounds(args: argparse.Namespace) -> Iterator[tuple[int, int]]:
    return itertools.product(range(args.rounds), args.runs)


def _medians(samples: list[dict]) -> dict[str, float | None]:
    names = [name for name in samples[0] if name.endswith(("_seconds", "_mebibytes"))]
    return {name: median([sample[name] for sample in samples]) for name in names}


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ProgramError as error:
        sys.exit(f"load_results: error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
