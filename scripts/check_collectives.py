#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs `droptest collective` for every row of tests/vectors/collectives_under_loss.json.

Usage: scripts/check_collectives.py DROPTEST [--trials N] [--elements N]

Prints the deviation of each measured survival and error from the row, in standard errors of the measurement, and fails
where one is above four. All 48 rows, with four numbers each, take some minutes on two cores.
"""

import argparse
import json
import pathlib
import subprocess
import sys

VECTORS = pathlib.Path(__file__).parent.parent / "tests/vectors/collectives_under_loss.json"
PATHS = {"binary_tree": "tree"}  # both trees of the double one have the depths of the one in the vectors
MOST_STANDARD_ERRORS = 4.0
PAYLOAD_BYTES = 64  # many packets, so that the rows of 0.1 % lose some of them in every trial


def measure(program: str, row: dict, options: list[str], arguments: argparse.Namespace) -> dict:
    command = [program, "collective", "--path", PATHS.get(row["algorithm"], row["algorithm"])]
    command += ["--ranks", str(row["ranks"]), "--payload-bytes", str(PAYLOAD_BYTES), "--seed", str(arguments.seed)]
    command += ["--elements", str(arguments.elements), "--trials", str(arguments.trials), *options]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def deviations(program: str, row: dict, arguments: argparse.Namespace) -> dict[str, float]:
    """(measured - row) / standard error of each number of a row."""
    loss = json.dumps({"model": "bernoulli", "loss_rate": row["p"]})
    zero = measure(program, row, ["--loss", loss], arguments)
    identical = measure(program, row, ["--loss", loss, "--inputs", "identical"], arguments)
    rescaled = measure(program, row, ["--reduce-loss", loss, "--reduce-fill", "count_rescale"], arguments)
    pairs = {
        "survival_reduce_scatter": zero["survival"],
        "survival_all_gather": zero["survival_gather"],
        "nmse_independent_zero_fill": zero["nmse"],
        "nmse_identical_zero_fill": identical["nmse"],
        "nmse_independent_count_rescale_reduce_scatter_only": rescaled["nmse"],
    }
    for key, estimate in pairs.items():
        if abs(estimate["expected"] - row[key]) > 1e-9:
            sys.exit(f"{row}: {key}: the program expects {estimate['expected']}")
    return {key: (e["measured"] - row[key]) / e["standard_error"] for key, e in pairs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="DROPTEST")
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--elements", type=int, default=16384)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rows = json.loads(VECTORS.read_text())["rows"]
    every: list[float] = []
    for row in rows:
        of_row = deviations(arguments.program, row, arguments)
        every += of_row.values()
        numbers = " ".join(f"{z:6.2f}" for z in of_row.values())
        print(f"{row['p']:<6} {row['ranks']:>2} {row['algorithm']:<17} {numbers}", flush=True)
    worst = max(every, key=abs)
    rms = (sum(z * z for z in every) / len(every)) ** 0.5
    print(f"{len(rows)} rows, {len(every)} numbers: worst {worst:.2f} standard errors, root mean square {rms:.2f}")
    if abs(worst) > MOST_STANDARD_ERRORS:
        sys.exit("a number is more than four standard errors off")


if __name__ == "__main__":
    main()
