#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of whole training steps over model width, context length and tensor-parallel ranks.

Every setting is run once a round, in a process of its own; medians over rounds count. Prints one JSON object; --plots
DIR draws scaling_width, scaling_context and scaling_ranks from it, or from the JSON of an earlier call (--from FILE).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import machine
from program_runs import ProgramError, median, program, run, say, write_json

WIDTHS = (128, 256, 384, 512, 768, 1024)
LENGTHS = (64, 128, 256, 512, 1024, 2048)
RANKS = (1, 2, 4, 8)
VOCABULARY = 256
HEAD_WIDTH = 64
TOKENS_PER_STEP = 1024


def model(layers: int, width: int, batch: int, length: int) -> dict[str, int]:
    """Options of train_step."""
    heads = max(1, width // HEAD_WIDTH)
    return {
        "layers": layers,
        "width": width,
        "heads": heads,
        "vocabulary": VOCABULARY,
        "batch": batch,
        "length": length,
    }


def settings(args: argparse.Namespace) -> list[dict]:
    """All that is measured: the figure it belongs to, its place on the x axis, and how train_step is called."""
    threads = args.threads
    measured = []
    for width in args.widths:
        shape = model(6, width, max(1, args.tokens // 128), 128)
        measured.append({"figure": "width", "x": width, "series": f"{threads} threads", "shape": shape,
                         "ranks": 1, "threads": threads})  # fmt: skip
    for length in args.lengths:
        shape = model(6, 384, max(1, args.tokens // length), length)
        measured.append({"figure": "context", "x": length, "series": f"{threads} threads", "shape": shape,
                         "ranks": 1, "threads": threads})  # fmt: skip
    for name, shape in {
        "width 128, 4 layers": model(4, 128, max(1, args.tokens // 128), 128) | {"heads": 8},
        "width 512, 6 layers": model(6, 512, max(1, args.tokens // 128), 128),
    }.items():
        for ranks in args.ranks:
            for loss, rate in (("", None), (", 1 % lost", 0.01)):
                # As many threads in all as there are cores, and one for each rank at least.
                measured.append({"figure": "ranks", "x": ranks, "series": name + loss, "shape": shape, "ranks": ranks,
                                 "threads": max(1, threads // ranks), "loss_rate": rate})  # fmt: skip
    return [entry for entry in measured if entry["figure"] in args.figures]


def command(train_step: Path, setting: dict, steps: int) -> list[str]:
    words = [str(train_step), "--steps", str(steps)]
    for name, value in setting["shape"].items():
        words += [f"--{name}", str(value)]
    words += ["--ranks", str(setting["ranks"]), "--threads", str(setting["threads"])]
    return words + (["--loss-rate", str(setting["loss_rate"])] if setting.get("loss_rate") else [])


def measure(args: argparse.Namespace) -> dict:
    train_step = program(args.build / "benchmarks" / "train_step", "train_step")
    matmul_rate = args.build / "benchmarks" / "matmul_rate"
    measured = settings(args)
    for setting in measured:
        setting["samples"] = []
    probes = []
    for number in range(args.rounds):
        if matmul_rate.exists():
            probes.append(run([matmul_rate, "--probe", "--threads", args.threads]))
        for setting in measured:
            sample = run(command(train_step, setting, args.steps), timeout=args.timeout)
            setting["samples"].append(sample)
            say(f"round {number + 1} of {args.rounds}: {setting['figure']} {setting['x']}, {setting['series']}: "
                f"{sample['tokens_per_second']:.1f} tokens/s")  # fmt: skip
    for setting in measured:
        setting["tokens_per_second"] = median([s["tokens_per_second"] for s in setting["samples"]])
        setting["peak_mebibytes"] = median([s["peak_mebibytes"] for s in setting["samples"]])
    return {
        "machine": machine.describe(),
        "commit": machine.commit(),
        "build": machine.build(args.build),
        "rounds": args.rounds,
        "threads": args.threads,
        "probe": probes,
        "settings": measured,
    }


def integers(text: str) -> list[int]:
    """Raises: ArgumentTypeError on anything but integers of at least 1."""
    try:
        values = [int(word) for word in text.split(",")]
    except ValueError:
        values = [0]
    if min(values) < 1:
        raise argparse.ArgumentTypeError(f"got {text}, want integers of at least 1, such as 128,256")
    return values


def listed(values: tuple[int, ...]) -> str:
    return ",".join(map(str, values))


def parsed() -> argparse.Namespace:
    figures = ("width", "context", "ranks")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=machine.ROOT / "build" / "bench", help="CMake build folder")
    parser.add_argument("--figures", default=",".join(figures), help="figures to measure (default: %(default)s)")
    parser.add_argument(
        "--widths", type=integers, default=listed(WIDTHS), help="multiples of 64 (default: %(default)s)"
    )
    parser.add_argument("--lengths", type=integers, default=listed(LENGTHS), help="contexts (default: %(default)s)")
    parser.add_argument("--ranks", type=integers, default=listed(RANKS), help="divisors of 8 (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=TOKENS_PER_STEP, help="a step (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=5, help="measured in each process (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of all settings (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=machine.allowed_cores(), help="default: the allowed cores")
    parser.add_argument("--timeout", type=float, default=900, help="seconds for one process (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="file for the JSON; standard output by default")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="draw the figures into this folder")
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE", help="measure nothing: draw this JSON")
    args = parser.parse_args()
    args.figures = args.figures.split(",")
    if not set(args.figures) <= set(figures):
        parser.error(f"--figures: got {','.join(args.figures)}, want some of {', '.join(figures)}")
    for name in ("tokens", "steps", "rounds", "threads"):
        if getattr(args, name) < 1:
            parser.error(f"--{name}: got {getattr(args, name)}, want at least 1")
    if any(width % HEAD_WIDTH for width in args.widths):
        parser.error(f"--widths: got {listed(args.widths)}, want multiples of {HEAD_WIDTH}")
    if any(8 % ranks for ranks in args.ranks):
        parser.error(f"--ranks: got {listed(args.ranks)}, want some of 1, 2, 4, 8: the models have 8 heads")
    if args.source and not args.plots:
        parser.error("--from draws figures: name their folder by --plots")
    return args


def drawing() -> Callable[[dict, Path], list[Path]]:
    """The function that draws the figures. Raises: ProgramError without matplotlib, before any measurement."""
    try:
        import scaling_plots
    except ModuleNotFoundError as error:
        wanted = "Debian's /usr/bin/python3 with python3-matplotlib and python3-pandas draws figures"
        raise ProgramError(f"--plots: {error}; {wanted}") from error
    return scaling_plots.draw


def main() -> int:
    args = parsed()
    draw = drawing() if args.plots else None
    if args.source:
        try:
            result = json.loads(args.source.read_text())
        except (OSError, json.JSONDecodeError) as error:
            raise ProgramError(f"{args.source}: {error}") from error
    else:
        result = measure(args)
        write_json(result, args.out)
    for path in draw(result, args.plots) if draw else []:
        say(f"drew {path}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ProgramError as error:
        sys.exit(f"scaling: error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
