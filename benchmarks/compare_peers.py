#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Whole training steps of droptest against PyTorch, and against oneDNN's matrix products alone; ranks against one rank.

All programs of a case run in turns (A B C A B C ...), each in a process of its own, so that a machine that is slower
for a while is slower for all. Prints one JSON object: medians, all samples, ratios round by round, and the machine. A
program that fails is recorded with its error; the others go on, and the exit code is then 1.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import machine
import torch_settings
from program_runs import ProgramError, median, program, ratios, run, say, write_json

PEER = Path(__file__).resolve().parent / "peers" / "pytorch_gpt2.py"


@dataclass(frozen=True)
class Shape:
    """A model and its batch, as options of all three programs."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    batch: int
    length: int
    steps: int  # measured in one process
    precision: str = "float32"

    def options(self) -> list[str]:
        words = []
        for name in ("layers", "width", "heads", "vocabulary", "batch", "length"):
            words += [f"--{name}", str(getattr(self, name))]
        return words + (["--precision", self.precision] if self.precision != "float32" else [])


SMALL = (12, 768, 12, 50257)
PEER_CASES = {
    "small_b4_t64": Shape(*SMALL, 4, 64, steps=5),
    "small_b4_t256": Shape(*SMALL, 4, 256, steps=3),
    "micro": Shape(6, 384, 6, 256, 8, 128, steps=8),
    "nano": Shape(4, 128, 4, 256, 8, 128, steps=40),
    "small_b4_t64_bf16": Shape(*SMALL, 4, 64, steps=5, precision="bfloat16"),
}
# Spinning is faster on an idle machine; threads that sleep after some microseconds, as droptest's do, where others run.
WAITING = {
    "active": {"OMP_WAIT_POLICY": "active"},
    "passive": {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "5000"},
}
RANK_CASES = {"ranks_small": PEER_CASES["small_b4_t64"], "ranks_nano": PEER_CASES["nano"]}
CASES = [*PEER_CASES, *RANK_CASES]


class Comparison:
    """The programs, and how they are called."""

    def __init__(self, args: argparse.Namespace):
        self.args = args
        folder = args.build / "benchmarks"
        self.train_step = program(folder / "train_step", "train_step")
        self.matmul_rate = program(folder / "matmul_rate", "matmul_rate")
        self.torch = torch_version(args.python)

    def run(self, *command: object, variables: dict[str, str] | None = None) -> dict:
        return run(command, variables, self.args.timeout)

    def droptest(self, shape: Shape, *options: object) -> dict:
        return self.run(self.train_step, *shape.options(), "--steps", shape.steps, *options)

    def pytorch(self, shape: Shape, setting: torch_settings.Setting, steps: int) -> dict:
        options = [*shape.options(), "--threads", setting.threads, "--steps", steps, *setting.options]
        return self.run(self.args.python, PEER, *options, variables=setting.variables)

    def products(self, shape: Shape, waiting: str) -> dict:
        result = self.run(
            self.matmul_rate, *shape.options(), "--threads", self.args.threads, "--repetitions", 5,
            variables=torch_settings.KEEP_MEMORY | WAITING[waiting],
        )  # fmt: skip
        del result["products"]
        return result

    def probe(self) -> dict:
        return self.run(self.matmul_rate, "--probe", "--threads", self.args.threads)

    def in_turns(self, programs: dict, result: dict) -> dict[str, list[dict]]:
        """Runs every program once a round. One that fails is taken out, its error is kept in the result."""
        samples: dict[str, list[dict]] = {name: [] for name in programs}
        result["probe"] = []
        for number in range(self.args.rounds):
            result["probe"].append(self.probe())
            for name, call in programs.items():
                if name not in samples:
                    continue
                try:
                    samples[name].append(call())
                except ProgramError as error:
                    say(f"  {name}: {error}")
                    result["errors"][name] = str(error)
                    del samples[name]
                    continue
                rate = samples[name][-1].get("tokens_per_second")
                shown = f"{rate:.1f} tokens/s" if rate else f"{product_rate(samples[name][-1]):.1f} GFLOP/s"
                say(f"  round {number + 1} of {self.args.rounds}: {name}: {shown}")
        result["samples"] = samples
        result["medians"] = {name: medians_of(list_) for name, list_ in samples.items()}
        return samples

    def compare_peers(self, shape: Shape) -> dict:
        """droptest, PyTorch in its settings, and the products alone, in turns."""
        result: dict = {"shape": vars(shape), "errors": {}}
        programs = {"droptest": lambda: self.droptest(shape, "--threads", self.args.threads)}
        for name, setting in self.settings(shape, result).items():
            programs[name] = lambda setting=setting: self.pytorch(shape, setting, shape.steps)
        for waiting in WAITING:
            programs[f"onednn_{waiting}_waiting"] = lambda waiting=waiting: self.products(shape, waiting)
        samples = self.in_turns(programs, result)
        if "droptest" not in samples:
            return result
        own = rates_of(samples["droptest"])

        peers = {n: rates_of(s) for n, s in samples.items() if n.startswith("pytorch")}
        result["ratios"] = {f"droptest_to_{name}": ratios(own, rates) for name, rates in peers.items()}
        if peers:
            best = max(peers, key=lambda name: median(peers[name]))
            result["pytorch_best"] = best
            result["ratios"]["droptest_to_pytorch_best"] = result["ratios"][f"droptest_to_{best}"]
        products = {n: [product_rate(s) for s in list_] for n, list_ in samples.items() if n.startswith("onednn")}
        if products:
            best = max(products, key=lambda name: median(products[name]))
            gigaflop = samples[best][0]["gigaflop_per_step"]
            reached = [gigaflop / s["step_seconds"] for s in samples["droptest"]]
            result["gigaflop_per_step"] = gigaflop
            result["onednn_best"] = best
            result["share_of_onednn_rate"] = ratios(reached, products[best])
        return result

    def settings(self, shape: Shape, result: dict) -> dict[str, torch_settings.Setting]:
        """PyTorch's settings to compare with: as shipped, the best known, and the best found for this shape."""
        if not self.torch["available"]:
            return {}
        threads = self.args.threads
        settings = {
            "pytorch_as_shipped": torch_settings.as_shipped(threads),
            "pytorch_known_best": torch_settings.known_best(threads),
        }
        if self.args.tune_peer:
            say("  PyTorch's settings, one after the other:")
            found, trials = torch_settings.tune(
                lambda setting: self.pytorch(shape, setting, max(2, shape.steps // 2))["tokens_per_second"], threads
            )
            result["tuning"] = trials
            if found not in settings.values():
                settings["pytorch_tuned"] = found
        result["pytorch_settings"] = {name: setting.as_json() for name, setting in settings.items()}
        return settings

    def compare_ranks(self, shape: Shape) -> dict:
        """One rank on all threads, four ranks on one thread each, and the same with one packet of a hundred lost."""
        result: dict = {"shape": vars(shape), "errors": {}}
        four = ("--ranks", 4, "--threads", 1)
        programs = {
            "tp1": lambda: self.droptest(shape, "--threads", self.args.threads),
            "tp4": lambda: self.droptest(shape, *four),
            "tp4_loss_1_percent": lambda: self.droptest(shape, *four, "--loss-rate", 0.01),
        }
        samples = self.in_turns(programs, result)
        seconds = {name: [s["step_seconds"] for s in list_] for name, list_ in samples.items()}
        result["ratios"] = {}
        if "tp1" in seconds and "tp4" in seconds:
            result["ratios"]["step_seconds_of_tp4_to_tp1"] = ratios(seconds["tp4"], seconds["tp1"])
        if "tp4" in seconds and "tp4_loss_1_percent" in seconds:
            result["ratios"]["step_seconds_of_loss_to_none"] = ratios(seconds["tp4_loss_1_percent"], seconds["tp4"])
        return result


def rates_of(samples: list[dict]) -> list[float]:
    return [s["tokens_per_second"] for s in samples]


def product_rate(sample: dict) -> float:
    return sample["best"]["gigaflop_per_second"]


def medians_of(samples: list[dict]) -> dict:
    """Medians of the numbers that samples of one program have in common."""
    names = [name for name, value in samples[0].items() if isinstance(value, int | float)] if samples else []
    medians = {name: median([s[name] for s in samples]) for name in names if name != "threads"}
    if samples and "best" in samples[0]:
        medians["gigaflop_per_second"] = median([product_rate(s) for s in samples])
    return medians


def torch_version(python: str) -> dict:
    """Whether this Python has torch, its version and its BLAS; the reason where it has not."""
    try:
        done = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True,
                              timeout=120, check=False)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"available": False, "python": python, "reason": str(error)}
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return {"available": False, "python": python, "reason": reason}
    return {
        "available": True,
        "python": python,
        "version": done.stdout.strip(),
        "libblas": torch_settings.default_blas(),
        "openblas_folders": torch_settings.blas_folders(),
    }


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=machine.ROOT / "build" / "bench", help="CMake build folder")
    parser.add_argument("--cases", default=",".join(CASES), help=f"comma-separated, of {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=5, help="of all programs of a case (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=machine.allowed_cores(), help="default: the allowed cores")
    parser.add_argument("--python", default="/usr/bin/python3", help="a Python that has torch (default: %(default)s)")
    parser.add_argument("--tune-peer", action="store_true", help="search PyTorch's best setting for each case first")
    parser.add_argument("--timeout", type=float, default=900, help="seconds for one process (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="file for the JSON; standard output by default")
    args = parser.parse_args()
    args.cases = [name for name in args.cases.split(",") if name]
    unknown = [name for name in args.cases if name not in CASES]
    if unknown or not args.cases:
        parser.error(f"--cases: got {', '.join(unknown) or 'none'}, want some of {', '.join(CASES)}")
    for name in ("rounds", "threads"):
        if getattr(args, name) < 1:
            parser.error(f"--{name}: got {getattr(args, name)}, want at least 1")
    if args.out and args.out.parent.exists() and not os.access(args.out.parent, os.W_OK):
        parser.error(f"--out: cannot write into {args.out.parent}")
    return args


def main() -> int:
    args = parsed()
    comparison = Comparison(args)
    if not comparison.torch["available"]:
        say(f"without PyTorch: {comparison.torch['reason']}; install python3-torch, or name a Python by --python")
    result = {
        "machine": machine.describe(),
        "commit": machine.commit(),
        "build": machine.build(args.build),
        "pytorch": comparison.torch,
        "onednn": None,
        "rounds": args.rounds,
        "threads": args.threads,
        "cases": {},
    }
    for name in args.cases:
        say(f"{name}:")
        if name in PEER_CASES:
            case = comparison.compare_peers(PEER_CASES[name])
            versions = [s["program"] for n, list_ in case["samples"].items() if n.startswith("onednn") for s in list_]
            result["onednn"] = result["onednn"] or next(iter(versions), None)
        else:
            case = comparison.compare_ranks(RANK_CASES[name])
        result["cases"][name] = case
        if args.out:
            write_json(result, args.out)  # an error later does not lose the cases so far
    if not args.out:
        write_json(result, None)
    return 1 if any(case["errors"] for case in result["cases"].values()) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ProgramError as error:
        sys.exit(f"compare_peers: error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
